//! Secure channel concatenation: an authentication from which both ends make a PSK for TLS.

use crate::{DhGroup, HashFunction};
use longhaul_wire::fabrics::auth::secure_channel;

/// What a host wants of it. It is bound into every response, so that an attacker cannot change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureChannel {
    /// Authentication alone.
    None,
    /// A PSK for TLS, on a connection without TLS.
    New,
    /// Another PSK, on a connection that a generated PSK encrypts.
    Replace,
}

impl SecureChannel {
    /// SC_C on the wire.
    pub fn code(self) -> u8 {
        match self {
            SecureChannel::None => secure_channel::NONE,
            SecureChannel::New => secure_channel::NEW_TLS_PSK,
            SecureChannel::Replace => secure_channel::REPLACE_TLS_PSK,
        }
    }

    /// Of SC_C; none for an unknown one.
    pub fn from_code(code: u8) -> Option<SecureChannel> {
        let all = [SecureChannel::None, SecureChannel::New, SecureChannel::Replace];
        all.into_iter().find(|one| one.code() == code)
    }

    /// Whether a PSK is made.
    pub fn makes_psk(self) -> bool {
        self != SecureChannel::None
    }

    /// Whether an exchange may use the hash function: one that makes a PSK needs a cipher suite with it.
    pub(crate) fn takes_hash(self, hash: HashFunction) -> bool {
        !self.makes_psk() || hash.has_cipher_suite()
    }

    /// Whether an exchange may use the group: without a shared secret a PSK would be no secret.
    //= NVMe Base 2.1, AUTH_Negotiate message: secure channel concatenation is not done with the NULL DH group
    pub(crate) fn takes_group(self, group: DhGroup) -> bool {
        !self.makes_psk() || group != DhGroup::Null
    }
}
