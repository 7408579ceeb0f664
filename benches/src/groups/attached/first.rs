//! First use: from nothing to a mounted remote XFS, with the commands that
//! people type, beside other ways to the same end.

use super::{RATE, SIZE};
use crate::link::{self, Link};
use crate::report::{Samples, Section};
use crate::setup::{Place, Setup};
use anyhow::{Context, Result, ensure};
use longhaul_wan::Conditions;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const RTT: Duration = Duration::from_millis(15);

/// Where a command is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Far,
    Here,
}

/// A way to get there. In commands `@` is the work directory, `LONGHAUL` the
/// program, `SERVER` the target's address, `BYTES` the size of the device.
struct Way {
    name: &'static str,
    /// Why it cannot be measured here, if it cannot.
    missing: Option<String>,
    /// What people type; each one is done when the next can begin.
    steps: &'static [(Side, &'static str)],
    /// Takes all of it away, the last first, whatever there is of it.
    undo: &'static [(Side, &'static str)],
}

const LONGHAUL: [(Side, &str); 3] = [
    (
        Side::Far,
        "LONGHAUL target --insecure --listen SERVER:4420 --export scratch=mem:BYTES > @/ready & until grep -q ready @/ready; do kill -0 $!; sleep .01; done; echo $! > @/pid",
    ),
    (Side::Here, "LONGHAUL mkfs --fs xfs nvme+tcp://SERVER/scratch"),
    (Side::Here, "LONGHAUL mount nvme+tcp://SERVER/scratch @/mnt"),
];
const KERNEL: [(Side, &str); 4] = [
    LONGHAUL[0],
    (
        Side::Here,
        "nvme connect -t tcp -a SERVER -s 4420 -n $(LONGHAUL discover SERVER:4420 | grep -o 'nqn[^ ]*scratch')",
    ),
    (Side::Here, "mkfs.xfs -q $(nvme list | awk '/Longhaul/ { print $1; exit }')"),
    (Side::Here, "mount $(nvme list | awk '/Longhaul/ { print $1; exit }') @/mnt"),
];
const NBD: [(Side, &str); 4] = [
    (Side::Far, "nbdkit --ipaddr SERVER --port 10809 --pidfile @/pid memory BYTES"),
    (
        Side::Here,
        "nbdfuse --pidfile @/fuse.pid @/disk nbd://SERVER > @/nbdfuse 2>&1 & until test -s @/fuse.pid; do kill -0 $!; sleep .01; done",
    ),
    (Side::Here, "mkfs.xfs -q @/disk"),
    (Side::Here, "mount -o loop @/disk @/mnt"),
];
/// Waits for the end, so that the next server finds the port free.
const STOP: (Side, &str) =
    (Side::Far, "pid=$(cat @/pid); kill $pid; while kill -0 $pid 2> /dev/null; do sleep .01; done");

fn ways() -> [Way; 3] {
    [
        Way {
            name: "Longhaul",
            missing: None,
            steps: &LONGHAUL,
            undo: &[(Side::Here, "LONGHAUL umount @/mnt"), STOP],
        },
        Way {
            name: "nvme connect, mkfs, mount (with our target)",
            missing: missing(&["nvme", "mkfs.xfs"], &["/dev/nvme-fabrics"]),
            steps: &KERNEL,
            undo: &[(Side::Here, "umount @/mnt"), (Side::Here, "nvme disconnect-all"), STOP],
        },
        Way {
            name: "nbdkit, nbdfuse, mkfs, mount",
            missing: missing(&["nbdkit", "nbdfuse", "mkfs.xfs"], &["/dev/fuse"]),
            steps: &NBD,
            undo: &[
                (Side::Here, "umount @/mnt"),
                (Side::Here, "kill $(cat @/fuse.pid); while test -s @/disk; do sleep .01; done"),
                STOP,
            ],
        },
    ]
}

