//! Memory of the packets in flight.
//!
//! Packets of any size are stored one behind the other in large blocks. A block without
//! live packets is reused, the last one first, so that the memory of a short link stays
//! in the cache.
//!
//! Invariants:
//! - a block is current, or free, or has live packets;
//! - memory is only taken from the system when no block is free, and never
//!   more than the limit; it is kept until the end;
//! - space that was handed out is `packet::MAX` bytes, so that every packet fits.

use crate::packet;

/// Length of a block in bytes: the space behind the last packet that fits no
/// largest one is wasted, which is at most a quarter.
const BLOCK: usize = 4 * 65_536;

/// A packet in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPacket {
    block: u32,
    at: u32,
    len: u32,
}

struct Block {
    bytes: Box<[u8]>,
    used: usize,
    live: u32,
}

pub(crate) struct Arena {
    blocks: Vec<Block>,
    free: Vec<u32>,
    current: Option<u32>,
    limit: usize,
}

impl Arena {
    /// Room for about `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arena {
        Arena { blocks: Vec::new(), free: Vec::new(), current: None, limit: (limit / BLOCK).max(2) }
    }

    /// Space for the next packet, or nothing if the limit is reached.
    pub(crate) fn space(&mut self) -> Option<&mut [u8]> {
        let fits = |b: &Block| b.used + packet::MAX <= BLOCK;
        let current = match self.current.filter(|i| fits(&self.blocks[*i as usize])) {
            Some(current) => current,
            None => self.take_block()?,
        };
        let block = &mut self.blocks[current as usize];
        Some(&mut block.bytes[block.used..block.used + packet::MAX])
    }

    fn take_block(&mut self) -> Option<u32> {
        let next = match self.free.pop() {
            Some(next) => next,
            None if self.blocks.len() < self.limit => {
                let bytes = vec![0; BLOCK].into_boxed_slice();
                self.blocks.push(Block { bytes, used: 0, live: 0 });
                self.blocks.len() as u32 - 1
            }
            None => return None,
        };
        // The one before has live packets, or there would be space in it.
        self.current = Some(next);
        Some(next)
    }

    /// Keeps the first `len` bytes of the space that was handed out last.
    pub(crate) fn keep(&mut self, len: usize) -> Option<StoredPacket> {
        let current = self.current?;
        let block = &mut self.blocks[current as usize];
        let at = block.used;
        block.used += len;
        block.live += 1;
        Some(StoredPacket { block: current, at: at as u32, len: len as u32 })
    }

    /// The bytes of a packet.
    pub(crate) fn bytes(&self, packet: StoredPacket) -> &[u8] {
        let at = packet.at as usize;
        &self.blocks[packet.block as usize].bytes[at..at + packet.len as usize]
    }

    /// Lets a packet go.
    pub(crate) fn free(&mut self, packet: StoredPacket) {
        let block = &mut self.blocks[packet.block as usize];
        block.live -= 1;
        if block.live == 0 {
            block.used = 0;
            if self.current != Some(packet.block) {
                self.free.push(packet.block);
            }
        }
    }

    /// Bytes taken from the system.
    pub(crate) fn taken(&self) -> usize {
        self.blocks.len() * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(arena: &mut Arena, len: usize, fill: u8) -> Option<StoredPacket> {
        arena.space()?[..len].fill(fill);
        arena.keep(len)
    }

    #[test]
    fn packets_are_unchanged_until_they_leave() {
        let mut arena = Arena::new(64 * BLOCK);
        let mut live = std::collections::VecDeque::new();
        for i in 0..5000usize {
            let (len, fill) = (1 + i * 7919 % 65_000, i as u8);
            live.push_back((put(&mut arena, len, fill).expect("space"), len, fill));
            if live.len() > 40 {
                // From either end, as packets that are held back go late.
                let (place, len, fill) = if i % 3 == 0 { live.pop_back() } else { live.pop_front() }.unwrap();
                assert_eq!(arena.bytes(place), vec![fill; len]);
                arena.free(place);
            }
        }
        assert!(arena.taken() <= 40 * BLOCK, "{} bytes for 40 packets", arena.taken());
        for (place, ..) in live {
            arena.free(place);
        }
        let whole = arena.taken();
        for _ in 0..whole / BLOCK * 2 {
            put(&mut arena, 60_000, 1).expect("everything is free again");
        }
        assert_eq!(arena.taken(), whole);
    }

    #[test]
    fn no_more_than_the_limit_is_taken() {
        let mut arena = Arena::new(4 * BLOCK);
        let all: Vec<_> = std::iter::from_fn(|| put(&mut arena, 65_000, 0)).collect();
        assert_eq!((arena.taken(), all.len()), (4 * BLOCK, 16));
        all[4..7].iter().for_each(|place| arena.free(*place));
        assert!(arena.space().is_none(), "one of its block is still there");
        arena.free(all[7]);
        assert!(arena.space().is_some());
    }

    #[test]
    fn a_link_at_rest_uses_one_block_again_and_again() {
        let mut arena = Arena::new(4 * BLOCK);
        for _ in 0..100 {
            let place = put(&mut arena, 65_000, 0).expect("space");
            arena.free(place);
        }
        assert_eq!(arena.taken(), BLOCK);
    }
}
