//! The ends of the copies: a directory on the disk, and an agent behind an emulated link or
//! at `--target`. Copies are processes of this program.

use super::planted::SlowLayer;
use super::sets::{DatasetStage, without_tool};
use super::{BYTES_OF_SMALL, Concurrency, CopyStages, RATE, RTT, SET, SET_QUICK, bytes};
use crate::removal::remove_tree;
use crate::self_exec::{self, at, seconds, summary};
use crate::study::links::{Links, Route, Scratch, Server};
use crate::study::{Results, Settings};
use crate::{Error, Outcome};
use longhaul_transfer::Endpoint;
use longhaul_transfer::dataset::Scale;
use longhaul_wan::Conditions;
use longhaul_wan::Wan;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Upper bound of sweeps of the `--target`, which end when one finds nothing.
const SWEEPS: usize = 8;

/// Shortest duration of a valid copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MinLength {
    /// Any: the copy is a point of a fit.
    Any,
    /// That of a window.
    Enough,
}

/// Both ends of the copies. Dropping it removes copies at `--target`.
pub(super) struct TransferTestbed {
    // Fields are dropped in order: the agent ends before the link is removed, and the layer is
    // unmounted before its directory is removed.
    agent: Option<((Option<u16>, bool), Server)>,
    layer: Option<SlowLayer>,
    links: Links,
    scratch: Scratch,
    /// The directory at `--target`, as `cp` takes it.
    named: Option<String>,
    /// Bytes of a copy.
    bytes: f64,
    copies: u32,
}

/// The size of a data set for these settings.
pub(super) fn scale_of(name: &str, settings: &Settings) -> Scale {
    let bytes = match (settings.targets.is_empty(), settings.quick) {
        (true, _) => RATE * settings.scale / 8.0 * settings.runtime.as_secs_f64(),
        (false, true) => SET_QUICK as f64 * settings.scale,
        (false, false) => SET as f64 * settings.scale,
    };
    let bytes = bytes as u64;
    if name == "small" { Scale::files((bytes / BYTES_OF_SMALL).max(1)) } else { Scale::bytes(bytes) }
}

impl TransferTestbed {
    pub(super) fn start(settings: &Settings) -> Result<TransferTestbed, Error> {
        let named = settings
            .targets
            .first()
            .map(|uri| format!("{}/longhaul-study-{}", uri.trim_end_matches('/'), std::process::id()));
        let links = match named {
            Some(_) => Links::here(),
            None => Links::emulated(1, Conditions::new(RTT, Some((RATE * settings.scale) as u64)))?,
        };
        let scratch = Scratch::make("transfer")?;
        for dir in ["there", "empty", "sources"] {
            fs::create_dir(scratch.path().join(dir)).map_err(Error::failed)?;
        }
        let bytes = bytes(settings);
        let testbed = TransferTestbed { agent: None, layer: None, links, scratch, named, bytes, copies: 0 };
        if let Some(named) = &testbed.named {
            // The copy of the empty directory becomes the parent of all others.
            let empty = testbed.scratch.path().join("empty");
            testbed
                .links
                .finish(testbed.links.command()?.args(["cp", "--recursive"]).arg(empty).arg(named))?;
        }
        Ok(testbed)
    }

    pub(super) fn there(&self) -> PathBuf {
        self.scratch.path().join("there")
    }

    fn sources(&self) -> PathBuf {
        self.scratch.path().join("sources")
    }

    /// The emulated links; an error with `--target`.
    pub(super) fn links(&self) -> Result<&Wan, Error> {
        self.links.wan().ok_or_else(|| Error::failed("there are no emulated links"))
    }

    /// The layer that plants per-file costs, mounted on first use.
    fn layer(&mut self) -> Result<&SlowLayer, Error> {
        if self.layer.is_none() {
            self.layer = Some(SlowLayer::mount(self.scratch.path(), &self.sources(), &self.there())?);
        }
        self.layer.as_ref().ok_or_else(|| Error::failed("there is no layer"))
    }

