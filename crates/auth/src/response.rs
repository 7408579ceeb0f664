//! What both sides compute: the response to a challenge.

use crate::hash::{DigestBytes, HashFunction};
use crate::secret::Secret;

/// What is bound into every response of an authentication.
pub(crate) struct Names<'a> {
    pub(crate) host: &'a str,
    pub(crate) subsystem: &'a str,
}

/// A challenge, and what identifies the exchange.
pub(crate) struct Posed<'a> {
    pub(crate) hash: HashFunction,
    pub(crate) challenge: &'a [u8],
    /// Shared secret of the Diffie-Hellman exchange, if there was one.
    pub(crate) shared: Option<&'a [u8]>,
    pub(crate) sequence: u32,
    pub(crate) transaction: u16,
    pub(crate) secure_channel: u8,
}

impl Posed<'_> {
    /// The host's answer.
    //= NVMe Base 2.1, DH-HMAC-CHAP_Reply message: R1 is HMAC(Kh, Ca1 || S1 || T_ID || SC_C || "HostHost" || NQNh || 00h || NQNc)
    pub(crate) fn of_host(&self, secret: &Secret, names: &Names<'_>) -> DigestBytes {
        self.answer(&secret.key(names.host), b"HostHost", names.host, names.subsystem)
    }

    /// The controller's answer.
    //= NVMe Base 2.1, DH-HMAC-CHAP_Success1 message: R2 is HMAC(Kc, Ca2 || S2 || T_ID || SC_C || "Controller" || NQNc || 00h || NQNh)
    pub(crate) fn of_controller(&self, secret: &Secret, names: &Names<'_>) -> DigestBytes {
        self.answer(&secret.key(names.subsystem), b"Controller", names.subsystem, names.host)
    }

    fn answer(&self, key: &[u8], role: &[u8], own: &str, other: &str) -> DigestBytes {
        //= NVMe Base 2.1, DH-HMAC-CHAP_Reply message: with a group, Ca is HMAC(H(shared secret), C), else C
        let augmented =
            self.shared.map(|shared| self.hash.hmac(&self.hash.digest(shared), &[self.challenge]));
        let challenge = augmented.as_ref().map_or(self.challenge, |augmented| augmented);
        self.hash.hmac(
            key,
            &[
                challenge,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[self.secure_channel],
                role,
                own.as_bytes(),
                &[0],
                other.as_bytes(),
            ],
        )
    }
}
