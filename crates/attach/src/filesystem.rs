//! File systems for remote devices: recognising, making and mounting them.
//!
//! A full journal makes all writers wait for writes in place, each a round trip or more: so the
//! journal grows with the distance. The geometry of an array is passed on, so that the file system
//! writes whole stripes.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Bytes at the beginning of a device that identify its content.
const PROBE: u64 = 4096;
/// Bytes at the beginning and at the end of a device in which other common formats have their
/// signatures: ISO 9660 at 32 KiB, btrfs at 64 KiB, ZFS in the first and the last 512 KiB, md and
/// copies of partition tables in the last 128 KiB.
pub const EDGE: u64 = MIB;
/// Bytes of journal for a near device, the bytes and the time of each step that distance adds to
/// it, and the most: when writes in place take 5 ms longer, that much more waits in the journal.
const JOURNAL: u64 = 64 * MIB;
const JOURNAL_MOST: u64 = 1024 * MIB;
const DISTANCE: Duration = Duration::from_millis(5);
/// The journal takes this part of a device at most.
const JOURNAL_PART: u64 = 16;
/// The smallest log and the smallest file system that `mkfs.xfs` makes.
const XFS_LOG_LEAST: u64 = 64 * MIB;
const XFS_LEAST: u64 = 300 * MIB;
/// Below this size, `mkfs.xfs` would divide a striped device into eight allocation groups no larger
/// than the log, which has to fit in one.
const XFS_FEW_GROUPS: u64 = 600 * MIB;
/// Part of a striped device that its log takes at most: `mkfs.xfs` divides a device of over 8 GiB
/// into sixteen allocation groups, and the log has to leave room in its own.
const XFS_STRIPED_LOG_PART: u64 = 17;
/// Bytes of one XFS log buffer: the maximum, so that a burst of changes takes few writes.
const XFS_LOGBSIZE: &str = "256k";
/// Seconds between commits of ext4 on a remote device; its default is 5.
const EXT4_COMMIT_FAR: u32 = 15;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// XFS, as `mkfs.xfs` makes it.
    Xfs,
    /// The fourth extended file system.
    Ext4,
}

impl FileSystemKind {
    /// Its name, as the kernel's.
    pub fn name(self) -> &'static str {
        match self {
            FileSystemKind::Xfs => "xfs",
            FileSystemKind::Ext4 => "ext4",
        }
    }
}

impl fmt::Display for FileSystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileSystemKind {
    type Err = String;

    fn from_str(s: &str) -> Result<FileSystemKind, String> {
        [FileSystemKind::Xfs, FileSystemKind::Ext4]
            .into_iter()
            .find(|kind| kind.name() == s)
            .ok_or_else(|| "xfs or ext4".into())
    }
}

/// The content of a device, by its signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file system of this size in bytes.
    FileSystem(FileSystemKind, u64),
    /// A partition table.
    Partitions,
    /// An unknown format.
    Unknown,
    /// Only zeroes where signatures would be.
    Nothing,
}

impl Content {
    /// The content of a device of `size` bytes; `read` returns a number of bytes at an offset.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn of<B: Deref<Target = [u8]>, E>(
        size: u64,
        mut read: impl FnMut(u64, u64) -> Result<B, E>,
    ) -> Result<Content, E> {
        let found = Content::begins(&read(0, PROBE.min(size))?);
        if found != Content::Nothing {
            return Ok(found);
        }
        let edge = EDGE.min(size);
        for offset in [0, size - edge] {
            if read(offset, edge)?.iter().any(|&b| b != 0) {
                return Ok(Content::Unknown);
            }
        }
        Ok(Content::Nothing)
    }

    /// What the first [`PROBE`] bytes of a device say.
    fn begins(first: &[u8]) -> Content {
        let be = |at: usize, len: usize| {
            first.get(at..at + len).map(|b| b.iter().fold(0, |n, &b| n << 8 | u64::from(b)))
        };
        let le = |at: usize, len: usize| {
            first.get(at..at + len).map(|b| b.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
        };
        // XFS: big endian; block size at 4, blocks at 8.
        if first.starts_with(b"XFSB") {
            let size = be(4, 4).unwrap_or(0).saturating_mul(be(8, 8).unwrap_or(0));
            return Content::FileSystem(FileSystemKind::Xfs, size);
        }
        // ext4: little endian, at 1024; blocks at 4 and at 336 (the high
        // half), the logarithm of the block size in KiB at 24, a magic
        // number at 56.
        if le(1024 + 56, 2) == Some(0xEF53) {
            let blocks = le(1024 + 4, 4).unwrap_or(0) | le(1024 + 336, 4).unwrap_or(0) << 32;
            let shift = le(1024 + 24, 4).unwrap_or(0).min(6);
            return Content::FileSystem(FileSystemKind::Ext4, blocks.saturating_mul(1024 << shift));
        }
        if le(510, 2) == Some(0xAA55) || first.get(512..520) == Some(b"EFI PART") {
            return Content::Partitions;
        }
        if first.iter().all(|&b| b == 0) { Content::Nothing } else { Content::Unknown }
    }
}

