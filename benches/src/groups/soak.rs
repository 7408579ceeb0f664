//! A target under a verified load, through what happens to one in years: connections, reloads, cuts, rebuilds,
//! upgrades; what it keeps of each, and whether the load notices.

use crate::link::{self, Link};
use crate::process::{self, Guard};
use crate::program;
use crate::report::{Section, met};
use crate::setup::Setup;
use anyhow::{Context, Result, bail, ensure};
use longhaul_block::Blocking;
use longhaul_engine::procfs::Process;
use longhaul_initiator::{Options, RemoteDevice, Uri};
use longhaul_load::AcknowledgedWrites;
use longhaul_wan::{Change, Conditions};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const RATE: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(1);
/// How often each piece is repeated.
const CONNECTS: u32 = 2000;
const RELOADS: u32 = 200;
const CUTS: u32 = 50;
const REBUILDS: u32 = 20;
const UPGRADES: u32 = 20;
/// How long a link is cut.
const CUT: Duration = Duration::from_secs(1);
/// Writers, each with so many blocks of its own, of so many bytes.
const WRITERS: usize = 4;
const EACH: usize = 512;
const BLOCK: usize = 16 << 10;
/// Members of the array that is rebuilt, two at a time.
const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
const MEMBER: &str = "mem:64MiB";
/// What may be more afterwards: of resident memory a tenth and some pages of buffers, and descriptors that have
/// not been closed yet.
const SLACK: u64 = 8 << 20;
const DESCRIPTORS: usize = 4;
/// The longest that the load may wait in an upgrade, in seconds.
const PAUSE: f64 = 1.0;
/// The longest that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// The first descriptor that a service manager passes on (sd_listen_fds(3)).
const FIRST: RawFd = 3;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "what",
        "times",
        "took, s",
        "writes meanwhile",
        "errors",
        "= 0",
        "longest write, s",
        "≤ 1 s",
        "resident memory, MiB",
        "descriptors",
        "no growth",
    ];
    let mut section = Section::new("soak", &header);
    let link = Link::start(Conditions::new(RTT, Some(RATE)), None)?;
    let here = link.setup(setup, 1);
    let soak = Soak::start(&here, &link)?;
    let wrong = soak.run(&mut section)?;
    ensure!(wrong == 0, "{wrong} blocks have not what was written to them last");
    section.each = Some("Each line: once, one after another in one run".into());
    section.notes.push(format!(
        "{WRITERS} threads write blocks of {} KiB to a file that the target serves, one at a time each, over {} and {}, all \
         the time; in the end each of the {} blocks had its last write. Of a connection, a block is read. Each reload \
         adds or removes an export. A cut takes {} s. A rebuild is `array replace` of a member of a mirror of 64 MiB, whose \
         three devices are of the same target. In an upgrade the target gets SIGTERM and another process its listening \
         socket, as a service manager does it. Memory and descriptors of the target before and after, with the same load; \
         after upgrades they are those of another process",
        BLOCK >> 10,
        link::rate(RATE),
        link::round_trip(RTT),
        WRITERS * EACH,
        CUT.as_secs(),
    ));
    section.commands = vec![
        "longhaul wan --rtt 1ms --rate 1Gbit --name link &".into(),
        "ip netns exec link-server systemd-socket-activate --listen 10.77.1.2:4420 longhaul target --insecure".into(),
        "kill -HUP PID; longhaul wan set link --cut; longhaul array replace soak --member 0 --device URI".into(),
    ];
    Ok(section)
}

/// What the load has seen.
struct Load {
    writes: AcknowledgedWrites,
    errors: AtomicU64,
    /// Of the writes since it was asked for, in microseconds.
    longest: AtomicU64,
    ended: AtomicBool,
}

impl Load {
    /// Writes until the end.
    fn write(&self, device: &Blocking, writer: usize) {
        let mut random = fastrand::Rng::new();
        while !self.ended.load(SeqCst) {
            let block = writer * EACH + random.usize(..EACH);
            let began = Instant::now();
            if self.writes.write(device, block).is_err() {
                self.errors.fetch_add(1, SeqCst);
                sleep(LOOK);
            }
            self.longest.fetch_max(began.elapsed().as_micros() as u64, SeqCst);
        }
    }

