//! Fencing: what a lost host has sent, or sends later, does not change segments that others use by then.
//!
//! Each session is a host of its own for the targets (an NVMe host identifier that is made for it), and registers
//! with each member by a key that has its number. The members are reserved for all that are registered (Write
//! Exclusive - All Registrants): so a session writes while it is registered. When the record of a session is gone,
//! the one that takes over ends the registration (Preempt and Abort) at each member, and releases the segments of
//! the lost session after that.
//!
//! Invariants:
//! - a session has segments only after it was registered with all members that it uses;
//! - a member that is opened later is used after this session has registered with it, and after that has seen its
//!   own record: a registration that arrives late is not used;
//! - segments of a session are released when its registration has ended at all members; where that cannot be, at
//!   members without reservations or for sessions from before fencing, when `settle` has passed.

use crate::programs::earlier_programs;
use crate::schema::{CountersRecord, encode_unfenced, unreadable};
use crate::session::FsSession;
use crate::settings::FsSettings;
use crate::store::SessionRecord;
use longhaul_block::{BlockIo, IoError, IoResult};
use longhaul_engine::{spawn, timeout};
use longhaul_fs::Errno;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The first 16 bits of each key of a session, "LF": keys of arrays begin with "LH".
const MARK: u64 = 0x4C46 << 48;
/// The bits of the number of the session in its key. The catalog counts sessions, and gives no number twice.
const NUMBER: u64 = (1 << 48) - 1;
/// How long the end of a registration is waited for when the session ends: it is left to others then.
const LEAVE: Duration = Duration::from_secs(2);

/// The key of a session.
pub(crate) fn key_of(session: u64) -> u64 {
    MARK | (session & NUMBER)
}

/// The session of a key.
fn session_of(key: u64) -> Option<u64> {
    (key & !NUMBER == MARK).then_some(key & NUMBER)
}

/// What a session registers with members.
pub(crate) struct Guard {
    key: u64,
    record: Arc<SessionRecord>,
    /// The members are to be reserved: all sessions are registered.
    reserves: AtomicBool,
    /// The session leaves: it registers no more.
    ends: AtomicBool,
}

impl Guard {
    pub(crate) fn new(session: u64, record: Arc<SessionRecord>, reserves: bool) -> Guard {
        Guard { key: key_of(session), record, reserves: reserves.into(), ends: AtomicBool::new(false) }
    }

    /// Registers with a device, and has it reserved; false if it has no such reservations.
    pub(crate) async fn register(&self, io: &Rc<dyn BlockIo>) -> IoResult<bool> {
        if self.ends.load(Relaxed) || self.record.has_ended() {
            return Err(ended());
        }
        let Some(reservations) = io.shared_reservations() else { return Ok(false) };
        reservations.register(self.key).await?;
        if self.reserves.load(Relaxed) {
            self.reserve(io);
        }
        Ok(true)
    }

    /// Reserves a device that this session is registered with, without waiting: a session that takes over from a lost
    /// one acquires the reservation itself before it preempts.
    pub(crate) fn reserve(&self, io: &Rc<dyn BlockIo>) {
        let Some(reservations) = io.shared_reservations() else { return };
        let acquired = reservations.acquire(self.key);
        spawn(async move {
            if let Err(e) = acquired.await {
                tracing::debug!("a member is not reserved yet: {e}");
            }
        })
        .detach();
    }

    /// The members are to be reserved from now on.
    pub(crate) fn begin_to_reserve(&self) {
        self.reserves.store(true, Relaxed);
    }

    /// Whether the session is there still.
    ///
    /// # Errors
    /// It has ended, or the catalog cannot be read.
    pub(crate) fn check(&self) -> IoResult<()> {
        match self.record.is_there(", and the targets refuse its writes") {
            Ok(true) => Ok(()),
            Ok(false) => Err(ended()),
            Err(e) => Err(IoError::Unreachable(format!("the catalog cannot be asked for the session: {e}"))),
        }
    }

    /// Ends the registration of another session. Nothing that it has sent changes the device from then on, and
    /// nothing that it sends. False if the device has no reservations.
    pub(crate) async fn fence(&self, io: &Rc<dyn BlockIo>, session: u64) -> IoResult<bool> {
        let Some(reservations) = io.shared_reservations() else { return Ok(false) };
        // Without a reservation those may write that are not registered.
        reservations.acquire(self.key).await?;
        let other = key_of(session);
        match reservations.preempt(self.key, other).await {
            Ok(()) => Ok(true),
            Err(IoError::Reserved) => {
                // It is not registered, or this session is not.
                let state = reservations.report().await?;
                let has = |key| state.registered.contains(&key);
                match state.is_shared && has(self.key) && !has(other) {
                    true => Ok(true),
                    false => Err(IoError::Reserved),
                }
            }
            Err(e) => Err(e),
        }
    }

    /// The sessions that are registered with a device.
    pub(crate) async fn registered(io: &Rc<dyn BlockIo>) -> IoResult<Vec<u64>> {
        let Some(reservations) = io.shared_reservations() else { return Ok(Vec::new()) };
        Ok(reservations.report().await?.registered.into_iter().filter_map(session_of).collect())
    }

    /// The session registers no more.
    pub(crate) fn end(&self) {
        self.ends.store(true, Relaxed);
    }

