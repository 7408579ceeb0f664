//! Messages of in-band authentication (NVMe Base 2.1, "DH-HMAC-CHAP Protocol"): the data of Authentication
//! Send and Authentication Receive.

use crate::command::Sqe;

/// SECP of these commands: NVMe in-band authentication.
pub const SECURITY_PROTOCOL: u8 = 0xE9;
/// SPSP0 and SPSP1, both.
pub const PROTOCOL_SPECIFIC: u8 = 0x01;
/// Bytes that the largest message has: a reply with two digests of SHA-512 and a value of ffdhe8192.
pub const MESSAGE_MAX: usize = Reply::HEADER + 2 * 64 + 1024;

/// Bits of AUTHREQ in the response to Connect.
pub mod authreq {
    /// Authentication Transaction Required: the queue takes nothing else before.
    pub const TRANSACTION: u16 = 1 << 1;
    /// The same with secure channel concatenation.
    pub const SECURE_CHANNEL: u16 = 1 << 2;
}

/// What a host wants of secure channel concatenation (SC_C in AUTH_Negotiate).
pub mod secure_channel {
    /// No secure channel.
    pub const NONE: u8 = 0;
    /// A PSK for TLS is made of the authentication (NEWTLSPSK).
    pub const NEW_TLS_PSK: u8 = 2;
    /// The same in place of the one that encrypts this connection (REPLACETLSPSK).
    pub const REPLACE_TLS_PSK: u8 = 3;
}

/// Codes of hash functions (HashID).
#[allow(missing_docs)]
pub mod hash_id {
    pub const SHA_256: u8 = 1;
    pub const SHA_384: u8 = 2;
    pub const SHA_512: u8 = 3;
}

/// Codes of Diffie-Hellman groups (DHgID).
#[allow(missing_docs)]
pub mod group_id {
    pub const NULL: u8 = 0;
    pub const FFDHE_2048: u8 = 1;
    pub const FFDHE_3072: u8 = 2;
    pub const FFDHE_4096: u8 = 3;
    pub const FFDHE_6144: u8 = 4;
    pub const FFDHE_8192: u8 = 5;
}

/// Why an authentication failed (Reason Code Explanation); the reason code is always 1.
#[allow(missing_docs)]
pub mod reason {
    pub const FAILED: u8 = 1;
    pub const PROTOCOL_NOT_USABLE: u8 = 2;
    pub const CONCATENATION_MISMATCH: u8 = 3;
    pub const HASH_NOT_USABLE: u8 = 4;
    pub const GROUP_NOT_USABLE: u8 = 5;
    pub const INCORRECT_PAYLOAD: u8 = 6;
    pub const INCORRECT_MESSAGE: u8 = 7;
}

/// Identifier of DH-HMAC-CHAP among authentication protocols (AuthID).
const DH_HMAC_CHAP: u8 = 1;
/// Places for hash functions, and for groups, in a protocol descriptor.
const LIST: usize = 30;
/// Length of a protocol descriptor.
const DESCRIPTOR: usize = 64;

/// AUTH_Type and AUTH_ID of the messages.
mod id {
    pub(super) const NEGOTIATE: [u8; 2] = [0, 0x00];
    pub(super) const CHALLENGE: [u8; 2] = [1, 0x01];
    pub(super) const REPLY: [u8; 2] = [1, 0x02];
    pub(super) const SUCCESS1: [u8; 2] = [1, 0x03];
    pub(super) const SUCCESS2: [u8; 2] = [1, 0x04];
    pub(super) const FAILURE1: [u8; 2] = [0, 0xF1];
    pub(super) const FAILURE2: [u8; 2] = [0, 0xF0];
}

/// The fields of Authentication Send and Authentication Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// SPSP0 and SPSP1; bytes 41 and 42.
    pub specific: [u8; 2],
    /// SECP; byte 43.
    pub protocol: u8,
    /// Transfer or allocation length in bytes; bytes 47:44.
    pub length: u32,
}

impl Authentication {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> Authentication {
        let [_, spsp0, spsp1, secp] = sqe.cdw10().to_le_bytes();
        Authentication { specific: [spsp0, spsp1], protocol: secp, length: sqe.cdw11() }
    }

    /// Fields of a command with so many bytes of data.
    pub fn with_length(length: u32) -> Authentication {
        Authentication { specific: [PROTOCOL_SPECIFIC; 2], protocol: SECURITY_PROTOCOL, length }
    }

