//! Operations of this target, by their first byte.
#![allow(missing_docs, reason = "each is a call or a PDU of that name")]

pub const IC_REQ: u8 = 0;
pub const COMMAND: u8 = 1;
pub const H2C_DATA: u8 = 2;
/// A length, and that many bytes as they are.
pub const RAW: u8 = 3;
pub const TERM_REQ: u8 = 4;
/// The next PDU has a byte that is not right: where, and what to XOR.
pub const DAMAGE: u8 = 5;
/// The last PDU again, 16 times as often as this.
pub const REPEAT: u8 = 6;
/// Feed sent bytes, in pieces of so many bytes (0: whole).
pub const FEED: u8 = 7;
/// `accept_payload` or `request_data`.
pub const FETCH: u8 = 8;
pub const COMPLETE: u8 = 9;
/// `send_data` or `send_data_and_complete`.
pub const SEND_DATA: u8 = 10;
pub const TRANSMIT: u8 = 11;
pub const PAYLOAD_SENT: u8 = 12;
pub const SET_LIMITS: u8 = 13;
pub(super) const COUNT: u8 = 14;
