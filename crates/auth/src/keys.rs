//! What hosts and subsystems know of each other, and how it is replaced while it is used.

use crate::secret::Secret;
use std::collections::BTreeMap;
use std::fmt;

/// What a host and a subsystem know of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// The host's secret.
    pub secret: Secret,
    /// The subsystem's secret, with which its controllers prove to the host what they are.
    pub controller: Option<Secret>,
}

/// The generations of a host's key. A key is replaced in two steps: a new one is made, and the subsystem
/// accepts both; once the host has the new one, the old one is retired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations {
    /// Number of the current generation, from 1.
    pub number: u32,
    /// What a host uses.
    pub current: HostKey,
    /// The generation before, which a subsystem accepts as well until it is retired.
    pub previous: Option<HostKey>,
    /// The last generation that was retired: it is not accepted, and only named.
    pub retired: Option<HostKey>,
}

impl From<HostKey> for Generations {
    fn from(current: HostKey) -> Generations {
        Generations { number: 1, current, previous: None, retired: None }
    }
}

impl Generations {
    /// What a subsystem accepts, with the number of each generation.
    pub fn accepted(&self) -> impl Iterator<Item = (u32, &HostKey)> {
        let previous = self.previous.as_ref().map(|key| (self.number.saturating_sub(1), key));
        [(self.number, &self.current)].into_iter().chain(previous)
    }

    /// The last generation that was retired, and its number.
    pub fn retired(&self) -> Option<(u32, &HostKey)> {
        let before = 1 + u32::from(self.previous.is_some());
        self.retired.as_ref().map(|key| (self.number.saturating_sub(before), key))
    }
}

/// Where a key is found when a connection needs it. It may change while connections are open.
pub trait KeySource: fmt::Debug + Send + Sync {
    /// The key of the host with this NQN. `None`: the host has no key.
    ///
    /// # Errors
    /// The key cannot be read, in words.
    fn key_of(&self, hostnqn: &str) -> Result<Option<Generations>, String>;
}

impl KeySource for BTreeMap<String, HostKey> {
    fn key_of(&self, hostnqn: &str) -> Result<Option<Generations>, String> {
        Ok(self.get(hostnqn).cloned().map(Generations::from))
    }
}
