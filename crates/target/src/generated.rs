//! PSKs that hosts and this target have made of an authentication (secure channel concatenation).
//!
//! Invariants:
//! - a PSK is that of one host and one subsystem, and its identity names both;
//! - a PSK that no connection uses is kept for a limited time, and one that connections use as long as they are there;
//! - a host has a bounded number of PSKs that no connection uses: the oldest gives way;
//! - a PSK whose secret was retired opens no connection any more;
//! - what is not kept any more is wiped.

use crate::subsystem::lock;
use longhaul_auth::{Generations, Identity, KeySource, TlsKey, TlsPsk};
use longhaul_engine::now;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// PSKs of a host that no connection uses, at most: those of its controllers that are being set up at the same time.
const UNUSED_MAX: usize = 32;

/// Keeps a PSK. Connections that use it have clones.
pub(crate) type PskUse = Arc<()>;

struct KeptPsk {
    psk: TlsPsk,
    hostnqn: String,
    /// The generation of the host's secret.
    generation: u32,
    /// When it is forgotten, unless a connection uses it.
    until: Instant,
    in_use: PskUse,
}

impl KeptPsk {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.in_use) > 1
    }
}

/// See the module.
pub(crate) struct GeneratedPsks {
    kept: Mutex<Vec<KeptPsk>>,
    /// How long a host may take from its authentication to its connection with TLS.
    patience: Duration,
}

impl GeneratedPsks {
    pub(crate) fn new(patience: Duration) -> GeneratedPsks {
        GeneratedPsks { kept: Mutex::default(), patience }
    }

    /// Keeps a PSK.
    pub(crate) fn add(&self, psk: TlsPsk, hostnqn: &str, generation: u32) {
        self.forget();
        let mut kept = lock(&self.kept);
        let is_unused = |one: &KeptPsk| one.hostnqn == hostnqn && !one.is_used();
        if kept.iter().filter(|one| is_unused(one)).count() >= UNUSED_MAX
            && let Some(oldest) = kept.iter().position(is_unused)
        {
            kept.remove(oldest);
        }
        let (hostnqn, until) = (hostnqn.to_owned(), now() + self.patience);
        kept.push(KeptPsk { psk, hostnqn, generation, until, in_use: PskUse::default() });
    }

    /// Puts a PSK in the place of the one that a connection uses, which opens nothing from now on.
    pub(crate) fn replace(&self, in_use: &PskUse, psk: TlsPsk, generation: u32) {
        if let Some(one) = lock(&self.kept).iter_mut().find(|one| Arc::ptr_eq(&one.in_use, in_use)) {
            (one.psk, one.generation) = (psk, generation);
        }
    }

    /// A connection uses the PSK of this identity from now on; none if it is not kept any more.
    pub(crate) fn use_of(&self, identity: &str) -> Option<PskUse> {
        let kept = lock(&self.kept);
        kept.iter().find(|one| one.psk.identity == identity).map(|one| Arc::clone(&one.in_use))
    }

    fn find(&self, identity: &str) -> Option<(u32, TlsPsk)> {
        self.forget();
        let kept = lock(&self.kept);
        let one = kept.iter().find(|one| one.psk.identity == identity)?;
        Some((one.generation, one.psk.clone()))
    }

    /// Wipes what is not kept any more.
    pub(crate) fn forget(&self) {
        let now = now();
        lock(&self.kept).retain(|one| one.is_used() || one.until > now);
    }
}

/// The keys of hosts, and the PSKs that were made with them.
#[derive(Clone)]
pub(crate) struct AllKeys {
    pub(crate) hosts: Arc<dyn KeySource>,
    pub(crate) generated: Arc<GeneratedPsks>,
}

impl std::fmt::Debug for AllKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.hosts.fmt(f)
    }
}

impl KeySource for AllKeys {
    fn key_of(&self, hostnqn: &str, subnqn: &str) -> Result<Option<Generations>, String> {
        self.hosts.key_of(hostnqn, subnqn)
    }

    fn tls_key_of(&self, hostnqn: &str, subnqn: &str) -> Result<Option<Generations<TlsKey>>, String> {
        self.hosts.tls_key_of(hostnqn, subnqn)
    }

