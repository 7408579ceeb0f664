//! Which key a target uses with a host.

use crate::alert;
use crate::hello::{Hello, Offer};
use longhaul_auth::{Derivation, HashFunction, Identity, IdentityKind, KeySource, TlsKey, TlsPsk};

/// The key of a connection.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// What TLS takes.
    pub psk: TlsPsk,
    /// The host that has it. What Connect says has to be the same.
    pub hostnqn: String,
    /// The subsystem that it is for. What Connect says has to be the same.
    pub subnqn: String,
    /// The generation of the host's key, or of the secret that a generated PSK was made with.
    pub generation: u32,
    /// The PSK was made of an authentication.
    pub is_generated: bool,
    /// How the host derives.
    pub derivation: Derivation,
}

/// Why no key is right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// None of NVMe, or of a kind that is not kept.
    #[error("it offers the identity '{0}', which is not that of a PSK of NVMe")]
    NotNvme(String),
    /// There is no key of the host.
    #[error("host {hostnqn} has no key for TLS here (identity '{identity}')")]
    UnknownHost {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// What it offered.
        identity: String,
    },
    /// No authentication has made such a PSK, or its time is over.
    #[error(
        "host {hostnqn} offers a PSK of an authentication that is not kept here any more, or never was (identity \
         '{identity}')"
    )]
    NotGenerated {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// What it offered.
        identity: String,
    },
    /// The keys of host and target differ.
    #[error("host {hostnqn} has another key for TLS than the one here (identity '{identity}')")]
    WrongKey {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// What it offered.
        identity: String,
    },
    /// The host derives in a way that is only recognised.
    #[error(
        "host {hostnqn} has the right key for TLS, with {derivation} (identity '{identity}'): update libnvme and \
         nvme-cli there"
    )]
    OtherDerivation {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// Its derivation.
        derivation: Derivation,
        /// What it offered.
        identity: String,
    },
    /// The host knows the key, and proves it with another hash function than that of the identity.
    #[error(
        "host {hostnqn} has the right key for TLS, of {identified}, and proves it with {used} (identity '{identity}'), \
         as tlshd does whose GnuTLS has no other one: make a key with '--hash sha256', or update GnuTLS and tlshd there"
    )]
    OtherHash {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// What the identity names.
        identified: &'static str,
        /// What the proof is made with.
        used: &'static str,
        /// What it offered.
        identity: String,
    },
    /// The host uses an old key.
    #[error("host {hostnqn} uses generation {generation} of its key for TLS, which was retired")]
    Retired {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// The generation.
        generation: u32,
    },
    /// The key of the host cannot be read.
    #[error("{why}")]
    Unreadable {
        /// The host.
        hostnqn: String,
        /// The subsystem that it wants.
        subnqn: String,
        /// Why, in words.
        why: String,
    },
}

impl Refusal {
    /// The alert that says so.
    pub fn alert(&self) -> u8 {
        match self {
            Refusal::NotNvme(_) | Refusal::UnknownHost { .. } | Refusal::NotGenerated { .. } => {
                alert::UNKNOWN_PSK_IDENTITY
            }
            Refusal::WrongKey { .. }
            | Refusal::OtherDerivation { .. }
            | Refusal::OtherHash { .. }
            | Refusal::Retired { .. } => alert::DECRYPT_ERROR,
            Refusal::Unreadable { .. } => alert::HANDSHAKE_FAILURE,
        }
    }

    /// The names that the host gave: its NQN, and that of the subsystem that it wants. Nothing has proved them.
    pub fn names(&self) -> Option<(&str, &str)> {
        match self {
            Refusal::NotNvme(_) => None,
            Refusal::UnknownHost { hostnqn, subnqn, .. }
            | Refusal::NotGenerated { hostnqn, subnqn, .. }
            | Refusal::WrongKey { hostnqn, subnqn, .. }
            | Refusal::OtherDerivation { hostnqn, subnqn, .. }
            | Refusal::OtherHash { hostnqn, subnqn, .. }
            | Refusal::Retired { hostnqn, subnqn, .. }
            | Refusal::Unreadable { hostnqn, subnqn, .. } => Some((hostnqn, subnqn)),
        }
    }

    /// How much it says: of several keys that a host offers the closest to a right one is reported.
    fn rank(&self) -> u8 {
        match self {
            Refusal::NotNvme(_) => 0,
            Refusal::UnknownHost { .. } | Refusal::NotGenerated { .. } => 1,
            Refusal::WrongKey { .. } => 2,
            Refusal::Unreadable { .. } => 3,
            Refusal::Retired { .. } => 4,
            Refusal::OtherHash { .. } | Refusal::OtherDerivation { .. } => 5,
        }
    }
}