    /// Whether the session is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.record.has_ended()
    }

    /// Ends the registration of this session.
    pub(crate) async fn leave(&self, io: &Rc<dyn BlockIo>) -> IoResult<()> {
        let Some(reservations) = io.shared_reservations() else { return Ok(()) };
        timeout(LEAVE, reservations.unregister(self.key)).await.unwrap_or(Err(IoError::Aborted))
    }
}

fn ended() -> IoError {
    IoError::Offline("the session of this mount has ended".into())
}

/// What became of a lost session at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// It changes the member no more.
    Fenced,
    /// The member has no reservations.
    Impossible,
    /// It is unknown.
    Failed(IoError),
}

/// A session whose record is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverSession {
    /// Since when that is known.
    since: Instant,
    /// The log says that it is waited for.
    is_told: bool,
}

impl FsSession {
    /// Whether a session whose record is gone changes the members no more.
    pub(crate) fn is_settled(&self, session: u64) -> bool {
        let now = longhaul_engine::now();
        let begun = OverSession { since: now, is_told: false };
        let of = *crate::store::lock(&self.over).entry(session).or_insert(begun);
        let has_waited = now.saturating_duration_since(of.since) >= self.settle;
        if !self.is_fenced(session) {
            return has_waited;
        }
        let fences = self.members.fence(session);
        if fences.contains(&Fence::Impossible) {
            return has_waited;
        }
        let failed: Vec<String> = fences
            .iter()
            .zip(self.members.status())
            .filter_map(|(fence, member)| match fence {
                Fence::Failed(e) => Some(format!("{}: {e}", member.name)),
                _ => None,
            })
            .collect();
        if failed.is_empty() {
            return true;
        }
        if !of.is_told {
            tracing::warn!(
                "session {session} is over, and may still write to members that cannot be reached: its segments \
                 are not used until they are there again, or replaced: {}",
                failed.join("; ")
            );
            if let Some(of) = crate::store::lock(&self.over).get_mut(&session) {
                of.is_told = true;
            }
        }
        // The filling of one member must not wait for another one that is lost too.
        self.members.is_any_filling() && has_waited
    }

    /// Whether a session is registered with the members.
    fn is_fenced(&self, session: u64) -> bool {
        session >= self.fenced_from.load(Relaxed)
    }

    /// Follows what the settings say about fencing.
    pub(crate) fn follow_fencing(&self, settings: &FsSettings) {
        let from = settings.fences.unwrap_or(u64::MAX);
        if self.fenced_from.swap(from, Relaxed) == u64::MAX && from < u64::MAX {
            self.members.reserve();
            self.note_unfenced();
        }
    }

    /// Says which members cannot be fenced, in the log and in the catalog.
    pub(crate) fn note_unfenced(&self) {
        let without = self.members.without_reservations();
        if without.is_empty() || self.is_snapshot {
            return;
        }
        tracing::warn!(
            "{} has no reservations for all registrants: after the loss of a host its segments are used by others \
             {} s later, without fencing it",
            without.join(", "),
            self.settle.as_secs()
        );
        let noted = self.store.change(|draft| {
            draft.put_leased(&draft.keys().unfenced(draft.session()), encode_unfenced(&without));
            Ok(())
        });
        if let Err(e) = noted {
            tracing::debug!("'fs status' does not say that a member has no reservations: {e}");
        }
    }

    /// Ends registrations that sessions have left which were lost: once, as there is room for many.
    pub(crate) fn sweep_registrations(&self) -> Result<(), Errno> {
        if self.fenced_from.load(Relaxed) == u64::MAX || self.has_swept.swap(true, Relaxed) {
            return Ok(());
        }
        let registered = self.members.registered();
        // Read later: the record of a session is there before it registers.
        let keys = self.store.keys();
        let live: BTreeSet<u64> = self
            .store
            .range(&keys.sessions())?
            .iter()
            .filter_map(|entry| Some(keys.parse(&entry.key, 1)?.0[0]))
            .collect();
        for session in registered.difference(&live) {
            let fences = self.members.fence(*session);
            tracing::debug!("session {session} is over, and was registered: {fences:?}");
        }
        Ok(())
    }

    /// Begins to fence, if no earlier program has the file system mounted: such ones do not register.
    pub(crate) fn begin_fencing(&self) -> Result<(), Errno> {
        if self.fenced_from.load(Relaxed) < u64::MAX {
            return Ok(());
        }
        let (catalog, keys) = (self.store.catalog(), self.store.keys());
        self.store.change(|draft| {
            let bytes = draft.get(&keys.settings())?.ok_or(Errno::IO)?;
            let mut settings = FsSettings::decode("", &bytes).map_err(|_| Errno::IO)?;
            // A session that begins meanwhile changes the counters.
            let bytes = draft.get(&keys.counters())?.ok_or(Errno::IO)?;
            let mut counters =
                CountersRecord::decode(&bytes).ok_or_else(|| unreadable("the counters", &bytes))?;
            let earlier = earlier_programs(&**catalog, keys, FsSettings::FORMAT_FENCES);
            if settings.fences.is_some() || !earlier.map_err(|e| crate::store::failed(&e))?.is_empty() {
                return Ok(());
            }
            settings.fence_from(counters.session);
            counters.raise(CountersRecord::FENCES);
            draft.put(&keys.settings(), settings.encode());
            draft.put(&keys.counters(), counters.encode());
            Ok(())
        })?;
        self.follow()
    }
}
