//! The one host that runs an array: heartbeats, reservations and takeover, how long it may answer reads,
//! publication, the witness, and the record of this host.
//!
//! Invariants:
//! - `uuid` is new for each assembly: no two sessions have the same;
//! - `predecessor` is the session that this one continues, if that was not stopped: it does not
//!   change.

pub(crate) mod clock;
pub(crate) mod fence;
pub(crate) mod guard;
pub(crate) mod lease;
pub(crate) mod memory;
pub(crate) mod publish;
pub(crate) mod watch;
pub(crate) mod witness;

use clock::SessionClock;
use fence::EndedSessions;
use guard::HeldReservations;
use lease::ReadLease;
use memory::HostRecord;
use std::time::Duration;
use uuid::Uuid;
use witness::Witness;

/// A session: an array from its assembly until it is stopped.
pub(crate) struct Session {
    pub(crate) uuid: Uuid,
    /// The session before this one, if it was not stopped, and the session time of its last
    /// heartbeat.
    pub(crate) predecessor: Option<(Uuid, Duration)>,
    pub(crate) clock: SessionClock,
    /// Other sessions that have ended.
    pub(crate) ended: EndedSessions,
    /// Reservations of this session.
    pub(crate) held: HeldReservations,
    /// Until when reads are answered.
    pub(crate) lease: ReadLease,
    pub(crate) witness: Option<Witness>,
    pub(crate) record: HostRecord,
}

impl Session {
    pub(crate) fn new(
        uuid: Uuid,
        predecessor: Option<(Uuid, Duration)>,
        witness: Option<Witness>,
        record: HostRecord,
    ) -> Session {
        Session {
            uuid,
            predecessor,
            clock: SessionClock::new(),
            ended: EndedSessions::default(),
            held: HeldReservations::new(uuid),
            lease: ReadLease::default(),
            witness,
            record,
        }
    }
}