    /// The directory of `files` generated files, seen through the layer.
    pub(super) fn slow_source(&mut self, files: u32) -> Result<PathBuf, Error> {
        self.source(files)?;
        Ok(self.layer()?.source.join(files.to_string()))
    }

    /// The directory of copies, seen through the layer.
    pub(super) fn slow_there(&mut self) -> Result<PathBuf, Error> {
        Ok(self.layer()?.there.clone())
    }

    /// The directory of `files` generated files, created on first use.
    fn source(&self, files: u32) -> Result<PathBuf, Error> {
        let dir = self.sources().join(files.to_string());
        let bytes = (self.size(files) * u64::from(files)).to_string();
        self.data_set("equal", &dir, &["--files", &files.to_string(), "--scale", &bytes])?;
        Ok(dir)
    }

    /// Bytes of one of `files` files.
    fn size(&self, files: u32) -> u64 {
        ((self.bytes / f64::from(files)) as u64).max(1)
    }

    /// The URI of an agent behind the link with `at_once` writers, whose directory is seen
    /// through the layer if `slow`. An agent with other settings is replaced.
    fn agent(&mut self, at_once: Option<u16>, slow: bool) -> Result<String, Error> {
        if let Some(named) = &self.named {
            return Ok(named.clone());
        }
        if self.agent.as_ref().is_none_or(|(now, _)| *now != (at_once, slow)) {
            self.agent = None;
            let root = if slow { self.slow_there()? } else { self.there() };
            let (mut command, address) = self.links.behind(1)?;
            command.args(["agent", "--insecure", "--listen", &format!("{address}:7400"), "--root"]);
            // `--insecure` is safe: only this machine reaches the link.
            command.arg(root).args(["--user", &rustix::process::geteuid().as_raw().to_string()]);
            command.args(at_once.iter().flat_map(|n| ["--writers".to_owned(), n.to_string()]));
            self.agent = Some(((at_once, slow), Server::start(command)?));
        }
        let uri = self.agent.as_ref().and_then(|(_, agent)| agent.ready["uri"].as_str());
        let uri = uri.ok_or_else(|| Error::failed("the agent does not say where it is"))?;
        Ok(uri.trim_end_matches('/').to_owned())
    }

    /// Runs a copy, and removes its files.
    pub(super) fn copy(
        &mut self,
        rung: CopyStages,
        files: u32,
        (tune, length): (Concurrency, MinLength),
        found: &mut Results,
    ) -> Outcome {
        let agent = self.agent(tune.at_once, false)?;
        let from = match rung {
            CopyStages::Read | CopyStages::Whole => self.source(files)?.to_string_lossy().into_owned(),
            CopyStages::Network | CopyStages::Write | CopyStages::Nothing => {
                format!("zero:{files}x{}", self.size(files))
            }
        };
        self.copies += 1;
        let to = match (rung, &self.named) {
            (CopyStages::Read | CopyStages::Nothing, _) => "null:".into(),
            (CopyStages::Network, _) => at(&Endpoint::parse(agent.as_ref()).map_err(Error::usage)?, "null:"),
            (CopyStages::Write, None) => {
                self.there().join(self.copies.to_string()).to_string_lossy().into_owned()
            }
            (CopyStages::Write | CopyStages::Whole, _) => format!("{agent}/{}", self.copies),
        };
        let crosses = rung.crosses(self.named.is_some());
        self.timed([&from, &to], tune, (length, crosses), found, |seconds| seconds)
    }

