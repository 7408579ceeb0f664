//! Heads that are killed under load: how long their volume is away, and whether it has what was acknowledged.

use super::{ADMIN, RTT, Site, TARGETS, target_commands};
use crate::link;
use crate::process::Guard;
use crate::report::{Samples, Section, met};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_block::{BlockDevice, Blocking};
use longhaul_initiator::{MultipathDevice, Options, PathState, RemoteDevice, Uri};
use longhaul_load::AcknowledgedWrites;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest that a volume may be away, in seconds.
const CEILING: f64 = 10.0;
/// Kills for each round of other measurements.
const KILLS: u32 = 10;
const SIZE: &str = "1GiB";
/// The hosts that serve the volume in turn, with the addresses of their heads.
const HOSTS: [(&str, &str); 2] = [("one", "127.0.0.1:4431"), ("two", "127.0.0.1:4432")];
/// Writers, each with so many blocks of its own, of so many bytes: a part of a stripe unit.
const WRITERS: usize = 16;
const EACH: usize = 64;
const BLOCK: usize = 16 << 10;
/// The block that is written to see when the volume is there again.
const PROBE: usize = WRITERS * EACH;
/// Load before a kill, in seconds: the least and the most.
const BEFORE: (f64, f64) = (0.3, 2.3);
/// Keep-alive timeout of a host that knows one head.
const KATO: Duration = Duration::from_secs(2);
/// The longest that a host takes to have a path again.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Where the volume is served next.
#[derive(Clone, Copy, PartialEq)]
enum Successor {
    /// The other head stands by, and the host has paths to both.
    StandsBy,
    /// The other head is started after the kill, and the host connects to that one.
    Started,
}

/// What a kill has done.
struct Kill {
    /// Seconds from the signal until a write is acknowledged that was begun after it.
    away: f64,
    /// Blocks without what was acknowledged.
    lost: u64,
    /// Requests that have failed.
    failed: u64,
    /// The emulator was on time.
    on_time: bool,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "targets, round trip",
        "the other head",
        "kills",
        "writes acknowledged",
        "lost",
        "= 0",
        "requests failed",
        "service again, s",
        "≤ 10 s",
    ];
    let mut section = Section::new("heads", &header);
    let heads = Heads::new(setup)?;
    let mut late = 0;
    // Of a new volume, which reads as zeroes.
    let writes = AcknowledgedWrites::new(fastrand::u64(..), PROBE + 1, BLOCK);
    for (successor, name) in
        [(Successor::StandsBy, "stands by"), (Successor::Started, "is started after the kill")]
    {
        let before = writes.count();
        let kills = heads.killed(successor, setup.rounds * KILLS, &writes)?;
        let away = Samples::of(&kills, |kill| kill.away);
        let sum = |count: fn(&Kill) -> u64| kills.iter().map(count).sum::<u64>();
        let (lost, failed) = (sum(|kill| kill.lost), sum(|kill| kill.failed));
        late += sum(|kill| u64::from(!kill.on_time));
        section.keep(&format!("the other head {name}"), "time to service", "s", &away);
        section.row(vec![
            format!("{TARGETS}, {}", link::round_trip(RTT)),
            name.into(),
            kills.len().to_string(),
            (writes.count() - before).to_string(),
            lost.to_string(),
            met(lost == 0).into(),
            if successor == Successor::StandsBy { failed.to_string() } else { "–".into() },
            away.show(1.0, 2),
            met(away.most() <= CEILING).into(),
        ]);
    }
    section.each =
        Some(format!("Each time: median (least–most) of {} kills, one after another", setup.rounds * KILLS));
    section.notes.push(format!(
        "A volume of {SIZE}, layout parity over {TARGETS} members, is served by one of two heads in turn, which are beside \
         the host, with the links between them and the targets. {WRITERS} writers write blocks of {} KiB at random, each \
         {EACH} of its own. After {} to {} s of that the head gets SIGKILL. Time to service: from the signal until a write \
         is acknowledged that was begun after it; judged by the longest. Then all blocks are read: each sector has to have \
         the last acknowledged write, or one that was begun after it; a block without an acknowledged write may have zeroes \
         as well, and nothing else. A host that knows one head has its requests fail when that is killed. No kill is left out; the emulator was late in {late} of them",
        BLOCK >> 10,
        BEFORE.0,
        BEFORE.1,
    ));
    section.commands = target_commands();
    section.commands.extend([
        "longhaul pool create bench --target 10.77.1.2 …".to_owned(),
        format!(
            "longhaul volume create bench/v --size {SIZE} --layout parity --for {} --for {}",
            nqn(0),
            nqn(1)
        ),
        format!(
            "longhaul target --insecure --listen {} --export x=volume:bench/v,standby --hostnqn {}",
            HOSTS[0].1,
            nqn(0)
        ),
        format!(
            "longhaul target --insecure --listen {} --export x=volume:bench/v,standby --hostnqn {}  # with other state",
            HOSTS[1].1,
            nqn(1)
        ),
        "kill -KILL PID  # of the one that serves, under load".to_owned(),
    ]);
    Ok(section)
}

