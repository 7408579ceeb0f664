//! The map of a block device that is a space: which extents each namespace has.
//!
//! There are two copies. Each change writes one and then the other, so that one is whole at any moment,
//! and both have the same content unless a crash came between. A copy is a head of 4 KiB at a fixed
//! place, and a text that the head says where and how long is.
//!
//! | bytes of the head | content |
//! |---|---|
//! | 0 to 7 | `LHSPACE\0` |
//! | 8 to 11 | version: 1 |
//! | 12 to 15 | CRC-32C of the head with zeroes here |
//! | 16 to 23 | generation: the number of the change |
//! | 24 to 39 | identity of the space |
//! | 40 to 47 | offset of the text |
//! | 48 to 55 | bytes that the text has room for |
//! | 56 to 63 | bytes of the text |
//! | 64 to 67 | CRC-32C of the text |
//!
//! Integers are little endian. The text is JSON: what identifies the device, and for each namespace its
//! record and its extents, in bytes.

use super::super::record::NamespaceRecord;
use longhaul_wire::digest::crc32c;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes of a head.
pub(super) const HEAD: usize = 4096;
/// Offsets of the heads.
pub(super) const HEADS: [u64; 2] = [0, 64 << 10];
/// Offset of the first text.
const TEXTS: u64 = 128 << 10;
const MAGIC: &[u8; 8] = b"LHSPACE\0";
const VERSION: u32 = 1;
/// What the texts take of a device, each: room for some hundred namespaces of the smallest, and for all
/// that a space may have of a large one.
const TEXT_SHARE: u64 = 512;
const TEXT_MIN: u64 = 256 << 10;
const TEXT_MAX: u64 = 64 << 20;
/// Extents begin at multiples of this, and have as many bytes: no device has larger pages or blocks.
pub(super) const EXTENT: u64 = 1 << 20;

/// Where the copies and the extents of a device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Bytes that each text has room for.
    pub(super) room: u64,
}

impl Places {
    /// Those of a device that becomes a space.
    pub(super) fn of_size(size: u64) -> Places {
        Places { room: (size / TEXT_SHARE).clamp(TEXT_MIN, TEXT_MAX) / EXTENT_BLOCK * EXTENT_BLOCK }
    }

    pub(super) fn text(self, copy: usize) -> u64 {
        TEXTS + copy as u64 * self.room
    }

    /// Offset of the first extent.
    pub(super) fn first_extent(self) -> u64 {
        (TEXTS + 2 * self.room).next_multiple_of(EXTENT)
    }
}

const EXTENT_BLOCK: u64 = HEAD as u64;

/// A namespace and its extents: offset and length in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mapped {
    pub(super) record: NamespaceRecord,
    pub(super) extents: Vec<(u64, u64)>,
}

/// The text of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpaceMap {
    /// What identifies the device that it was made on, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    pub(super) namespaces: Vec<Mapped>,
}

/// The head of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapHead {
    pub(super) generation: u64,
    pub(super) space: Uuid,
    pub(super) text_at: u64,
    pub(super) room: u64,
    pub(super) len: u64,
    pub(super) sum: u32,
}

/// What is where a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Head(MapHead),
    /// A head of another version.
    Version(u32),
    /// A head that does not match its checksum.
    Damaged,
    /// Anything else.
    Nothing,
}

impl SpaceMap {
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| e.to_string())
    }

    /// Reads a text that has matched its checksum. The error names the fault.
    pub(super) fn decode(text: &[u8]) -> Result<SpaceMap, String> {
        serde_json::from_slice(text).map_err(|e| e.to_string())
    }

    /// Whether the extents are those of a device of `size` bytes, whose first one may be at `first`: none
    /// twice, and enough for each namespace. The error names the fault.
    pub(super) fn check(&self, first: u64, size: u64) -> Result<(), String> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for Mapped { record, extents } in &self.namespaces {
            let nsid = record.nsid;
            record.check()?;
            if !seen.insert(nsid) {
                return Err(format!("it has namespace {nsid} twice"));
            }
            let mut bytes = 0u64;
            for &(at, len) in extents {
                let end = at.checked_add(len).filter(|end| *end <= size);
                let is_whole = at.is_multiple_of(EXTENT) && len.is_multiple_of(EXTENT) && len > 0;
                if at < first || end.is_none() || !is_whole {
                    return Err(format!(
                        "namespace {nsid} has {len} bytes at {at}, and the device {size}: was it made smaller?"
                    ));
                }
                bytes += len;
                all.push((at, len));
            }
            if bytes < record.size {
                return Err(format!("namespace {nsid} has {} bytes, and extents of {bytes}", record.size));
            }
        }
        all.sort_unstable();
        match all.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            Some(pair) => Err(format!("two namespaces have the bytes at {}", pair[1].0)),
            None => Ok(()),
        }
    }
}

