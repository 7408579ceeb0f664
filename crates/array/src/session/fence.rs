//! Heartbeats: they show that a session runs, and keep two hosts from running one array.
//!
//! The owner of an array writes its session and a counter to every member every
//! [`Options::heartbeat`](crate::Options::heartbeat). A host that assembles the array watches for a
//! moving counter for longer than that interval, reserves the members ([`crate::session::guard`]),
//! and writes its own heartbeat. Unless all members are reserved it then reads again.
//!
//! Invariants (as long as reads and writes of a member take less than a quarter of the heartbeat
//! interval):
//! - no session begins while the counter of another one moves;
//! - of two sessions that begin at the same moment at most one continues;
//! - a heartbeat that was found at the start and has stood still belongs to an ended session: a
//!   member that loses a later heartbeat may return the old one at any time.
//!
//! If a host was suspended or cut off from its members for longer than that, it halts as soon as it
//! finds the session of another host on a member, even if that session has been stopped since; and
//! it reads a member's heartbeat shortly before it writes to that member. Writes in flight at that
//! moment are fenced by the reservation of the member, if it has reservations.

use crate::assembly::candidate::Candidate;
use crate::core::{Core, HaltReason};
use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT};
use crate::format::heartbeat::Heartbeat;
use crate::heal::upkeep::{TaskGuard, is_over};
use crate::member::{Member, MemberResult};
use crate::session::clock::Stamp;
use crate::session::guard::{Reservable, key_of};
use crate::session::watch::StoodStill;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::{BlockIo, IoResult, WriteFlags};
use longhaul_engine::{BufMut, now, sleep, timeout};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// Half heartbeat intervals for which a heartbeat is watched before a takeover.
pub(crate) const TAKEOVER_BEATS: u32 = 5;

/// A host that takes an array over looks a second time after this part of the heartbeat interval. It
/// counts on reads and writes of a member being done by then.
pub(crate) const LOOK_PARTS: u32 = 4;

/// Consecutive reads of a heartbeat at most, if each one takes longer than the heartbeat interval:
/// a member may be that slow.
const READS_MAX: u32 = 3;

/// Heartbeats by which the session times on two members in use may differ: half of the difference
/// after which the older member counts as rolled back after a crash.
const AHEAD_BEATS: u32 = crate::assembly::current::BEHIND_BEATS / 2;

/// Sessions known to have ended.
#[derive(Default)]
pub(crate) struct EndedSessions {
    /// The last counter of each.
    counters: RefCell<HashMap<Uuid, u64>>,
    /// Their keys, and those of sessions of which nothing else is known.
    keys: RefCell<HashSet<u64>>,
}

impl EndedSessions {
    fn has(&self, beat: &Heartbeat) -> bool {
        self.counters.borrow().get(&beat.session).is_some_and(|last| beat.counter <= *last)
    }

    /// Whether the session with this reservation key has ended.
    pub(crate) fn has_key(&self, key: u64) -> bool {
        self.keys.borrow().contains(&key)
    }

    /// Records a session whose heartbeat has stood still or is marked as stopped.
    fn add(&self, beat: &Heartbeat) {
        self.add_last(beat.session, if beat.stopped { u64::MAX } else { beat.counter });
    }

    /// The same, by the session's last counter.
    fn add_last(&self, session: Uuid, last: u64) {
        self.keys.borrow_mut().insert(key_of(session));
        let mut ended = self.counters.borrow_mut();
        let known = ended.entry(session).or_default();
        *known = last.max(*known);
    }
}

/// The heartbeat block of a member, by index.
pub(crate) type HeartbeatRead = (usize, MemberResult<BufMut>);

impl Core {
    fn beat(&self, counter: u64, stopped: bool) -> Heartbeat {
        let (array, session, confirmed) = (self.array, self.session.uuid, self.publication.confirmed());
        let (elapsed, before) = (self.elapsed(), self.session.predecessor);
        Heartbeat { array, session, counter, stopped, confirmed, elapsed, before }
    }

    /// Time of the session for its next heartbeat.
    fn elapsed(&self) -> Duration {
        // A lost member counts until the superblocks of the others record the loss.
        if !self.publication.has_loss() {
            let least = self.members.usable().map(|member| member.confirmed.elapsed()).min();
            self.session.clock.allow(least.unwrap_or_default() + self.options.heartbeat * AHEAD_BEATS);
        }
        self.session.clock.advance()
    }

