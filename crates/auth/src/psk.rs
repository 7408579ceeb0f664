//! Pre-shared keys of TLS on NVMe/TCP, and what is derived from them (NVMe-TCP 1.1, "TLS PSK and PSK
//! Identity Derivation").
//!
//! ```text
//! configured PSK   [`TlsKey`], as text: NVMeTLSkey-1:HH:BASE64:
//!      | with the NQN of the host
//! retained PSK, or generated PSK ([`GeneratedPsk`], of an authentication)
//!      | with the identity: the NQNs of host and subsystem, and a digest of the retained PSK
//! TLS PSK          [`TlsPsk`], what TLS takes
//! ```
//!
//! Both steps are an HKDF-Expand-Label. libnvme before 1.16 wrote its label without the lengths in it, and
//! the length of the output with its bytes swapped: [`Derivation::Legacy`]. Most distributions have it, so that it is
//! taken too. Older ones are worth naming: peers that differ in this do not understand each other.

use crate::hash::HashFunction;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm::Crc32IsoHdlc;
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

const PREFIX: &str = "NVMeTLSkey-1:";
const CRC: usize = 4;
/// What a digest in an identity is bound to, besides the names.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";
const RETAINED_LABEL: &str = "tls13 HostNQN";
const PSK_LABEL: &str = "tls13 nvme-tls-psk";
/// Longest context of a label (RFC 8446 §7.1), in bytes.
const CONTEXT_MAX: usize = 255;

/// A configured PSK of a host. It is wiped from memory when it is dropped, and no message shows it.
#[derive(Clone)]
pub struct TlsKey {
    bytes: Zeroizing<Vec<u8>>,
    /// What makes the retained PSK of it; none: it is that itself.
    hash: Option<HashFunction>,
}

impl PartialEq for TlsKey {
    fn eq(&self, other: &TlsKey) -> bool {
        self.hash == other.hash && self.bytes.ct_eq(&other.bytes).into()
    }
}

impl Eq for TlsKey {}

/// Why a text is no key. It does not have the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsKeyError {
    /// Another prefix.
    #[error("it does not begin with NVMeTLSkey-1:, as keys for TLS do")]
    Prefix,
    /// A secret of DH-HMAC-CHAP.
    #[error("it is a secret for DH-HMAC-CHAP (DHHC-1:), not a key for TLS (NVMeTLSkey-1:)")]
    Chap,
    /// Neither 00 nor the code of a hash function.
    #[error("its second field, the hash function, is not 00, 01 or 02")]
    Hash,
    /// The end, or one of the colons, is missing: a part of the text was lost.
    #[error("it does not end with a colon: a part of it is missing")]
    End,
    /// Not base64.
    #[error("its third field is not base64")]
    Base64,
    /// Of a length that no key has, in bytes.
    #[error("its third field has {0} bytes besides the check sum, and keys have 32 or 48")]
    Length(usize),
    /// A character was changed.
    #[error("its check sum is wrong: a character was changed")]
    Crc,
}

/// How labels of HKDF are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// As RFC 8446 §7.1 has them.
    Standard,
    /// As libnvme before 1.16 has them.
    Legacy,
    /// The same, and for identities of version 1 the whole identity in place of its hash function and digest: libnvme
    /// before 1.10.
    Early,
    /// The same without the length of the output: libnvme before 1.7.
    First,
}

impl Derivation {
    /// Those that are used, the right one first.
    pub const USED: [Derivation; 2] = [Derivation::Standard, Derivation::Legacy];
    /// Those that are only recognised.
    pub const NAMED: [Derivation; 2] = [Derivation::Early, Derivation::First];
}

impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Derivation::Standard => "the derivation of RFC 8446",
            Derivation::Legacy => "the derivation of libnvme before 1.16",
            Derivation::Early => "the derivation of libnvme before 1.10",
            Derivation::First => "the derivation of libnvme before 1.7",
        })
    }
}

/// Formats of identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// `NVMe0Rhh HOSTNQN SUBNQN`.
    V0,
    /// `NVMe1Rhh HOSTNQN SUBNQN DIGEST`, with a digest of the retained PSK.
    V1,
}

