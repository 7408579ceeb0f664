//! Probes of the slowest stage. Each takes time, and runs only if its result can change the
//! findings.

use super::cached::lookup;
use super::climb::FEW;
use super::ladder::Ladder;
use super::rung::{CopyResult, CopySettings, Rung};
use super::turns::{BEST_OF, in_turn, quickest, slowest};
use super::{DiagnoseOptions, LadderResults};
use crate::Error;
use crate::cause::{Congestion, CopyMeasurements, Pair, SLOW_FILE};
use crate::model::Fit;
use longhaul_results::host::Host;
use longhaul_results::record::{Better, Cell};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Share of the longest stage from which on the network is probed.
const MATTERS: f64 = 0.5;
/// Share of retransmitted segments from which on a copy at half the rate is measured.
const LOSS: f64 = 0.001;
/// Encryption limits if a copy with it on this machine takes this share of the time over the
/// path.
const BOUND: f64 = 0.7;
/// Ratio of the times with and without a checksum or encryption from which on its cost matters.
const COSTS: f64 = 1.1;

/// Timeout of the start of an agent on this machine.
const STARTS: Duration = Duration::from_secs(60);

/// Runs the probes. `network` and `copy` are the fastest copies of those rungs. A probe that
/// fails leaves a note, and the others run.
pub(super) fn ask(
    options: &DiagnoseOptions,
    ladder: &mut Ladder,
    now: &CopySettings,
    (network, copy): (Option<&CopyResult>, Option<&CopyResult>),
    seen: &mut CopyMeasurements,
    results: &mut LadderResults,
) -> Result<(), Error> {
    let files = options.files;
    let asked = lookups(files, ladder, now, seen);
    results.note("the time of a metadata request", asked, ladder)?;
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

/// Time of a `stat` at each end where a file costs much.
fn lookups(
    files: u32,
    ladder: &mut Ladder,
    now: &CopySettings,
    seen: &mut CopyMeasurements,
) -> Result<(), Error> {
    let slow = seen.stages.map(|stage| stage.is_some_and(|fit| fit.t0.value >= SLOW_FILE));
    if slow[0] {
        seen.hosts[0].lookup = lookup(&ladder.near(files));
    }
    if slow[2] {
        // The comparison needs a copy of as many files at the destination.
        ladder.copy_and_keep(Rung::Whole, files, now)?;
        seen.hosts[1].lookup = Some(ladder.far_lookup(files)?);
    }
    Ok(())
}

/// The same copy with every other congestion control of this machine.
fn controls(
    ladder: &mut Ladder,
    files: u32,
    now: &CopySettings,
    network: &CopyResult,
) -> Result<Option<Congestion>, Error> {
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

/// Times with and without a strong checksum: on this machine, over the path, and of the copy
/// itself if it has one.
fn checksums(
    ladder: &mut Ladder,
    files: u32,
    now: &CopySettings,
    cells: &mut Vec<Cell>,
) -> Result<Option<Pair>, Error> {
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
    // Overlapping times are noise.
    let less = slowest(&without) < quickest(&with);
    Ok(less.then(|| Pair { with: quickest(&with), without: quickest(&without) }))
}

/// Times with and without encryption, to agents on this machine, since the agent of the
/// destination supports one of them only. Encryption limits if it takes about as long there as
/// over the path.
fn encryption(
    ladder: &mut Ladder,
    (network, whole): (Option<&CopyResult>, f64),
    now: &CopySettings,
    seen: &CopyMeasurements,
    cells: &mut Vec<Cell>,
) -> Result<Option<Pair>, Error> {
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
    // Without encryption, the copy takes at least as long as its read stage.
    let rest = seen.stages[0].map_or(0.0, |read| read.predict(seen.files, seen.bytes));
    let least = rest.max(without);
    Ok(Some(Pair { with: whole, without: (whole - (with - without)).max(least) }))
}

/// An agent on this machine that discards the data, killed on drop.
struct LocalAgent {
    child: Child,
    uri: String,
    _root: EmptyDir,
}

/// An empty directory, removed on drop.
struct EmptyDir(std::path::PathBuf);

impl Drop for EmptyDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl LocalAgent {
    fn start(key: Option<&Path>) -> Result<LocalAgent, Error> {
        let root = EmptyDir(std::env::temp_dir().join(format!("longhaul-nowhere-{}", std::process::id())));
        std::fs::create_dir(&root.0).map_err(Error::failed)?;
        let mut command = Command::new(crate::self_exec::program()?);
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
            .map_err(Error::failed)?;
        let out = child.stdout.take();
        let mut agent = LocalAgent { child, uri: String::new(), _root: root };
        let (tx, first) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if let Some(out) = out {
                // The line stays empty if the agent has ended.
                let _ = BufReader::new(out).read_line(&mut line);
            }
            // After a timeout the receiver was dropped, and so is the line.
            let _ = tx.send(line);
        });
        let line = first.recv_timeout(STARTS).unwrap_or_default();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let uri = ready["uri"].as_str().map(|uri| format!("{}/null:", uri.trim_end_matches('/')));
        agent.uri = uri.ok_or_else(|| Error::failed("no agent can be started on this machine"))?;
        Ok(agent)
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