    /// Heartbeats of other sessions that may still run, by member.
    async fn other_sessions(&self) -> Vec<(usize, Heartbeat)> {
        let beats = self.beats().await;
        let stopped = self.others(&beats).into_iter().filter(|(_, beat)| beat.stopped);
        stopped.for_each(|(_, beat)| self.session.ended.add(&beat));
        self.running_sessions(&beats)
    }

    /// A session that may run, found within this time.
    async fn first_session(&self, most: Duration) -> Option<Uuid> {
        let found = async {
            loop {
                if let Some((_, beat)) = self.other_sessions().await.first() {
                    return beat.session;
                }
                sleep(self.options.heartbeat / LOOK_PARTS).await;
            }
        };
        timeout(most, found).await.ok()
    }

    /// The heartbeats among `beats` whose session had not ended when this session began, including
    /// one that has taken the array over since and has stopped.
    pub(crate) fn running_sessions(&self, beats: &[HeartbeatRead]) -> Vec<(usize, Heartbeat)> {
        let mut found = self.others(beats);
        found.retain(|(_, beat)| !self.session.ended.has(beat));
        found
    }

    /// Reads the heartbeats of all usable members.
    async fn beats(&self) -> Vec<HeartbeatRead> {
        let usable = self.members_and_witness().filter(|member| member.is_usable());
        join_all(usable.map(async |member| (member.index, member.read(HEARTBEAT_AT, BLOCK).await))).await
    }

    /// Heartbeats of other sessions of this array, by member.
    fn others(&self, beats: &[HeartbeatRead]) -> Vec<(usize, Heartbeat)> {
        let found = beats.iter().filter_map(|(index, read)| {
            let beat = Heartbeat::decode(read.as_ref().ok()?)?;
            (beat.array == self.array && beat.session != self.session.uuid).then_some((*index, beat))
        });
        found.collect()
    }
}

/// Takes ownership of the array unless another session runs it; `devices` are those that can be
/// reserved.
pub(crate) async fn take_ownership(core: &Rc<Core>, devices: &[Reservable]) -> Result<(), ArrayError> {
    if core.lacks(Mechanism::Fence) {
        return Ok(());
    }
    let interval = core.options.heartbeat;
    // Sessions that this host has watched. If one lives all the same, its counter is past the last one.
    let watched = core.options.stood_still.as_ref();
    for (session, last) in watched.iter().flat_map(|StoodStill(watched)| watched) {
        core.session.ended.add_last(*session, *last);
    }
    let mut looked = Stamp::now();
    let mut preempted = None;
    let before = core.other_sessions().await;
    let keys = core.other_keys(devices).await?;
    if !before.is_empty() || !keys.is_empty() {
        // The session was not stopped in order: see whether its counter still moves. It could be
        // fenced at once, but a host that lives keeps its array, unless an operator says otherwise.
        let wait = interval * TAKEOVER_BEATS / 2;
        if watched.is_none() {
            sleep(wait).await;
        } else if let Some(session) = core.first_session(wait).await {
            // One that has begun since. A host that has reservations only is about to write its first
            // heartbeat, or was lost before that.
            return Err(ArrayError::InUse(session));
        }
        before.iter().for_each(|(_, beat)| core.session.ended.add(beat));
        looked = Stamp::now();
        let living = core.other_sessions().await;
        if let Some((_, beat)) = living.first() {
            if !core.options.preempt || !core.all_refuse_others(devices) {
                return Err(ArrayError::InUse(beat.session));
            }
            tracing::warn!("array {}: its members are taken from session {}", core.name, beat.session);
            living.iter().for_each(|(_, beat)| core.session.ended.add(beat));
            preempted = Some(beat.session);
        }
        core.session.ended.keys.borrow_mut().extend(keys);
    }
    let all_reserved = core.reserve_all(devices).await?;
    if let Some(session) = preempted.filter(|_| !all_reserved) {
        // What it could still write would be lost, or mixed with what this one writes.
        core.give_back_all().await;
        return Err(ArrayError::InUse(session));
    }
    if core.session.held.any() {
        // A heartbeat may have come between that look and the reservations, and its session answers reads
        // for a while because of it.
        looked = Stamp::now();
        let late = core.other_sessions().await;
        if let Some((_, other)) = late.first() {
            if !all_reserved {
                core.give_back_all().await;
                return Err(ArrayError::InUse(other.session));
            }
            sleep(core.lease_time()).await;
            late.iter().for_each(|(_, beat)| core.session.ended.add(beat));
        }
    }
    // A member that fails this write is lost later, when its superblock is written.
    let beat = core.beat(0, false).encode();
    let usable = core.members_and_witness().filter(|member| member.is_usable());
    let begun = Stamp::now();
    let written =
        join_all(usable.map(async |member| (member, member.write_heartbeat(beat.clone()).await))).await;
    let own = |looked: Stamp| {
        core.members_and_witness().for_each(|member| member.reach.looked(looked));
        let confirmed = written.iter().filter(|(_, result)| result.is_ok());
        confirmed.for_each(|(member, _)| member.beats.begin(begun));
        core.renew_lease();
    };
    if all_reserved {
        // No other session could write its heartbeat after the reservations were taken.
        own(begun);
        return Ok(());
    }
    // Of a heartbeat that has come since the last look, and was overwritten, nothing is known: what it
    // allows its session has to end.
    let second_look = interval / LOOK_PARTS;
    sleep(if looked.age() > second_look { core.lease_time() } else { second_look }).await;
    let looked = Stamp::now();
    // A session that wrote over this heartbeat, or failed to be overwritten, began at the same
    // time.
    if !core.lacks(Mechanism::SecondLook)
        && let Some((_, other)) = core.other_sessions().await.first()
    {
        core.give_back_all().await;
        return Err(ArrayError::InUse(other.session));
    }
    own(looked);
    Ok(())
}