    /// Runs a copy of any duration between the ends with planted costs, and removes its files.
    pub(super) fn planted(
        &mut self,
        rung: CopyStages,
        files: u32,
        tune: Concurrency,
        found: &mut Results,
    ) -> Outcome {
        let from = match rung {
            CopyStages::Read | CopyStages::Whole => self.slow_source(files)?.to_string_lossy().into_owned(),
            CopyStages::Network | CopyStages::Write | CopyStages::Nothing => {
                format!("zero:{files}x{}", self.size(files))
            }
        };
        self.copies += 1;
        let copy = self.copies.to_string();
        let to = match rung {
            CopyStages::Read | CopyStages::Nothing => "null:".into(),
            CopyStages::Write => self.slow_there()?.join(copy).to_string_lossy().into_owned(),
            CopyStages::Network => {
                let agent = self.agent(tune.at_once, true)?;
                at(&Endpoint::parse(agent.as_ref()).map_err(Error::usage)?, "null:")
            }
            CopyStages::Whole => format!("{}/{copy}", self.agent(tune.at_once, true)?),
        };
        self.timed([&from, &to], tune, (MinLength::Any, rung.crosses(false)), found, |seconds| seconds)
    }

    /// The directory of a data set, its number of files and its bytes.
    pub(super) fn set_of(&self, name: &str) -> Result<(PathBuf, (u32, u64)), Error> {
        let dir = self.scratch.path().join(name);
        let (mut waiting, mut files, mut bytes) = (vec![dir.clone()], 0, 0);
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(dir).map_err(Error::failed)? {
                let entry = entry.map_err(Error::failed)?;
                let about = entry.metadata().map_err(Error::failed)?;
                if about.is_dir() {
                    waiting.push(entry.path());
                } else {
                    (files, bytes) = (files + 1, bytes + about.len());
                }
            }
        }
        Ok((dir, (files, bytes)))
    }

    /// Generates a data set of the size for these settings, unless it exists.
    fn make_set(&self, name: &str, settings: &Settings) -> Outcome {
        let Scale { files, bytes } = scale_of(name, settings);
        let (files, bytes) = (files.map(|n| n.to_string()), bytes.map(|n| n.to_string()));
        let files = files.iter().flat_map(|n| ["--files", n.as_str()]);
        let more: Vec<&str> = files.chain(bytes.iter().flat_map(|n| ["--scale", n.as_str()])).collect();
        self.data_set(name, &self.scratch.path().join(name), &more)
    }

    /// Measures one stage of a data set alone, with `cp` or without a tool. The network and write
    /// stages take as many files and bytes, of equal sizes.
    pub(super) fn stage(
        &mut self,
        (name, stage, tool): (&str, DatasetStage, bool),
        settings: &Settings,
        found: &mut Results,
    ) -> Outcome {
        self.make_set(name, settings)?;
        let (dir, (files, bytes)) = self.set_of(name)?;
        let tune = Concurrency::USUAL;
        for _ in 0..settings.runs {
            if !tool {
                without_tool(self, stage, name, &mut found.cells[0])?;
                continue;
            }
            let zeroes = format!("zero:{files}x{}", bytes / u64::from(files.max(1)));
            self.copies += 1;
            let (from, to) = match stage {
                DatasetStage::Read => (dir.to_string_lossy().into_owned(), "null:".into()),
                DatasetStage::Network => {
                    let agent = self.agent(None, false)?;
                    (zeroes, at(&Endpoint::parse(agent.as_ref()).map_err(Error::usage)?, "null:"))
                }
                DatasetStage::Write => {
                    (zeroes, self.there().join(self.copies.to_string()).to_string_lossy().into_owned())
                }
            };
            let crosses = stage == DatasetStage::Network;
            let length = if crosses { MinLength::Enough } else { MinLength::Any };
            let rate = |seconds: f64| bytes as f64 / seconds;
            self.timed([&from, &to], tune, (length, crosses), found, rate)?;
        }
        Ok(())
    }

    /// Copies a data set in each run, with the defaults of `cp`.
    pub(super) fn set(&mut self, name: &str, settings: &Settings, found: &mut Results) -> Outcome {
        self.make_set(name, settings)?;
        let (dir, (_, bytes)) = self.set_of(name)?;
        let bytes = bytes as f64;
        let agent = self.agent(None, false)?;
        for _ in 0..settings.runs {
            self.copies += 1;
            let to = format!("{agent}/{}", self.copies);
            let tune = Concurrency::USUAL;
            let from = dir.to_string_lossy();
            self.timed([&from, &to], tune, (MinLength::Enough, true), found, |seconds| bytes / seconds)?;
        }
        remove_tree(&dir).map_err(Error::failed)
    }

    /// Generates a data set, unless it exists.
    fn data_set(&self, name: &str, dir: &Path, more: &[&str]) -> Outcome {
        if dir.exists() {
            return Ok(());
        }
        let mut command = self.links.command()?;
        self.links.finish(command.args(["dataset", "make", name, "--json"]).args(more).arg(dir)).map(drop)
    }

    /// Runs a copy. Pushes `number` of its seconds to the first cell, its processor seconds to
    /// the second, if there is one, and adds the run of its result.
    fn timed(
        &self,
        [from, to]: [&str; 2],
        tune: Concurrency,
        (length, crosses): (MinLength, bool),
        found: &mut Results,
        number: impl Fn(f64) -> f64,
    ) -> Outcome {
        let mut command = self.links.command()?;
        command.args(["cp", "--recursive", "--json"]);
        if let Some(number) = tune.at_once.map(|number| number.to_string()) {
            let streams = tune.streams.map_or_else(|| number.clone(), |streams| streams.to_string());
            command.args(["--readers", &number, "--streams", &streams, "--writers", &number]);
        }
        if !tune.ahead {
            command.args(["--read-ahead", "0"]);
        }
        let result = self.scratch.path().join("copy.json");
        command.arg("--output").arg(&result).arg("--").arg(from).arg(to);
        let (out, seen) = self.links.watch(|| self.links.finish(&mut command))?;
        let summary = summary(&out)?;
        let seconds = seconds(&summary)?;
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let way = match crosses {
            true => {
                Route::Over(summary["sockets"]["round_trip_least_us"].as_u64().map(Duration::from_micros))
            }
            false => Route::Within,
        };
        let validity = seen.judge((length == MinLength::Enough).then(|| time(seconds)), way);
        found.runs.push(self_exec::run(&result, &validity)?);
        let processors = seen.processors().unwrap_or(f64::NAN);
        for (cell, value) in found.cells.iter_mut().zip([number(seconds), processors]) {
            cell.push(value, &validity);
        }
        self.clear()
    }

    /// Removes all copies at `--target`, and returns how many entries that were.
    fn sweep(&self, named: &str) -> Result<u64, Error> {
        let empty = self.scratch.path().join("empty");
        let mut command = self.links.command()?;
        let out = self.links.finish(command.args(["sync", "--delete", "--json"]).arg(empty).arg(named))?;
        Ok(summary(&out)?["deleted"].as_u64().unwrap_or_default())
    }

    /// Removes the files of copies.
    pub(super) fn clear(&self) -> Outcome {
        if let Some(named) = &self.named {
            return self.sweep(named).map(|_| ());
        }
        for entry in fs::read_dir(self.there()).map_err(Error::failed)? {
            let path = entry.map_err(Error::failed)?.path();
            let removed = if path.is_dir() { remove_tree(&path) } else { fs::remove_file(&path) };
            removed.map_err(Error::failed)?;
        }
        Ok(())
    }
}

impl Drop for TransferTestbed {
    fn drop(&mut self) {
        let Some(named) = self.named.as_deref().filter(|_| self.copies > 0) else { return };
        // A copy that failed or was interrupted leaves files, and the agent may still
        // be writing some. A directory that cannot be removed is recognized by its name,
        // which has the process ID.
        for _ in 0..SWEEPS {
            if !matches!(self.sweep(named), Ok(1..)) {
                return;
            }
        }
    }
}