/// What this machine lacks.
fn missing(programs: &[&str], files: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    let programs = programs.iter().filter(|name| !found(name));
    let files = files.iter().filter(|file| !Path::new(file).exists());
    let lacks: Vec<&str> = programs.chain(files).copied().collect();
    (!lacks.is_empty()).then(|| format!("not here: {}", lacks.join(", ")))
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "first",
        &["link", "way", "commands", "seconds to a mounted XFS", "of it making the file system"],
    );
    let trips = [RTT];
    for &rtt in setup.round_trips(&trips) {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
        let here = &link.setup(setup, 1);
        let place = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
        let ways = ways();
        let (present, absent): (Vec<&Way>, Vec<&Way>) = ways.iter().partition(|way| way.missing.is_none());
        let case = format!("first: {place}");
        let found = super::repeat(setup, &case, &present, || Ok(()), |way| once(here, way))?;
        for (way, seconds) in present.iter().zip(&found) {
            section.keep(&case, way.name, "s", &seconds[0]);
            let show = |samples: &Samples| samples.show(1.0, 2);
            let steps = way.steps.len().to_string();
            section.row(vec![place.clone(), way.name.into(), steps, show(&seconds[0]), show(&seconds[1])]);
        }
        for way in absent {
            let why = way.missing.clone().unwrap_or_default();
            section.row(vec![place.clone(), way.name.into(), way.steps.len().to_string(), why, "–".into()]);
        }
    }
    section.notes.push(format!(
        "A device of {} GiB in memory; from before the first command until a file in the mounted file system is \
         durable. Far: what is typed on the other side. Making the file system: the second last command",
        SIZE >> 30
    ));
    for way in ways() {
        section.commands.push(format!("# {}", way.name));
        section.commands.extend(way.steps.iter().map(|(side, step)| {
            let typed = step.split(" > @/").next().unwrap_or(step);
            let typed =
                typed.replace("LONGHAUL", "longhaul").replace("BYTES", "2GiB").replace("@/mnt", "/mnt");
            let typed = typed.replace("@/", "/tmp/");
            if *side == Side::Far { format!("{typed}  # far") } else { typed }
        }));
    }
    Ok(section)
}

/// Runs the steps of one way, and undoes them: seconds in all, and of the second last step.
fn once(setup: &Setup, way: &Way) -> Result<[f64; 2]> {
    let work = tempfile::Builder::new().prefix("longhaul-benches-").tempdir()?;
    fs::create_dir(work.path().join("mnt"))?;
    fs::write(work.path().join("disk"), "")?;
    if !way.steps.iter().any(|(_, step)| step.contains("@/disk")) {
        fs::remove_file(work.path().join("disk"))?;
    }
    let begun = go(setup, way, work.path());
    for (side, step) in way.undo {
        // Steps that were not reached need not be undone.
        let undone = shell(setup, *side, step, work.path());
        if let (Ok(_), Err(e)) = (&begun, undone) {
            return Err(e);
        }
    }
    begun
}

fn go(setup: &Setup, way: &Way, work: &Path) -> Result<[f64; 2]> {
    let began = Instant::now();
    let mut times = Vec::new();
    for (side, step) in way.steps {
        let began = Instant::now();
        shell(setup, *side, step, work)?;
        times.push(began.elapsed().as_secs_f64());
    }
    let mut file = fs::File::create(work.join("mnt/first"))?;
    std::io::Write::write_all(&mut file, b"there")?;
    file.sync_all()?;
    let made = times.len().checked_sub(2).and_then(|n| times.get(n)).context("too few steps")?;
    Ok([began.elapsed().as_secs_f64(), *made])
}

fn shell(setup: &Setup, side: Side, step: &str, work: &Path) -> Result<()> {
    let there: &Place = if side == Side::Far { &setup.target } else { &setup.load };
    let text = step
        .replace("LONGHAUL", &setup.program.display().to_string())
        .replace("SERVER", &setup.target.address.to_string())
        .replace("BYTES", &SIZE.to_string())
        .replace('@', &work.display().to_string());
    let mut command = there.command("sh");
    // Directories of its own, so that it does not see other attached devices.
    command.args(["-ec", &text]).env("XDG_RUNTIME_DIR", work).env("XDG_CONFIG_HOME", work);
    let said = fs::File::create(work.join("said"))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    let status = there.start(&mut command)?.wait()?;
    let why = fs::read_to_string(work.join("said")).unwrap_or_default();
    ensure!(status.success(), "{text}: {}", why.trim());
    Ok(())
}