impl Core {
    /// Takes ownership of a member that joins or returns to a running array; false if another
    /// session uses it.
    pub(crate) async fn take_ownership_of_member(&self, member: &Member) -> IoResult<bool> {
        let looked = Cell::new(Stamp::now());
        let rival = async || -> IoResult<Option<Heartbeat>> {
            looked.set(Stamp::now());
            let beat = Heartbeat::decode(&member.read(HEARTBEAT_AT, BLOCK).await?);
            if let Some(stopped) = beat.filter(|beat| beat.stopped) {
                self.session.ended.add(&stopped);
            }
            let others = beat.filter(|beat| beat.array == self.array && beat.session != self.session.uuid);
            Ok(others.filter(|beat| !self.session.ended.has(beat)))
        };
        let (before, key) = (rival().await?, self.other_key(member).await?);
        if before.is_some() || key.is_some() {
            sleep(self.options.heartbeat * TAKEOVER_BEATS / 2).await;
            before.iter().for_each(|beat| self.session.ended.add(beat));
            if rival().await?.is_some() {
                return Ok(false);
            }
            self.session.ended.keys.borrow_mut().extend(key);
        }
        if !self.reserve_member(member).await? {
            return Ok(false);
        }
        let beat = self.beat(0, false);
        member.write_heartbeat(beat.encode()).await?;
        member.confirmed.restart_beats(beat.elapsed);
        member.beats.restart();
        member.reach.looked(looked.get());
        Ok(true)
    }

    /// Writes this session's first heartbeat to a device that is to become a member, durably; returns
    /// its session time.
    ///
    /// # Errors
    /// The session has lost the array, or has ended; or the device has failed the write.
    pub(crate) async fn write_first_heartbeat(&self, io: &Rc<dyn BlockIo>) -> IoResult<Duration> {
        self.until_owned_to_claim().await?;
        let beat = self.beat(0, false);
        io.write(HEARTBEAT_AT, beat.encode(), WriteFlags::default()).await?;
        io.flush().await?;
        Ok(beat.elapsed)
    }
}