fn nqn(host: usize) -> String {
    format!("nqn.2014-08.org.example:{}", HOSTS[host].0)
}

/// A volume that either of two hosts can serve.
struct Heads {
    site: Site,
}

/// A host that serves the volume, or stands by.
struct Head {
    host: usize,
    process: Guard,
    uri: String,
}

impl Head {
    /// Waits until it has this access to the volume.
    fn access(&mut self, access: &str) -> Result<()> {
        loop {
            let line = self.process.line()?;
            ensure!(!line.is_empty(), "the head of host {} has ended", HOSTS[self.host].0);
            let event: Value = serde_json::from_str(&line)?;
            if event["event"] == "access" && event["access"] == access {
                return Ok(());
            }
        }
    }

    /// Ends it as a crash does; when that was.
    fn kill(&mut self) -> Result<Instant> {
        self.process.0.kill().context("cannot kill a head")?;
        let killed = Instant::now();
        self.process.0.wait()?;
        Ok(killed)
    }
}

impl Heads {
    fn new(setup: &Setup) -> Result<Heads> {
        let site = Site::start(setup)?;
        site.run(&site.create())?;
        let hosts = [nqn(0), nqn(1)];
        let volume = ["volume", "create", "bench/v", "--size", SIZE, "--layout", "parity"];
        site.run(&[&volume[..], &["--for", &hosts[0], "--for", &hosts[1]]].concat())?;
        let heads = Heads { site };
        let catalog = format!("file:{}", heads.site.home.path().join("longhaul/catalog").display());
        for host in 0..HOSTS.len() {
            // It knows the pool from here on.
            let mut command = heads.command(host);
            command.args(["pool", "status", "bench", "--catalog", &catalog, "--hostnqn", ADMIN]);
            crate::program::finish(&mut command, &heads.site.setup).context("pool status")?;
        }
        Ok(heads)
    }

    /// The program on one of the hosts, which has its own state.
    fn command(&self, host: usize) -> Command {
        let home: PathBuf = self.site.home.path().join(HOSTS[host].0);
        let mut command = self.site.setup.load.clone().at_home(&home).command(&self.site.setup.program);
        command.env("XDG_CONFIG_HOME", &home);
        command
    }

    /// Starts a head. One that does not stand by serves the volume when this returns.
    fn start(&self, host: usize, successor: Successor) -> Result<Head> {
        let option = if successor == Successor::StandsBy { ",standby" } else { "" };
        let mut command = self.command(host);
        command
            .args([
                "target",
                "--json",
                "--insecure",
                "--discovery",
                "none",
                "--threads",
                "1",
                "--listen",
                HOSTS[host].1,
            ])
            .args(["--export", &format!("x=volume:bench/v{option}"), "--hostnqn", &nqn(host)])
            .args(["--congestion", &self.site.setup.congestion])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Guard(self.site.setup.load.start(&mut command)?);
        let ready = process.ready().with_context(|| format!("the head of host {}", HOSTS[host].0))?;
        let uri = ready["exports"][0]["uri"].as_str().context("a head without an export")?.to_owned();
        Ok(Head { host, process, uri })
    }

