//! PDUs at a peer: encoding, and strict decoding.

use longhaul_wire::digest::{append_header_digest, check_header_digest, crc32c};
use longhaul_wire::pdu::{CommonHeader, Format, PduType};
use zerocopy::{FromBytes, IntoBytes};

/// One PDU of an input, with its length.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    pub(crate) kind: PduType,
    pub(crate) flags: u8,
    /// The header, common header included, without digest.
    header: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    /// A view of the header.
    pub(crate) fn view<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.header).expect("the header is as long as its type says").0
    }

    /// The bytes of a PDU: `rest` is the header behind the common header.
    pub(crate) fn encode(kind: PduType, flags: u8, rest: &[u8], data: &[u8], format: Format) -> Vec<u8> {
        let (common, pad) = CommonHeader::build(kind, flags, data.len() as u32, format);
        let mut out = [common.as_bytes(), rest].concat();
        if format.header_digest {
            append_header_digest(&mut out, 0);
        }
        out.resize(out.len() + pad, 0);
        out.extend(data);
        if format.data_digest && !data.is_empty() {
            out.extend(crc32c(data).to_le_bytes());
        }
        out
    }
}

/// Takes a stream apart that must be flawless.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    pub(crate) format: Format,
    stream: Vec<u8>,
    /// How much of the stream was taken apart.
    done: usize,
}

impl Parser {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.done == self.stream.len() {
            self.stream.clear();
            self.done = 0;
        }
        self.stream.extend(bytes);
    }

    /// Whether a PDU is incomplete.
    pub(crate) fn is_within(&self) -> bool {
        self.done < self.stream.len()
    }

    /// The next complete PDU.
    pub(crate) fn next(&mut self) -> Option<Pdu> {
        let rest = &self.stream[self.done..];
        let (common, _) = CommonHeader::read_from_prefix(rest).ok()?;
        let kind = PduType::from_code(common.pdu_type).expect("a known type is sent");
        let layout = common.check(kind, self.format).expect("a sound header is sent");
        let len = common.plen.get() as usize;
        let pdu = rest.get(..len)?;
        self.done += len;
        let header = usize::from(layout.header);
        if layout.header_digest > 0 {
            check_header_digest(&pdu[..header + 4]).expect("the header digest is right");
        }
        let start = header + usize::from(layout.header_digest) + usize::from(layout.pad);
        let data = pdu[start..start + layout.data as usize].to_vec();
        if layout.data_digest > 0 {
            let digest = &pdu[start + data.len()..];
            assert_eq!(digest, crc32c(&data).to_le_bytes(), "the data digest is right");
        }
        Some(Pdu { kind, flags: common.flags, header: pdu[..header].to_vec(), data })
    }
}
