//! A page of checksums: the entries of consecutive blocks of a member, little-endian.
//!
//! An entry is the CRC-32C of a block XOR that of a block of zeroes, so that the region of a new array,
//! all zeroes, is right for units of zeroes.

use super::geometry::{BLOCK, SUM};
use longhaul_engine::BufMut;

/// CRC-32C (iSCSI, RFC 3720) of a block of zeroes.
const OF_ZEROES: u32 = 0x98F9_4189;

/// The entry of a block.
pub(crate) fn entry_of(block: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(block) ^ OF_ZEROES
}

/// The entries of the [`BLOCK`] bytes of a page.
pub(crate) fn decode(page: &[u8]) -> Vec<u32> {
    let entry = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    page.chunks_exact(SUM as usize).map(entry).collect()
}

/// The page with these entries, at most [`BLOCK`] / [`SUM`]; further ones are zero.
pub(crate) fn encode(entries: &[u32]) -> BufMut {
    let mut page = BufMut::zeroed(BLOCK as usize);
    for (slot, entry) in page.chunks_exact_mut(SUM as usize).zip(entries) {
        slot.copy_from_slice(&entry.to_le_bytes());
    }
    page
}