    /// Dwords 10 and 11.
    pub fn dwords(self) -> [u32; 2] {
        let [spsp0, spsp1] = self.specific;
        [u32::from_le_bytes([0, spsp0, spsp1, self.protocol]), self.length]
    }
}

/// AUTH_Negotiate: what the host can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Transaction identifier, in all messages of one authentication.
    pub transaction: u16,
    /// SC_C, one of [`secure_channel`].
    pub secure_channel: u8,
    /// Codes of hash functions ([`hash_id`]), the preferred one first; 30 at most.
    pub hashes: Vec<u8>,
    /// Codes of groups ([`group_id`]), the preferred one first; 30 at most.
    pub groups: Vec<u8>,
}

/// DH-HMAC-CHAP_Challenge: what the host is to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// As that of [`Negotiate`].
    pub transaction: u16,
    /// Code of the hash function that the controller has chosen.
    pub hash: u8,
    /// Code of the group that the controller has chosen.
    pub group: u8,
    /// S1, not 0.
    pub sequence: u32,
    /// C1, as long as a digest.
    pub challenge: Vec<u8>,
    /// The controller's public value, as long as the prime; empty for the null group.
    pub public: Vec<u8>,
}

/// DH-HMAC-CHAP_Reply: the host's answer, and what the controller is to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As that of [`Negotiate`].
    pub transaction: u16,
    /// R1, as long as a digest.
    pub response: Vec<u8>,
    /// S2; 0 if the controller is not to be authenticated.
    pub sequence: u32,
    /// C2, if the controller is to be authenticated or a PSK for TLS is made.
    pub challenge: Option<Vec<u8>>,
    /// The host's public value; empty for the null group.
    pub public: Vec<u8>,
}

impl Reply {
    const HEADER: usize = 16;
}

/// DH-HMAC-CHAP_Success1: the host is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success {
    /// As that of [`Negotiate`].
    pub transaction: u16,
    /// Length of a digest, also without a response.
    pub digest: u8,
    /// R2, if the host has asked.
    pub response: Option<Vec<u8>>,
}

/// Reason of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// As that of [`Negotiate`].
    pub transaction: u16,
    /// One of [`reason`].
    pub reason: u8,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AuthMessage {
    Negotiate(Negotiate),
    Challenge(Challenge),
    Reply(Reply),
    Success1(Success),
    /// The host has authenticated the controller: its transaction identifier.
    Success2(u16),
    /// Of the controller.
    Failure1(Failure),
    /// Of the host.
    Failure2(Failure),
}

/// A message that is shorter than its fields say, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedMessage {
    /// AUTH_Type and AUTH_ID are those of no message.
    Unknown,
    /// It ends before its last field, or a field has a value that it cannot have.
    Payload,
}

/// Writes fixed fields at their places.
fn header(id: [u8; 2], transaction: u16, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    out[..2].copy_from_slice(&id);
    out[4..6].copy_from_slice(&transaction.to_le_bytes());
    out
}

impl AuthMessage {
    /// The bytes of the message.
    ///
    /// # Panics
    /// If a list, digest or public value is longer than its field of length can say.
    pub fn encode(&self) -> Vec<u8> {
        // unwrap: what this host made itself
        let short = |len: usize| u8::try_from(len).expect("a list or digest");
        // unwrap: what this host made itself
        let long = |len: usize| u16::try_from(len).expect("a public value").to_le_bytes();
        match self {
            AuthMessage::Negotiate(one) => {
                let mut out = header(id::NEGOTIATE, one.transaction, 8 + DESCRIPTOR);
                (out[6], out[7]) = (one.secure_channel, 1);
                out[8] = DH_HMAC_CHAP;
                (out[10], out[11]) = (short(one.hashes.len()), short(one.groups.len()));
                out[12..][..one.hashes.len()].copy_from_slice(&one.hashes);
                out[12 + LIST..][..one.groups.len()].copy_from_slice(&one.groups);
                out
            }
            AuthMessage::Challenge(one) => {
                let mut out = header(id::CHALLENGE, one.transaction, 16);
                out[6] = short(one.challenge.len());
                (out[8], out[9]) = (one.hash, one.group);
                out[10..12].copy_from_slice(&long(one.public.len()));
                out[12..16].copy_from_slice(&one.sequence.to_le_bytes());
                [&out[..], &one.challenge, &one.public].concat()
            }
            AuthMessage::Reply(one) => {
                let mut out = header(id::REPLY, one.transaction, Reply::HEADER);
                out[6] = short(one.response.len());
                out[8] = one.challenge.is_some().into();
                out[10..12].copy_from_slice(&long(one.public.len()));
                out[12..16].copy_from_slice(&one.sequence.to_le_bytes());
                let none = vec![0; one.response.len()];
                let challenge = one.challenge.as_ref().unwrap_or(&none);
                [&out[..], &one.response, challenge, &one.public].concat()
            }
            AuthMessage::Success1(one) => {
                let mut out = header(id::SUCCESS1, one.transaction, 16);
                (out[6], out[8]) = (one.digest, one.response.is_some().into());
                let none = vec![0; one.digest.into()];
                [&out[..], one.response.as_ref().unwrap_or(&none)].concat()
            }
            AuthMessage::Success2(transaction) => header(id::SUCCESS2, *transaction, 16),
            AuthMessage::Failure1(one) => failure(id::FAILURE1, *one),
            AuthMessage::Failure2(one) => failure(id::FAILURE2, *one),
        }
    }

