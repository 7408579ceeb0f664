//! Fabrics commands: Connect, Disconnect, Property Get and Set, and authentication.

pub mod auth;
mod connect;
mod property;

pub use connect::{
    CNTLID_DYNAMIC, CNTLID_MAX, Connect, ConnectData, ConnectResponse, InvalidParameter, cattr,
};
pub use property::{Cap, Cc, Crto, Csts, Property, Shutdown, ShutdownStatus, Version, offset};

use crate::command::Sqe;

/// The only record format of Connect and Disconnect.
pub const RECFMT: u16 = 0;

/// Fields of Disconnect: the record format.
pub fn disconnect_recfmt(sqe: &Sqe) -> u16 {
    sqe.cdw10() as u16
}
