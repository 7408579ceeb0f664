//! A secret of DH-HMAC-CHAP, as text: `DHHC-1:HH:BASE64:` (NVMe Base 2.1, "DH-HMAC-CHAP Secret
//! Representation"), where HH is the hash function that transforms it and the base64 has the secret and its
//! CRC-32.

use crate::hash::HashFunction;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm::Crc32IsoHdlc;
use std::fmt;
use std::str::FromStr;
use zeroize::{Zeroize, Zeroizing};

const PREFIX: &str = "DHHC-1:";
/// What every transformed secret is bound to, besides a name.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";
const CRC: usize = 4;

/// A secret. It is wiped from memory when it is dropped, and no message shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    /// What it is transformed with before it is used; none: it is used as it is.
    hash: Option<HashFunction>,
}

/// Why a text is no secret. It does not have the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Another prefix.
    #[error("it does not begin with DHHC-1:, as secrets for DH-HMAC-CHAP do")]
    Prefix,
    /// Neither 00 nor the code of a hash function.
    #[error("its second field, the hash function, is not 00, 01, 02 or 03")]
    Hash,
    /// The end, or one of the colons, is missing: a part of the text was lost.
    #[error("it does not end with a colon: a part of it is missing")]
    End,
    /// Not base64.
    #[error("its third field is not base64")]
    Base64,
    /// Of a length that no secret has, in bytes.
    #[error("it has {0} bytes, and secrets have 32, 48 or 64")]
    Length(usize),
    /// Its hash function has digests of another length, in bytes.
    #[error("it has {0} bytes, which do not go with its hash function ({1})")]
    HashLength(usize, &'static str),
    /// A character was changed.
    #[error("its check sum is wrong: a character was changed")]
    Crc,
}

impl Secret {
    /// Draws a secret of the length of a digest, to be transformed with that hash function.
    pub fn generate(hash: HashFunction, random: &mut dyn FnMut(&mut [u8])) -> Secret {
        let mut bytes = Zeroizing::new(vec![0; hash.digest_len()]);
        random(&mut bytes);
        Secret { bytes, hash: Some(hash) }
    }

    /// The text that [`FromStr`] reads. A process that has it can be this host.
    pub fn reveal(&self) -> Zeroizing<String> {
        let crc = crc_fast::checksum(Crc32IsoHdlc, &self.bytes) as u32;
        let whole = Zeroizing::new([&self.bytes[..], &crc.to_le_bytes()].concat());
        let hash = self.hash.map_or(0, HashFunction::code);
        Zeroizing::new(format!("{PREFIX}{hash:02}:{}:", STANDARD.encode(&*whole)))
    }

    /// The hash function that transforms it.
    pub fn hash(&self) -> Option<HashFunction> {
        self.hash
    }

    /// The key that it is for the host or subsystem of this NQN.
    //= NVMe Base 2.1, DH-HMAC-CHAP Secret Representation: the key is HMAC(secret, NQN || "NVMe-over-Fabrics")
    pub(crate) fn key(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_bytes(), PURPOSE]),
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Secret, SecretError> {
        let rest = text.trim_end().strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
        let (hash, rest) = rest.split_once(':').ok_or(SecretError::End)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(HashFunction::Sha256),
            "02" => Some(HashFunction::Sha384),
            "03" => Some(HashFunction::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let encoded = rest.strip_suffix(':').ok_or(SecretError::End)?;
        let mut whole = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?);
        let len = whole.len().saturating_sub(CRC);
        if ![32, 48, 64].contains(&len) {
            return Err(SecretError::Length(len));
        }
        if crc_fast::checksum(Crc32IsoHdlc, &whole[..len]) as u32 != u32::from_le_bytes(last(&whole)) {
            return Err(SecretError::Crc);
        }
        if let Some(hash) = hash
            && hash.digest_len() != len
        {
            return Err(SecretError::HashLength(len, hash.name()));
        }
        whole[len..].zeroize();
        whole.truncate(len);
        Ok(Secret { bytes: whole, hash })
    }
}

fn last(bytes: &[u8]) -> [u8; CRC] {
    let mut out = [0; CRC];
    out.copy_from_slice(&bytes[bytes.len() - CRC..]);
    out
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    #[test]
    fn texts_are_read_back() {
        for hash in HashFunction::ALL {
            let one = Secret::generate(hash, &mut random(7));
            let text = one.reveal();
            assert!(text.starts_with(&format!("DHHC-1:0{}:", hash.code())), "{}", text.len());
            assert_eq!(text.parse::<Secret>(), Ok(one.clone()));
            assert_eq!(format!("{}\n", *text).parse::<Secret>(), Ok(one.clone()), "a line of a file");
            assert_eq!(format!("{one:?}"), "Secret");
        }
    }

    /// Made by nvme-cli 2.3: `nvme gen-dhchap-key --secret=000102…1f`.
    #[test]
    fn the_check_sum_is_that_of_other_tools() {
        let bytes: Vec<u8> = (0..32).collect();
        let plain = Secret { bytes: Zeroizing::new(bytes), hash: None };
        assert_eq!(*plain.reveal(), "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".to_owned());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let text = Secret::generate(HashFunction::Sha256, &mut random(1)).reveal();
        let wrong = |text: &str| text.parse::<Secret>().unwrap_err();
        assert_eq!(wrong(""), SecretError::Prefix);
        assert_eq!(wrong("NVMeTLSkey-1:01:AAAA:"), SecretError::Prefix);
        assert_eq!(wrong(&text.replacen("DHHC-1:01", "DHHC-1:04", 1)), SecretError::Hash);
        assert_eq!(
            wrong(&text.replacen("DHHC-1:01", "DHHC-1:02", 1)),
            SecretError::HashLength(32, "SHA-384")
        );
        assert_eq!(wrong(&text[..text.len() - 1]), SecretError::End);
        assert_eq!(wrong("DHHC-1:01"), SecretError::End);
        assert_eq!(wrong("DHHC-1:01:!!!!:"), SecretError::Base64);
        assert_eq!(wrong("DHHC-1:01:AAAA:"), SecretError::Length(0));
        let middle = 20;
        let other = if &text[middle..=middle] == "A" { "B" } else { "A" };
        assert_eq!(wrong(&format!("{}{other}{}", &text[..middle], &text[middle + 1..])), SecretError::Crc);
        for cut in 0..text.len() {
            let _ = text[..cut].parse::<Secret>().expect_err("a part of a secret was accepted");
        }
    }
}