/// Why nothing can be derived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeriveError {
    /// The context of a label has a length of one byte.
    #[error("the names are too long: {0} bytes, where the derivation takes 255")]
    TooLong(usize),
    /// There is no cipher suite with it.
    #[error("no cipher suite of TLS on NVMe/TCP has {0}")]
    Hash(&'static str),
}

impl TlsKey {
    /// Draws a key of the length of a digest. `hash` is SHA-256 or SHA-384.
    pub fn generate(hash: HashFunction, random: &mut dyn FnMut(&mut [u8])) -> TlsKey {
        let hash = if hash == HashFunction::Sha256 { hash } else { HashFunction::Sha384 };
        let mut bytes = Zeroizing::new(vec![0; hash.digest_len()]);
        random(&mut bytes);
        TlsKey { bytes, hash: Some(hash) }
    }

    /// The text that [`FromStr`] reads. A process that has it can be this host.
    pub fn reveal(&self) -> Zeroizing<String> {
        let crc = crc_fast::checksum(Crc32IsoHdlc, &self.bytes) as u32;
        let whole = Zeroizing::new([&self.bytes[..], &crc.to_le_bytes()].concat());
        let hash = self.hash.map_or(0, HashFunction::code);
        let encoded = Zeroizing::new(STANDARD.encode(&*whole));
        Zeroizing::new(format!("{PREFIX}{hash:02}:{}:", *encoded))
    }

    /// The hash function of the cipher suite that it is used with first: that which transforms it, or, without
    /// one, that whose digests are as long.
    pub fn hash(&self) -> HashFunction {
        self.hash.unwrap_or(match self.bytes.len() {
            32 => HashFunction::Sha256,
            _ => HashFunction::Sha384,
        })
    }

    //= NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation: the retained PSK is HKDF-Expand-Label(PRK, "HostNQN", NQNh, Length(Configured PSK))
    fn retained(&self, hostnqn: &str, derivation: Derivation) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
        let Some(hash) = self.hash else { return Ok(self.bytes.clone()) };
        let prk = hash.extract(&self.bytes);
        expand_label(hash, &prk, RETAINED_LABEL, hostnqn.as_bytes(), self.bytes.len(), derivation)
    }

    /// What TLS takes between this host and this subsystem, with a cipher suite of that hash function.
    ///
    /// # Errors
    /// The names are too long for it, or there is no such cipher suite.
    pub fn psk(
        &self,
        version: IdentityVersion,
        hash: HashFunction,
        hostnqn: &str,
        subnqn: &str,
        derivation: Derivation,
    ) -> Result<TlsPsk, DeriveError> {
        if !hash.has_cipher_suite() {
            return Err(DeriveError::Hash(hash.name()));
        }
        let retained = self.retained(hostnqn, derivation)?;
        let names = format!("{:02} {hostnqn} {subnqn}", hash.code());
        let (identity, context) = match version {
            IdentityVersion::V0 => {
                let identity = format!("NVMe0R{names}");
                (identity.clone(), identity)
            }
            IdentityVersion::V1 => {
                let digest = digest(hash, &retained, hostnqn, subnqn);
                let identity = format!("NVMe1R{names} {digest}");
                let context = match derivation {
                    Derivation::Standard | Derivation::Legacy => format!("{:02} {digest}", hash.code()),
                    Derivation::Early | Derivation::First => identity.clone(),
                };
                (identity, context)
            }
        };
        let prk = hash.extract(&retained);
        //= NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation: the TLS PSK is HKDF-Expand-Label(PRK, "nvme-tls-psk", PskIdentityContext, L)
        let secret = expand_label(hash, &prk, PSK_LABEL, context.as_bytes(), hash.digest_len(), derivation)?;
        Ok(TlsPsk { identity, secret, hash })
    }
}

//= NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation: the digest is Base64(HMAC(PSK, NQNh || " " || NQNc || " " || "NVMe-over-Fabrics"))
fn digest(hash: HashFunction, psk: &[u8], hostnqn: &str, subnqn: &str) -> String {
    let parts = [hostnqn.as_bytes(), b" ", subnqn.as_bytes(), b" ", PURPOSE];
    STANDARD.encode(&*hash.hmac(psk, &parts))
}