    /// Opens a device from where the heads are.
    fn open<T: BlockDevice + 'static>(
        &self,
        uri: &str,
        options: Options,
        connect: fn(&Uri, Options) -> longhaul_initiator::Result<Arc<T>>,
    ) -> Result<(Arc<T>, Blocking)> {
        let uri: Uri = uri.parse()?;
        self.site.setup.load.run(|| {
            let device = connect(&uri, options)?;
            let io = Blocking::open(Arc::<T>::clone(&device))?;
            Ok((device, io))
        })?
    }

    fn killed(&self, successor: Successor, kills: u32, writes: &AcknowledgedWrites) -> Result<Vec<Kill>> {
        match successor {
            Successor::StandsBy => self.killed_beside_another(kills, writes),
            Successor::Started => self.killed_alone(kills, writes),
        }
    }

    fn killed_beside_another(&self, kills: u32, writes: &AcknowledgedWrites) -> Result<Vec<Kill>> {
        let start = |host| self.start(host, Successor::StandsBy);
        let mut heads = [start(0)?, start(1)?];
        heads[0].access("optimized")?;
        let both = format!("{},{}", HOSTS[0].1, HOSTS[1].1);
        let uri = heads[0].uri.replace(HOSTS[0].1, &both);
        let (paths, device) = self.open(&uri, Options::default(), MultipathDevice::connect_blocking)?;
        let mut all = Vec::new();
        for serving in (0..HOSTS.len()).cycle().take(kills as usize) {
            let other = 1 - serving;
            await_path(&paths, HOSTS[other].1)?;
            let killed = || kill_one(&mut heads[serving], writes, &device, || Ok(None));
            let ((kill, _), on_time) = self.site.link.once(killed)?;
            all.push(Kill { on_time, ..kill });
            heads[other].access("optimized")?;
            heads[serving] = start(serving)?;
        }
        Ok(all)
    }

    fn killed_alone(&self, kills: u32, writes: &AcknowledgedWrites) -> Result<Vec<Kill>> {
        let connected = |head: &Head| {
            let options = Options { ctrl_loss: Some(Duration::ZERO), kato: KATO, ..Options::default() };
            anyhow::Ok(self.open(&head.uri, options, RemoteDevice::connect_blocking)?.1)
        };
        let mut head = self.start(0, Successor::Started)?;
        let mut device = connected(&head)?;
        let mut all = Vec::new();
        for _ in 0..kills {
            let (host, mut next) = (1 - head.host, None);
            let again = || connected(next.insert(self.start(host, Successor::Started)?)).map(Some);
            let ((kill, again), on_time) =
                self.site.link.once(|| kill_one(&mut head, writes, &device, again))?;
            all.push(Kill { on_time, ..kill });
            head = next.context("no head was started")?;
            device = again.context("no device was opened")?;
        }
        Ok(all)
    }
}

/// Waits until a host has its path to a head that stands by.
fn await_path(paths: &MultipathDevice, address: &str) -> Result<()> {
    let began = Instant::now();
    let is_there =
        || paths.paths().iter().any(|path| path.address == address && path.state == PathState::Inaccessible);
    while !is_there() {
        ensure!(began.elapsed() < PATIENCE, "no path to the head at {address}: {:?}", paths.paths());
        sleep(LOOK);
    }
    Ok(())
}

/// Kills a head under load, and reads what was written. `again` opens the device where it is served next; without a
/// device from there the same one goes on.
fn kill_one(
    head: &mut Head,
    writes: &AcknowledgedWrites,
    device: &Blocking,
    again: impl FnOnce() -> Result<Option<Blocking>>,
) -> Result<(Kill, Option<Blocking>)> {
    let (failed, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let load = |writer: usize| {
        while !is_over.load(Ordering::SeqCst) {
            if writes.write(device, writer * EACH + fastrand::usize(..EACH)).is_err() {
                failed.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
    };
    let measure = || {
        let before = writes.count();
        sleep(Duration::from_secs_f64(BEFORE.0 + (BEFORE.1 - BEFORE.0) * fastrand::f64()));
        ensure!(writes.count() > before, "no write was acknowledged before the kill");
        let killed = head.kill()?;
        let next = again()?;
        writes.write(next.as_ref().unwrap_or(device), PROBE)?;
        Ok((killed.elapsed().as_secs_f64(), next))
    };
    let measured = std::thread::scope(|scope| {
        let load = &load;
        (0..WRITERS).for_each(|writer| drop(scope.spawn(move || load(writer))));
        let measured = measure();
        is_over.store(true, Ordering::SeqCst);
        measured
    });
    let (away, next) = measured?;
    let lost = lost(writes, next.as_ref().unwrap_or(device))?;
    let failed = failed.into_inner();
    eprintln!("  service again after {away:.2} s, {lost} blocks lost, {failed} requests failed");
    Ok((Kill { away, lost, failed, on_time: true }, next))
}

/// Reads all blocks; the number of those without what was acknowledged.
fn lost(writes: &AcknowledgedWrites, device: &Blocking) -> Result<u64> {
    let check = |blocks: std::ops::Range<usize>| {
        let mut lost = 0;
        for block in blocks {
            if let Err(fault) = writes.check(device, block)? {
                eprintln!("  {fault}");
                lost += 1;
            }
        }
        anyhow::Ok(lost)
    };
    std::thread::scope(|scope| {
        let check = &check;
        let parts = (0..=PROBE).step_by(EACH).map(|from| from..(from + EACH).min(PROBE + 1));
        let parts: Vec<_> = parts.map(|blocks| scope.spawn(move || check(blocks))).collect();
        let lost = parts.into_iter().map(|part| part.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        lost.sum::<Result<u64>>()
    })
}
