//! Input: PDUs out of a byte stream.
//!
//! Invariants:
//! - nothing is stored but one header (in fixed scratch) and counters: memory
//!   does not depend on what the peer declares;
//! - the parts of a PDU are consumed in wire order: header and digest,
//!   padding, data, data digest; no byte of a part is consumed before the
//!   part before it is complete;
//! - data is consumed only once the owner of the queue has said where it goes.

use longhaul_wire::digest::{Crc32c, DIGEST_LEN, check_header_digest};
use longhaul_wire::pdu::{COMMON_LEN, CommonHeader, Fes, Format, HEADER_MAX, Layout, PduType, field};
use zerocopy::FromBytes;

use super::Fault;

/// What a queue wants from its connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Bytes, to be passed to `handle`.
    Bytes,
    /// `len` bytes that belong at `offset` of the data of the command in
    /// `slot`: the driver that placed a part of them there calls `handle_payload`.
    Payload {
        /// Slot of the command that the data belongs to.
        slot: u16,
        /// Offset of the first byte in the data of the command.
        offset: u32,
        /// Length in bytes, at least 1.
        len: u32,
    },
    /// Nothing for now: back-pressure. Asked again after any call that may
    /// have changed it.
    Nothing,
}

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Host,
    Controller,
}

/// The destination of the current PDU's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dest {
    /// Not known yet.
    Held,
    Slot(u16),
    Discard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Header,
    Body,
    Stopped,
}

/// Something complete was found in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamStep {
    /// A header, checked as far as it alone can be; see [`Deframer::header`].
    /// If it has data, the data is held until `place` or `discard`.
    Header(PduType),
    /// All data of the PDU was consumed.
    DataEnd { digest_ok: bool },
}

/// Takes PDUs apart.
#[derive(Debug)]
pub(crate) struct Deframer {
    role: Role,
    phase: Phase,
    /// ICReq and ICResp are done.
    established: bool,
    format: Format,
    head: [u8; HEADER_MAX],
    have: usize,
    need: usize,
    layout: Layout,
    dest: Dest,
    pad_left: u32,
    data_left: u32,
    digest_left: u32,
    /// Offset of the next data byte within the command's data.
    offset: u32,
    crc: Crc32c,
    digest: [u8; DIGEST_LEN],
}

impl Deframer {
    pub(crate) fn new(role: Role) -> Deframer {
        Deframer {
            role,
            phase: Phase::Header,
            established: false,
            format: Format::default(),
            head: [0; HEADER_MAX],
            have: 0,
            need: COMMON_LEN,
            layout: Layout::default(),
            dest: Dest::Held,
            pad_left: 0,
            data_left: 0,
            digest_left: 0,
            offset: 0,
            crc: Crc32c::new(),
            digest: [0; DIGEST_LEN],
        }
    }

    /// From now on PDUs look like this.
    pub(crate) fn establish(&mut self, format: Format) {
        self.established = true;
        self.format = format;
    }

    /// Takes no more input.
    pub(crate) fn stop(&mut self) {
        self.phase = Phase::Stopped;
    }

    /// The last header, as far as it was received, without digest.
    pub(crate) fn quoted(&self) -> &[u8] {
        let have = if self.have > 0 { self.have } else { usize::MAX };
        let header =
            if self.need > COMMON_LEN || self.have == 0 { self.layout.header } else { COMMON_LEN as u8 };
        &self.head[..usize::from(header).min(have)]
    }

    /// The last header as one of the views of `wire`, which are as long as
    /// the check of HLEN has made sure.
    #[inline]
    pub(crate) fn header<T: FromBytes>(&self) -> Result<T, Fault> {
        T::read_from_prefix(&self.head)
            .map(|(header, _)| header)
            .map_err(|_| Fault::field(field::HLEN, "HLEN does not fit the PDU type"))
    }

    /// Layout of the current PDU.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// FLAGS of the last header.
    #[inline]
    pub(crate) fn flags(&self) -> u8 {
        self.head[field::FLAGS as usize]
    }

    /// The data of the current PDU is received into the command in `slot`, from `offset` on.
    #[inline]
    pub(crate) fn place(&mut self, slot: u16, offset: u32) {
        self.dest = Dest::Slot(slot);
        self.offset = offset;
    }

    /// The rest of the current PDU's data is discarded.
    pub(crate) fn discard(&mut self) {
        self.dest = Dest::Discard;
    }

