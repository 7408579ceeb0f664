//! `ctl`

use super::{Bytes, Seconds};
use serde::Serialize;

/// `ctl status`: a target that runs on this host.
#[derive(Serialize)]
#[serde(tag = "event", rename = "target")]
pub(crate) struct TargetStatus {
    /// Version of the program.
    pub(crate) version: &'static str,
    /// Process ID.
    pub(crate) pid: u32,
    /// Time since it began to serve.
    pub(crate) seconds: Seconds,
    /// Addresses of the I/O port.
    pub(crate) listen: Vec<String>,
    /// Its namespaces.
    pub(crate) exports: Vec<ControlledExport>,
    /// Controllers of hosts.
    pub(crate) hosts: Vec<ControlledHost>,
    /// Connections.
    pub(crate) connections: usize,
    /// Connections that there may be.
    pub(crate) connections_max: usize,
    /// I/O buffers that are in use.
    pub(crate) memory_used: Bytes,
    /// Bound of the target's memory.
    pub(crate) memory_max: Bytes,
}

/// A namespace of a target.
#[derive(Serialize)]
pub(crate) struct ControlledExport {
    /// Name of the export or the space.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) nqn: String,
    /// Namespace ID, from 1.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// Size of the namespace.
    pub(crate) size: Bytes,
    /// `optimized` if this target serves it; `inaccessible` if it stands by for another one.
    pub(crate) access: &'static str,
    /// Controllers of its subsystem.
    pub(crate) controllers: usize,
}

/// A controller of a host.
#[derive(Serialize)]
pub(crate) struct ControlledHost {
    /// NQN of the host.
    pub(crate) host: String,
    /// NQN of the subsystem.
    pub(crate) subsystem: String,
    /// Its controller.
    pub(crate) controller: u16,
    /// It may only read.
    pub(crate) read_only: bool,
    /// What it has read.
    pub(crate) bytes_read: Bytes,
    /// What it has written.
    pub(crate) bytes_written: Bytes,
}

/// `ctl disconnect`: controllers of a host were ended.
#[derive(Serialize)]
#[serde(tag = "event", rename = "host_disconnected")]
pub(crate) struct HostEnded {
    /// NQN of the host.
    pub(crate) host: String,
    /// Process ID of the target.
    pub(crate) pid: u32,
    /// Controllers that it had.
    pub(crate) controllers: u64,
}

/// `ctl stop`: the target has ended.
#[derive(Serialize)]
#[serde(tag = "event", rename = "target_stopped")]
pub(crate) struct TargetEnded {
    /// Process ID.
    pub(crate) pid: u32,
}
