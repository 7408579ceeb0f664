//! The controller's end.

use crate::group::{DhGroup, Exchange};
use crate::hash::{DigestBytes, HashFunction};
use crate::response::{Names, Posed};
use crate::{Generations, HostKey, Refused};
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
/// - at most one message waits for the host.
pub struct ControllerExchange {
    options: ControllerOptions,
    progress: Progress,
    state: ControllerState,
    /// What the host receives next.
    answer: Option<Vec<u8>>,
    /// The generation of the key that the host has proved to know.
    generation: Option<u32>,
}

enum ControllerState {
    /// Negotiate is due.
    Idle,
    /// The reply to this challenge is due.
    Challenged(Box<Posing>),
    /// The host judges the controller's response.
    Judged { transaction: u16 },
}

struct Posing {
    transaction: u16,
    hash: HashFunction,
    group: DhGroup,
    challenge: Vec<u8>,
    sequence: u32,
    exchange: Option<Exchange>,
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
        }
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
            (Ok(AuthMessage::Success2(one)), ControllerState::Judged { transaction })
                if one == transaction =>
            {
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
        if one.secure_channel != 0 {
            return Err(Refused::Concatenation);
        }
        if one.hashes.is_empty() && one.groups.is_empty() {
            return Err(Refused::Protocol);
        }
        let hash = self.options.hashes.iter().find(|hash| one.hashes.contains(&hash.code()));
        let group = self.options.groups.iter().find(|group| one.groups.contains(&group.code()));
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
            secure_channel: 0,
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
        let response: Option<DigestBytes> = match (&one.challenge, &key.controller) {
            (None, _) => None,
            // What the host has said itself: its own challenge would make it its own controller.
            (Some(challenge), _) if *challenge == posing.challenge => return Err(Refused::Payload),
            (Some(challenge), Some(secret)) => {
                Some(posed(challenge, one.sequence).of_controller(secret, &names))
            }
            // The host asks for a proof that this side cannot give.
            (Some(_), None) => return Err(Refused::Failed),
        };
        self.progress = Progress::Authenticated;
        self.generation = Some(generation);
        if response.is_some() {
            self.state = ControllerState::Judged { transaction: posing.transaction };
        }
        let response = response.map(|response| response.to_vec());
        let success = Success { transaction: posing.transaction, digest: hash.digest_len() as u8, response };
        self.answer = Some(AuthMessage::Success1(success).encode());
        Ok(())
    }
}
