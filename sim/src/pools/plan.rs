//! What a seed stands for.

use crate::outcome::Replay;
use crate::random::Random;
use std::fmt;
use std::time::Duration;

/// A simulation of hosts that share a pool.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Determines everything.
    pub seed: u64,
    /// Hosts that work on the pool at the same time.
    pub hosts: usize,
    /// Targets, one of which is not in the pool at first.
    pub targets: usize,
    /// Bytes of each target.
    pub capacity: u64,
    /// Operations of each host.
    pub operations: usize,
    /// How long after the last sign of a host the others take over what it was doing.
    pub ttl: Duration,
    /// Calls of a thousand at which the host crashes.
    pub crashes: u64,
    /// Calls of a thousand whose answer is lost.
    pub lost: u64,
    /// Calls of a thousand at which the host is paused.
    pub pauses: u64,
    /// Calls of a thousand at which a host is cut off, or a target stops.
    pub cuts: u64,
    /// A deliberate fault, which the simulation must detect: one of 50 namespaces that a target says it
    /// has made is not there.
    pub is_target_forgetful: bool,
    /// Another one: a host that asks where an array has its member is told that it is where it was, and
    /// that no host uses it.
    pub is_move_denied: bool,
}

impl PoolPlan {
    /// What this seed stands for.
    #[must_use]
    pub fn new(seed: u64) -> PoolPlan {
        let mut random = Random::new(seed ^ 0x706f_6f6c);
        let mut share = |most: u64| if random.chance(25) { 0 } else { random.below(most) };
        let (crashes, lost, pauses, cuts) = (share(25), share(40), share(15), share(20));
        PoolPlan {
            seed,
            hosts: random.between(2, 4) as usize,
            targets: random.between(4, 7) as usize,
            capacity: random.between(1, 8) << 30,
            operations: random.between(3, 20) as usize,
            ttl: Duration::from_secs(random.pick(&[10, 30, 60])),
            crashes,
            lost,
            pauses,
            cuts,
            is_target_forgetful: false,
            is_move_denied: false,
        }
    }
}

impl fmt::Display for PoolPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolPlan { hosts, targets, capacity, operations, ttl, crashes, lost, pauses, cuts, .. } = self;
        write!(
            f,
            "{hosts} hosts of {operations} operations, {targets} targets of {} GiB, leases of {ttl:?}; of 1000 \
             calls {crashes} crash, {lost} lose their answer, {pauses} pause, {cuts} cut",
            capacity >> 30
        )
    }
}

impl Replay for PoolPlan {
    fn again(&self) -> String {
        format!("cargo run --release -p longhaul-sim -- --world pools --seed {}", self.seed)
    }
}
