//! How fast hosts may read and write: settings that change while the target runs.

use crate::subsystem::lock;
use longhaul_block::filter::Bound;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

/// Rates of hosts in bits per second, of reads and writes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRates {
    /// Of each host that has no rate of its own; `None` without a limit.
    pub all: Option<u64>,
    /// Of these hosts, by NQN.
    pub of: BTreeMap<String, u64>,
}

impl HostRates {
    /// The rate of a host, if it has a limit.
    pub fn of(&self, hostnqn: &str) -> Option<u64> {
        self.of.get(hostnqn).copied().or(self.all)
    }
}

/// The limits in force.
#[derive(Debug)]
pub(crate) struct RateLimits {
    state: Mutex<LimitsState>,
}

#[derive(Debug, Default)]
struct LimitsState {
    rates: HostRates,
    /// Of hosts that have a namespace open; the queues of a host share one.
    bounds: HashMap<String, Weak<Bound>>,
}

impl RateLimits {
    pub(crate) fn new(rates: HostRates) -> RateLimits {
        RateLimits { state: Mutex::new(LimitsState { rates, bounds: HashMap::new() }) }
    }

    /// What limits a host, if anything does.
    pub(crate) fn of(&self, hostnqn: &str) -> Option<Arc<Bound>> {
        let mut state = lock(&self.state);
        let rate = state.rates.of(hostnqn)?;
        if let Some(bound) = state.bounds.get(hostnqn).and_then(Weak::upgrade) {
            return Some(bound);
        }
        // The table has no more entries than there are hosts with open namespaces.
        state.bounds.retain(|_, bound| bound.strong_count() > 0);
        let bound = Arc::new(Bound::new(rate));
        state.bounds.insert(hostnqn.to_owned(), Arc::downgrade(&bound));
        Some(bound)
    }

    /// Sets rates; returns whether any differs. Queues that are open go on with the limit that they have, at
    /// its new rate: one that has none, or is to have none, has to be opened anew.
    pub(crate) fn set(&self, rates: HostRates) -> bool {
        let mut state = lock(&self.state);
        if state.rates == rates {
            return false;
        }
        state.bounds.retain(|hostnqn, bound| match (rates.of(hostnqn), bound.upgrade()) {
            (Some(rate), Some(bound)) => {
                bound.set(rate);
                true
            }
            _ => false,
        });
        state.rates = rates;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_share_nothing_and_queues_of_a_host_do() {
        let limits = RateLimits::new(HostRates { all: Some(8000), of: [("slow".to_owned(), 80)].into() });
        let of = |host: &str| limits.of(host).expect("a limit");
        let (one, same, other) = (of("one"), of("one"), of("other"));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!((one.rate(), of("slow").rate()), (8000, 80));
        drop((one, same));
        let _third = of("third");
        let known: Vec<String> = lock(&limits.state).bounds.keys().cloned().collect();
        assert!(!known.contains(&"one".to_owned()) && known.len() == 2, "{known:?}");
    }

    #[test]
    fn rates_change_while_they_are_in_use() {
        let limits = RateLimits::new(HostRates::default());
        assert!(limits.of("one").is_none());
        let all = |bits: u64| HostRates { all: Some(bits), ..HostRates::default() };
        assert!(limits.set(all(8000)) && !limits.set(all(8000)));
        let one = limits.of("one").expect("a limit");
        assert!(limits.set(all(16_000)));
        assert_eq!(one.rate(), 16_000);
        assert!(limits.set(HostRates::default()));
        assert!(limits.of("one").is_none());
    }
}
