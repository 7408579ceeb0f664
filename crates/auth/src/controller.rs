//! The controller's end.

use crate::group::{DhGroup, Exchange};
use crate::hash::{DigestBytes, HashFunction};
use crate::response::{Names, Posed};
use crate::{GeneratedPsk, Generations, HostKey, Refused, SecureChannel};
use longhaul_wire::fabrics::auth::{
    AuthMessage, Challenge, Failure, MalformedMessage, Negotiate, Reply, Success,
};
use subtle::ConstantTimeEq;

/// What a controller wants of a host.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// NQN of the host.
    pub hostnqn: String,
    /// NQN of the subsystem.
    pub subnqn: String,
    /// What the host is to know; the subsystem's secret is for hosts that ask for a proof.
    pub keys: Generations,
    /// Hash functions that may be used; of several that the host offers, the first one here.
    pub hashes: Vec<HashFunction>,
    /// Groups that may be used; of several that the host offers, the first one here.
    pub groups: Vec<DhGroup>,
    /// Which PSK for TLS may be made, and whether one has to be.
    pub concatenation: Concatenation,
}

/// What a controller takes of secure channel concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concatenation {
    /// Authentication alone.
    Off,
    /// That, or this.
    Allowed(SecureChannel),
    /// This and nothing else.
    Required(SecureChannel),
}

