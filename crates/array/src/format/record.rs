//! On-disk format of journal records.

use crate::format::bytes::{Reader, Writer, open, seal};
use crate::format::geometry::{BLOCK, Role};
use crate::format::superblock::COUNT_MAX;
use longhaul_engine::{Buf, BufMut};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"LHJOURNL";
/// Bytes of a record before its payload.
pub(crate) const HEAD: u64 = BLOCK;
/// Limits that the space of a head sets: data records that one commit covers, and pieces of a
/// record.
pub(crate) const COVERS_MAX: usize = 64;
pub(crate) const PIECES_MAX: usize = 320;
/// Bytes of a head's fixed fields, including the checksum.
const FIXED: usize = 4 + 8 + 16 + 8 * 6 + 2 * 4 + 4 + 4;
const _: () = assert!(FIXED + COVERS_MAX * 8 + PIECES_MAX * 10 <= HEAD as usize);

/// Type of a record. The numbers are those of its head: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum RecordKind {
    /// New data, which may be acknowledged. Nothing has changed in place.
    Data = 1,
    /// Precedes a change of a stripe in place: new parity, and data that has no record of its own.
    Commit = 2,
    /// No content: records the tail only.
    Mark = 3,
}

impl RecordKind {
    const ALL: [RecordKind; 3] = [RecordKind::Data, RecordKind::Commit, RecordKind::Mark];

    /// The type of that number; `None` for one of a later version.
    fn of_code(code: u16) -> Option<RecordKind> {
        RecordKind::ALL.into_iter().find(|kind| *kind as u16 == code)
    }
}

/// A range of a unit with its content.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) role: Role,
    /// Offset in the unit, in bytes.
    pub(crate) at: u64,
    pub(crate) bytes: Buf,
}

/// A journal record.
#[derive(Clone, Debug)]
pub(crate) struct JournalRecord {
    pub(crate) kind: RecordKind,
    /// The assembly of the array that wrote it, and the position of that epoch's first record.
    pub(crate) epoch: u64,
    pub(crate) epoch_start: u64,
    /// Position: bytes ever written to the journal before it.
    pub(crate) pos: u64,
    pub(crate) seq: u64,
    /// The tail when it was written.
    pub(crate) tail: u64,
    pub(crate) row: u64,
    /// Data records whose data becomes part of the stripe.
    pub(crate) covers: Vec<u64>,
    pub(crate) pieces: Vec<Piece>,
}

/// Numbers of the parity units in a record; those below are data units.
const P_CODE: u16 = 0x100;
const Q_CODE: u16 = 0x101;

fn role_code(role: Role) -> u16 {
    match role {
        Role::Data(i) => i as u16,
        Role::P => P_CODE,
        Role::Q => Q_CODE,
    }
}

fn role(code: u16) -> Option<Role> {
    match code {
        P_CODE => Some(Role::P),
        Q_CODE => Some(Role::Q),
        0..P_CODE => Some(Role::Data(usize::from(code))),
        _ => None,
    }
}

impl JournalRecord {
    /// Bytes of head and payload.
    pub(crate) fn len(&self) -> u64 {
        HEAD + self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>()
    }

