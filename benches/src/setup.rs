//! What all measurements of a run share.

use crate::keep::Keep;
use crate::{Args, process, program};
use anyhow::{Context, Result};
use longhaul_wan::Namespace;
use std::ffi::OsStr;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Where a side of a measurement runs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Its address, as the other side knows it.
    pub(crate) address: Ipv4Addr,
    /// The processor that it is bound to.
    pub(crate) cpu: Option<usize>,
    /// The network namespace; `None`: that of this process.
    namespace: Option<Namespace>,
    /// The program's state directory there; `None`: the usual one.
    home: Option<PathBuf>,
}

impl Place {
    /// On this host, bound to a processor.
    fn local(cpu: usize) -> Place {
        Place { address: Ipv4Addr::LOCALHOST, cpu: Some(cpu), namespace: None, home: None }
    }

    /// At an end of an emulated link, on any processor.
    pub(crate) fn within(namespace: &Namespace, address: Ipv4Addr) -> Place {
        Place { address, cpu: None, namespace: Some(namespace.clone()), home: None }
    }

    /// The same place, with the address that its own programs use.
    pub(crate) fn itself(&self) -> Place {
        Place { address: Ipv4Addr::LOCALHOST, ..self.clone() }
    }

    /// The same, bound to no processor.
    pub(crate) fn anywhere(self) -> Place {
        Place { cpu: None, ..self }
    }

    /// The same, with the program's state in `home`.
    pub(crate) fn at_home(self, home: &Path) -> Place {
        Place { home: Some(home.to_owned()), ..self }
    }

    /// A command that will run there, once [`Place::start`] starts it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        };
        if let Some(home) = &self.home {
            command.env("XDG_STATE_HOME", home).env("XDG_RUNTIME_DIR", home);
        }
        command
    }

    /// Starts a command of [`Place::command`].
    pub(crate) fn start(&self, command: &mut Command) -> Result<Child> {
        process::start(command, self.cpu)
    }

    /// Binds the calling thread to the processor of this place.
    pub(crate) fn pin_thread(&self) -> io::Result<()> {
        self.cpu.map_or(Ok(()), process::pin_thread)
    }

    /// Runs a closure in the network of this place.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.run(work)?),
            None => Ok(work()),
        }
    }

    /// What a person puts before a command to run it there.
    pub(crate) fn prefix(&self) -> String {
        self.cpu.map_or_else(String::new, |cpu| format!("taskset -c {cpu} "))
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The program under test.
    pub(crate) program: PathBuf,
    /// Measurements of each case.
    pub(crate) rounds: u32,
    /// Length of the measured window.
    pub(crate) runtime: Duration,
    /// Load before it.
    pub(crate) ramp: Duration,
    /// `--engine` of target and initiator, one series each.
    pub(crate) engines: Vec<String>,
    /// Congestion control of every socket.
    pub(crate) congestion: String,
    /// The place of the target, or of the program that stands in for it.
    pub(crate) target: Place,
    /// Where the load is.
    pub(crate) load: Place,
    /// Bytes of the device.
    pub(crate) size: u64,
    /// Rates of emulated links in bits per second, if they were given.
    pub(crate) rates: Vec<u64>,
    /// Round trips of emulated links, if they were given.
    pub(crate) round_trips: Vec<Duration>,
    /// Numbers of servers, if they were given.
    pub(crate) servers: Vec<usize>,
    /// Data sets of transfers have this share of their published size.
    pub(crate) scale: f64,
    /// Data sets to copy; all if none is named.
    pub(crate) sets: Vec<String>,
    /// Loads of `distance`; all if none is named.
    pub(crate) loads: Vec<String>,
    /// Where files for measurements are made.
    pub(crate) dir: PathBuf,
    /// A file of earlier measurements; `None`: everything is measured.
    pub(crate) keep: Option<Keep>,
}

impl Setup {
    /// Builds the program if none was given.
    pub(crate) fn new(args: &Args) -> Result<Setup> {
        let program = match &args.program {
            Some(path) => {
                path.canonicalize().with_context(|| format!("there is no program {}", path.display()))?
            }
            None => program::build()?,
        };
        let keep = args.keep.as_ref().map(|path| Keep::new(path, &program)).transpose()?;
        Ok(Setup {
            program,
            keep,
            rounds: args.rounds,
            runtime: args.runtime,
            ramp: args.ramp,
            engines: args.engines.clone(),
            congestion: args.congestion.clone(),
            target: Place::local(args.cpus[0]),
            load: Place::local(args.cpus[1]),
            size: args.size,
            rates: args.rates.clone(),
            round_trips: args.round_trips.clone(),
            servers: args.servers.clone(),
            scale: args.scale,
            sets: args.sets.clone(),
            loads: args.loads.clone(),
            dir: args.dir.clone(),
        })
    }

    /// The rates to measure at, in bits per second: those that were given, or
    /// those of the group.
    pub(crate) fn rates<'a>(&'a self, usual: &'a [u64]) -> &'a [u64] {
        if self.rates.is_empty() { usual } else { &self.rates }
    }

    /// The same of round trips.
    pub(crate) fn round_trips<'a>(&'a self, usual: &'a [Duration]) -> &'a [Duration] {
        if self.round_trips.is_empty() { usual } else { &self.round_trips }
    }

    /// The same of numbers of servers.
    pub(crate) fn servers<'a>(&'a self, usual: &'a [usize]) -> &'a [usize] {
        if self.servers.is_empty() { usual } else { &self.servers }
    }

    /// Measures each of `subjects` once a round, in turn and in every other
    /// round backwards, so that a drift of the machine meets all alike.
    /// Returns the measurements by subject; those with the same index are of
    /// the same round.
    pub(crate) fn interleave<S, T>(
        &self,
        subjects: &[S],
        mut measure: impl FnMut(&S) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        let mut measured: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..subjects.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                measured[index].push(measure(&subjects[index])?);
            }
        }
        Ok(measured)
    }

    /// The same of numbers, which are taken from `--keep` where it has this
    /// case, and put there where it has not.
    pub(crate) fn interleave_kept<S>(
        &self,
        case: &str,
        subjects: &[S],
        measure: impl FnMut(&S) -> Result<f64>,
    ) -> Result<Vec<Vec<f64>>> {
        let Some(keep) = &self.keep else { return self.interleave(subjects, measure) };
        if let Some(kept) = keep.get(case, subjects.len(), self.rounds)? {
            return Ok(kept);
        }
        let measured = self.interleave(subjects, measure)?;
        keep.put(case, &measured)?;
        Ok(measured)
    }
}