/// A PSK that host and controller have made of an authentication, for secure channel concatenation. It is wiped from
/// memory when it is dropped, and no message shows it.
#[derive(Clone)]
pub struct GeneratedPsk {
    bytes: Zeroizing<Vec<u8>>,
    /// That of the authentication, SHA-256 or SHA-384.
    hash: HashFunction,
}

impl GeneratedPsk {
    /// Of the shared secret of the Diffie-Hellman exchange and the two challenges.
    //= NVMe Base 2.1, Generated PSK for TLS: the PSK is HMAC(KS, C1 || C2), where the session key KS is the hash of the shared secret
    pub(crate) fn new(
        hash: HashFunction,
        shared: &[u8],
        first_challenge: &[u8],
        second_challenge: &[u8],
    ) -> GeneratedPsk {
        GeneratedPsk::of_session(hash, &hash.digest(shared), first_challenge, second_challenge)
    }

    fn of_session(hash: HashFunction, key: &[u8], first: &[u8], second: &[u8]) -> GeneratedPsk {
        GeneratedPsk { bytes: hash.hmac(key, &[first, second]), hash }
    }

    /// What TLS takes between this host and this subsystem.
    ///
    /// # Errors
    /// There is no cipher suite of its hash function.
    //= NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation: the identity of a generated PSK has the type G
    pub fn psk(&self, hostnqn: &str, subnqn: &str) -> Result<TlsPsk, DeriveError> {
        let hash = self.hash;
        if !hash.has_cipher_suite() {
            return Err(DeriveError::Hash(hash.name()));
        }
        let digest = digest(hash, &self.bytes, hostnqn, subnqn);
        let identity = format!("NVMe1G{:02} {hostnqn} {subnqn} {digest}", hash.code());
        let context = format!("{:02} {digest}", hash.code());
        let (prk, len) = (hash.extract(&self.bytes), hash.digest_len());
        let secret = expand_label(hash, &prk, PSK_LABEL, context.as_bytes(), len, Derivation::Standard)?;
        Ok(TlsPsk { identity, secret, hash })
    }
}

impl fmt::Debug for GeneratedPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GeneratedPsk")
    }
}

impl FromStr for TlsKey {
    type Err = TlsKeyError;

    fn from_str(text: &str) -> Result<TlsKey, TlsKeyError> {
        let text = text.trim_end();
        if text.starts_with("DHHC-1:") {
            return Err(TlsKeyError::Chap);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(TlsKeyError::Prefix)?;
        let (hash, rest) = rest.split_once(':').ok_or(TlsKeyError::End)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(HashFunction::Sha256),
            "02" => Some(HashFunction::Sha384),
            _ => return Err(TlsKeyError::Hash),
        };
        let encoded = rest.strip_suffix(':').ok_or(TlsKeyError::End)?;
        let mut whole = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| TlsKeyError::Base64)?);
        let len = whole.len().saturating_sub(CRC);
        if ![32, 48].contains(&len) {
            return Err(TlsKeyError::Length(len));
        }
        //= NVMe-TCP 1.1, PSK Interchange Format: a PSK whose CRC-32 does not match shall not be used
        let crc = crc_fast::checksum(Crc32IsoHdlc, &whole[..len]) as u32;
        if crc.to_le_bytes() != whole[len..] {
            return Err(TlsKeyError::Crc);
        }
        whole[len..].zeroize();
        whole.truncate(len);
        Ok(TlsKey { bytes: whole, hash })
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsKey")
    }
}

/// What TLS takes: a pre-shared key, its name on the wire, and the hash function that it is bound to.
#[derive(Clone)]
pub struct TlsPsk {
    /// The identity, in the clear on the wire.
    pub identity: String,
    /// The key.
    pub secret: Zeroizing<Vec<u8>>,
    /// The hash function of its cipher suite.
    pub hash: HashFunction,
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({})", self.identity)
    }
}

