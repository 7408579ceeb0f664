//! On-disk format of heartbeats.

use crate::format::bytes::{Reader, Writer, open, seal};
use crate::format::geometry::BLOCK;
use longhaul_engine::Buf;
use std::time::Duration;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"LHBEAT\0\0";

/// The record on a member that shows that an array is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    pub(crate) array: Uuid,
    pub(crate) session: Uuid,
    pub(crate) counter: u64,
    pub(crate) stopped: bool,
    /// The newest generation that all members in use have confirmed; zero if unknown.
    pub(crate) confirmed: u64,
    /// Time since the session began; milliseconds on the member.
    pub(crate) elapsed: Duration,
    /// The previous session that wrote superblocks, if it was not stopped, and the session time of
    /// its last heartbeat: the record that this heartbeat replaces.
    pub(crate) before: Option<(Uuid, Duration)>,
}

impl Heartbeat {
    pub(crate) fn encode(&self) -> Buf {
        let mut block = vec![0; BLOCK as usize];
        let mut out = Writer::new(&mut block[4..]);
        out.bytes(MAGIC).uuid(self.array).uuid(self.session).u64(self.counter).u16(u16::from(self.stopped));
        out.u64(self.confirmed).u64(self.elapsed.as_millis() as u64);
        let (session, elapsed) = self.before.unwrap_or_default();
        out.uuid(session).u64(elapsed.as_millis() as u64);
        seal(&mut block);
        Buf::copy_of(&block)
    }

    pub(crate) fn decode(block: &[u8]) -> Option<Heartbeat> {
        let mut from = Reader::new(open(block)?);
        if from.bytes(MAGIC.len())? != MAGIC {
            return None;
        }
        let (array, session) = (from.uuid()?, from.uuid()?);
        let (counter, stopped) = (from.u64()?, from.u16()? != 0);
        let (confirmed, elapsed) = (from.u64()?, Duration::from_millis(from.u64()?));
        let before = (from.uuid()?, Duration::from_millis(from.u64()?));
        let before = Some(before).filter(|(session, _)| !session.is_nil());
        Some(Heartbeat { array, session, counter, stopped, confirmed, elapsed, before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_is_read_back() {
        let (array, session) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let elapsed = Duration::from_millis(1500);
        let before = Some((Uuid::from_u128(9), Duration::from_millis(2500)));
        let beat = Heartbeat { array, session, counter: 3, stopped: true, confirmed: 7, elapsed, before };
        let first = Heartbeat { before: None, ..beat };
        assert_eq!(Heartbeat::decode(&first.encode()), Some(first));
        let mut block = beat.encode().to_vec();
        assert_eq!(Heartbeat::decode(&block), Some(beat));
        assert_eq!(crc_fast::crc32_iscsi(&block), 1_261_397_784, "the bytes that other hosts know");
        block[20] ^= 1;
        assert_eq!(Heartbeat::decode(&block), None);
    }
}
