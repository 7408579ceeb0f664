//! TLS 1.3 with pre-shared keys for NVMe/TCP connections, without I/O: bytes in, bytes out.
//!
//! ```text
//! host                              target
//! [`Session::host`]     records ->  [`Hello::parse`], then [`choose`] the key, then [`Session::target`]
//! [`Session::handshake`]  <->       [`Session::handshake`], until both say that it is done
//! [`Session::seal`]       <->       [`Session::open`]
//! ```
//!
//! The target reads the first message of a host itself: so it looks up the keys of the host that this names, sees
//! which of them the host has used, and can say why none fits. Everything else is done by s2n-tls (feature `s2n`).
//! There are no certificates, no session tickets, no early data, and no version but 1.3.

#![deny(unsafe_code)]

mod choose;
mod hello;
#[cfg(feature = "s2n")]
mod library;
#[cfg(feature = "s2n")]
mod session;

pub use choose::{Chosen, Refusal, choose};
pub use hello::{HELLO_MAX, Hello, HelloError, Offer};
#[cfg(feature = "s2n")]
pub use library::Destination;
#[cfg(feature = "s2n")]
pub use session::{Session, TlsError};

/// Alerts of TLS (RFC 8446 §6) that say why a handshake was refused.
pub mod alert {
    /// The end of what a peer sends.
    pub const CLOSE_NOTIFY: u8 = 0;
    /// A record was changed, or encrypted with another key.
    pub const BAD_RECORD_MAC: u8 = 20;
    /// No parameters of both sides are the same.
    pub const HANDSHAKE_FAILURE: u8 = 40;
    /// A message was malformed.
    pub const DECODE_ERROR: u8 = 50;
    /// A proof of a key is wrong.
    pub const DECRYPT_ERROR: u8 = 51;
    /// No version of both sides is the same.
    pub const PROTOCOL_VERSION: u8 = 70;
    /// A host offers no key.
    pub const MISSING_EXTENSION: u8 = 109;
    /// No key has an identity that was offered.
    pub const UNKNOWN_PSK_IDENTITY: u8 = 115;
}

/// A fatal alert as a record in the clear: the answer to a first message that is refused.
pub fn alert_record(alert: u8) -> [u8; 7] {
    const FATAL: u8 = 2;
    [21, 3, 3, 0, 2, FATAL, alert]
}
