//! What hosts and subsystems know of each other, and how it is replaced while it is used.

use crate::psk::{Identity, TlsKey, TlsPsk};
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
pub struct Generations<K = HostKey> {
    /// Number of the current generation, from 1.
    pub number: u32,
    /// What a host uses.
    pub current: K,
    /// The generation before, which a subsystem accepts as well until it is retired.
    pub previous: Option<K>,
    /// The last generation that was retired: it is not accepted, and only named.
    pub retired: Option<K>,
}

/// The number of the generation before that of this number.
pub const fn number_before(number: u32) -> u32 {
    number.saturating_sub(1)
}

impl<K> From<K> for Generations<K> {
    fn from(current: K) -> Generations<K> {
        Generations { number: 1, current, previous: None, retired: None }
    }
}

impl<K> Generations<K> {
    /// What a subsystem accepts, with the number of each generation.
    pub fn accepted(&self) -> impl Iterator<Item = (u32, &K)> {
        let previous = self.previous.as_ref().map(|key| (number_before(self.number), key));
        [(self.number, &self.current)].into_iter().chain(previous)
    }

    /// The last generation that was retired, and its number.
    pub fn retired(&self) -> Option<(u32, &K)> {
        let accepted = self.accepted().map(|(number, _)| number).last()?;
        self.retired.as_ref().map(|key| (number_before(accepted), key))
    }
}

/// Where a key is found when a connection needs it. It may change while connections are open.
pub trait KeySource: fmt::Debug + Send + Sync {
    /// The key of the host with this NQN for a subsystem. `None`: the host has no key for it.
    ///
    /// # Errors
    /// The key cannot be read, in words.
    fn key_of(&self, hostnqn: &str, subnqn: &str) -> Result<Option<Generations>, String>;

    /// The key for TLS of the host with this NQN for a subsystem. `None`: the host has no such key for it.
    ///
    /// # Errors
    /// The key cannot be read, in words.
    fn tls_key_of(&self, hostnqn: &str, subnqn: &str) -> Result<Option<Generations<TlsKey>>, String> {
        let _ = (hostnqn, subnqn);
        Ok(None)
    }

    /// The PSK with this identity that was made of an authentication (secure channel concatenation), and the
    /// generation of the secret that was used for it. `None`: there is no such PSK, or not any more.
    ///
    /// # Errors
    /// Whether that generation is still accepted cannot be read, in words.
    fn generated_psk(&self, identity: &Identity<'_>, whole: &str) -> Result<Option<(u32, TlsPsk)>, String> {
        let _ = (identity, whole);
        Ok(None)
    }
}

impl KeySource for BTreeMap<String, HostKey> {
    fn key_of(&self, hostnqn: &str, _: &str) -> Result<Option<Generations>, String> {
        Ok(self.get(hostnqn).cloned().map(Generations::from))
    }
}

/// Hosts that have keys for TLS alone.
impl KeySource for BTreeMap<String, Generations<TlsKey>> {
    fn key_of(&self, _: &str, _: &str) -> Result<Option<Generations>, String> {
        Ok(None)
    }

    fn tls_key_of(&self, hostnqn: &str, _: &str) -> Result<Option<Generations<TlsKey>>, String> {
        Ok(self.get(hostnqn).cloned())
    }
}