impl MapHead {
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[16..24].copy_from_slice(&self.generation.to_le_bytes());
        head[24..40].copy_from_slice(self.space.as_bytes());
        head[40..48].copy_from_slice(&self.text_at.to_le_bytes());
        head[48..56].copy_from_slice(&self.room.to_le_bytes());
        head[56..64].copy_from_slice(&self.len.to_le_bytes());
        head[64..68].copy_from_slice(&self.sum.to_le_bytes());
        let sum = crc32c(&head);
        head[12..16].copy_from_slice(&sum.to_le_bytes());
        head
    }

    pub(super) fn find(head: &[u8]) -> Found {
        if head.len() < HEAD || head[..8] != *MAGIC {
            return Found::Nothing;
        }
        let mut blank = head[..HEAD].to_vec();
        blank[12..16].fill(0);
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if crc32c(&blank) != u32_at(12) {
            return Found::Damaged;
        }
        if u32_at(8) != VERSION {
            return Found::Version(u32_at(8));
        }
        let mut space = [0; 16];
        space.copy_from_slice(&head[24..40]);
        let found = MapHead {
            generation: u64_at(16),
            space: Uuid::from_bytes(space),
            text_at: u64_at(40),
            room: u64_at(48),
            len: u64_at(56),
            sum: u32_at(64),
        };
        let places = Places { room: found.room };
        let is_sound = (TEXT_MIN..=TEXT_MAX).contains(&found.room)
            && found.room.is_multiple_of(EXTENT_BLOCK)
            && found.len <= found.room
            && [0, 1].iter().any(|copy| places.text(*copy) == found.text_at);
        if is_sound { Found::Head(found) } else { Found::Damaged }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use longhaul_proto::controller::NewNamespace;
    use longhaul_wire::management::NamespaceLabel;

    fn mapped(nsid: u32, extents: &[(u64, u64)]) -> Mapped {
        let label = NamespaceLabel { job: "7".into(), ..NamespaceLabel::default() };
        let new = NewNamespace { blocks: 256, block_shift: 12, shared: true, label };
        let record = NamespaceRecord::new(nsid, Uuid::from_u128(nsid.into()), &new);
        Mapped { record, extents: extents.to_vec() }
    }

    const GOLDEN: &str = r#"{"device":"block wwid x","namespaces":[{"record":{"version":1,"nsid":3,"uuid":"00000000-0000-0000-0000-000000000003","size":1048576,"block_size":4096,"shared":true,"thin":false,"hosts":[],"job":"7"},"extents":[[1048576,1048576]]}]}"#;

    #[test]
    fn the_format_of_a_map_is_kept() {
        let map = SpaceMap {
            device: Some("block wwid x".into()),
            namespaces: vec![mapped(3, &[(EXTENT, EXTENT)])],
        };
        assert_eq!(String::from_utf8(map.encode().expect("encoded")).expect("text"), GOLDEN);
        assert_eq!(SpaceMap::decode(GOLDEN.as_bytes()), Ok(map));
        let head = MapHead {
            generation: 5,
            space: Uuid::from_u128(0x0102),
            text_at: TEXTS + TEXT_MIN,
            room: TEXT_MIN,
            len: GOLDEN.len() as u64,
            sum: crc32c(GOLDEN.as_bytes()),
        };
        let bytes = head.encode();
        let hex: String = bytes[..72].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, HEAD_GOLDEN);
        assert!(bytes[72..].iter().all(|byte| *byte == 0));
        assert_eq!(MapHead::find(&bytes), Found::Head(head));
    }

    /// The head above, as version 1 has it.
    const HEAD_GOLDEN: &str = "4c4853504143450001000000eabf88d105000000000000000000000000000000000000000000010200000600000000000000040000000000e700000000000000464e56dd00000000";

    #[test]
    fn a_damaged_head_and_one_of_another_version_are_told() {
        let places = Places::of_size(1 << 30);
        let head = MapHead {
            generation: 1,
            space: Uuid::from_u128(1),
            text_at: places.text(0),
            room: places.room,
            len: 0,
            sum: crc32c(b""),
        };
        let good = head.encode();
        for bit in 64..8 * 100 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(MapHead::find(&bad), Found::Damaged, "bit {bit}");
        }
        let mut newer = good;
        newer[8] = 2;
        newer[12..16].fill(0);
        let sum = crc32c(&newer);
        newer[12..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(MapHead::find(&newer), Found::Version(2));
        assert_eq!(MapHead::find(&[0; HEAD]), Found::Nothing);
        assert_eq!(MapHead::find(&good[..100]), Found::Nothing);
    }

    #[test]
    fn maps_that_contradict_themselves_are_refused() {
        let check = |namespaces: &[Mapped]| {
            SpaceMap { device: None, namespaces: namespaces.to_vec() }.check(2 * EXTENT, 10 * EXTENT)
        };
        assert_eq!(check(&[mapped(1, &[(2 * EXTENT, EXTENT)]), mapped(2, &[(3 * EXTENT, EXTENT)])]), Ok(()));
        for (wrong, why) in [
            (vec![mapped(1, &[(EXTENT, EXTENT)])], "was it made smaller"),
            (vec![mapped(1, &[(9 * EXTENT, 2 * EXTENT)])], "was it made smaller"),
            (vec![mapped(1, &[(u64::MAX - EXTENT + 1, EXTENT)])], "was it made smaller"),
            (vec![mapped(1, &[(2 * EXTENT + 512, EXTENT)])], "was it made smaller"),
            (vec![mapped(1, &[])], "extents of 0"),
            (vec![mapped(1, &[(2 * EXTENT, EXTENT)]), mapped(1, &[(3 * EXTENT, EXTENT)])], "twice"),
            (
                vec![mapped(1, &[(2 * EXTENT, 2 * EXTENT)]), mapped(2, &[(3 * EXTENT, EXTENT)])],
                "two namespaces",
            ),
        ] {
            let error = check(&wrong).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