    /// Waits until writes are acknowledged that were begun after this call.
    fn goes_on(&self) -> Result<()> {
        let enough = self.writes.count() + 2 * WRITERS as u64;
        wait_until("the load to go on", || Ok(self.writes.count() >= enough))
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !holds()? {
        ensure!(began.elapsed() < PATIENCE, "waited for {what} for {PATIENCE:?}");
        sleep(LOOK);
    }
    Ok(())
}

/// Resident memory in bytes, and open descriptors.
#[derive(Clone, Copy)]
struct Held {
    resident: u64,
    descriptors: usize,
}

struct Soak<'a> {
    setup: &'a Setup,
    link: &'a Link,
    home: TempDir,
    listener: TcpListener,
    process: Guard,
}

impl<'a> Soak<'a> {
    fn start(setup: &'a Setup, link: &'a Link) -> Result<Soak<'a>> {
        let home = tempfile::Builder::new().prefix("longhaul-soak-").tempdir_in(&setup.dir)?;
        fs::create_dir(home.path().join("longhaul"))?;
        let address = setup.target.address;
        let listener = setup.target.run(|| TcpListener::bind((address, 0)))??;
        configure(home.path(), false)?;
        let process = serve(setup, home.path(), &listener)?;
        Ok(Soak { setup, link, home, listener, process })
    }

    fn uri(&self, export: &str) -> Result<String> {
        Ok(format!("nvme+tcp://{}/{export}", self.listener.local_addr()?))
    }

    /// All pieces. Returns how many blocks are wrong in the end.
    fn run(mut self, section: &mut Section) -> Result<usize> {
        let uri: Uri = self.uri("data")?.parse()?;
        let device = self.setup.load.run(|| -> Result<Blocking> {
            Ok(Blocking::open(RemoteDevice::connect_blocking(&uri, Options::default())?)?)
        })??;
        let load = Load {
            writes: AcknowledgedWrites::new(fastrand::u64(..), WRITERS * EACH, BLOCK),
            errors: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (device, load) = (&device, &load);
                scope.spawn(move || load.write(device, writer));
            }
            let done = self.pieces(&load, &uri, section);
            load.ended.store(true, SeqCst);
            done
        })?;
        let mut wrong = 0;
        for block in 0..load.writes.blocks() {
            wrong += usize::from(load.writes.check(&device, block)?.is_err());
        }
        Ok(wrong)
    }

    fn pieces(&mut self, load: &Load, uri: &Uri, section: &mut Section) -> Result<()> {
        load.goes_on()?;
        self.piece(section, load, ("connections", CONNECTS), false, |soak| soak.connects(uri))?;
        self.piece(section, load, ("reloads", RELOADS), false, Soak::reloads)?;
        self.piece(section, load, ("link cuts", CUTS), false, |soak| soak.cuts(load))?;
        self.piece(section, load, ("rebuilds", REBUILDS), false, Soak::rebuilds)?;
        self.piece(section, load, ("upgrades", UPGRADES), true, |soak| soak.upgrades(load))
    }

    fn piece(
        &mut self,
        section: &mut Section,
        load: &Load,
        (what, times): (&str, u32),
        is_upgrade: bool,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.held()?;
        let (writes, errors) = (load.writes.count(), load.errors.load(SeqCst));
        load.longest.store(0, SeqCst);
        let began = Instant::now();
        work(self).with_context(|| what.to_owned())?;
        let took = began.elapsed().as_secs_f64();
        load.goes_on()?;
        // Connections of the piece end by themselves.
        let mut after = self.held()?;
        let _ = wait_until("descriptors to be closed", || {
            after = self.held()?;
            Ok(after.descriptors <= before.descriptors + DESCRIPTORS)
        });
        let longest = load.longest.load(SeqCst) as f64 / 1e6;
        let errors = load.errors.load(SeqCst) - errors;
        let grown = after.resident > before.resident + before.resident / 10 + SLACK
            || after.descriptors > before.descriptors + DESCRIPTORS;
        eprintln!("  {what}: {took:.1} s, longest write {longest:.3} s, {errors} errors");
        section.row(vec![
            what.to_owned(),
            times.to_string(),
            format!("{took:.0}"),
            (load.writes.count() - writes).to_string(),
            errors.to_string(),
            met(errors == 0).into(),
            format!("{longest:.2}"),
            if is_upgrade { met(longest <= PAUSE) } else { "–" }.into(),
            format!("{} → {}", before.resident >> 20, after.resident >> 20),
            format!("{} → {}", before.descriptors, after.descriptors),
            met(!grown).into(),
        ]);
        Ok(())
    }

    fn held(&self) -> Result<Held> {
        let pid = self.process.pid();
        let resident = Process::of(pid).resident().context("the target has ended")?;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok(Held { resident, descriptors })
    }

    fn connects(&self, uri: &Uri) -> Result<()> {
        self.setup.load.run(|| -> Result<()> {
            let mut block = vec![0; BLOCK];
            for _ in 0..CONNECTS {
                let device = RemoteDevice::connect_blocking(uri, Options::default())?;
                Blocking::open(device)?.read_at(&mut block, 0)?;
            }
            Ok(())
        })?
    }

    fn reloads(&mut self) -> Result<()> {
        for n in 0..RELOADS {
            configure(self.home.path(), n % 2 == 0)?;
            process::signal(self.process.pid(), libc::SIGHUP)?;
            loop {
                let event: Value = serde_json::from_str(&self.process.line()?)?;
                match event["event"].as_str() {
                    Some("reloaded") => break,
                    Some("not_reloaded") => bail!("{event}"),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn cuts(&self, load: &Load) -> Result<()> {
        for _ in 0..CUTS {
            self.link.set(&Change::cut())?;
            sleep(CUT);
            self.link.set(&Change::restore())?;
            load.goes_on()?;
        }
        Ok(())
    }

    fn rebuilds(&mut self) -> Result<()> {
        let uris = MEMBERS.iter().map(|member| self.uri(member)).collect::<Result<Vec<_>>>()?;
        let array = |args: &[&str]| {
            let place = self.setup.load.clone().at_home(&self.home.path().join("host"));
            program::finish(place.command(&self.setup.program).arg("array").args(args), self.setup)
        };
        array(&["create", "soak", "--layout", "mirror", "--device", &uris[0], "--device", &uris[1]])?;
        let (mut members, mut free) = ([&uris[0], &uris[1]], &uris[2]);
        for n in 0..REBUILDS as usize {
            let member = n % members.len();
            array(&["replace", "soak", "--force", "--member", &member.to_string(), "--device", free])?;
            std::mem::swap(&mut members[member], &mut free);
        }
        Ok(())
    }

    fn upgrades(&mut self, load: &Load) -> Result<()> {
        for _ in 0..UPGRADES {
            let old = self.process.pid();
            process::signal(old, libc::SIGTERM)?;
            ensure!(process::ends_within(old, PATIENCE), "the target does not end");
            self.process = serve(self.setup, self.home.path(), &self.listener)?;
            load.goes_on()?;
        }
        Ok(())
    }
}

/// Writes the configuration of the target, with or without one export more.
fn configure(home: &Path, more: bool) -> Result<()> {
    let data = home.join("data").display().to_string().replace(',', ",,");
    let mut exports = vec![format!("data=file:{data},size=64MiB")];
    exports.extend(MEMBERS.iter().map(|member| format!("{member}={MEMBER}")));
    exports.extend(more.then(|| "more=mem:1MiB".to_owned()));
    let text = format!("[target]\nexport = {}\n", serde_json::to_string(&exports)?);
    Ok(fs::write(home.join("longhaul/config.toml"), text)?)
}

/// Starts a target that gets the listening socket as from a service manager, and waits until it is ready.
fn serve(setup: &Setup, home: &Path, listener: &TcpListener) -> Result<Guard> {
    let mut command = setup.target.command("sh");
    command
        // The number of the process is known to itself alone.
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\""])
        .arg(&setup.program)
        .args(["target", "--json", "--insecure", "--discovery", "none", "--threads", "1"])
        .args(["--congestion", &setup.congestion])
        .env("XDG_CONFIG_HOME", home)
        .env("XDG_STATE_HOME", home.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let given = listener.as_raw_fd();
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(move || process::pass(given, FIRST)) };
    let mut process = Guard(setup.target.start(&mut command)?);
    process.ready().context("the target did not start")?;
    Ok(process)
}
