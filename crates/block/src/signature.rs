//! Recognises the content of a device before it is overwritten.
//!
//! One rule for all verbs that write to a device: known content is reported with its offset, and
//! only `--force` overrides it. Recognised are signatures at the beginning and at the end of a
//! device, as `wipefs` of util-linux knows them. Unknown data there is distinguished: an earlier
//! load leaves such data, so it stops neither a load nor an array.

use crate::{BlockIo, DeviceInfo, IoResult, read_range};
use std::fmt;

/// Bytes that are read at the beginning and at the end of a device, which is one round trip:
/// enough for ZFS (labels of 256 KiB), btrfs (64 KiB) and md's old superblock (128 KiB from the
/// end).
pub const EDGE: u64 = 256 << 10;

/// The description of a member of this program's own arrays.
pub const ARRAY_MEMBER: &str = "a member of a Longhaul array";

/// The description of a namespace that a pool has as a whole.
pub const POOL_MEMBER: &str = "a member of a Longhaul pool";

/// The content of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A known signature.
    Known {
        /// Its description, with an article.
        what: &'static str,
        /// Where its signature begins, in bytes.
        at: u64,
    },
    /// Data that is not zero, without a known signature.
    Unknown {
        /// The first byte that is not zero.
        at: u64,
    },
    /// Zeroes, as far as was read.
    Nothing,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Known { what, at } => write!(f, "{what} (at byte {at})"),
            Content::Unknown { at } => write!(f, "data of an unknown kind (at byte {at})"),
            Content::Nothing => f.write_str("nothing"),
        }
    }
}

/// Reads the beginning and the end of an open device, both at the same time.
///
/// # Errors
/// Those of the reads.
pub async fn look(io: &dyn BlockIo, info: &DeviceInfo) -> IoResult<Content> {
    let edge = EDGE.min(info.size);
    let tail_at = info.size - edge;
    let (head, tail) =
        futures_util::join!(read_range(io, info, 0, edge), read_range(io, info, tail_at, edge));
    Ok(Content::of(info.size, &head?, &tail?))
}

impl Content {
    /// The content of a device of `size` bytes that begins with `head` and ends with `tail`.
    pub fn of(size: u64, head: &[u8], tail: &[u8]) -> Content {
        let device = Device { size, head, tail };
        if let Some((what, at)) = device.known() {
            return Content::Known { what, at };
        }
        let tail_at = size.saturating_sub(tail.len() as u64);
        let begins = |bytes: &[u8], from: u64| {
            bytes.iter().position(|&byte| byte != 0).map(|at| Content::Unknown { at: from + at as u64 })
        };
        begins(head, 0).or_else(|| begins(tail, tail_at)).unwrap_or(Content::Nothing)
    }

    /// Whether it is a member of one of this program's own arrays; only that array may write to it.
    pub fn is_array_member(&self) -> bool {
        matches!(self, Content::Known { what: ARRAY_MEMBER, .. })
    }

    /// Whether its signature is known.
    pub fn is_known(&self) -> bool {
        matches!(self, Content::Known { .. })
    }
}

/// The two ends of a device.
struct Device<'a> {
    size: u64,
    head: &'a [u8],
    tail: &'a [u8],
}