    /// Whether data waits for a place.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.phase == Phase::Body && self.dest == Dest::Held
    }

    /// Whether the next byte is that of a new PDU.
    #[inline]
    pub(crate) fn at_start(&self) -> bool {
        self.phase == Phase::Header && self.have == 0
    }

    /// What to receive next.
    pub(crate) fn want(&self) -> Want {
        match (self.phase, self.dest) {
            (Phase::Stopped, _) | (Phase::Body, Dest::Held) => Want::Nothing,
            (Phase::Body, Dest::Slot(slot)) if self.pad_left == 0 && self.data_left > 0 => {
                Want::Payload { slot, offset: self.offset, len: self.data_left }
            }
            _ => Want::Bytes,
        }
    }

    /// Consumes input until something is complete (`Some`), or needs more
    /// input, or a place for data (`None`).
    #[inline]
    pub(crate) fn advance(&mut self, input: &mut &[u8]) -> Result<Option<StreamStep>, Fault> {
        match self.phase {
            Phase::Header => self.gather(input),
            Phase::Body => Ok(self.body(input)),
            Phase::Stopped => Ok(None),
        }
    }

    #[inline]
    fn gather(&mut self, input: &mut &[u8]) -> Result<Option<StreamStep>, Fault> {
        if !self.fill(input) {
            return Ok(None);
        }
        let Ok((common, _)) = CommonHeader::read_from_prefix(&self.head) else { return Ok(None) };
        let pdu_type = self.check_type(common.pdu_type)?;
        if self.need == COMMON_LEN {
            self.layout = common.check(pdu_type, self.format)?;
            self.need = usize::from(self.layout.header) + usize::from(self.layout.header_digest);
            if !self.fill(input) {
                return Ok(None);
            }
        }
        if self.layout.header_digest > 0 {
            //= NVMe-TCP 1.1, PDU Header Digest: a mismatch is fatal, and FEI tells the digest received
            check_header_digest(&self.head[..self.need]).map_err(|fei| Fault {
                fes: Fes::HeaderDigestError,
                fei,
                what: "header digest does not match",
            })?;
        }
        self.begin_body();
        Ok(Some(StreamStep::Header(pdu_type)))
    }

    /// Gets `need` bytes of header together.
    #[inline]
    fn fill(&mut self, input: &mut &[u8]) -> bool {
        let n = input.len().min(self.need - self.have);
        let (taken, rest) = input.split_at(n);
        self.head[self.have..self.have + n].copy_from_slice(taken);
        self.have += n;
        *input = rest;
        self.have == self.need
    }

    #[inline]
    fn check_type(&self, code: u8) -> Result<PduType, Fault> {
        //= NVMe-TCP 1.1, PDU Common Header: an unknown type, or one of the other direction, is an invalid field
        let known = PduType::from_code(code).filter(|t| t.from_host() == (self.role == Role::Controller));
        let Some(pdu_type) = known else {
            return Err(Fault::field(field::TYPE, "PDU type is unknown or of the wrong direction"));
        };
        //= NVMe-TCP 1.1, Connection Establishment: ICReq and ICResp come first, and once
        let setup = matches!(pdu_type, PduType::IcReq | PduType::IcResp);
        let end = matches!(pdu_type, PduType::H2CTermReq | PduType::C2HTermReq);
        if setup == self.established && !end {
            return Err(Fault::sequence(if setup {
                "a second ICReq or ICResp"
            } else {
                "a PDU before ICReq or ICResp"
            }));
        }
        Ok(pdu_type)
    }

    #[inline]
    fn begin_body(&mut self) {
        if self.layout.data == 0 {
            self.begin_header();
            return;
        }
        self.phase = Phase::Body;
        self.dest = Dest::Held;
        self.pad_left = u32::from(self.layout.pad);
        self.data_left = self.layout.data;
        self.digest_left = u32::from(self.layout.data_digest);
        if self.digest_left > 0 {
            self.crc.reset();
        }
    }

    #[inline]
    fn begin_header(&mut self) {
        self.phase = Phase::Header;
        self.have = 0;
        self.need = COMMON_LEN;
    }

    fn body(&mut self, input: &mut &[u8]) -> Option<StreamStep> {
        if self.dest == Dest::Held {
            return None;
        }
        skip(input, &mut self.pad_left);
        if self.pad_left > 0 {
            return None;
        }
        if self.dest == Dest::Discard {
            skip(input, &mut self.data_left);
        }
        if self.data_left > 0 {
            return None;
        }
        while self.digest_left > 0 {
            let (&byte, rest) = input.split_first()?;
            self.digest[DIGEST_LEN - self.digest_left as usize] = byte;
            self.digest_left -= 1;
            *input = rest;
        }
        Some(self.end())
    }

    fn end(&mut self) -> StreamStep {
        let checked = self.layout.data_digest > 0 && self.dest != Dest::Discard;
        let digest_ok = !checked || self.crc.value() == u32::from_le_bytes(self.digest);
        self.begin_header();
        StreamStep::DataEnd { digest_ok }
    }

    /// Bytes were placed: `len` of them, and `bytes` themselves if the data
    /// digest needs them.
    pub(crate) fn placed(&mut self, len: usize, bytes: Option<&[u8]>) -> Option<StreamStep> {
        let wanted = matches!(self.dest, Dest::Slot(_) | Dest::Discard);
        let fits = self.phase == Phase::Body && self.pad_left == 0 && len <= self.data_left as usize;
        assert!(wanted && fits, "{len} bytes of payload placed that were not wanted");
        if self.layout.data_digest > 0 && self.dest != Dest::Discard {
            match bytes {
                Some(bytes) => self.crc.update(bytes),
                None => panic!("data digests are in use: handle_payload needs the bytes"),
            }
        }
        self.offset = self.offset.wrapping_add(len as u32);
        self.data_left -= len as u32;
        (self.data_left == 0 && self.digest_left == 0).then(|| self.end())
    }
}

#[inline]
fn skip(input: &mut &[u8], left: &mut u32) {
    let n = input.len().min(*left as usize);
    *input = &input[n..];
    *left -= n as u32;
}
