//! Questions that only some copies give reason to ask: each costs time, and an
//! answer that changes nothing is not worth it.

use super::ladder::{How, Ladder, Rung, Took, lookup};
use super::{Args, BEST_OF, FEW};
use crate::exit::Failure;
use longhaul_bench::host::Host;
use longhaul_bench::record::{Better, Cell, Validity};
use longhaul_report::cause::{Congestion, Pair, SLOW_FILE, Seen};
use longhaul_report::model::Fit;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

/// Asks. `network` is the best copy of nothing over the path, `copy` that of files.
pub(super) fn ask(
    args: &Args,
    ladder: &mut Ladder,
    now: &How,
    (network, copy): (Option<&Took>, Option<&Took>),
    seen: &mut Seen,
    cells: &mut Vec<Cell>,
) -> Result<(), Failure> {
    let files = args.files;
    lookups(files, ladder, now, seen)?;
    let time = |fit: &Option<Fit>| fit.map_or(0.0, |fit| fit.predict(seen.files, seen.bytes));
    let longest = seen.stages.iter().map(time).fold(0.0, f64::max);
    if let Some(network) = network
        && time(&seen.stages[1]) >= MATTERS * longest
    {
        seen.congestion = controls(ladder, files, now, network)?;
        let lost = network.sockets.retransmitted;
        if lost > LOSS {
            let rate = (network.bytes as f64 * 4.0 / network.seconds) as u64;
            let half = ladder.copy(Rung::Network, FEW, &How { rate: Some(rate.max(8)), ..now.clone() })?;
            if let Some(sockets) = &mut seen.sockets {
                sockets.at_half_rate = Some(half.sockets.retransmitted);
            }
        }
    }
    let whole = copy.map_or(f64::INFINITY, |copy| copy.seconds);
    checksums(ladder, (files, whole), now, seen, cells)?;
    encryption(args, ladder, (network, whole), now, seen, cells)
}

/// How long it takes to say what a file is, where each takes long.
fn lookups(files: u32, ladder: &mut Ladder, now: &How, seen: &mut Seen) -> Result<(), Failure> {
    let slow = seen.stages.map(|stage| stage.is_some_and(|fit| fit.t0.value >= SLOW_FILE));
    if slow[0] {
        seen.hosts[0].lookup = lookup(&ladder.near(files));
    }
    if slow[2] {
        // What is there has to be of as many files.
        ladder.copy(Rung::Whole, files, now)?;
        seen.hosts[1].lookup = Some(ladder.far_lookup(files)?);
    }
    Ok(())
}

/// The same copy with each other congestion control that this machine has.
fn controls(
    ladder: &mut Ladder,
    files: u32,
    now: &How,
    network: &Took,
) -> Result<Option<Congestion>, Failure> {
    let Some(name) = network.congestion.clone() else { return Ok(None) };
    let mut best = |how: &How| {
        let mut seconds = f64::INFINITY;
        for _ in 0..BEST_OF {
            seconds = seconds.min(ladder.copy(Rung::Whole, files, how)?.seconds);
        }
        Ok::<_, Failure>(seconds)
    };
    let seconds = best(now)?;
    let mut others = Vec::new();
    for other in Host::here().congestion_available.into_iter().filter(|other| *other != name) {
        let how = How { congestion: Some(other.clone()), ..now.clone() };
        // What this user may not have is none of those that help.
        if let Ok(seconds) = best(&how) {
            others.push((other, seconds));
        }
    }
    Ok(Some(Congestion { now: name, seconds, others }))
}

fn timed(cells: &mut Vec<Cell>, name: &str, took: &Took) {
    let mut cell = Cell::new(name, "s", Better::Lower);
    cell.push(took.seconds, &Validity::default());
    cells.push(cell);
}

/// With and without a strong checksum: on this machine, over the path, and the
/// copy itself where that is what it has.
fn checksums(
    ladder: &mut Ladder,
    (files, whole): (u32, f64),
    now: &How,
    seen: &mut Seen,
    cells: &mut Vec<Cell>,
) -> Result<(), Failure> {
    let rungs = if ladder.is_local() { &[Rung::Local][..] } else { &[Rung::Local, Rung::Network] };
    let mut costs = false;
    for rung in rungs {
        let mut took = [0.0; 2];
        for (took, checksum) in took.iter_mut().zip(["xxh3", "blake3"]) {
            let copy = ladder.copy(*rung, FEW, &How { checksum, ..now.clone() })?;
            timed(cells, &format!("{}, checksum {checksum}", rung.name()), &copy);
            *took = copy.seconds;
        }
        costs |= took[1] >= COSTS * took[0];
    }
    if now.checksum == "blake3" && costs {
        let mut without = f64::INFINITY;
        for _ in 0..BEST_OF {
            let quick = How { checksum: "xxh3", ..now.clone() };
            without = without.min(ladder.copy(Rung::Whole, files, &quick)?.seconds);
        }
        seen.checksum = Some(Pair { with: whole, without });
    }
    Ok(())
}

/// With and without encryption, to agents on this machine: the one at the other
/// end has a key or has none. Where that alone takes about as long as the path,
/// it is what limits the copy.
fn encryption(
    args: &Args,
    ladder: &mut Ladder,
    (network, whole): (Option<&Took>, f64),
    now: &How,
    seen: &mut Seen,
    cells: &mut Vec<Cell>,
) -> Result<(), Failure> {
    let (Some(network), Some(key)) = (network, &args.key_file) else { return Ok(()) };
    let mut took = [0.0; 2];
    for (took, key) in took.iter_mut().zip([Some(key.as_path()), None]) {
        let agent = LocalAgent::start(key)?;
        let copy = ladder.sent_to(&agent.uri, key, now)?;
        let name = if key.is_some() { "local, encrypted" } else { "local, not encrypted" };
        timed(cells, name, &copy);
        *took = copy.seconds;
    }
    let [with, without] = took;
    if with >= COSTS * without && with >= BOUND * network.seconds {
        // Nothing else becomes faster by it, and the rest takes what it takes.
        let rest = seen.stages[0].map_or(0.0, |read| read.predict(seen.files, seen.bytes));
        let least = rest.max(without);
        seen.encryption = Some(Pair { with: whole, without: (whole - (with - without)).max(least) });
    }
    Ok(())
}

/// An agent on this machine that keeps nothing; it ends when it is dropped.
struct LocalAgent {
    child: Child,
    uri: String,
    _root: Root,
}

/// An empty directory of its own.
struct Root(std::path::PathBuf);

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl LocalAgent {
    fn start(key: Option<&Path>) -> Result<LocalAgent, Failure> {
        let root = Root(std::env::temp_dir().join(format!("longhaul-nowhere-{}", std::process::id())));
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
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(Failure::failed)?;
        }
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let uri = ready["uri"].as_str().map(|uri| format!("{}/null:", uri.trim_end_matches('/')));
        let mut agent = LocalAgent { child, uri: String::new(), _root: root };
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
