//! Questions that only some copies give reason to ask: each costs time, and an
//! answer that changes nothing is not worth it.

use super::ladder::{CopyResult, CopySettings, Ladder, Rung, lookup};
use super::{Args, BEST_OF, FEW, LadderResults, in_turn, quickest, slowest};
use crate::exit::Failure;
use longhaul_bench::host::Host;
use longhaul_bench::record::{Better, Cell};
use longhaul_report::cause::{Congestion, Pair, SLOW_FILE, Seen};
use longhaul_report::model::Fit;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Share of the longest stage from which on the network is looked at.
const MATTERS: f64 = 0.5;
/// Share of segments sent again from which on it is asked when that happens.
const LOSS: f64 = 0.001;
/// Share of the time over the path that encryption takes on one machine alone,
/// from which on it is what limits.
const BOUND: f64 = 0.7;
/// How much longer it takes with a checksum or encryption than without before the
/// copy itself is tried so.
const COSTS: f64 = 1.1;

/// How long an agent on this machine may take to start.
const STARTS: Duration = Duration::from_secs(60);

/// Asks. `network` is the best copy of nothing over the path. A question that finds no
/// answer is noted, and the others are asked all the same.
pub(super) fn ask(
    args: &Args,
    ladder: &mut Ladder,
    now: &CopySettings,
    (network, copy): (Option<&CopyResult>, Option<&CopyResult>),
    seen: &mut Seen,
    results: &mut LadderResults,
) -> Result<(), Failure> {
    let files = args.files;
    let asked = lookups(files, ladder, now, seen);
    results.note("how long it takes to say what a file is", asked, ladder)?;
    let time = |fit: &Option<Fit>| fit.map_or(0.0, |fit| fit.predict(seen.files, seen.bytes));
    let longest = seen.stages.iter().map(time).fold(0.0, f64::max);
    if let Some(network) = network
        && time(&seen.stages[1]) >= MATTERS * longest
    {
        let asked = controls(ladder, files, now, network);
        seen.congestion = results.note("other congestion controls", asked, ladder)?.flatten();
        if network.sockets.retransmitted > LOSS {
            let rate = (network.bytes as f64 * 4.0 / network.seconds) as u64;
            let how = CopySettings { rate: Some(rate.max(8)), ..now.clone() };
            let half = ladder.copy(Rung::Network, FEW, &how);
            let half = results.note("half the rate", half, ladder)?;
            if let (Some(sockets), Some(half)) = (&mut seen.sockets, half) {
                sockets.at_half_rate = Some(half.sockets.retransmitted);
            }
        }
    }
    let asked = checksums(ladder, files, now, &mut results.cells);
    seen.checksum = results.note("checksums", asked, ladder)?.flatten();
    let whole = copy.map_or(f64::INFINITY, |copy| copy.seconds);
    let asked = encryption(ladder, (network, whole), now, seen, &mut results.cells);
    seen.encryption = results.note("encryption", asked, ladder)?.flatten();
    Ok(())
}

/// How long it takes to say what a file is, where each takes long.
fn lookups(files: u32, ladder: &mut Ladder, now: &CopySettings, seen: &mut Seen) -> Result<(), Failure> {
    let slow = seen.stages.map(|stage| stage.is_some_and(|fit| fit.t0.value >= SLOW_FILE));
    if slow[0] {
        seen.hosts[0].lookup = lookup(&ladder.near(files));
    }
    if slow[2] {
        // What is there has to be of as many files.
        ladder.copy_and_keep(Rung::Whole, files, now)?;
        seen.hosts[1].lookup = Some(ladder.far_lookup(files)?);
    }
    Ok(())
}

/// The same copy with each other congestion control that this machine has.
fn controls(
    ladder: &mut Ladder,
    files: u32,
    now: &CopySettings,
    network: &CopyResult,
) -> Result<Option<Congestion>, Failure> {
    let Some(name) = network.congestion.clone() else { return Ok(None) };
    let others = Host::here().congestion_available.into_iter().filter(|other| *other != name);
    let other = |name| CopySettings { congestion: Some(name), ..now.clone() };
    let all: Vec<CopySettings> = std::iter::once(now.clone()).chain(others.map(other)).collect();
    let mut times = vec![Vec::new(); all.len()];
    for _ in 0..BEST_OF {
        for (how, times) in all.iter().zip(&mut times) {
            match ladder.copy(Rung::Whole, files, how) {
                Ok(took) => times.push(took.seconds),
                // A setting that needs privileges this user lacks is not a candidate.
                Err(e) if how == now || ladder.stopped() => return Err(e),
                Err(_) => {}
            }
        }
    }
    let mut times = all.into_iter().zip(times);
    let seconds = times.next().map_or(f64::INFINITY, |(_, times)| quickest(&times));
    let others = times.filter(|(_, times)| !times.is_empty());
    let others = others.filter_map(|(how, times)| Some((how.congestion?, quickest(&times)))).collect();
    Ok(Some(Congestion { now: name, seconds, others }))
}