/// The properties of a device that determine how a file system is made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Size of the device in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Stripe unit in bytes, and members that hold data; `None` for a device without stripes.
    pub stripe: Option<(u64, u64)>,
    /// Round trip of the smallest read.
    pub round_trip: Duration,
}

impl Shape {
    /// Bytes of journal.
    fn journal(&self) -> u64 {
        let distance = 1 + (self.round_trip.as_nanos() / DISTANCE.as_nanos()) as u64;
        let wanted = JOURNAL.saturating_mul(distance).min(JOURNAL_MOST);
        wanted.min(self.size / JOURNAL_PART) / MIB * MIB
    }

    fn is_far(&self) -> bool {
        self.round_trip >= DISTANCE
    }

    /// The arguments of `mkfs.xfs` or `mkfs.ext4`, without the device. Its old content is discarded
    /// first, or stays.
    ///
    /// # Errors
    /// The device is too small.
    pub fn mkfs(&self, kind: FileSystemKind, label: Option<&str>) -> Result<Vec<String>, String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| args.extend(more.iter().map(|&arg| arg.to_owned()));
        match kind {
            FileSystemKind::Xfs => {
                if self.size < XFS_LEAST {
                    return Err(format!("XFS needs {} MiB; ext4 needs less", XFS_LEAST / MIB));
                }
                add(&["-q", "-f", "-K", "-s", &format!("size={}", self.block_size)]);
                let mut log = self.journal();
                if let Some((unit, data)) = self.stripe {
                    let groups = if self.size < XFS_FEW_GROUPS { ",agcount=4" } else { "" };
                    add(&["-d", &format!("su={unit},sw={data}{groups}")]);
                    log = log.min(self.size / XFS_STRIPED_LOG_PART / MIB * MIB);
                }
                // Log records are padded to the log's stripe unit: with the device's, each fsync
                // would write that much.
                add(&["-l", &format!("size={},su=32k", log.max(XFS_LOG_LEAST))]);
            }
            FileSystemKind::Ext4 => {
                add(&["-q", "-F", "-b", "4096"]);
                let mut extended = String::from("nodiscard");
                if let Some((unit, data)) = self.stripe {
                    let stride = unit / 4096;
                    extended += &format!(",stride={stride},stripe-width={}", stride * data);
                }
                add(&["-E", &extended]);
                // `mkfs` chooses smaller ones itself.
                if self.journal() >= JOURNAL {
                    add(&["-J", &format!("size={}", self.journal() / MIB)]);
                }
            }
        }
        if let Some(label) = label {
            add(&["-L", label]);
        }
        Ok(args)
    }

    /// Mount options, as the kernel takes them.
    pub fn mount_options(&self, kind: FileSystemKind, read_only: bool) -> String {
        match kind {
            // The same file system may be mounted by another attachment.
            FileSystemKind::Xfs if read_only => "nouuid".into(),
            FileSystemKind::Ext4 if read_only => String::new(),
            FileSystemKind::Xfs => format!("logbsize={XFS_LOGBSIZE}"),
            FileSystemKind::Ext4 if self.is_far() => format!("commit={EXT4_COMMIT_FAR}"),
            FileSystemKind::Ext4 => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: u64, round_trip: u64) -> Shape {
        Shape { size, block_size: 4096, stripe: None, round_trip: Duration::from_millis(round_trip) }
    }

    #[test]
    fn journals_grow_with_distance_and_stay_a_part_of_the_device() {
        let gib = 1 << 30;
        for (size, ms, expected) in [
            (100 * gib, 0, 64),
            (100 * gib, 15, 256),
            (1000 * gib, 100, 1024),
            (gib, 100, 64),
            (gib / 2, 100, 32),
        ] {
            assert_eq!(shape(size, ms).journal(), expected * MIB, "{size} {ms}");
        }
    }

    #[test]
    fn the_shape_of_an_array_is_passed_on() {
        let shape = Shape { stripe: Some((256 << 10, 4)), ..shape(10 << 30, 0) };
        let xfs = shape.mkfs(FileSystemKind::Xfs, Some("far")).expect("large enough").join(" ");
        assert_eq!(xfs, "-q -f -K -s size=4096 -d su=262144,sw=4 -l size=67108864,su=32k -L far");
        let ext4 = shape.mkfs(FileSystemKind::Ext4, None).expect("large enough").join(" ");
        assert_eq!(ext4, "-q -F -b 4096 -E nodiscard,stride=64,stripe-width=256 -J size=64");
        assert!(super::Shape { size: 100 * MIB, ..shape }.mkfs(FileSystemKind::Xfs, None).is_err());
    }

    #[test]
    fn striped_devices_have_room_for_the_log() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let (near, far) = (0, 300);
        let sizes =
            [(300, near), (448, near), (512, near), (520, near), (599, near), (600, near), (1024, near)];
        let large = [1100, 8191, 8192, 8193, 12_288, 16_384, 16_400, 100_000].map(|size| (size, far));
        for (size, distance) in sizes.into_iter().chain(large) {
            let size = size * MIB;
            file.as_file().set_len(size).expect("sized");
            for stripe in [(64 << 10, 2), (256 << 10, 4), (1 << 20, 6), (4 << 20, 6), (1 << 20, 62)] {
                let shape = Shape { stripe: Some(stripe), ..shape(size, distance) };
                let args = shape.mkfs(FileSystemKind::Xfs, None).expect("large enough");
                let mut command = std::process::Command::new("mkfs.xfs");
                let Ok(ran) = command.arg("-N").args(&args).arg(file.path()).output() else {
                    longhaul_skip::skip!("needs mkfs.xfs");
                    return;
                };
                let why = String::from_utf8_lossy(&ran.stderr).into_owned();
                assert!(ran.status.success(), "{size} {stripe:?}: {why}");
            }
        }
    }

    #[test]
    fn options_to_mount_follow_the_distance() {
        assert_eq!(shape(1 << 30, 15).mount_options(FileSystemKind::Ext4, false), "commit=15");
        assert_eq!(shape(1 << 30, 0).mount_options(FileSystemKind::Ext4, false), "");
        assert_eq!(shape(1 << 30, 0).mount_options(FileSystemKind::Xfs, false), "logbsize=256k");
        assert_eq!(shape(1 << 30, 15).mount_options(FileSystemKind::Xfs, true), "nouuid");
        assert_eq!(shape(1 << 30, 15).mount_options(FileSystemKind::Ext4, true), "");
    }

    #[test]
    fn content_is_recognised() {
        let of = |device: &[u8]| {
            let read = |offset: u64, len: u64| {
                device.get(offset as usize..(offset + len) as usize).ok_or("past the end")
            };
            Content::of(device.len() as u64, read).expect("read")
        };
        assert_eq!(of(&[0; 4096]), Content::Nothing);
        assert_eq!(of(&[]), Content::Nothing);
        assert_eq!(of(&[1; 4096]), Content::Unknown);
        assert_eq!(of(b"XFSB"), Content::FileSystem(FileSystemKind::Xfs, 0));
        let mut table = [0; 4096];
        table[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(of(&table), Content::Partitions);
        // Other formats have their signatures further in, or at the end.
        let size = 8 << 20;
        for (what, at, magic) in [
            ("bcachefs", 4096 + 24, &[0xc6, 0x85, 0x73, 0xf6][..]),
            ("ISO 9660", 32769, b"CD001".as_slice()),
            ("btrfs", 65536 + 64, b"_BHRfS_M".as_slice()),
            ("ZFS", 131_072, &[0x0c, 0xb1, 0xba, 0][..]),
            ("md 1.0", size - 8192, &[0xfc, 0x4e, 0x2b, 0xa9][..]),
            ("md 0.90", size - 65536, &[0xfc, 0x4e, 0x2b, 0xa9][..]),
        ] {
            let mut device = vec![0; size];
            device[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(of(&device), Content::Unknown, "{what}");
        }
    }
}
