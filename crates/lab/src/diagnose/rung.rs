//! The copies of the ladder, their settings and measurements.

use super::hosts::HostUse;
use crate::cause::Sockets;
use longhaul_results::record::Run;

/// A copy of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Read: files to `null:`.
    Read,
    /// Network: a synthetic source to `null:` at the destination.
    Network,
    /// Write: a synthetic source to files.
    Write,
    /// The whole copy: files to files.
    Whole,
    /// A synthetic source to `null:` on this machine.
    Local,
}

impl Rung {
    /// The rungs that a line is fitted to.
    pub(super) const FITTED: [Rung; 4] = [Rung::Read, Rung::Network, Rung::Write, Rung::Whole];

    /// Its name in results and events.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Read => "read",
            Rung::Network => "network",
            Rung::Write => "write",
            Rung::Whole => "whole",
            Rung::Local => "local",
        }
    }

    /// The progress message.
    pub(super) fn says(self) -> &'static str {
        match self {
            Rung::Read => "reading files, and nothing else",
            Rung::Network => "sending a synthetic source, which the destination discards",
            Rung::Write => "writing files from a synthetic source",
            Rung::Whole => "copying files",
            Rung::Local => "generating data and discarding it",
        }
    }
}

/// DiagnoseOptions of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// Threads that read.
    pub readers: u16,
    /// Threads that write.
    pub writers: u16,
    /// Data connections.
    pub streams: u16,
    /// Name of the checksum on `cp`'s command line.
    pub checksum: &'static str,
    /// TCP congestion control by its kernel name; `None` for the machine's default.
    pub congestion: Option<String>,
    /// Rate limit in bits per second.
    pub rate: Option<u64>,
}

impl CopySettings {
    /// The same options with this many readers and writers.
    pub(super) fn threads(&self, threads: u16) -> CopySettings {
        CopySettings { readers: threads, writers: threads, ..self.clone() }
    }
}

/// Measurements of a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyResult {
    pub(super) seconds: f64,
    /// Bytes that the copy has moved.
    pub(super) bytes: u64,
    /// Statistics of its sockets.
    pub(super) sockets: Sockets,
    /// Shortest round trip in seconds.
    pub(super) round_trip: Option<f64>,
    /// TCP congestion control of its sockets.
    pub(super) congestion: Option<String>,
    /// Use of this machine and of the destination's.
    pub(super) hosts: [HostUse; 2],
    /// The run in the copy's result, and its validity.
    pub(super) run: Run,
}

impl CopyResult {
    /// As the model of costs takes it.
    pub(super) fn as_copy(&self, files: u32) -> crate::model::Copy {
        let (files, bytes) = (files.into(), self.bytes as f64);
        crate::model::Copy { files, bytes, seconds: self.seconds }
    }
}