fn timed(cells: &mut Vec<Cell>, name: &str, took: &CopyResult) {
    let mut cell = Cell::new(name, "s", Better::Lower);
    cell.push(took.seconds, &took.run.validity);
    cells.push(cell);
}

/// With and without a strong checksum: on this machine, over the path, and the
/// copy itself where that is what it has.
fn checksums(
    ladder: &mut Ladder,
    files: u32,
    now: &CopySettings,
    cells: &mut Vec<Cell>,
) -> Result<Option<Pair>, Failure> {
    let rungs = if ladder.is_local() { &[Rung::Local][..] } else { &[Rung::Local, Rung::Network] };
    let mut costs = false;
    for rung in rungs {
        let mut took = [0.0; 2];
        for (took, checksum) in took.iter_mut().zip(["xxh3", "blake3"]) {
            let copy = ladder.copy(*rung, FEW, &CopySettings { checksum, ..now.clone() })?;
            timed(cells, &format!("{}, checksum {checksum}", rung.name()), &copy);
            *took = copy.seconds;
        }
        costs |= took[1] >= COSTS * took[0];
    }
    if now.checksum != "blake3" || !costs {
        return Ok(None);
    }
    let both = [now.clone(), CopySettings { checksum: "xxh3", ..now.clone() }];
    let [with, without] = in_turn(BEST_OF, &both, |how| Ok(ladder.copy(Rung::Whole, files, how)?.seconds))?;
    // What overlaps is noise.
    let less = slowest(&without) < quickest(&with);
    Ok(less.then(|| Pair { with: quickest(&with), without: quickest(&without) }))
}

/// With and without encryption, to agents on this machine: the one at the other
/// end has a key or has none. Where that alone takes about as long as the path,
/// it is what limits the copy.
fn encryption(
    ladder: &mut Ladder,
    (network, whole): (Option<&CopyResult>, f64),
    now: &CopySettings,
    seen: &Seen,
    cells: &mut Vec<Cell>,
) -> Result<Option<Pair>, Failure> {
    let (Some(network), Some(key)) = (network, ladder.key()) else { return Ok(None) };
    let mut took = [0.0; 2];
    for (took, key) in took.iter_mut().zip([Some(key.as_path()), None]) {
        let agent = LocalAgent::start(key)?;
        let copy = ladder.sent_to(&agent.uri, key, now)?;
        let name = if key.is_some() { "local, encrypted" } else { "local, not encrypted" };
        timed(cells, name, &copy);
        *took = copy.seconds;
    }
    let [with, without] = took;
    if with < COSTS * without || with < BOUND * network.seconds {
        return Ok(None);
    }
    // Nothing else becomes faster by it, and the rest takes what it takes.
    let rest = seen.stages[0].map_or(0.0, |read| read.predict(seen.files, seen.bytes));
    let least = rest.max(without);
    Ok(Some(Pair { with: whole, without: (whole - (with - without)).max(least) }))
}

/// An agent on this machine that keeps nothing; it ends when it is dropped.
struct LocalAgent {
    child: Child,
    uri: String,
    _root: EmptyDir,
}

/// An empty directory of its own.
struct EmptyDir(std::path::PathBuf);

impl Drop for EmptyDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl LocalAgent {
    fn start(key: Option<&Path>) -> Result<LocalAgent, Failure> {
        let root = EmptyDir(std::env::temp_dir().join(format!("longhaul-nowhere-{}", std::process::id())));
        std::fs::create_dir(&root.0).map_err(Failure::failed)?;
        let mut command = Command::new(crate::again::program()?);
        command.args(["agent", "--listen", "127.0.0.1:0", "--json", "--read-only", "--root"]).arg(&root.0);
        match key {
            Some(key) => command.arg("--key-file").arg(key),
            None => command.arg("--insecure"),
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Failure::failed)?;
        let out = child.stdout.take();
        let mut agent = LocalAgent { child, uri: String::new(), _root: root };
        let (tx, first) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if let Some(out) = out {
                // The line stays empty if the agent has ended.
                let _ = BufReader::new(out).read_line(&mut line);
            }
            // After a timeout the receiver is gone, and the line is dropped.
            let _ = tx.send(line);
        });
        let line = first.recv_timeout(STARTS).unwrap_or_default();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let uri = ready["uri"].as_str().map(|uri| format!("{}/null:", uri.trim_end_matches('/')));
        agent.uri = uri.ok_or_else(|| Failure::failed("no agent can be started on this machine"))?;
        Ok(agent)
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