impl Concatenation {
    fn takes(self, channel: SecureChannel) -> bool {
        match self {
            Concatenation::Off => channel == SecureChannel::None,
            Concatenation::Allowed(one) => [SecureChannel::None, one].contains(&channel),
            Concatenation::Required(one) => channel == one,
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The host has not proved that it knows its secret.
    Pending,
    /// It has.
    Authenticated,
    /// It did not, or the host has failed the controller: nothing but the answer is sent any more.
    Failed(Refused),
}

/// Authentication of one queue, at the controller. Invariants:
/// - [`Progress::Authenticated`] follows only a response that is right for the challenge of this exchange;
/// - a challenge is drawn once for each Negotiate, and is answered once;
/// - at most one message waits for the host;
/// - a PSK is given once, after both ends have proved what they had to.
pub struct ControllerExchange {
    options: ControllerOptions,
    progress: Progress,
    state: ControllerState,
    /// What the host receives next.
    answer: Option<Vec<u8>>,
    /// The generation of the key that the host has proved to know.
    generation: Option<u32>,
    channel: SecureChannel,
    /// What the last exchange has made, until it is taken.
    psk: Option<(SecureChannel, GeneratedPsk)>,
}

enum ControllerState {
    /// Negotiate is due.
    Idle,
    /// The reply to this challenge is due.
    Challenged(Box<Posing>),
    /// The host judges the controller's response.
    Judged { transaction: u16, psk: Option<(SecureChannel, GeneratedPsk)> },
}

struct Posing {
    transaction: u16,
    hash: HashFunction,
    group: DhGroup,
    challenge: Vec<u8>,
    sequence: u32,
    exchange: Option<Exchange>,
    channel: SecureChannel,
}

impl ControllerExchange {
    /// Waits for the host to begin.
    pub fn new(options: ControllerOptions) -> ControllerExchange {
        ControllerExchange {
            options,
            progress: Progress::Pending,
            state: ControllerState::Idle,
            answer: None,
            generation: None,
            channel: SecureChannel::None,
            psk: None,
        }
    }

    /// The exchange of a host whose connection has proved its identity by TLS: the host may authenticate again.
    pub fn proved(options: ControllerOptions, generation: u32) -> ControllerExchange {
        let (progress, generation) = (Progress::Authenticated, Some(generation));
        ControllerExchange { progress, generation, ..ControllerExchange::new(options) }
    }

    /// What the host wanted of a secure channel when it began last.
    pub fn channel(&self) -> SecureChannel {
        self.channel
    }

    /// The PSK that the host has just made, too, and in which way it wanted it.
    pub fn take_psk(&mut self) -> Option<(SecureChannel, GeneratedPsk)> {
        self.psk.take()
    }

    /// The generation of the key that the host used last.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// How far it is. A host that is authenticated stays so while it does that again.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Handles what the host has sent. The answer is what [`poll`](Self::poll) gives.
    pub fn handle(&mut self, data: &[u8], random: &mut dyn FnMut(&mut [u8])) {
        if matches!(self.progress, Progress::Failed(_)) {
            return;
        }
        let message = AuthMessage::decode(data);
        let transaction = data.get(4..6).map_or(0, |at| u16::from_le_bytes([at[0], at[1]]));
        let state = std::mem::replace(&mut self.state, ControllerState::Idle);
        self.answer = None;
        let result = match (message, state) {
            (Ok(AuthMessage::Negotiate(one)), _) => self.challenge(&one, random),
            (Ok(AuthMessage::Reply(one)), ControllerState::Challenged(posing))
                if one.transaction == posing.transaction =>
            {
                self.judge(&one, &posing)
            }
            (Ok(AuthMessage::Success2(one)), ControllerState::Judged { transaction, psk })
                if one == transaction =>
            {
                self.psk = psk;
                Ok(())
            }
            (Ok(AuthMessage::Failure2(one)), _) => {
                // It does not wait for an answer.
                self.progress = Progress::Failed(Refused::from_code(one.reason));
                return;
            }
            (Err(MalformedMessage::Payload), _) => Err(Refused::Payload),
            (Ok(_) | Err(MalformedMessage::Unknown), _) => Err(Refused::Message),
        };
        if let Err(why) = result {
            self.progress = Progress::Failed(why);
            let failure = Failure { transaction, reason: why.code() };
            self.answer = Some(AuthMessage::Failure1(failure).encode());
        }
    }

    /// The message that the host receives now; none if none is due.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.answer.take()
    }

    fn challenge(&mut self, one: &Negotiate, random: &mut dyn FnMut(&mut [u8])) -> Result<(), Refused> {
        let channel = SecureChannel::from_code(one.secure_channel);
        //= NVMe Base 2.1, AUTH_Negotiate message: a value of SC_C that does not suit the controller is a mismatch
        let channel = channel
            .filter(|channel| self.options.concatenation.takes(*channel))
            .ok_or(Refused::Concatenation)?;
        self.channel = channel;
        if one.hashes.is_empty() && one.groups.is_empty() {
            return Err(Refused::Protocol);
        }
        let mut hashes = self.options.hashes.iter().filter(|hash| channel.takes_hash(**hash));
        let mut groups = self.options.groups.iter().filter(|group| channel.takes_group(**group));
        let hash = hashes.find(|hash| one.hashes.contains(&hash.code()));
        let group = groups.find(|group| one.groups.contains(&group.code()));
        let (hash, group) = (*hash.ok_or(Refused::Hash)?, *group.ok_or(Refused::Group)?);
        let mut challenge = vec![0; hash.digest_len()];
        let mut sequence = [0; 4];
        random(&mut challenge);
        random(&mut sequence);
        let exchange = Exchange::new(group, random);
        let posing = Posing {
            transaction: one.transaction,
            hash,
            group,
            challenge,
            //= NVMe Base 2.1, DH-HMAC-CHAP_Challenge message: the challenge is as long as a digest, and S1 is not 0
            sequence: u32::from_le_bytes(sequence).max(1),
            exchange,
            channel,
        };
        let public = posing.exchange.as_ref().and_then(Exchange::public).unwrap_or_default();
        self.answer = Some(
            AuthMessage::Challenge(Challenge {
                transaction: posing.transaction,
                hash: hash.code(),
                group: group.code(),
                sequence: posing.sequence,
                challenge: posing.challenge.clone(),
                public,
            })
            .encode(),
        );
        self.state = ControllerState::Challenged(Box::new(posing));
        Ok(())
    }

    fn judge(&mut self, one: &Reply, posing: &Posing) -> Result<(), Refused> {
        let hash = posing.hash;
        if one.response.len() != hash.digest_len() || one.public.len() != posing.group.public_len() {
            return Err(Refused::Payload);
        }
        let shared = match &posing.exchange {
            Some(exchange) => Some(exchange.shared(&one.public).ok_or(Refused::Payload)?),
            None => None,
        };
        let names = Names { host: &self.options.hostnqn, subsystem: &self.options.subnqn };
        let posed = |challenge, sequence| Posed {
            hash,
            challenge,
            shared: shared.as_ref().map(|shared| &shared[..]),
            sequence,
            transaction: posing.transaction,
            secure_channel: posing.channel.code(),
        };
        let is_right = |key: &HostKey| {
            let expected = posed(&posing.challenge, posing.sequence).of_host(&key.secret, &names);
            bool::from(expected.ct_eq(&one.response))
        };
        let keys = &self.options.keys;
        let Some((generation, key)) = keys.accepted().find(|(_, key)| is_right(key)) else {
            return match keys.retired() {
                Some((generation, key)) if is_right(key) => Err(Refused::Retired(generation)),
                _ => Err(Refused::Failed),
            };
        };
        let is_mutual = !posing.channel.makes_psk() || one.sequence != 0;
        let response: Option<DigestBytes> = match (&one.challenge, &key.controller) {
            //= NVMe Base 2.1, DH-HMAC-CHAP_Reply message: a host that wants a PSK sends C2
            (None, _) if posing.channel.makes_psk() => return Err(Refused::Payload),
            (None, _) => None,
            // What the host has said itself: its own challenge would make it its own controller.
            (Some(challenge), _) if *challenge == posing.challenge => return Err(Refused::Payload),
            (Some(_), _) if !is_mutual => None,
            (Some(challenge), Some(secret)) => {
                Some(posed(challenge, one.sequence).of_controller(secret, &names))
            }
            // The host asks for a proof that this side cannot give.
            (Some(_), None) => return Err(Refused::Failed),
        };
        let psk = match (&shared, &one.challenge) {
            (Some(shared), Some(second)) if posing.channel.makes_psk() => {
                let psk = GeneratedPsk::new(hash, shared, &posing.challenge, second);
                Some((posing.channel, psk))
            }
            _ => None,
        };
        self.progress = Progress::Authenticated;
        self.generation = Some(generation);
        match response {
            Some(_) => self.state = ControllerState::Judged { transaction: posing.transaction, psk },
            None => self.psk = psk,
        }
        let response = response.map(|response| response.to_vec());
        let success = Success { transaction: posing.transaction, digest: hash.digest_len() as u8, response };
        self.answer = Some(AuthMessage::Success1(success).encode());
        Ok(())
    }
}
