//! The experiment of the NVMe/TCP file-system study: 1, 10, 100 and 1,000 files at once, on a raw
//! device, ext4, XFS, and XFS over six striped devices, at two distances.

use crate::published::filesystems as said;
use longhaul_results::published::Statement;
use std::time::Duration;

pub use said::On;

/// Round trip to the near host.
pub const NEAR: Duration = Duration::from_micros(150);
/// Round trip to the far host.
pub const FAR: Duration = Duration::from_millis(15);

/// Bytes of an I/O.
pub const BS: u64 = 64 << 10;
/// Bytes of all files of a workload together.
pub const BYTES: u64 = 256 << 20;
/// Devices of the stripe.
pub const STRIPED: usize = said::STRIPED.value() as usize;
/// Mount option for XFS log buffers of the published size; `longhaul mount` uses larger ones.
pub const SMALL_LOG: &str = "logbsize=32k";

/// Files that are loaded at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The letter in the publication.
    pub name: &'static str,
    /// Files at once.
    pub files: u64,
    /// I/Os in flight for each file.
    pub depth: u32,
}

/// The workloads, from one file to a thousand.
pub const WORKLOADS: [Workload; 4] = [
    Workload { name: "A", files: 1, depth: 32 },
    Workload { name: "B", files: 10, depth: 8 },
    Workload { name: "C", files: 100, depth: 2 },
    Workload { name: "D", files: 1000, depth: 1 },
];

/// The format of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFormat {
    /// No file system: the device is attached as one file.
    Raw,
    /// ext4, as `mkfs.ext4` makes it.
    Ext4,
    /// XFS, as `mkfs.xfs` makes it.
    Xfs,
}

impl DeviceFormat {
    /// The name of the file system, as `mkfs --fs` takes it, or `raw`.
    pub fn name(self) -> &'static str {
        match self {
            DeviceFormat::Raw => "raw",
            DeviceFormat::Ext4 => "ext4",
            DeviceFormat::Xfs => "xfs",
        }
    }
}

/// Devices of the workloads, in the order of the published tables, with the names that results have.
pub const DEVICES: [(On, &str, DeviceFormat); 4] = [
    (On::Raw, "raw", DeviceFormat::Raw),
    (On::Ext4, "ext4", DeviceFormat::Ext4),
    (On::Xfs, "XFS", DeviceFormat::Xfs),
    (On::Striped, "XFS, striped", DeviceFormat::Xfs),
];

/// Reads or writes of several files at a time, with one size of files and one of I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Name of the workload.
    pub name: &'static str,
    /// Files at once.
    pub files: u64,
    /// I/Os in flight for each file.
    pub depth: u32,
    /// Bytes of an I/O.
    pub bs: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Whether the files are written, or read.
    pub write: bool,
}

impl Workload {
    /// The workload with I/Os of `bs` bytes on files of `bytes` bytes in all.
    pub fn load(self, bs: u64, bytes: u64, write: bool) -> Load {
        let Workload { name, files, depth } = self;
        Load { name, files, depth, bs, bytes, write }
    }
}

impl Load {
    /// Bytes of one file: a multiple of the I/O size.
    pub fn size(&self) -> u64 {
        (self.bytes / self.files / self.bs).max(1) * self.bs
    }

    /// `read` or `write`, as fio and `bench` take it.
    pub fn rw(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }

    /// Bytes of all I/Os in flight.
    pub fn in_flight(&self) -> u64 {
        self.files * u64::from(self.depth) * self.bs
    }
}

/// Published statements about the throughput of a load at this round trip; empty at other
/// distances.
pub fn throughput(rtt: Duration, load: &Load, on: On) -> Vec<&'static Statement> {
    let is_published = [NEAR, FAR].contains(&rtt);
    if is_published { said::throughput(rtt == FAR, load.files, load.write, on) } else { Vec::new() }
}

/// The published statement about 16 KiB of data in the capsule, against 8 KiB; `None` at other
/// distances.
pub fn in_capsule(rtt: Duration, load: &Load, on: On) -> Option<&'static Statement> {
    [NEAR, FAR].contains(&rtt).then(|| said::in_capsule(rtt == FAR, load.files, load.write, on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_published_ones() {
        assert_eq!(
            [NEAR, FAR].map(|rtt| rtt.as_secs_f64()),
            [said::NEAR_RTT, said::FAR_RTT].map(|s| s.value())
        );
        assert_eq!(STRIPED, 6);
    }

    #[test]
    fn all_files_of_a_workload_fit() {
        for workload in WORKLOADS {
            let load = workload.load(BS, BYTES, false);
            assert!(load.size() * load.files <= BYTES && load.size().is_multiple_of(load.bs), "{load:?}");
        }
    }

    #[test]
    fn nothing_is_said_of_other_distances() {
        let load = WORKLOADS[3].load(BS, BYTES, false);
        assert!(!throughput(FAR, &load, On::Raw).is_empty() && in_capsule(NEAR, &load, On::Xfs).is_some());
        let other = Duration::from_millis(45);
        assert!(throughput(other, &load, On::Raw).is_empty() && in_capsule(other, &load, On::Xfs).is_none());
    }
}
