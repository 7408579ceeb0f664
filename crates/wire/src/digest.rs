//! CRC32C, the digest of NVMe/TCP headers and data.
//!
//! On the wire a digest is four bytes, least significant first
//! (NVMe-TCP 1.1, "PDU Header Digest" and "PDU Data Digest").

use crc_fast::{CrcAlgorithm, Digest};
use std::fmt;

/// Length of a header or data digest in bytes.
pub const DIGEST_LEN: usize = 4;

/// CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C of bytes that come in parts.
#[derive(Clone)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// The digest of nothing yet.
    pub fn new() -> Crc32c {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    pub fn value(&self) -> u32 {
        // The algorithm is 32 bits wide: the upper half is zero.
        self.0.finalize() as u32
    }

    /// Forgets all bytes so far.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:#010x})", self.value())
    }
}

/// Appends the digest of `out[start..]`, a PDU header, to `out`.
///
/// # Panics
/// If `start` is past the end.
pub fn append_header_digest(out: &mut Vec<u8>, start: usize) {
    let digest = crc32c(&out[start..]);
    out.extend_from_slice(&digest.to_le_bytes());
}

/// Checks a header that is followed by its digest; gives the digest that was
/// received if it does not match (or 0 if there is no room for one).
pub fn check_header_digest(header_and_digest: &[u8]) -> Result<(), u32> {
    let Some((header, digest)) = header_and_digest.split_last_chunk::<DIGEST_LEN>() else { return Err(0) };
    let received = u32::from_le_bytes(*digest);
    if crc32c(header) == received { Ok(()) } else { Err(received) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, appendix B.4.
    #[test]
    fn known_values() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&up), 0x46dd_794e);
        assert_eq!(crc32c(&down), 0x113f_db5c);
    }

    #[test]
    fn parts_give_the_same_as_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for cut in [0, 1, 7, 4096, 9_999, 10_000] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.value(), crc32c(&bytes), "cut at {cut}");
            crc.reset();
            assert_eq!(crc.value(), crc32c(&[]));
        }
    }

    #[test]
    fn header_digest_round_trip() {
        let mut out = b"before".to_vec();
        let start = out.len();
        out.extend_from_slice(&[4, 1, 24, 0, 28, 0, 0, 0]);
        append_header_digest(&mut out, start);
        assert_eq!(check_header_digest(&out[start..]), Ok(()));
        let received = u32::from_le_bytes(out[start + 8..].try_into().unwrap());
        for bit in 0..64 {
            let mut bad = out[start..].to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check_header_digest(&bad), Err(received));
        }
        assert_eq!(check_header_digest(&[1, 2, 3]), Err(0));
    }
}
