//! Output in batches.
//!
//! Invariants:
//! - pieces are in wire order, and no two pieces of bytes are neighbours;
//! - every data digest that is still to be filled in has an entry in
//!   `digests`, and four zero bytes in `bytes`;
//! - in the steady state nothing allocates: batches swap their vectors.

use longhaul_wire::digest::{DIGEST_LEN, append_header_digest};
use longhaul_wire::pdu::{Fes, PDO_MAX, PduType, TERM_REQ_DATA_MAX, TermReq};
use zerocopy::{Immutable, IntoBytes};

use super::Fault;

/// Header bytes waiting to be sent from which on a queue takes no more input:
/// a peer that asks and never reads is stopped by its own back-pressure.
/// A full queue of 4096 entries needs a quarter of it.
pub const BACKLOG_MAX: usize = 1 << 20;

/// The same for a controller, which answers strangers: little, since as much
/// again may be under way. It holds the responses to 2,700 commands. A host may
/// not stop so early: it would wait for a controller that waits for it.
pub const RESPONSES_MAX: usize = 64 << 10;

/// A part of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// `bytes[start..start + len]` of the batch.
    Bytes {
        /// Offset of the first byte in the buffer.
        start: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Bytes `offset..offset + len` of the data of a command.
    Payload {
        /// Slot of the command that the data belongs to.
        slot: u16,
        /// Offset of the first byte in the data of the command.
        offset: u32,
        /// Length in bytes; may be 0 if `last`.
        len: u32,
        /// No more data of this command will be sent: once this piece is on
        /// its way the driver calls `payload_sent(slot)`.
        last: bool,
    },
}

/// A data digest that the driver has to compute, see [`Batch::fill_digests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestAt {
    /// Where in `bytes` the four bytes go.
    pub at: u32,
    /// Slot of the command that the data belongs to.
    pub slot: u16,
    /// First byte of its data.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// What to send next, in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Headers, padding and digests.
    pub bytes: Vec<u8>,
    /// The pieces, in wire order.
    pub pieces: Vec<Piece>,
    /// Data digests to fill in; empty unless they were agreed on.
    pub digests: Vec<DigestAt>,
}

impl Batch {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.digests.clear();
    }

    /// Length on the wire, in bytes.
    pub fn wire_len(&self) -> u64 {
        let len = |p: &Piece| match *p {
            Piece::Bytes { len, .. } | Piece::Payload { len, .. } => u64::from(len),
        };
        self.pieces.iter().map(len).sum()
    }

    /// Fills in the data digests: `digest(slot, offset, len)` is the CRC32C of
    /// that part of the command's data. To be called once before the batch
    /// is sent; costs nothing where data digests are not in use.
    pub fn fill_digests(&mut self, mut digest: impl FnMut(u16, u32, u32) -> u32) {
        for d in self.digests.drain(..) {
            let value = digest(d.slot, d.offset, d.len).to_le_bytes();
            self.bytes[d.at as usize..][..DIGEST_LEN].copy_from_slice(&value);
        }
    }
}

/// The sending side of a queue.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    batch: Batch,
    /// Batches taken so far: shows whether earlier output has been sent.
    taken: u64,
}

impl Tx {
    /// Swaps the batch that has accumulated with `batch`, whose content is
    /// forgotten.
    pub(crate) fn take(&mut self, batch: &mut Batch) -> bool {
        batch.clear();
        if self.batch.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.batch, batch);
        self.taken += 1;
        true
    }

    /// Number of batches taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether something waits to be taken.
    pub(crate) fn pending(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Whether more than `most` bytes of headers wait.
    #[inline]
    pub(crate) fn backlogged(&self, most: usize) -> bool {
        self.batch.bytes.len() > most
    }

    /// Queues a header, with digest if asked, and `pad` bytes of padding.
    #[inline]
    pub(crate) fn header(&mut self, header: &(impl IntoBytes + Immutable), digest: bool, pad: usize) {
        let start = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(header.as_bytes());
        if digest {
            append_header_digest(&mut self.batch.bytes, start);
        }
        self.batch.bytes.extend_from_slice(&[0; PDO_MAX][..pad]);
        self.bytes_since(start);
    }

    /// Queues payload, with room for its digest if asked.
    #[inline]
    pub(crate) fn payload(&mut self, slot: u16, offset: u32, len: u32, last: bool, digest: bool) {
        self.batch.pieces.push(Piece::Payload { slot, offset, len, last });
        if digest && len > 0 {
            let start = self.batch.bytes.len();
            self.batch.digests.push(DigestAt { at: start as u32, slot, offset, len });
            self.batch.bytes.extend_from_slice(&[0; DIGEST_LEN]);
            self.bytes_since(start);
        }
    }

    /// Queues a TermReq that quotes the start of the offending PDU.
    pub(crate) fn term_req(&mut self, pdu_type: PduType, fault: Fault, quoted: &[u8]) {
        let quoted = &quoted[..quoted.len().min(TERM_REQ_DATA_MAX)];
        let fei = match fault.fes {
            Fes::InvalidHeaderField | Fes::HeaderDigestError | Fes::UnsupportedParameter => fault.fei,
            _ => 0,
        };
        let start = self.batch.bytes.len();
        let header = TermReq::new(pdu_type, fault.fes, fei, quoted.len());
        self.batch.bytes.extend_from_slice(header.as_bytes());
        self.batch.bytes.extend_from_slice(quoted);
        self.bytes_since(start);
    }

    #[inline]
    fn bytes_since(&mut self, start: usize) {
        // Bounded far below 4 GiB: input stops at `BACKLOG_MAX`, and what the
        // driver submits is bounded by the queue's entries.
        let added = (self.batch.bytes.len() - start) as u32;
        match self.batch.pieces.last_mut() {
            Some(Piece::Bytes { len, .. }) => *len += added,
            _ => self.batch.pieces.push(Piece::Bytes { start: start as u32, len: added }),
        }
    }
}