    fn generated_psk(&self, identity: &Identity<'_>, whole: &str) -> Result<Option<(u32, TlsPsk)>, String> {
        let Some((generation, psk)) = self.generated.find(whole) else { return Ok(None) };
        let keys = self.hosts.key_of(identity.hostnqn, identity.subnqn)?;
        let is_accepted = keys.is_some_and(|keys| keys.accepted().any(|(number, _)| number == generation));
        Ok(is_accepted.then_some((generation, psk)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_auth::{HashFunction, HostKey, Secret};
    use std::collections::BTreeMap;

    const HOST: &str = "nqn.2026-11.io.longhaul:host";

    fn psk(n: usize) -> TlsPsk {
        let identity = format!("NVMe1G01 {HOST} nqn.2026-11.io.longhaul:disk {n}");
        TlsPsk { identity, secret: vec![n as u8; 32].into(), hash: HashFunction::Sha256 }
    }

    fn known(psks: &GeneratedPsks, n: usize) -> bool {
        psks.find(&psk(n).identity).is_some()
    }

    #[test]
    fn a_psk_is_kept_while_a_connection_uses_it_and_no_longer_than_its_time_otherwise() {
        let psks = GeneratedPsks::new(Duration::ZERO);
        psks.add(psk(1), HOST, 1);
        assert!(!known(&psks, 1), "its time is over at once");
        let psks = GeneratedPsks::new(Duration::from_secs(600));
        psks.add(psk(1), HOST, 1);
        assert!(known(&psks, 1) && !known(&psks, 2));
        let used = psks.use_of(&psk(1).identity).expect("kept");
        lock(&psks.kept)[0].until = now();
        assert!(known(&psks, 1), "it is used");
        drop(used);
        assert!(!known(&psks, 1) && lock(&psks.kept).is_empty());
    }

    #[test]
    fn a_host_has_a_bounded_number_of_psks_and_takes_none_of_another_host_or_in_use() {
        let psks = GeneratedPsks::new(Duration::from_secs(600));
        psks.add(psk(1000), "nqn.2026-11.io.longhaul:other", 1);
        psks.add(psk(0), HOST, 1);
        let used = psks.use_of(&psk(0).identity);
        (1..=2 * UNUSED_MAX).for_each(|n| psks.add(psk(n), HOST, 1));
        assert!(known(&psks, 1000) && known(&psks, 0) && used.is_some());
        assert_eq!((1..=2 * UNUSED_MAX).filter(|n| known(&psks, *n)).count(), UNUSED_MAX);
        assert!(!known(&psks, UNUSED_MAX) && known(&psks, UNUSED_MAX + 1), "the oldest give way");
    }

    #[test]
    fn a_psk_that_was_replaced_opens_nothing() {
        let psks = GeneratedPsks::new(Duration::from_secs(600));
        psks.add(psk(1), HOST, 1);
        psks.add(psk(2), HOST, 1);
        let used = psks.use_of(&psk(1).identity).expect("kept");
        psks.replace(&used, psk(3), 1);
        assert!(!known(&psks, 1) && known(&psks, 2) && known(&psks, 3));
    }

    #[test]
    fn a_psk_of_a_secret_that_was_retired_opens_nothing() {
        let secret = Secret::generate(HashFunction::Sha256, &mut |bytes| bytes.fill(1));
        let keys = BTreeMap::from([(HOST.to_owned(), HostKey { secret, controller: None })]);
        let generated = Arc::new(GeneratedPsks::new(Duration::from_secs(600)));
        let all = AllKeys { hosts: Arc::new(keys), generated: Arc::clone(&generated) };
        generated.add(psk(1), HOST, 1);
        generated.add(psk(2), HOST, 7);
        for (n, opens) in [(1, true), (2, false), (3, false)] {
            let whole = psk(n).identity;
            let identity = Identity::parse(whole.as_bytes()).expect("an identity");
            assert_eq!(all.generated_psk(&identity, &whole).expect("read").is_some(), opens, "{n}");
        }
    }
}