    /// Reads a message; what follows it is padding.
    ///
    /// # Errors
    /// It is unknown, or is not what its fields say.
    pub fn decode(bytes: &[u8]) -> Result<AuthMessage, MalformedMessage> {
        let at = |n: usize| bytes.get(n).copied().ok_or(MalformedMessage::Payload);
        let slice = |at: usize, len: usize| {
            bytes.get(at..at + len).map(<[u8]>::to_vec).ok_or(MalformedMessage::Payload)
        };
        let u16_at = |n: usize| Ok(u16::from_le_bytes([at(n)?, at(n + 1)?]));
        let id = [at(0)?, at(1)?];
        let transaction = u16_at(4)?;
        match id {
            id::NEGOTIATE => {
                let descriptors = slice(8, usize::from(at(7)?) * DESCRIPTOR)?;
                //= NVMe Base 2.1, AUTH_Negotiate message: each protocol has a descriptor of 64 bytes
                let ours = descriptors.chunks_exact(DESCRIPTOR).find(|one| one[0] == DH_HMAC_CHAP);
                let list = |at: usize, len: u8| {
                    let len = usize::from(len);
                    let ours = ours.filter(|_| len <= LIST).ok_or(MalformedMessage::Payload)?;
                    Ok(ours[at..at + len].to_vec())
                };
                let (hashes, groups) = match ours {
                    Some(ours) => (list(4, ours[2])?, list(4 + LIST, ours[3])?),
                    None => (Vec::new(), Vec::new()),
                };
                Ok(AuthMessage::Negotiate(Negotiate { transaction, secure_channel: at(6)?, hashes, groups }))
            }
            id::CHALLENGE => {
                let (digest, public) = (usize::from(at(6)?), usize::from(u16_at(10)?));
                Ok(AuthMessage::Challenge(Challenge {
                    transaction,
                    hash: at(8)?,
                    group: at(9)?,
                    sequence: u32::from_le_bytes([at(12)?, at(13)?, at(14)?, at(15)?]),
                    challenge: slice(16, digest)?,
                    public: slice(16 + digest, public)?,
                }))
            }
            id::REPLY => {
                let (digest, public) = (usize::from(at(6)?), usize::from(u16_at(10)?));
                let challenge = slice(Reply::HEADER + digest, digest)?;
                Ok(AuthMessage::Reply(Reply {
                    transaction,
                    sequence: u32::from_le_bytes([at(12)?, at(13)?, at(14)?, at(15)?]),
                    response: slice(Reply::HEADER, digest)?,
                    challenge: (at(8)? & 1 != 0).then_some(challenge),
                    public: slice(Reply::HEADER + 2 * digest, public)?,
                }))
            }
            id::SUCCESS1 => {
                let digest = at(6)?;
                let response = match at(8)? & 1 {
                    0 => None,
                    _ => Some(slice(16, digest.into())?),
                };
                Ok(AuthMessage::Success1(Success { transaction, digest, response }))
            }
            id::SUCCESS2 => Ok(AuthMessage::Success2(transaction)),
            id::FAILURE1 => Ok(AuthMessage::Failure1(Failure { transaction, reason: at(7)? })),
            id::FAILURE2 => Ok(AuthMessage::Failure2(Failure { transaction, reason: at(7)? })),
            _ => Err(MalformedMessage::Unknown),
        }
    }
}

