//! How an array is run. Nothing of it is stored on members.

use std::time::Duration;

/// Settings of a running array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a member may take for one operation until it counts as
    /// absent.
    pub member_timeout: Duration,
    /// The same where its device says that it has no connection, and the array
    /// can do without all that have none: longer than a target takes to start
    /// anew. On long paths it is [`AWAY_ROUND_TRIPS`](crate::AWAY_ROUND_TRIPS).
    pub away_timeout: Duration,
    /// How long a member is waited for that does not answer, and that the array
    /// cannot do without, since others do not answer either: as for any device
    /// by itself. It ends sooner where the device gives up.
    pub needed_timeout: Duration,
    /// How long a write that continues another waits for the next one, as
    /// long as its stripe is not whole; longer where members are far away.
    pub gather: Duration,
    /// Write whole stripes through the journal as well: a crash and the loss
    /// of a member in the same moment then leave nothing undefined, at twice
    /// the bytes.
    pub journal_all: bool,
    /// Bytes of writes under way at most.
    pub memory: usize,
    /// Bytes of checksums kept in memory at most.
    pub sums_memory: usize,
    /// Share of reads that may be raced by reconstruction, in percent.
    pub hedge_percent: u32,
    /// How long a member may be absent until a spare takes its place.
    pub spare_grace: Duration,
    /// Bytes per second that rebuild reads of each member at most.
    pub rebuild_rate: Option<u64>,
    /// Bytes per second that scrub reads of each member at most; as rebuild, if
    /// none.
    pub scrub_rate: Option<u64>,
    /// How long after a scrub, or its start, the array scrubs itself.
    pub scrub_every: Option<Duration>,
    /// How often the array says that it is in use, and looks whether others
    /// say so.
    pub heartbeat: Duration,
    /// Begin though members that are not there may have gone on without those that
    /// are: what only they have is lost then. A person has to say so.
    pub degraded: bool,
    /// How long a region stays marked after its last write.
    pub intent_idle: Duration,
    /// Decides what is random.
    pub seed: u64,
    /// What it does without: for simulations, which show that it would be
    /// missed.
    #[cfg(feature = "switch-off")]
    pub without: Option<crate::Mechanism>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            member_timeout: Duration::from_secs(10),
            away_timeout: Duration::from_secs(2),
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
            intent_idle: Duration::from_secs(5),
            seed: 1,
            #[cfg(feature = "switch-off")]
            without: None,
        }
    }
}
