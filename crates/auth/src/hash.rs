//! Hash functions of DH-HMAC-CHAP.

use hmac::{Hmac, Mac};
use longhaul_wire::fabrics::auth::hash_id;
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum HashFunction {
    Sha256,
    Sha384,
    Sha512,
}

/// A digest, wiped when it is dropped.
pub(crate) type DigestBytes = Zeroizing<Vec<u8>>;

impl HashFunction {
    /// All of them, from the shortest digest on.
    pub const ALL: [HashFunction; 3] = [HashFunction::Sha256, HashFunction::Sha384, HashFunction::Sha512];

    /// The code on the wire and in secrets (HashID).
    pub fn code(self) -> u8 {
        match self {
            HashFunction::Sha256 => hash_id::SHA_256,
            HashFunction::Sha384 => hash_id::SHA_384,
            HashFunction::Sha512 => hash_id::SHA_512,
        }
    }

    /// The function of a code; none for an unknown one.
    pub fn from_code(code: u8) -> Option<HashFunction> {
        HashFunction::ALL.into_iter().find(|one| one.code() == code)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            HashFunction::Sha256 => "SHA-256",
            HashFunction::Sha384 => "SHA-384",
            HashFunction::Sha512 => "SHA-512",
        }
    }

    /// Bytes of a digest.
    pub fn digest_len(self) -> usize {
        match self {
            HashFunction::Sha256 => 32,
            HashFunction::Sha384 => 48,
            HashFunction::Sha512 => 64,
        }
    }

    /// Whether a cipher suite of TLS on NVMe/TCP has it.
    pub fn has_cipher_suite(self) -> bool {
        self != HashFunction::Sha512
    }

    pub(crate) fn digest(self, of: &[u8]) -> DigestBytes {
        Zeroizing::new(match self {
            HashFunction::Sha256 => Sha256::digest(of).to_vec(),
            HashFunction::Sha384 => Sha384::digest(of).to_vec(),
            HashFunction::Sha512 => Sha512::digest(of).to_vec(),
        })
    }

    /// HKDF-Extract (RFC 5869) without a salt.
    pub(crate) fn extract(self, from: &[u8]) -> DigestBytes {
        self.hmac(&vec![0; self.digest_len()], &[from])
    }

    /// HMAC of the parts, one behind the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> DigestBytes {
        match self {
            HashFunction::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            HashFunction::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            HashFunction::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn mac<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> DigestBytes {
    // HMAC takes keys of every length.
    let Ok(mut mac) = <M as Mac>::new_from_slice(key) else { unreachable!("a key of any length") };
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn known_values() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let of = |hash: HashFunction| hex(&hash.hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]));
        assert_eq!(
            of(HashFunction::Sha256),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            of(HashFunction::Sha384),
            "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649"
        );
        assert_eq!(
            of(HashFunction::Sha512),
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737"
        );
        for hash in HashFunction::ALL {
            assert_eq!(
                (hash.digest(b"").len(), HashFunction::from_code(hash.code())),
                (hash.digest_len(), Some(hash))
            );
        }
    }
}