fn failure(id: [u8; 2], one: Failure) -> Vec<u8> {
    let mut out = header(id, one.transaction, 8);
    (out[6], out[7]) = (1, one.reason);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Sqe, fctype};
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn all() -> Vec<AuthMessage> {
        let negotiate =
            Negotiate { transaction: 0x1234, secure_channel: 0, hashes: vec![3, 1], groups: vec![0, 5] };
        let (challenge, public) = (vec![7; 48], vec![9; 256]);
        let reply = Reply {
            transaction: 2,
            response: vec![1; 48],
            sequence: 0,
            challenge: None,
            public: public.clone(),
        };
        vec![
            AuthMessage::Negotiate(negotiate),
            AuthMessage::Challenge(Challenge {
                transaction: 1,
                hash: 2,
                group: 1,
                sequence: 0xA0B0C0D0,
                challenge,
                public,
            }),
            AuthMessage::Reply(Reply { sequence: 5, challenge: Some(vec![3; 48]), ..reply.clone() }),
            AuthMessage::Reply(reply),
            AuthMessage::Success1(Success { transaction: 3, digest: 32, response: Some(vec![4; 32]) }),
            AuthMessage::Success1(Success { transaction: 3, digest: 64, response: None }),
            AuthMessage::Success2(4),
            AuthMessage::Failure1(Failure { transaction: 5, reason: reason::HASH_NOT_USABLE }),
            AuthMessage::Failure2(Failure { transaction: 6, reason: reason::FAILED }),
        ]
    }

    #[test]
    fn messages_are_read_back_and_none_is_cut() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_MAX);
            assert_eq!(AuthMessage::decode(&bytes), Ok(message.clone()));
            assert_eq!(
                AuthMessage::decode(&[&bytes[..], &[0xFF; 9]].concat()),
                Ok(message.clone()),
                "padded"
            );
            // What a failure or a success without a response has behind its last field is reserved.
            let needed = match &message {
                AuthMessage::Success1(Success { response: None, .. }) => 9,
                AuthMessage::Success2(_) => 6,
                _ => bytes.len(),
            };
            for len in 0..needed {
                assert_eq!(
                    AuthMessage::decode(&bytes[..len]),
                    Err(MalformedMessage::Payload),
                    "{message:?}: {len}"
                );
            }
        }
    }

    /// Bytes at the places that the figures of the specification give.
    #[test]
    fn fields_have_their_places() {
        let bytes: Vec<Vec<u8>> = all().iter().map(AuthMessage::encode).collect();
        let negotiate = &bytes[0];
        assert_eq!(
            (&negotiate[..12], negotiate.len()),
            (&[0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 2, 2][..], 72)
        );
        assert_eq!((&negotiate[12..15], &negotiate[42..45]), (&[3, 1, 0][..], &[0, 5, 0][..]));
        let challenge = &bytes[1];
        assert_eq!(challenge[..16], [1, 1, 0, 0, 1, 0, 48, 0, 2, 1, 0, 1, 0xD0, 0xC0, 0xB0, 0xA0]);
        assert_eq!((challenge[16], challenge[16 + 48], challenge.len()), (7, 9, 16 + 48 + 256));
        let reply = &bytes[2];
        assert_eq!(reply[..16], [1, 2, 0, 0, 2, 0, 48, 0, 1, 0, 0, 1, 5, 0, 0, 0]);
        assert_eq!((reply[16], reply[64], reply[112], reply.len()), (1, 3, 9, 16 + 96 + 256));
        assert_eq!(bytes[4][..9], [1, 3, 0, 0, 3, 0, 32, 0, 1]);
        assert_eq!(bytes[7], [0, 0xF1, 0, 0, 5, 0, 1, 4]);
        assert_eq!(bytes[8], [0, 0xF0, 0, 0, 6, 0, 1, 1]);
    }

    #[test]
    fn commands_have_their_fields() {
        let sqe = Sqe::authentication(fctype::AUTHENTICATION_SEND, 72);
        assert_eq!(sqe.as_bytes()[40..48], [0, 1, 1, 0xE9, 72, 0, 0, 0]);
        assert_eq!(Authentication::of(&sqe), Authentication::with_length(72));
    }

    #[test]
    fn lists_that_are_too_long_and_other_protocols_are_no_lists() {
        let mut bytes = all()[0].encode();
        bytes[10] = 31;
        assert_eq!(AuthMessage::decode(&bytes), Err(MalformedMessage::Payload));
        bytes[8] = 2;
        let Ok(AuthMessage::Negotiate(none)) = AuthMessage::decode(&bytes) else { panic!("it is one") };
        assert_eq!((none.hashes, none.groups), (vec![], vec![]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = AuthMessage::decode(&bytes) {
                let again = AuthMessage::decode(&message.encode());
                prop_assert_eq!(again, Ok(message));
            }
        }
    }
}
