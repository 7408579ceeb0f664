//! How hosts and targets know each other, without I/O: pre-shared keys of TLS ([`TlsKey`]), and in-band
//! authentication of NVMe over Fabrics: DH-HMAC-CHAP (NVMe Base 2.1, section "DH-HMAC-CHAP
//! Protocol"), both ends of it, without I/O. Randomness is an argument.
//!
//! Host and controller know a [`Secret`] of the host, and one of the subsystem if the host wants to know
//! whom it talks to. Neither goes over the network: each side answers the other's challenge with an HMAC of
//! it. With a [`DhGroup`] other than the null one a secret cannot be tried out later against what was
//! recorded.
//!
//! For secure channel concatenation ([`SecureChannel`]) both ends also make a [`GeneratedPsk`] of the exchange, which
//! then encrypts connections: the host ends the one on which it has authenticated, and begins with TLS.
//!
//! ```text
//! host                                controller
//! [`HostExchange::begin`]   Negotiate ->
//!                           <- Challenge  [`ControllerExchange::handle`], then [`ControllerExchange::poll`]
//! [`HostExchange::handle`]  Reply ->
//!                           <- Success1 or Failure1
//!                           Success2 or Failure2 ->    if the controller was authenticated, too
//! ```

#![forbid(unsafe_code)]

mod channel;
mod controller;
mod group;
mod hash;
mod host;
mod keys;
mod psk;
mod response;
mod secret;
#[cfg(test)]
mod testing;

pub use channel::SecureChannel;
pub use controller::{Concatenation, ControllerExchange, ControllerOptions, Progress};
pub use group::DhGroup;
pub use hash::HashFunction;
pub use host::{HostExchange, HostOptions, HostStep};
pub use keys::{Generations, HostKey, KeySource, number_before};
pub use psk::{
    Derivation, DeriveError, GeneratedPsk, Identity, IdentityKind, IdentityVersion, TlsKey, TlsKeyError,
    TlsPsk,
};
pub use secret::{Secret, SecretError};

use longhaul_wire::fabrics::auth::reason;

/// Why an authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refused {
    #[error("the secret is another one")]
    Failed,
    #[error("the secret is that of generation {0}, which was retired")]
    Retired(u32),
    #[error("no authentication protocol of both sides is the same")]
    Protocol,
    #[error("one side wants a secure channel, the other does not")]
    Concatenation,
    #[error("no hash function of both sides is the same")]
    Hash,
    #[error("no Diffie-Hellman group of both sides is the same")]
    Group,
    #[error("a message was malformed")]
    Payload,
    #[error("a message was not the one that was due")]
    Message,
    #[error("the reason has the unknown code {0}")]
    Other(u8),
}

impl Refused {
    /// The code on the wire.
    pub fn code(self) -> u8 {
        match self {
            // The peer does not learn that the secret was right once.
            Refused::Failed | Refused::Retired(_) => reason::FAILED,
            Refused::Protocol => reason::PROTOCOL_NOT_USABLE,
            Refused::Concatenation => reason::CONCATENATION_MISMATCH,
            Refused::Hash => reason::HASH_NOT_USABLE,
            Refused::Group => reason::GROUP_NOT_USABLE,
            Refused::Payload => reason::INCORRECT_PAYLOAD,
            Refused::Message => reason::INCORRECT_MESSAGE,
            Refused::Other(code) => code,
        }
    }

    /// The reason of a code.
    pub fn from_code(code: u8) -> Refused {
        match code {
            reason::FAILED => Refused::Failed,
            reason::PROTOCOL_NOT_USABLE => Refused::Protocol,
            reason::CONCATENATION_MISMATCH => Refused::Concatenation,
            reason::HASH_NOT_USABLE => Refused::Hash,
            reason::GROUP_NOT_USABLE => Refused::Group,
            reason::INCORRECT_PAYLOAD => Refused::Payload,
            reason::INCORRECT_MESSAGE => Refused::Message,
            other => Refused::Other(other),
        }
    }
}
