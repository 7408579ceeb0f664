//! Where the parts of a PDU are: building a common header, and checking one.

use super::{CommonHeader, PduType, TERM_REQ_DATA_MAX, field, flags};
use crate::digest::DIGEST_LEN;

/// What both ends agreed on that shapes PDUs in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// Header digests are in use.
    pub header_digest: bool,
    /// Data digests are in use.
    pub data_digest: bool,
    /// HPDA or CPDA, whichever rules this direction: data starts at a
    /// multiple of `4 * (align + 1)` bytes.
    pub align: u8,
}

/// Where the parts of one PDU are. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Header, without digest.
    pub header: u8,
    /// Header digest: 0 or 4.
    pub header_digest: u8,
    /// Padding before the data.
    pub pad: u8,
    /// Length of the data in bytes.
    pub data: u32,
    /// Data digest: 0 or 4.
    pub data_digest: u8,
}

/// A field of a header that is not as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// Byte offset of the field, see [`field`].
    pub offset: u32,
    /// Why it is invalid.
    pub what: &'static str,
}

impl CommonHeader {
    /// A header without digests and data.
    pub fn bare(pdu_type: PduType, plen: u32) -> CommonHeader {
        CommonHeader {
            pdu_type: pdu_type as u8,
            flags: 0,
            hlen: pdu_type.hlen() as u8,
            pdo: 0,
            plen: plen.into(),
        }
    }

    /// The header of a PDU with `data` bytes of data (at most
    /// [`DATA_MAX`](super::DATA_MAX)), and how many bytes of padding go
    /// between it (with its digest) and the data.
    #[inline]
    pub fn build(pdu_type: PduType, extra_flags: u8, data: u32, format: Format) -> (CommonHeader, usize) {
        debug_assert!(data <= super::DATA_MAX, "{data} bytes in a PDU");
        let mut flags = extra_flags;
        let mut header = pdu_type.hlen();
        if format.header_digest {
            flags |= flags::HDGST;
            header += DIGEST_LEN;
        }
        let (mut pdo, mut plen) = (0, header as u32);
        if data > 0 {
            pdo = header.next_multiple_of(4 * (usize::from(format.align) + 1));
            plen = pdo as u32 + data;
            if format.data_digest {
                flags |= flags::DDGST;
                plen += DIGEST_LEN as u32;
            }
        }
        let hlen = pdu_type.hlen() as u8;
        let common =
            CommonHeader { pdu_type: pdu_type as u8, flags, hlen, pdo: pdo as u8, plen: plen.into() };
        (common, pdo.saturating_sub(header))
    }

    /// Checks the lengths and flags against each other and the negotiated digests, as far as this
    /// header alone allows.
    #[inline]
    pub fn check(&self, pdu_type: PduType, format: Format) -> Result<Layout, InvalidField> {
        let (hlen, plen) = (usize::from(self.hlen), self.plen.get());
        //= NVMe-TCP 1.1, PDU Common Header: HLEN is fixed for each PDU type
        if hlen != pdu_type.hlen() {
            return Err(InvalidField { offset: field::HLEN, what: "HLEN does not fit the PDU type" });
        }
        let mut layout = Layout { header: self.hlen, ..Layout::default() };
        if !pdu_type.has_digests() {
            return self.check_setup(pdu_type, layout);
        }
        //= NVMe-TCP 1.1, PDU Header Digest: there exactly when it was agreed on
        if (self.flags & flags::HDGST != 0) != format.header_digest {
            return Err(InvalidField {
                offset: field::FLAGS,
                what: "HDGSTF contradicts the negotiated digests",
            });
        }
        if format.header_digest {
            layout.header_digest = DIGEST_LEN as u8;
        }
        let header = (hlen + usize::from(layout.header_digest)) as u32;
        if plen == header {
            return Ok(layout);
        }
        //= NVMe-TCP 1.1, PDU Common Header: PLEN covers the header, and data only where the type has data
        if plen < header || !pdu_type.has_data() {
            return Err(InvalidField { offset: field::PLEN, what: "PLEN does not fit the PDU type" });
        }
        self.check_data(format, header, layout)
    }

    /// The part of [`check`](Self::check) for PDUs without digests.
    fn check_setup(&self, pdu_type: PduType, layout: Layout) -> Result<Layout, InvalidField> {
        let (hlen, plen) = (u32::from(layout.header), self.plen.get());
        let most = match pdu_type {
            PduType::H2CTermReq | PduType::C2HTermReq => hlen + TERM_REQ_DATA_MAX as u32,
            _ => hlen,
        };
        //= NVMe-TCP 1.1, PDU Common Header: ICReq and ICResp are 128 bytes, a TermReq 24 to 152
        if plen < hlen || plen > most {
            return Err(InvalidField { offset: field::PLEN, what: "PLEN does not fit the PDU type" });
        }
        Ok(Layout { data: plen - hlen, ..layout })
    }

    /// The part of [`check`](Self::check) for PDUs with data.
    #[inline]
    fn check_data(&self, format: Format, header: u32, mut layout: Layout) -> Result<Layout, InvalidField> {
        let (pdo, plen) = (u32::from(self.pdo), self.plen.get());
        //= NVMe-TCP 1.1, PDU Data Offset: behind the header and aligned as HPDA or CPDA asks
        if pdo < header || pdo % (4 * (u32::from(format.align) + 1)) != 0 {
            return Err(InvalidField { offset: field::PDO, what: "PDO is within the header or not aligned" });
        }
        //= NVMe-TCP 1.1, PDU Data Digest: there with all data when it was agreed on, else never
        if (self.flags & flags::DDGST != 0) != format.data_digest {
            return Err(InvalidField {
                offset: field::FLAGS,
                what: "DDGSTF contradicts the negotiated digests",
            });
        }
        if format.data_digest {
            layout.data_digest = DIGEST_LEN as u8;
        }
        let around = pdo + u32::from(layout.data_digest);
        if plen <= around {
            return Err(InvalidField { offset: field::PLEN, what: "PLEN leaves no room for data" });
        }
        layout.pad = (pdo - header) as u8;
        layout.data = plen - around;
        Ok(layout)
    }
}
