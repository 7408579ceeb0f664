//! Connect: creates a queue, and with queue 0 a controller.

use crate::command::Sqe;
use crate::nqn::NqnField;
use uuid::Uuid;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// CNTLID in an admin queue's Connect that asks for any controller.
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;

/// The largest controller identifier.
pub const CNTLID_MAX: u16 = 0xFFEF;

/// Bits of CATTR.
pub mod cattr {
    /// Priority class of the queue.
    pub const PRIORITY_MASK: u8 = 0b11;
    /// No submission queue flow control.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
    /// The host can delete single I/O queues with Disconnect.
    pub const QUEUE_DELETION: u8 = 1 << 3;
}

/// The fields of the Connect command itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format; bytes 41:40.
    pub recfmt: u16,
    /// Queue identifier, 0 for the admin queue; bytes 43:42.
    pub qid: u16,
    /// Size of the submission queue, counted from 0; bytes 45:44.
    pub sqsize: u16,
    /// Attributes ([`cattr`]); byte 46.
    pub cattr: u8,
    /// Keep Alive Timeout in milliseconds, 0 for none; bytes 51:48.
    pub kato_ms: u32,
}

impl Connect {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> Connect {
        Connect {
            recfmt: sqe.cdw10() as u16,
            qid: (sqe.cdw10() >> 16) as u16,
            sqsize: sqe.cdw11() as u16,
            cattr: (sqe.cdw11() >> 16) as u8,
            kato_ms: sqe.cdw12(),
        }
    }

    /// Whether the host asks for no submission queue flow control.
    pub fn no_flow_control(&self) -> bool {
        self.cattr & cattr::NO_FLOW_CONTROL != 0
    }
}

/// The data of Connect, 1,024 bytes.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier; bytes 15:0.
    pub hostid: [u8; 16],
    cntlid: U16,
    reserved: [u8; 238],
    /// NQN of the subsystem; bytes 511:256.
    pub subnqn: NqnField,
    /// NQN of the host; bytes 767:512.
    pub hostnqn: NqnField,
    reserved2: [u8; 256],
}

impl ConnectData {
    /// Length in bytes.
    pub const LEN: usize = 1024;

    /// Data for a Connect. The names are cut to the length of an NQN.
    pub fn new(hostid: Uuid, cntlid: u16, subnqn: &str, hostnqn: &str) -> ConnectData {
        let mut data = ConnectData::new_zeroed();
        data.hostid = hostid.into_bytes();
        data.cntlid = cntlid.into();
        data.subnqn = crate::nqn::to_field(subnqn);
        data.hostnqn = crate::nqn::to_field(hostnqn);
        data
    }

    /// A view of exactly 1,024 bytes; `None` for any other length.
    pub fn view(bytes: &[u8]) -> Option<&ConnectData> {
        ConnectData::ref_from_bytes(bytes).ok()
    }

    /// Controller identifier; bytes 17:16.
    pub fn cntlid(&self) -> u16 {
        self.cntlid.get()
    }
}

impl std::fmt::Debug for ConnectData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectData")
            .field("hostid", &Uuid::from_bytes(self.hostid))
            .field("cntlid", &self.cntlid())
            .field("subnqn", &crate::nqn::from_field(&self.subnqn))
            .field("hostnqn", &crate::nqn::from_field(&self.hostnqn))
            .finish()
    }
}

/// Dword 0 of a successful Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The controller's identifier.
    pub cntlid: u16,
    /// Authentication requirements; 0 for none.
    pub authreq: u16,
}

impl ConnectResponse {
    /// From dword 0.
    pub fn from_dw0(dw0: u32) -> ConnectResponse {
        ConnectResponse { cntlid: dw0 as u16, authreq: (dw0 >> 16) as u16 }
    }

    /// As dword 0.
    pub fn to_dw0(self) -> u32 {
        u32::from(self.cntlid) | u32::from(self.authreq) << 16
    }
}

/// Dword 0 of a Connect that failed with Connect Invalid Parameters: where
/// the offending field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    /// IATTR bit 0: in the data, else in the command.
    pub in_data: bool,
    /// IPO: byte offset in that structure.
    pub offset: u16,
}

impl InvalidParameter {
    /// A field of the command at this byte.
    pub const fn command(offset: u16) -> InvalidParameter {
        InvalidParameter { in_data: false, offset }
    }

    /// A field of the data at this byte.
    pub const fn data(offset: u16) -> InvalidParameter {
        InvalidParameter { in_data: true, offset }
    }

    /// From dword 0.
    pub fn from_dw0(dw0: u32) -> InvalidParameter {
        InvalidParameter { in_data: dw0 & 1 << 16 != 0, offset: dw0 as u16 }
    }

    /// As dword 0.
    pub fn to_dw0(self) -> u32 {
        u32::from(self.offset) | u32::from(self.in_data) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn connect_data_bytes() {
        let data = ConnectData::new(Uuid::from_u128(u128::MAX), 0x1234, "nqn.s", "nqn.h");
        let bytes = data.as_bytes();
        assert_eq!(bytes.len(), ConnectData::LEN);
        assert_eq!(bytes[..19], [&[0xFF; 16][..], &[0x34, 0x12, 0]].concat());
        assert_eq!(&bytes[256..262], b"nqn.s\0");
        assert_eq!(&bytes[512..518], b"nqn.h\0");
        let view = ConnectData::view(bytes).expect("1024 bytes");
        assert_eq!((view, view.cntlid()), (&data, 0x1234));
        assert!(ConnectData::view(&bytes[1..]).is_none());
        assert!(ConnectData::view(&[0; 1025]).is_none());
    }

    #[test]
    fn command_fields_are_read_back() {
        let sqe = Sqe::connect(7, 127, cattr::NO_FLOW_CONTROL, 5000);
        let connect = Connect { recfmt: 0, qid: 7, sqsize: 127, cattr: 4, kato_ms: 5000 };
        assert_eq!(Connect::of(&sqe), connect);
        assert!(connect.no_flow_control());
    }

    #[test]
    fn dwords() {
        assert_eq!(InvalidParameter::data(256).to_dw0(), 0x0001_0100);
        assert_eq!(InvalidParameter::from_dw0(0x2C), InvalidParameter::command(44));
        assert_eq!(ConnectResponse { cntlid: 2, authreq: 0 }.to_dw0(), 2);
        assert_eq!(ConnectResponse::from_dw0(0x0002_0003), ConnectResponse { cntlid: 3, authreq: 2 });
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(bytes in proptest::collection::vec(any::<u8>(), 1020..1030)) {
            if let Some(data) = ConnectData::view(&bytes) {
                let _ = format!("{data:?}");
            }
        }
    }
}
