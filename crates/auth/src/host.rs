//! The host's end.

use crate::group::{DhGroup, Exchange};
use crate::hash::{DigestBytes, HashFunction};
use crate::response::{Names, Posed};
use crate::{GeneratedPsk, HostKey, Refused, SecureChannel};
use longhaul_wire::fabrics::auth::{AuthMessage, Challenge, Failure, Negotiate, Reply, Success};
use subtle::ConstantTimeEq;

/// What a host authenticates with.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// NQN of the host.
    pub hostnqn: String,
    /// NQN of the subsystem.
    pub subnqn: String,
    /// What the host knows. With the subsystem's secret, the controller has to prove that it knows that.
    pub key: HostKey,
    /// Hash functions that are offered, the preferred one first.
    pub hashes: Vec<HashFunction>,
    /// Groups that are offered, the preferred one first.
    pub groups: Vec<DhGroup>,
    /// Whether a PSK for TLS is made; hash functions and groups that do not go with that are not offered.
    pub secure_channel: SecureChannel,
}

/// What the host does next.
#[derive(Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Send this, then receive and [`handle`](HostExchange::handle) the answer.
    Send(Vec<u8>),
    /// Both sides know enough of each other: send this, if there is something, and it is over.
    Done(Option<Vec<u8>>),
    /// It has failed: send this, if there is something, and close the connection.
    Failed(Refused, Option<Vec<u8>>),
}

/// One authentication of one queue, at the host. Call [`begin`](Self::begin) once, then
/// [`handle`](Self::handle) with each message of the controller.
pub struct HostExchange {
    options: HostOptions,
    transaction: u16,
    state: HostState,
    /// Both ends have it once the exchange is done.
    psk: Option<GeneratedPsk>,
}

enum HostState {
    /// The challenge is due.
    Negotiated,
    /// Success1 is due, with this response if the controller is to be authenticated.
    Replied {
        digest: u8,
        expected: Option<DigestBytes>,
    },
    Done,
    Over,
}

impl HostExchange {
    /// The exchange, and its first message. `transaction` is another one than that of any other exchange of
    /// the controller that is under way.
    pub fn begin(mut options: HostOptions, transaction: u16) -> (HostExchange, Vec<u8>) {
        let channel = options.secure_channel;
        options.hashes.retain(|hash| channel.takes_hash(*hash));
        options.groups.retain(|group| channel.takes_group(*group));
        let negotiate = AuthMessage::Negotiate(Negotiate {
            transaction,
            secure_channel: channel.code(),
            hashes: options.hashes.iter().map(|hash| hash.code()).collect(),
            groups: options.groups.iter().map(|group| group.code()).collect(),
        });
        let exchange = HostExchange { options, transaction, state: HostState::Negotiated, psk: None };
        (exchange, negotiate.encode())
    }

    /// The PSK of an exchange that is done, if one was to be made.
    pub fn into_psk(self) -> Option<GeneratedPsk> {
        match self.state {
            HostState::Done => self.psk,
            _ => None,
        }
    }

    /// Handles what the controller has sent.
    pub fn handle(&mut self, data: &[u8], random: &mut dyn FnMut(&mut [u8])) -> HostStep {
        let message = match AuthMessage::decode(data) {
            Ok(message) => message,
            Err(_) => return self.fail(Refused::Payload),
        };
        match (message, std::mem::replace(&mut self.state, HostState::Over)) {
            (AuthMessage::Failure1(failure), _) => HostStep::Failed(Refused::from_code(failure.reason), None),
            (AuthMessage::Challenge(one), HostState::Negotiated) if one.transaction == self.transaction => {
                match self.reply(&one, random) {
                    Ok(reply) => HostStep::Send(reply),
                    Err(why) => self.fail(why),
                }
            }
            (AuthMessage::Success1(one), HostState::Replied { digest, expected })
                if one.transaction == self.transaction =>
            {
                self.judge(&one, digest, expected)
            }
            _ => self.fail(Refused::Message),
        }
    }

    fn reply(&mut self, one: &Challenge, random: &mut dyn FnMut(&mut [u8])) -> Result<Vec<u8>, Refused> {
        let offered = HashFunction::from_code(one.hash).filter(|hash| self.options.hashes.contains(hash));
        let hash = offered.ok_or(Refused::Hash)?;
        let offered = DhGroup::from_code(one.group).filter(|group| self.options.groups.contains(group));
        let group = offered.ok_or(Refused::Group)?;
        //= NVMe Base 2.1, DH-HMAC-CHAP_Challenge message: the challenge is as long as a digest, and S1 is not 0
        if one.challenge.len() != hash.digest_len()
            || one.public.len() != group.public_len()
            || one.sequence == 0
        {
            return Err(Refused::Payload);
        }
        let exchange = Exchange::new(group, random);
        let shared = match &exchange {
            Some(exchange) => Some(exchange.shared(&one.public).ok_or(Refused::Payload)?),
            None => None,
        };
        let shared = shared.as_ref().map(|shared| &shared[..]);
        let names = Names { host: &self.options.hostnqn, subsystem: &self.options.subnqn };
        let posed = |challenge, sequence| Posed {
            hash,
            challenge,
            shared,
            sequence,
            transaction: self.transaction,
            secure_channel: self.options.secure_channel.code(),
        };
        let response = posed(&one.challenge, one.sequence).of_host(&self.options.key.secret, &names);
        let mut own = vec![0; hash.digest_len()];
        let mut sequence = [0; 4];
        random(&mut own);
        random(&mut sequence);
        // 0 says that there is no challenge.
        let sequence = u32::from_le_bytes(sequence).max(1);
        let expected = self
            .options
            .key
            .controller
            .as_ref()
            .map(|secret| posed(&own, sequence).of_controller(secret, &names));
        let (mutual, makes_psk) = (expected.is_some(), self.options.secure_channel.makes_psk());
        if let Some(shared) = shared.filter(|_| makes_psk) {
            self.psk = Some(GeneratedPsk::new(hash, shared, &one.challenge, &own));
        }
        let reply = AuthMessage::Reply(Reply {
            transaction: self.transaction,
            response: response.to_vec(),
            //= NVMe Base 2.1, DH-HMAC-CHAP_Reply message: with S2 of 0, C2 is there for a PSK, and the controller is not authenticated
            sequence: if mutual { sequence } else { 0 },
            challenge: (mutual || makes_psk).then_some(own),
            public: exchange.as_ref().and_then(Exchange::public).unwrap_or_default(),
        });
        self.state = HostState::Replied { digest: hash.digest_len() as u8, expected };
        Ok(reply.encode())
    }

    fn judge(&mut self, one: &Success, digest: u8, expected: Option<DigestBytes>) -> HostStep {
        if one.digest != digest {
            return self.fail(Refused::Payload);
        }
        match (expected, &one.response) {
            (None, None) => {
                self.state = HostState::Done;
                HostStep::Done(None)
            }
            (None, Some(_)) => self.fail(Refused::Payload),
            (Some(expected), Some(response)) if expected.ct_eq(response).into() => {
                self.state = HostState::Done;
                HostStep::Done(Some(AuthMessage::Success2(self.transaction).encode()))
            }
            // Also a controller that does not answer.
            (Some(_), _) => self.fail(Refused::Failed),
        }
    }

    fn fail(&mut self, why: Refused) -> HostStep {
        self.state = HostState::Over;
        let failure = Failure { transaction: self.transaction, reason: why.code() };
        HostStep::Failed(why, Some(AuthMessage::Failure2(failure).encode()))
    }
}