/// The first key of those that a host offers that is right: the host has shown that it knows it, and targets
/// accept its generation.
///
/// # Errors
/// None is.
pub fn choose(hello: &Hello, keys: &dyn KeySource) -> Result<Chosen, Refusal> {
    let mut refusal = Refusal::NotNvme(String::new());
    for offer in hello.offers() {
        match try_offer(offer, keys) {
            Ok(chosen) => return Ok(chosen),
            Err(why) if why.rank() >= refusal.rank() => refusal = why,
            Err(_) => {}
        }
    }
    Err(refusal)
}

fn try_offer(offer: Offer<'_>, keys: &dyn KeySource) -> Result<Chosen, Refusal> {
    let shown = || String::from_utf8_lossy(offer.identity).escape_debug().to_string();
    let identity = Identity::parse(offer.identity).ok_or_else(|| Refusal::NotNvme(shown()))?;
    let Identity { kind, version, hash, hostnqn, subnqn } = identity;
    if kind == IdentityKind::Generated {
        return try_generated(offer, &identity, keys, shown());
    }
    let (named, wanted) = (hostnqn.to_owned(), subnqn.to_owned());
    let keys = match keys.tls_key_of(hostnqn, subnqn) {
        Ok(Some(keys)) => keys,
        Ok(None) => return Err(Refusal::UnknownHost { hostnqn: named, subnqn: wanted, identity: shown() }),
        Err(why) => return Err(Refusal::Unreadable { hostnqn: named, subnqn: wanted, why }),
    };
    // A right key has the identity, which has a digest of it in version 1, and the binder.
    let derived = |key: &TlsKey, derivation| {
        let psk = key.psk(version, hash, hostnqn, subnqn, derivation).ok()?;
        (psk.identity.as_bytes() == offer.identity).then_some(psk)
    };
    let matching = |key: &TlsKey, derivations: [Derivation; 2]| {
        let bound = |derivation| {
            let psk = derived(key, derivation).filter(|psk| offer.is_bound_by(psk))?;
            Some((derivation, psk))
        };
        derivations.into_iter().find_map(bound)
    };
    for (generation, key) in keys.accepted() {
        if let Some((derivation, psk)) = matching(key, Derivation::USED) {
            return Ok(Chosen {
                psk,
                hostnqn: named,
                subnqn: wanted,
                generation,
                is_generated: false,
                derivation,
            });
        }
    }
    let is_retired = |(_, key): &(u32, &TlsKey)| matching(key, Derivation::USED).is_some();
    if let Some((generation, _)) = keys.retired().filter(is_retired) {
        return Err(Refusal::Retired { hostnqn: named, subnqn: wanted, generation });
    }
    let (hostnqn, subnqn, identity) = (named, wanted, shown());
    if let Some((derivation, _)) = keys.accepted().find_map(|(_, key)| matching(key, Derivation::NAMED)) {
        return Err(Refusal::OtherDerivation { hostnqn, subnqn, derivation, identity });
    }
    let bound_with = |key: &TlsKey, other| {
        let psks = Derivation::USED.into_iter().filter_map(|derivation| derived(key, derivation));
        psks.map(|psk| TlsPsk { hash: other, ..psk }).any(|psk| offer.is_bound_by(&psk))
    };
    let mut others = HashFunction::ALL.into_iter().filter(|other| *other != hash);
    let used = others.find(|other| keys.accepted().any(|(_, key)| bound_with(key, *other)));
    Err(match used {
        Some(used) => {
            Refusal::OtherHash { hostnqn, subnqn, identified: hash.name(), used: used.name(), identity }
        }
        None => Refusal::WrongKey { hostnqn, subnqn, identity },
    })
}

/// The same of a PSK that was made of an authentication.
fn try_generated(
    offer: Offer<'_>,
    identity: &Identity<'_>,
    keys: &dyn KeySource,
    shown: String,
) -> Result<Chosen, Refusal> {
    let (hostnqn, subnqn) = (identity.hostnqn.to_owned(), identity.subnqn.to_owned());
    // An identity of NVMe is text.
    let whole = std::str::from_utf8(offer.identity).unwrap_or_default();
    match keys.generated_psk(identity, whole) {
        Ok(Some((generation, psk))) if offer.is_bound_by(&psk) => {
            let derivation = Derivation::Standard;
            Ok(Chosen { psk, hostnqn, subnqn, generation, is_generated: true, derivation })
        }
        Ok(Some(_)) => Err(Refusal::WrongKey { hostnqn, subnqn, identity: shown }),
        Ok(None) => Err(Refusal::NotGenerated { hostnqn, subnqn, identity: shown }),
        Err(why) => Err(Refusal::Unreadable { hostnqn, subnqn, why }),
    }
}
