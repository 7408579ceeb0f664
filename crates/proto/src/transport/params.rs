//! What ICReq and ICResp settle.

use longhaul_wire::pdu::{DGST_DATA, DGST_HEADER, Format};

/// What both ends agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Header digests are in use.
    pub header_digest: bool,
    /// Data digests are in use.
    pub data_digest: bool,
    /// HPDA: alignment of data towards the host, 0's based, in four bytes.
    pub hpda: u8,
    /// CPDA: alignment of data towards the controller, likewise.
    pub cpda: u8,
    /// MAXH2CDATA: the most data of one H2CData PDU, in bytes.
    pub maxh2cdata: u32,
    /// R2Ts outstanding for one command at most (1's based, unlike on the wire).
    pub maxr2t: u32,
}

impl Params {
    /// How PDUs towards the controller look.
    pub(crate) fn to_controller(self) -> Format {
        Format { header_digest: self.header_digest, data_digest: self.data_digest, align: self.cpda }
    }

    /// How PDUs towards the host look.
    pub(crate) fn to_host(self) -> Format {
        Format { header_digest: self.header_digest, data_digest: self.data_digest, align: self.hpda }
    }

    /// The DGST field that says so.
    pub(crate) fn dgst(self) -> u8 {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        bit(self.header_digest, DGST_HEADER) | bit(self.data_digest, DGST_DATA)
    }
}
