//! Options of a running array. None of them is stored on members.

use std::time::Duration;

/// Options of a running array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time that an operation on a member may take before the member is marked offline.
    pub member_timeout: Duration,
    /// The same if the member's device reports a lost connection, and the array can do without all
    /// unreachable members: longer than a target takes to restart. On long paths it is
    /// [`OFFLINE_ROUND_TRIPS`](crate::OFFLINE_ROUND_TRIPS) mean read times.
    pub offline_timeout: Duration,
    /// Time that an operation on an unreachable member may take while the array needs that member,
    /// as for a single device. It ends sooner if the device gives up.
    pub needed_timeout: Duration,
    /// How long a sequential write waits for the next one while its stripe is incomplete; longer on
    /// long paths.
    pub gather: Duration,
    /// Write full stripes through the journal as well: a crash together with the loss of a member
    /// then leaves no write hole, at twice the bytes.
    pub journal_all: bool,
    /// Maximum bytes of writes under way.
    pub memory: usize,
    /// Maximum bytes of checksums in memory.
    pub sums_memory: usize,
    /// Percentage of reads that may be hedged.
    pub hedge_percent: u32,
    /// How long a member may be offline before a spare replaces it.
    pub spare_grace: Duration,
    /// Limit in bytes per second at which a rebuild reads each member.
    pub rebuild_rate: Option<u64>,
    /// Limit in bytes per second at which a scrub reads each member; `rebuild_rate` if `None`.
    pub scrub_rate: Option<u64>,
    /// Interval between automatic scrubs, from the last scrub or the start of the array.
    pub scrub_every: Option<Duration>,
    /// Interval at which the array writes heartbeats, and looks for those of other sessions.
    pub heartbeat: Duration,
    /// Start even if missing members may have continued without these; writes that only those hold
    /// are lost then. Set on an operator's command only.
    pub degraded: bool,
    /// Sessions that this host has watched to their end ([`wait_for_end`](crate::wait_for_end)): a takeover
    /// from them does not wait again. If another session is found, or one of these has gone on, it fails at
    /// once, and the host can watch again.
    pub stood_still: Option<crate::StoodStill>,
    /// Take the members over from a session that lives, if all of them have reservations: it loses them at
    /// once, and halts. Set on an operator's command only.
    pub preempt: bool,
    /// How long a region stays marked after its last write.
    pub intent_idle: Duration,
    /// Seed of all random decisions.
    pub seed: u64,
    /// A mechanism that is switched off: for simulations that show its effect.
    #[cfg(feature = "switch-off")]
    pub without: Option<crate::Mechanism>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            member_timeout: Duration::from_secs(10),
            offline_timeout: Duration::from_secs(2),
            needed_timeout: Duration::from_secs(600),
            gather: Duration::from_millis(2),
            journal_all: false,
            memory: 128 << 20,
            sums_memory: 64 << 20,
            hedge_percent: 5,
            spare_grace: Duration::from_secs(60),
            rebuild_rate: None,
            scrub_rate: None,
            scrub_every: None,
            heartbeat: Duration::from_secs(2),
            degraded: false,
            stood_still: None,
            preempt: false,
            intent_idle: Duration::from_secs(5),
            seed: 1,
            #[cfg(feature = "switch-off")]
            without: None,
        }
    }
}
