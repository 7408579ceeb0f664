//! Loads, with the options of fio.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The largest `iodepth`: slots are allocated at the start, a buffer each.
pub const MAX_IODEPTH: u32 = 65_536;

/// The largest `numjobs`.
pub const MAX_JOBS: u32 = 1024;

/// Direction and order of the I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rw {
    /// Reads in ascending order of offsets.
    #[default]
    Read,
    /// Writes in ascending order of offsets.
    Write,
    /// Reads at random offsets, in whole blocks.
    RandRead,
    /// Writes at random offsets, in whole blocks.
    RandWrite,
    /// Sequential, reads and writes mixed.
    Rw,
    /// Random, reads and writes mixed.
    RandRw,
    /// Discards in ascending order of offsets.
    Trim,
    /// Discards at random offsets, in whole blocks.
    RandTrim,
}

impl Rw {
    /// All orders, as fio lists them.
    pub const ALL: [Rw; 8] =
        [Rw::Read, Rw::Write, Rw::RandRead, Rw::RandWrite, Rw::Rw, Rw::RandRw, Rw::Trim, Rw::RandTrim];

    /// Name in fio (`rw=`).
    pub fn name(self) -> &'static str {
        match self {
            Rw::Read => "read",
            Rw::Write => "write",
            Rw::RandRead => "randread",
            Rw::RandWrite => "randwrite",
            Rw::Rw => "rw",
            Rw::RandRw => "randrw",
            Rw::Trim => "trim",
            Rw::RandTrim => "randtrim",
        }
    }

    /// Whether the order is random.
    pub fn is_random(self) -> bool {
        matches!(self, Rw::RandRead | Rw::RandWrite | Rw::RandRw | Rw::RandTrim)
    }

    /// Whether anything is written or discarded.
    pub fn writes(self) -> bool {
        !matches!(self, Rw::Read | Rw::RandRead)
    }

    /// Whether anything is read.
    pub fn reads(self) -> bool {
        !matches!(self, Rw::Write | Rw::RandWrite | Rw::Trim | Rw::RandTrim)
    }

    /// Whether it discards, in place of writing.
    pub fn trims(self) -> bool {
        matches!(self, Rw::Trim | Rw::RandTrim)
    }
}

impl FromStr for Rw {
    type Err = String;

    fn from_str(text: &str) -> Result<Rw, String> {
        if text == "readwrite" {
            return Ok(Rw::Rw);
        }
        Rw::ALL.into_iter().find(|rw| rw.name() == text).ok_or_else(|| {
            let names = Rw::ALL.map(Rw::name).join(", ");
            format!("'{text}' is not a pattern: use one of {names}")
        })
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most jobs that have a thread each. More than that share as many threads
/// as the machine has processors, and the connections of these.
pub const OWN_THREADS_MAX: usize = 64;

/// A load, in fio's names. It differs from fio's in some points: with `verify`
/// each of several jobs has its own part of `size`, and what completes after
/// the window's end is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the load in results.
    pub name: String,
    /// Direction and order.
    pub rw: Rw,
    /// Share of reads in a mixed load, in percent.
    pub rwmixread: u8,
    /// Bytes of one I/O.
    pub bs: u64,
    /// I/Os in flight, per job.
    pub iodepth: u32,
    /// As many I/Os as the device advises, at any time; `iodepth` where it
    /// has no advice.
    pub iodepth_auto: bool,
    /// Blocking calls through the file-like API, one after another, in place
    /// of `iodepth` I/Os at a time: fio's `ioengine=sync`.
    pub sync: bool,
    /// Jobs per device, a thread each, up to [`OWN_THREADS_MAX`] in all.
    pub numjobs: u32,
    /// Offset of the first byte on the device.
    pub offset: u64,
    /// Distance in bytes between the beginnings of successive jobs, so that each has a
    /// region of its own. 0: all jobs share one region.
    pub offset_increment: u64,
    /// Bytes from there on, or `offset_increment`, or to the end of the device. In random order each
    /// block comes once per pass, as with fio's random map.
    pub size: Option<u64>,
    /// Length of the measured window. Without `time_based` the load ends
    /// before, once `size` bytes are done.
    pub runtime: Option<Duration>,
    /// Repeat `size` until the end of the window.
    pub time_based: bool,
    /// Time before the window, not measured.
    pub ramp: Duration,
    /// Writes blocks that carry their address and generation with CRC32C, and verifies blocks that
    /// are read.
    pub verify: bool,
    /// Seed of order, mix and content.
    pub seed: u64,
    /// Flush after this many writes, or never (0).
    pub fdatasync: u32,
    /// Flush at the end, outside the window.
    pub end_fsync: bool,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            name: "longhaul".into(),
            rw: Rw::Read,
            rwmixread: 50,
            bs: 4096,
            iodepth: 1,
            iodepth_auto: false,
            sync: false,
            numjobs: 1,
            offset: 0,
            offset_increment: 0,
            size: None,
            runtime: None,
            time_based: false,
            ramp: Duration::ZERO,
            verify: false,
            seed: 1,
            fdatasync: 0,
            end_fsync: false,
        }
    }
}

impl Job {
    /// Options with fio's names and values, for results.
    pub(crate) fn options(&self) -> Vec<(String, String)> {
        let seconds = |time: Duration| format!("{}", time.as_secs_f64());
        let mut options = vec![
            ("name", self.name.clone()),
            ("rw", self.rw.to_string()),
            ("bs", self.bs.to_string()),
            ("iodepth", if self.iodepth_auto { "auto".into() } else { self.iodepth.to_string() }),
            ("numjobs", self.numjobs.to_string()),
            ("randseed", self.seed.to_string()),
        ];
        if self.rw.reads() && self.rw.writes() {
            options.push(("rwmixread", self.rwmixread.to_string()));
        }
        options.extend(self.sync.then(|| ("ioengine", "sync".into())));
        options.extend((self.offset > 0).then(|| ("offset", self.offset.to_string())));
        let increment = (self.offset_increment > 0).then(|| self.offset_increment.to_string());
        options.extend(increment.map(|bytes| ("offset_increment", bytes)));
        options.extend(self.size.map(|size| ("size", size.to_string())));
        options.extend(self.runtime.map(|time| ("runtime", seconds(time))));
        options.extend(self.time_based.then(|| ("time_based", "1".into())));
        options.extend((!self.ramp.is_zero()).then(|| ("ramp_time", seconds(self.ramp))));
        options.extend(self.verify.then(|| ("verify", "crc32c".into())));
        options.extend((self.fdatasync > 0).then(|| ("fdatasync", self.fdatasync.to_string())));
        options.extend(self.end_fsync.then(|| ("end_fsync", "1".into())));
        options.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_fios_names() {
        for rw in Rw::ALL {
            assert_eq!(rw.name().parse(), Ok(rw));
        }
        assert_eq!("readwrite".parse(), Ok(Rw::Rw));
        let error = "trimwrite".parse::<Rw>().expect_err("unknown");
        let all = "read, write, randread, randwrite, rw, randrw, trim, randtrim";
        assert_eq!(error, format!("'trimwrite' is not a pattern: use one of {all}"));
    }
}
