//! What many volumes of a pool cost: their list, and one volume among them.

use crate::process::Guard;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_catalog::{Catalog, FileCatalog, Txn};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Volumes of the pool, in a measurement each.
const COUNTS: [usize; 2] = [10, 10_000];
/// The longest that a list of any number may take, in seconds.
const CEILING: f64 = 0.050;
/// How much slower a volume among many may be found than one of ten.
const FLAT: f64 = 1.5;
/// How much more memory that may take.
const FLAT_MEMORY: f64 = 1.1;
/// Opens the volume, and reads a block of it.
const OPEN: [&str; 10] =
    ["bench", "volume:bench/volume-0", "--rw", "read", "--bs", "4k", "--size", "4k", "--hostnqn", ADMIN];
const ADMIN: &str = "nqn.2014-08.org.example:admin";
/// The volume that is made; the others are copies of its record by other names.
const MADE: &str = "bench/volume-0";
/// Volumes of a transaction: its limits are 128 keys and 1 MiB.
const AT_ONCE: usize = 100;
const MS: f64 = 1e-3;
const MIB: f64 = (1 << 20) as f64;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "volumes",
        "volume ls, ms",
        "≤ 50 ms",
        "volume info, ms",
        "open and read, ms",
        "of that with 10",
        "≤ 1.5",
        "memory of ls, MiB",
        "memory of opening, MiB",
        "of that with 10",
        "≤ 1.1",
    ];
    let mut section = Section::new("volumes", &header);
    let state = tempfile::tempdir().context("a directory")?;
    let program = Program { setup, state: state.path() };
    let _target = program.start_pool()?;
    let mut few: Option<[Samples; 2]> = None;
    let mut made = 1;
    for count in COUNTS {
        copy_records(&state.path().join("longhaul/catalog"), made, count)?;
        made = count;
        let [mut list, mut info, mut memory, mut open, mut opening] = [const { Vec::new() }; 5];
        for _ in 0..setup.rounds {
            let (seconds, bytes, lines) = program.timed(&["volume", "ls", "bench"])?;
            // A line of names, the volumes, and the sum.
            ensure!(lines == count + 2, "{lines} lines of {count} volumes");
            list.push(seconds);
            memory.push(bytes);
            info.push(program.timed(&["volume", "info", MADE])?.0);
            let (seconds, bytes, _) = program.timed(&OPEN)?;
            open.push(seconds);
            opening.push(bytes);
        }
        let [list, info, memory, open, opening] = [list, info, memory, open, opening].map(Samples);
        let case = format!("{count} volumes");
        section.keep(&case, "volume ls", "s", &list);
        section.keep(&case, "volume info", "s", &info);
        section.keep(&case, "memory of volume ls", "B", &memory);
        section.keep(&case, "open and read", "s", &open);
        section.keep(&case, "memory of opening", "B", &opening);
        let [of_few, memory_of_few] =
            few.as_ref().map_or([&open, &opening], |[open, opening]| [open, opening]);
        let (ratio, more) = (open.ratio(of_few), opening.ratio(memory_of_few));
        section.row(vec![
            count.to_string(),
            list.show(MS, 1),
            list.at_most(CEILING).into(),
            info.show(MS, 1),
            open.show(MS, 1),
            ratio.show_ratio(),
            ratio.at_most(FLAT).into(),
            memory.show(MIB, 1),
            opening.show(MIB, 1),
            more.show_ratio(),
            more.at_most(FLAT_MEMORY).into(),
        ]);
        few.get_or_insert([open, opening]);
    }
    section.notes.push(
        "The time of the whole process, from its start to its end, with the catalog in a file. The volumes are \
         copies of the record of one that was made. Open and read: a load of one block of 4 KiB"
            .to_owned(),
    );
    section.commands = vec![
        "longhaul volume ls bench".to_owned(),
        format!("longhaul volume info {MADE}"),
        format!("longhaul {}", OPEN.join(" ")),
    ];
    Ok(section)
}

/// The program as a host that manages a pool, with state of its own.
struct Program<'a> {
    setup: &'a Setup,
    state: &'a Path,
}

impl Program<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.setup.program);
        command.args(args).env("XDG_STATE_HOME", self.state).env("XDG_RUNTIME_DIR", self.state);
        command
    }

    /// A target with a space, a pool of it, and a volume in that.
    fn start_pool(&self) -> Result<Guard> {
        let space = format!("fast=dir:{},size=1GiB", self.state.join("space").display());
        let mut command =
            self.command(&["target", "--json", "--discovery", "none", "--listen", "127.0.0.1:0"]);
        command.args(["--space", &space, "--admin", ADMIN]).stdout(Stdio::piped());
        let mut target = Guard(crate::process::start(&mut command, None)?);
        let ready: Value = target.ready().context("the target did not start")?;
        let address = ready["listen"][0].as_str().context("a target without an address")?.to_owned();
        self.timed(&["pool", "create", "bench", "--target", &address, "--hostnqn", ADMIN])?;
        let volume = ["volume", "create", MADE, "--size", "1MiB", "--layout", "single", "--thin"];
        self.timed(&[&volume[..], &["--hostnqn", ADMIN]].concat())?;
        Ok(target)
    }

    /// Runs a verb; returns the seconds that it took, the most memory that it had in bytes, and the number of lines
    /// that it printed.
    fn timed(&self, args: &[&str]) -> Result<(f64, f64, usize)> {
        let mut command = self.command(args);
        let began = Instant::now();
        let mut child = crate::process::start(command.stdout(Stdio::piped()), None)?;
        let mut out = child.stdout.take().context("no pipe")?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut out, &mut text)?;
        // SAFETY: plain numbers, for which zero is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let mut status = 0;
        // SAFETY: fills `status` and `usage`; the process is a child that nothing else waits for.
        let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) };
        ensure!(waited >= 0 && status == 0, "longhaul {} failed", args.join(" "));
        Ok((began.elapsed().as_secs_f64(), usage.ru_maxrss as f64 * 1024.0, text.lines().count()))
    }
}

/// Adds copies of the record of the volume that was made, until there are `to`.
fn copy_records(catalog: &Path, from: usize, to: usize) -> Result<()> {
    let catalog = FileCatalog::open(catalog)?;
    let name = MADE.rsplit('/').next().unwrap_or(MADE);
    let all = catalog.range(b"pool/", None)?.entries;
    let made = all.iter().find(|entry| entry.key.ends_with(format!("/volume/{name}").as_bytes()));
    let made = made.context("the record of the volume")?;
    let record: Value = serde_json::from_slice(&made.value)?;
    let prefix = &made.key[..made.key.len() - name.len()];
    let numbers: Vec<usize> = (from..to).collect();
    for numbers in numbers.chunks(AT_ONCE) {
        let put = |txn: Txn, number: &usize| {
            let name = format!("volume-{number}");
            let mut copy = record.clone();
            copy["name"] = Value::from(name.as_str());
            txn.put(&[prefix, name.as_bytes()].concat(), copy.to_string().as_bytes())
        };
        catalog.commit(&numbers.iter().fold(Txn::new(), put))?;
    }
    Ok(())
}