/// Refuses devices that any array uses at this moment: those whose heartbeat moves and is not of
/// the session `own`.
pub(crate) async fn check_idle(
    candidates: &[Candidate],
    own: Option<Uuid>,
    interval: Duration,
) -> Result<(), ArrayError> {
    let look = || {
        join_all(candidates.iter().map(async |candidate| {
            // A heartbeat that cannot be read cannot be updated either.
            let block = candidate.io.read(HEARTBEAT_AT, BufMut::zeroed(BLOCK as usize)).await.ok()?;
            Heartbeat::decode(&block).filter(|beat| !beat.stopped && Some(beat.session) != own)
        }))
    };
    let before = look().await;
    if before.iter().all(Option::is_none) {
        return Ok(());
    }
    sleep(interval * TAKEOVER_BEATS / 2).await;
    for ((candidate, before), after) in candidates.iter().zip(before).zip(look().await) {
        if let Some(beat) = after.filter(|after| Some(*after) != before) {
            return Err(ArrayError::DeviceInUse { device: candidate.name(), session: beat.session });
        }
    }
    Ok(())
}

/// Writes heartbeats until the array stops. Each member has its own loop, so that a hanging member
/// does not delay finding another session on the others.
pub(crate) async fn run_heartbeat(core: Rc<Core>) {
    let _running = TaskGuard::new(&core);
    let counter = Cell::new(0);
    let members = join_all(core.members.iter().map(|member| {
        let settle = async |result| core.settle(vec![(member.index, result)]).await.is_ok();
        heartbeat_on(&core, member, &counter, settle)
    }));
    futures_util::join!(members, crate::session::witness::run_heartbeat(&core, &counter));
}

/// Reads the heartbeat of a member, and reads it again if that took so long that another host may
/// have taken the member over meanwhile: its heartbeat must not be overwritten.
async fn read_heartbeat(core: &Core, member: &Member) -> (Stamp, MemberResult<BufMut>) {
    let mut looks = 1;
    loop {
        let looked = Stamp::now();
        let read = member.read(HEARTBEAT_AT, BLOCK).await;
        if read.is_err() || looks == READS_MAX || looked.age() < core.options.heartbeat {
            return (looked, read);
        }
        looks += 1;
    }
}

/// Reads and writes the heartbeat of one member until the array ends or `settle` returns false;
/// `settle` gets the result of each write.
pub(crate) async fn heartbeat_on(
    core: &Rc<Core>,
    member: &Member,
    counter: &Cell<u64>,
    settle: impl AsyncFn(MemberResult<()>) -> bool,
) {
    let mut next = now() + core.options.heartbeat;
    while !core.lacks(Mechanism::Fence) {
        let called = core.upkeep.changed.until(|| is_over(core) || member.reach.wanted.take());
        let _ = timeout(next.saturating_duration_since(now()), called).await;
        next = now() + core.options.heartbeat;
        if is_over(core) {
            return;
        }
        if !member.is_usable() {
            continue;
        }
        let (looked, read) = read_heartbeat(core, member).await;
        let beats = [(member.index, read)];
        if let Some((member, other)) = core.running_sessions(&beats).first() {
            let why = format!("session {} has taken it over, according to member {member}", other.session);
            core.halt(HaltReason::TakenOver, &why);
            return;
        }
        counter.set(counter.get() + 1);
        let count = counter.get();
        let [(_, read)] = beats;
        let result = match read {
            // An unreachable member is lost at once, also while there is no user I/O. Any other
            // error of the read is left to the write: it may stem from a power cycle of the member
            // in between.
            Err(e) if e.is_unreachable() => Err(e),
            _ => {
                member.reach.looked(looked);
                let incarnation = member.incarnation();
                let beat = core.beat(count, false);
                let result = member.write_heartbeat(beat.encode()).await;
                if result.is_ok() && member.incarnation() == incarnation {
                    member.confirmed.confirm_beat(count, beat.elapsed);
                    core.confirm_lease(member, looked);
                }
                result
            }
        };
        if let Err(e) = &result {
            member.reach.failed(e);
        }
        if !settle(result).await {
            return;
        }
    }
}

/// Writes a final heartbeat that marks the session as stopped, and ends its reservations. Another host may
/// take the array over then without a wait.
pub(crate) async fn release(core: &Rc<Core>) {
    core.session.lease.end();
    let beat = core.beat(0, true).encode();
    let usable = core.members_and_witness().filter(|member| member.is_usable());
    join_all(usable.map(|member| member.write_heartbeat(beat.clone()))).await;
    core.give_back_all().await;
}