    /// Head and payload in one buffer.
    pub(crate) fn encode(&self, array: Uuid) -> Buf {
        let mut block = BufMut::zeroed(self.len() as usize);
        let (head, payload) = block.split_at_mut(HEAD as usize);
        let mut at = 0;
        for piece in &self.pieces {
            payload[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
            at += piece.bytes.len();
        }
        let mut out = Writer::new(&mut head[4..]);
        out.bytes(MAGIC).uuid(array);
        out.u64(self.epoch).u64(self.epoch_start).u64(self.pos).u64(self.seq).u64(self.tail).u64(self.row);
        out.u16(self.kind as u16).u16(self.covers.len() as u16).u16(self.pieces.len() as u16).u16(0);
        out.u32(at as u32).u32(crc_fast::crc32_iscsi(payload));
        for seq in &self.covers {
            out.u64(*seq);
        }
        for piece in &self.pieces {
            out.u16(role_code(piece.role)).u32(piece.at as u32).u32(piece.bytes.len() as u32);
        }
        seal(head);
        block.freeze()
    }

    /// The record whose head is at `at` of `ring`, the whole journal of a member; `None` if there
    /// is no record, or it is torn.
    pub(crate) fn decode(ring: &[u8], at: u64, array: Uuid) -> Option<JournalRecord> {
        let size = ring.len() as u64;
        let mut from = Reader::new(open(ring.get(at as usize..(at + HEAD) as usize)?)?);
        if from.bytes(8)? != MAGIC || from.uuid()? != array {
            return None;
        }
        let (epoch, epoch_start, pos) = (from.u64()?, from.u64()?, from.u64()?);
        let (seq, tail, row) = (from.u64()?, from.u64()?, from.u64()?);
        let kind = RecordKind::of_code(from.u16()?)?;
        let (covers, pieces, _) = (from.u16()?, from.u16()?, from.u16()?);
        let (len, sum) = (u64::from(from.u32()?), from.u32()?);
        let counts = [epoch, epoch_start, pos, seq, tail].iter().all(|count| *count < COUNT_MAX);
        if pos % size != at || HEAD + len > size || !counts {
            return None;
        }
        let covers = (0..covers).map(|_| from.u64()).collect::<Option<Vec<_>>>()?;
        // The payload may wrap around to the start of the ring.
        let start = ((at + HEAD) % size) as usize;
        let head = (len as usize).min(ring.len() - start);
        let mut payload = BufMut::zeroed(len as usize);
        payload[..head].copy_from_slice(&ring[start..start + head]);
        payload[head..].copy_from_slice(&ring[..len as usize - head]);
        if crc_fast::crc32_iscsi(&payload) != sum {
            return None;
        }
        let (payload, mut done) = (payload.freeze(), 0);
        let mut list = Vec::new();
        for _ in 0..pieces {
            let (role, at, len) = (role(from.u16()?)?, u64::from(from.u32()?), from.u32()? as usize);
            let end = done + len;
            if end > payload.len() {
                return None;
            }
            list.push(Piece { role, at, bytes: payload.slice(done..end) });
            done = end;
        }
        Some(JournalRecord { kind, epoch, epoch_start, pos, seq, tail, row, covers, pieces: list })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A record with a value in every field, near the end of a journal.
    pub(in crate::format) fn example() -> JournalRecord {
        let piece = |role, at, byte, len| Piece { role, at, bytes: Buf::copy_of(&vec![byte; len]) };
        JournalRecord {
            kind: RecordKind::Commit,
            epoch: 3,
            epoch_start: 12 << 10,
            pos: (1 << 20) + 56 * 1024,
            seq: 9,
            tail: 1 << 20,
            row: 77,
            covers: vec![5, 8],
            pieces: vec![piece(Role::Data(2), 4096, 7, 4096), piece(Role::Q, 0, 8, 8192)],
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A head with a valid checksum may still hold any values.
        #[test]
        fn any_record_head_is_decoded_or_refused(
            pos in 0u64..32, pieces in 0u64..4,
            changes in proptest::collection::vec((28usize..140, any::<u64>(), 0u32..64, 1usize..9), 0..4),
        ) {
            let array = Uuid::from_u128(1);
            let piece = |n| Piece { role: Role::Data(n as usize), at: n * BLOCK, bytes: Buf::copy_of(&[7; 4096]) };
            let record = JournalRecord {
                kind: RecordKind::Commit, epoch: 3, epoch_start: 0, pos: pos * BLOCK, seq: 9, tail: 0, row: 5,
                covers: vec![1, 2], pieces: (0..pieces).map(piece).collect(),
            };
            let mut bytes = record.encode(array).to_vec();
            for (at, value, shift, len) in changes {
                bytes[at..at + len].copy_from_slice(&(value >> shift).to_le_bytes()[..len]);
            }
            seal(&mut bytes[..HEAD as usize]);
            let mut ring = vec![0; 64 << 10];
            let size = ring.len();
            for (n, byte) in bytes.iter().enumerate() {
                ring[((pos * BLOCK) as usize + n) % size] = *byte;
            }
            for at in (0..size as u64).step_by(HEAD as usize) {
                if let Some(found) = JournalRecord::decode(&ring, at, array) {
                    prop_assert!(found.len() <= size as u64 && found.pos % size as u64 == at);
                    prop_assert!(found.pos + found.len() > found.pos && found.seq + 1 > found.seq);
                }
            }
        }
    }

    /// Journals that exist have these numbers.
    #[test]
    fn the_codes_of_records_and_roles_never_change() {
        for (code, kind) in [(1, RecordKind::Data), (2, RecordKind::Commit), (3, RecordKind::Mark)] {
            assert_eq!((kind as u16, RecordKind::of_code(code)), (code, Some(kind)));
        }
        assert_eq!([0, 4].map(RecordKind::of_code), [None, None]);
        for (code, known) in [(0, Role::Data(0)), (63, Role::Data(63)), (0x100, Role::P), (0x101, Role::Q)] {
            assert_eq!((role_code(known), role(code)), (code, Some(known)));
        }
        assert_eq!(role(0x102), None);
    }

    #[test]
    fn a_record_is_read_back_also_around_the_end() {
        let record = example();
        let array = Uuid::from_u128(1);
        let bytes = record.encode(array);
        assert_eq!(bytes.len() as u64, record.len());
        assert_eq!(
            crc_fast::crc32_iscsi(&bytes),
            147_864_438,
            "the bytes that a crash before an update left"
        );
        let mut ring = vec![0; 64 << 10];
        let start = 56 << 10;
        ring[start..].copy_from_slice(&bytes[..8 << 10]);
        ring[..bytes.len() - (8 << 10)].copy_from_slice(&bytes[8 << 10..]);
        let back = JournalRecord::decode(&ring, start as u64, array).expect("whole");
        assert_eq!(format!("{back:?}"), format!("{record:?}"));
        assert_eq!(back.pieces[1].bytes[..], [8; 8192]);
        assert!(JournalRecord::decode(&ring, start as u64, Uuid::from_u128(2)).is_none(), "of another array");
        ring[100] ^= 1;
        assert!(JournalRecord::decode(&ring, start as u64, array).is_none(), "a torn payload");
        assert!(JournalRecord::decode(&ring, 0, array).is_none(), "no head");
    }
}