impl TlsPsk {
    /// Whether `binder` shows that the sender of a ClientHello knows this key. `hello` is the message up to the
    /// binders, without these.
    // RFC 8446 §4.2.11.2: the binder is the Finished of the transcript up to the binders, with a key of the PSK
    pub fn is_bound(&self, hello: &[u8], binder: &[u8]) -> bool {
        let hash = self.hash;
        let label = |secret: &[u8], label: &str, context: &[u8]| {
            expand_label(hash, secret, label, context, hash.digest_len(), Derivation::Standard)
        };
        let early = hash.extract(&self.secret);
        let Ok(key) = label(&early, "tls13 ext binder", &hash.digest(b"")) else { return false };
        let Ok(finished) = label(&key, "tls13 finished", b"") else { return false };
        hash.hmac(&finished, &[&hash.digest(hello)]).ct_eq(binder).into()
    }
}

/// What an identity names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityKind {
    /// A PSK of a key of the host.
    Retained,
    /// One of an authentication.
    Generated,
}

/// The names in an identity of a host's PSK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// What it names.
    pub kind: IdentityKind,
    /// Its format.
    pub version: IdentityVersion,
    /// The hash function of the cipher suite.
    pub hash: HashFunction,
    /// The host.
    pub hostnqn: &'a str,
    /// The subsystem.
    pub subnqn: &'a str,
}

impl<'a> Identity<'a> {
    /// Reads an identity from the wire; `None` if the text is no identity of NVMe.
    pub fn parse(bytes: &'a [u8]) -> Option<Identity<'a>> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut fields = text.split(' ');
        let (retained, generated) = (IdentityKind::Retained, IdentityKind::Generated);
        let (kind, version, hash) = match fields.next()? {
            "NVMe0R01" => (retained, IdentityVersion::V0, HashFunction::Sha256),
            "NVMe0R02" => (retained, IdentityVersion::V0, HashFunction::Sha384),
            "NVMe1R01" => (retained, IdentityVersion::V1, HashFunction::Sha256),
            "NVMe1R02" => (retained, IdentityVersion::V1, HashFunction::Sha384),
            "NVMe1G01" => (generated, IdentityVersion::V1, HashFunction::Sha256),
            "NVMe1G02" => (generated, IdentityVersion::V1, HashFunction::Sha384),
            _ => return None,
        };
        let (hostnqn, subnqn) = (fields.next()?, fields.next()?);
        let has_digest = fields.next().is_some_and(|digest| !digest.is_empty());
        let is_whole = has_digest == (version == IdentityVersion::V1) && fields.next().is_none();
        (is_whole && !hostnqn.is_empty() && !subnqn.is_empty()).then_some(Identity {
            kind,
            version,
            hash,
            hostnqn,
            subnqn,
        })
    }
}

/// HKDF-Expand (RFC 5869) with a label of TLS 1.3 (RFC 8446 §7.1). `label` has its prefix.
fn expand_label(
    hash: HashFunction,
    prk: &[u8],
    label: &str,
    context: &[u8],
    len: usize,
    derivation: Derivation,
) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
    if context.len() > CONTEXT_MAX {
        return Err(DeriveError::TooLong(context.len()));
    }
    let mut info = Vec::with_capacity(4 + label.len() + context.len());
    match derivation {
        Derivation::Standard => {
            info.extend_from_slice(&(len as u16).to_be_bytes());
            info.push(label.len() as u8);
            info.extend_from_slice(label.as_bytes());
            info.push(context.len() as u8);
        }
        Derivation::Legacy | Derivation::Early => {
            info.extend_from_slice(&(len as u16).to_le_bytes());
            info.extend_from_slice(label.as_bytes());
        }
        Derivation::First => info.extend_from_slice(label.as_bytes()),
    }
    info.extend_from_slice(context);
    let mut out = Zeroizing::new(Vec::with_capacity(len + hash.digest_len()));
    let mut block = Zeroizing::new(Vec::new());
    for number in 1..=u8::MAX {
        if out.len() >= len {
            break;
        }
        block = hash.hmac(prk, &[&block, &info, &[number]]);
        out.extend_from_slice(&block);
    }
    out.truncate(len);
    Ok(out)
}

#[cfg(test)]
#[path = "psk_tests.rs"]
mod tests;
