//! Operations of this target, by their first byte.
#![allow(missing_docs, reason = "each is a call or a PDU of that name")]

pub const IC_RESP: u8 = 0;
pub const SUBMIT: u8 = 1;
pub const RESPONSE: u8 = 2;
pub const C2H_DATA: u8 = 3;
pub const R2T: u8 = 4;
/// A length, and that many bytes as they are.
pub const RAW: u8 = 5;
pub const TERM_REQ: u8 = 6;
/// The next PDU has a byte that is not right: where, and what to XOR.
pub const DAMAGE: u8 = 7;
/// Feed sent bytes, in pieces of so many bytes (0: whole).
pub const FEED: u8 = 8;
pub const TRANSMIT: u8 = 9;
pub const PAYLOAD_SENT: u8 = 10;
pub const SET_IN_CAPSULE: u8 = 11;
pub(super) const COUNT: u8 = 12;