/// Where a signature may begin.
enum SignatureOffset {
    /// At any of these bytes.
    At(&'static [u64]),
    /// So many bytes before the end.
    End(&'static [u64]),
    /// So many bytes before the end, after that was rounded down to a multiple of the second.
    EndOf(u64, u64),
}

use SignatureOffset::{At, End, EndOf};

/// Bytes that identify a format. Sources: blkid's probes (util-linux, libblkid/src), and the
/// formats' own documents.
const SIGNATURES: &[(&str, SignatureOffset, &[u8])] = &[
    (ARRAY_MEMBER, At(&[4, (64 << 10) + 4]), b"LHARRAY\0"),
    (POOL_MEMBER, At(&[0, 64 << 10]), b"LHLABEL\0"),
    ("a space of longhaul target", At(&[0, 64 << 10]), b"LHSPACE\0"),
    ("an XFS file system", At(&[0]), b"XFSB"),
    ("a btrfs file system", At(&[65536 + 64]), b"_BHRfS_M"),
    ("a LUKS volume", At(&[0]), b"LUKS\xba\xbe"),
    ("a LUKS volume", At(&[16 << 10, 32 << 10, 64 << 10, 128 << 10]), b"SKUL\xba\xbe"),
    ("an LVM physical volume", At(&[0, 512, 1024, 1536]), b"LABELONE"),
    ("swap space", At(&[4086, 8182, 16374, 65526]), b"SWAPSPACE2"),
    ("swap space", At(&[4086, 8182, 16374, 65526]), b"SWAP-SPACE"),
    ("a bcache device", At(&[4096 + 24]), b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("a bcachefs file system", At(&[4096 + 24]), b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    ("a member of an md array (1.1)", At(&[0]), MD),
    ("a member of an md array (1.2)", At(&[4096]), MD),
    ("a member of an md array (1.0)", EndOf(8192, 4096), MD),
    ("a member of an md array (0.90)", EndOf(0, 65536), MD),
    ("a member of an Intel RAID", End(&[1024]), b"Intel Raid ISM Cfg Sig."),
    ("a member of a DDF RAID", End(&[512]), b"\xde\x11\xde\x11"),
    ("an ISO 9660 file system", At(&[32769]), b"CD001"),
    ("a UDF file system", At(&[32769]), b"BEA01"),
    ("a JFS file system", At(&[32768]), b"JFS1"),
    ("a ReiserFS file system", At(&[65536 + 52]), b"ReIsEr"),
    ("an F2FS file system", At(&[1024]), b"\x10\x20\xf5\xf2"),
    ("a SquashFS file system", At(&[0]), b"hsqs"),
    ("a Ceph BlueStore device", At(&[0]), b"bluestore block device"),
    ("an NTFS file system", At(&[3]), b"NTFS    "),
    ("an exFAT file system", At(&[3]), b"EXFAT   "),
    ("a FAT file system", At(&[54]), b"FAT12   "),
    ("a FAT file system", At(&[54]), b"FAT16   "),
    ("a FAT file system", At(&[82]), b"FAT32   "),
    ("a GPT partition table", At(&[512, 4096]), b"EFI PART"),
    ("a backup of a GPT partition table", End(&[512, 4096]), b"EFI PART"),
];

/// md's superblock: 0xa92b4efc in little endian.
const MD: &[u8] = b"\xfc\x4e\x2b\xa9";

/// ZFS: the magic number of an uberblock, 0x00bab10c in either order, and where those of a label
/// are.
const UBERBLOCKS: [&[u8]; 2] = [b"\x0c\xb1\xba\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\xba\xb1\x0c"];
const UBERBLOCKS_AT: u64 = 128 << 10;
const UBERBLOCK: u64 = 1 << 10;
const ZFS_LABEL: u64 = 256 << 10;

impl Device<'_> {
    /// The bytes from `at`, if they were read.
    fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        let of = |bytes: &'_ [u8], at: u64| {
            let at = usize::try_from(at).ok()?;
            Some(at..at.checked_add(len)?).filter(|range| range.end <= bytes.len())
        };
        if let Some(range) = of(self.head, at) {
            return self.head.get(range);
        }
        let range = of(self.tail, at.checked_sub(self.size.saturating_sub(self.tail.len() as u64))?)?;
        self.tail.get(range)
    }

    fn has(&self, at: u64, magic: &[u8]) -> bool {
        self.bytes(at, magic.len()) == Some(magic)
    }

    fn number(&self, at: u64, len: usize) -> u64 {
        let bytes = self.bytes(at, len).unwrap_or_default();
        bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
    }

    fn known(&self) -> Option<(&'static str, u64)> {
        for (what, place, magic) in SIGNATURES {
            let candidates: Vec<u64> = match place {
                At(places) => places.to_vec(),
                End(places) => places.iter().filter_map(|&back| self.size.checked_sub(back)).collect(),
                EndOf(back, unit) => {
                    let end = self.size.saturating_sub(*back) / unit * unit;
                    let at = if *back == 0 { end.checked_sub(*unit) } else { Some(end) };
                    at.into_iter().collect()
                }
            };
            if let Some(at) = candidates.into_iter().find(|&at| self.has(at, magic)) {
                return Some((what, at));
            }
        }
        self.ext().or_else(|| self.zfs()).or_else(|| self.mbr())
    }

    /// ext2, ext3 and ext4 have two bytes of signature: so the fields beside them must make sense.
    fn ext(&self) -> Option<(&'static str, u64)> {
        let field = |at: u64, len: usize| self.number(1024 + at, len);
        let sane = field(0, 4) > 0 && field(4, 4) > 0 && field(24, 4) <= 6 && field(76, 4) <= 1;
        if !self.has(1024 + 56, b"\x53\xef") || !sane {
            return None;
        }
        // Extents, 64 bit, flexible groups; huge files, group checksums, many links, extra inode
        // size, metadata checksums (ext4.h).
        let is_4 = field(96, 4) & 0x2c0 != 0 || field(100, 4) & 0x478 != 0;
        let has_journal = field(92, 4) & 4 != 0;
        let what = match (is_4, has_journal) {
            (true, _) => "an ext4 file system",
            (false, true) => "an ext3 file system",
            (false, false) => "an ext2 file system",
        };
        Some((what, 1024 + 56))
    }

    fn zfs(&self) -> Option<(&'static str, u64)> {
        let last = (self.size / ZFS_LABEL * ZFS_LABEL).checked_sub(ZFS_LABEL)?;
        let labels = [0, last.saturating_sub(ZFS_LABEL), last];
        let places = labels
            .into_iter()
            .flat_map(|label| (label + UBERBLOCKS_AT..label + ZFS_LABEL).step_by(UBERBLOCK as usize));
        let mut found = places.filter(|&at| UBERBLOCKS.iter().any(|magic| self.has(at, magic)));
        found.next().map(|at| ("a member of a ZFS pool", at))
    }

    /// Two bytes of signature again: each of the four entries must be one or empty, and one at least
    /// must be there.
    fn mbr(&self) -> Option<(&'static str, u64)> {
        if !self.has(510, b"\x55\xaa") {
            return None;
        }
        let entries = [446, 462, 478, 494].map(|at| (self.number(at, 1), self.number(at + 4, 1)));
        let sane = entries.iter().all(|(active, _)| matches!(active, 0 | 0x80));
        (sane && entries.iter().any(|(_, kind)| *kind != 0)).then_some(("an MBR partition table", 510))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{done, open};
    use crate::{BlockDevice, MemDevice, WriteFlags};
    use longhaul_engine::Buf;

    /// Odd, so that what counts from the end is rounded.
    const SIZE: usize = (4 << 20) + (12 << 10);

    fn of(fill: impl FnOnce(&mut [u8])) -> Content {
        let mut device = vec![0; SIZE];
        fill(&mut device);
        let edge = EDGE as usize;
        Content::of(SIZE as u64, &device[..edge], &device[SIZE - edge..])
    }

    #[test]
    fn every_signature_is_recognised_at_each_of_its_places() {
        let end = SIZE as u64;
        for (what, place, magic) in SIGNATURES {
            let places: Vec<u64> = match place {
                At(places) => places.to_vec(),
                End(places) => places.iter().map(|back| end - back).collect(),
                EndOf(8192, 4096) => vec![(end - 8192) & !4095],
                EndOf(..) => vec![(end & !65535) - 65536],
            };
            for at in places {
                let found = of(|device| device[at as usize..][..magic.len()].copy_from_slice(magic));
                assert_eq!(found, Content::Known { what, at }, "{what} at {at}");
            }
        }
    }

    #[test]
    fn short_signatures_need_sense_around_them() {
        let known = |content: Content| match content {
            Content::Known { what, .. } => what,
            _ => "",
        };
        let ext = |device: &mut [u8], compat: u8, incompat: u8| {
            device[1024] = 16;
            device[1028] = 64;
            device[1024 + 56..][..2].copy_from_slice(&[0x53, 0xef]);
            device[1024 + 92] = compat;
            device[1024 + 96] = incompat;
        };
        assert_eq!(known(of(|device| ext(device, 0, 0))), "an ext2 file system");
        assert_eq!(known(of(|device| ext(device, 4, 0))), "an ext3 file system");
        assert_eq!(known(of(|device| ext(device, 4, 0x40))), "an ext4 file system");
        let table = |device: &mut [u8], kind: u8| {
            device[446 + 4] = kind;
            device[510..512].copy_from_slice(&[0x55, 0xaa]);
        };
        assert_eq!(known(of(|device| table(device, 0x83))), "an MBR partition table");
        assert_eq!(of(|device| table(device, 0)), Content::Unknown { at: 510 });
        let noise = of(|device| device[..2048].fill(0x53));
        assert_eq!(noise, Content::Unknown { at: 0 });
        for label in [0, (SIZE & !0x3ffff) - 0x40000] {
            let at = label + (128 << 10) + (8 << 10);
            let found = of(|device| device[at..at + 3].copy_from_slice(&[0x0c, 0xb1, 0xba]));
            assert_eq!(known(found), "a member of a ZFS pool", "{at}");
        }
        assert_eq!(of(|_| {}), Content::Nothing);
        assert_eq!(of(|device| device[SIZE - 1] = 1), Content::Unknown { at: SIZE as u64 - 1 });
    }

    #[test]
    fn both_ends_of_an_open_device_are_looked_at() {
        for size in [4096u64, 300 << 10, 4 << 20] {
            let device = MemDevice::new(size, 4096).expect("mapped");
            let io = open(&device);
            assert_eq!(crate::testing::now(Box::pin(look(&*io, &device.info()))), Ok(Content::Nothing));
            done(io.write(size - 4096, Buf::copy_of(&[1; 4096]), WriteFlags::default())).expect("written");
            let found = crate::testing::now(Box::pin(look(&*io, &device.info())));
            assert_eq!(found, Ok(Content::Unknown { at: size - 4096 }));
        }
    }

    #[test]
    fn what_real_tools_make_is_recognised() {
        let dir = tempfile::tempdir().expect("a directory");
        for (tool, args, what) in [
            ("mkfs.xfs", &["-q", "-f"][..], "an XFS file system"),
            ("mkfs.ext2", &["-q", "-F"], "an ext2 file system"),
            ("mkfs.ext3", &["-q", "-F"], "an ext3 file system"),
            ("mkfs.ext4", &["-q", "-F"], "an ext4 file system"),
            ("mkfs.btrfs", &["-q", "-f"], "a btrfs file system"),
            ("mkfs.vfat", &[], "a FAT file system"),
            ("mkswap", &["-q"], "swap space"),
        ] {
            let path = dir.path().join(tool);
            let size = 320 << 20;
            let file = std::fs::File::create(&path).expect("made");
            file.set_len(size).expect("sized");
            match std::process::Command::new(tool).args(args).arg(&path).output() {
                Ok(made) if made.status.success() => {}
                _ => {
                    longhaul_skip::skip_part!("needs {tool}");
                    continue;
                }
            }
            let device = crate::FileDevice::open_file(&path, &crate::FileOptions::default()).expect("opened");
            let info = device.info();
            let device = crate::Blocking::open(std::sync::Arc::new(device)).expect("opened");
            let (mut head, mut tail) = (vec![0; EDGE as usize], vec![0; EDGE as usize]);
            device.read_at(&mut head, 0).expect("read");
            device.read_at(&mut tail, info.size - EDGE).expect("read");
            let found = Content::of(info.size, &head, &tail);
            assert!(matches!(found, Content::Known { what: name, .. } if name == what), "{tool}: {found}");
            std::fs::remove_file(path).expect("removed");
        }
    }
}
