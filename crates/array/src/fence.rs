//! Keeps two hosts from running one array.
//!
//! Whoever runs an array writes its session and a counter to every member
//! every [`Options::heartbeat`](crate::Options::heartbeat). Who assembles it
//! looks whether somebody does, for longer than that takes, and looks again
//! after it has written its own.
//!
//! Invariants (as long as reads and writes of a member take less than a
//! quarter of the heartbeat):
//! - nobody begins while another's counter moves;
//! - of two who begin at the same moment one at most goes on;
//! - a beat that was there before, and has stood still, is nobody's: a member
//!   that has lost the beat which was written over it gives it back for ever.
//!
//! Beyond that (a host that was suspended, or out of reach of its members) a host
//! that finds another's session on a member stops writing at once, also if that
//! session has been stopped since, and nothing is written to a member without a
//! look at its beat shortly before. What is under way at that moment is not fenced
//! off; that takes reservations, which not every member has.

use crate::assemble::Candidate;
use crate::bytes::{Reader, Writer, open, seal};
use crate::clock::Stamp;
use crate::core::Core;
use crate::error::ArrayError;
use crate::geometry::{BLOCK, HEARTBEAT_AT};
use crate::member::{Member, MemberResult};
use crate::upkeep::{Running, is_over};
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::IoResult;
use longhaul_engine::{Buf, BufMut, now, sleep, timeout};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// Looks at a beat, one after another, that take too long at most: a member may
/// be as slow as that.
const LOOKS: u32 = 3;

/// Heartbeats by which one member's may be ahead of another's, while both are in
/// use: half of what makes the other one late after a crash.
const AHEAD_BEATS: u32 = crate::current::BEHIND_BEATS / 2;

const MAGIC: &[u8; 8] = b"LHBEAT\0\0";

/// What says on a member that an array is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) array: Uuid,
    pub(crate) session: Uuid,
    pub(crate) counter: u64,
    pub(crate) stopped: bool,
    /// The newest generation that all members in use have confirmed; zero if that is
    /// not known.
    pub(crate) confirmed: u64,
    /// Since the session began, in milliseconds on the member.
    pub(crate) elapsed: Duration,
    /// The session that was the last to write superblocks when this one began, if it
    /// was not stopped, and how long its heartbeats went on: what this one writes over.
    pub(crate) before: Option<(Uuid, Duration)>,
}

impl Beat {
    fn encode(&self) -> Buf {
        let mut block = vec![0; BLOCK as usize];
        let mut out = Writer::new(&mut block[4..]);
        out.bytes(MAGIC).uuid(self.array).uuid(self.session).u64(self.counter).u16(u16::from(self.stopped));
        out.u64(self.confirmed).u64(self.elapsed.as_millis() as u64);
        let (session, elapsed) = self.before.unwrap_or_default();
        out.uuid(session).u64(elapsed.as_millis() as u64);
        seal(&mut block);
        Buf::copy_of(&block)
    }

    pub(crate) fn decode(block: &[u8]) -> Option<Beat> {
        let mut from = Reader::new(open(block)?);
        if from.bytes(MAGIC.len())? != MAGIC {
            return None;
        }
        let (array, session) = (from.uuid()?, from.uuid()?);
        let (counter, stopped) = (from.u64()?, from.u16()? != 0);
        let (confirmed, elapsed) = (from.u64()?, Duration::from_millis(from.u64()?));
        let before = (from.uuid()?, Duration::from_millis(from.u64()?));
        let before = Some(before).filter(|(session, _)| !session.is_nil());
        Some(Beat { array, session, counter, stopped, confirmed, elapsed, before })
    }
}

/// Sessions that have ended, as far as is known: the last counter of each.
#[derive(Default)]
pub(crate) struct Ended(RefCell<HashMap<Uuid, u64>>);

impl Ended {
    fn has(&self, beat: &Beat) -> bool {
        self.0.borrow().get(&beat.session).is_some_and(|last| beat.counter <= *last)
    }

    /// A beat has stood still, or says that it is the last.
    fn add(&self, beat: &Beat) {
        let last = if beat.stopped { u64::MAX } else { beat.counter };
        let mut ended = self.0.borrow_mut();
        let known = ended.entry(beat.session).or_default();
        *known = last.max(*known);
    }
}

/// What was read of a member.
type Look = (usize, MemberResult<BufMut>);

impl Core {
    fn beat(&self, counter: u64, stopped: bool) -> Beat {
        let (array, session, confirmed) = (self.array, self.session, self.confirmed.get());
        let (elapsed, before) = (self.elapsed(), self.before.get());
        Beat { array, session, counter, stopped, confirmed, elapsed, before }
    }

    /// How long the session has gone on, for its heartbeats to say. After a crash a
    /// member whose heartbeat ended long before the others' counts as rolled back, so
    /// this waits for the slowest member in use: where all of them hung, the first one
    /// that answers must not leave the others an hour behind.
    fn elapsed(&self) -> Duration {
        // A member that was lost counts until the superblocks of the others say so.
        if !self.unpublished.get() {
            let usable = self.members.iter().filter(|member| member.is_usable());
            let least = usable.map(|member| member.elapsed.get()).min().unwrap_or_default();
            let limit = least + self.options.heartbeat * AHEAD_BEATS;
            self.elapsed_limit.set(limit.max(self.elapsed_limit.get()));
        }
        let elapsed = self.began.age().min(self.elapsed_limit.get()).max(self.elapsed.get());
        self.elapsed.set(elapsed);
        elapsed
    }

    /// What sessions that may go on have written to members, by member.
    async fn rivals(&self) -> Vec<(usize, Beat)> {
        let beats = self.beats().await;
        let stopped = self.others(&beats).into_iter().filter(|(_, beat)| beat.stopped);
        stopped.for_each(|(_, beat)| self.ended.add(&beat));
        self.rivals_of(&beats)
    }

    /// Of these, what sessions have written that had not ended when this one began:
    /// also one that has taken the array over since, and has stopped it.
    fn rivals_of(&self, beats: &[Look]) -> Vec<(usize, Beat)> {
        let mut found = self.others(beats);
        found.retain(|(_, beat)| !self.ended.has(beat));
        found
    }

    /// Reads the beats of all members.
    async fn beats(&self) -> Vec<Look> {
        let usable = self.places().filter(|member| member.is_usable());
        join_all(usable.map(async |member| (member.index, member.read(HEARTBEAT_AT, BLOCK).await))).await
    }

    /// What other sessions have written to members, by member.
    fn others(&self, beats: &[Look]) -> Vec<(usize, Beat)> {
        let found = beats.iter().filter_map(|(index, read)| {
            let beat = Beat::decode(read.as_ref().ok()?)?;
            (beat.array == self.array && beat.session != self.session).then_some((*index, beat))
        });
        found.collect()
    }
}

/// Takes possession, if nobody else has it.
pub(crate) async fn claim(core: &Rc<Core>) -> Result<(), ArrayError> {
    if core.lacks(Mechanism::Fence) {
        return Ok(());
    }
    let interval = core.options.heartbeat;
    let before = core.rivals().await;
    if !before.is_empty() {
        // Its end was not told: does it go on?
        sleep(interval * 5 / 2).await;
        before.iter().for_each(|(_, beat)| core.ended.add(beat));
        if let Some((_, beat)) = core.rivals().await.first() {
            return Err(ArrayError::InUse(beat.session));
        }
    }
    // Nobody is lost for not taking it: that is said with the superblock.
    let beat = core.beat(0, false).encode();
    let usable = core.places().filter(|member| member.is_usable());
    join_all(usable.map(|member| member.write_beat(beat.clone()))).await;
    sleep(interval / 4).await;
    let looked = Stamp::now();
    // Who wrote over it, or could not be written over, was as fast.
    if !core.lacks(Mechanism::SecondLook)
        && let Some((_, other)) = core.rivals().await.first()
    {
        return Err(ArrayError::InUse(other.session));
    }
    core.places().for_each(|member| member.reach.looked(looked));
    Ok(())
}

impl Core {
    /// Takes possession of a member that comes (back) into an array that runs;
    /// false if somebody else uses it.
    pub(crate) async fn claim_member(&self, member: &Member) -> IoResult<bool> {
        let looked = Cell::new(Stamp::now());
        let rival = async || -> IoResult<Option<Beat>> {
            looked.set(Stamp::now());
            let beat = Beat::decode(&member.read(HEARTBEAT_AT, BLOCK).await?);
            if let Some(stopped) = beat.filter(|beat| beat.stopped) {
                self.ended.add(&stopped);
            }
            let others = beat.filter(|beat| beat.array == self.array && beat.session != self.session);
            Ok(others.filter(|beat| !self.ended.has(beat)))
        };
        if let Some(before) = rival().await? {
            sleep(self.options.heartbeat * 5 / 2).await;
            self.ended.add(&before);
            if rival().await?.is_some() {
                return Ok(false);
            }
        }
        let beat = self.beat(0, false);
        member.write_beat(beat.encode()).await?;
        member.beat.set(0);
        member.elapsed.set(beat.elapsed);
        member.reach.looked(looked.get());
        Ok(true)
    }
}

/// Refuses devices that somebody uses at this moment, for whatever array:
/// those on which a heart beats that is not `own`.
pub(crate) async fn check_idle(
    candidates: &[Candidate],
    own: Option<Uuid>,
    interval: Duration,
) -> Result<(), ArrayError> {
    let look = || {
        join_all(candidates.iter().map(async |candidate| {
            // What cannot be read there nobody keeps alive.
            let block = candidate.io.read(HEARTBEAT_AT, BufMut::zeroed(BLOCK as usize)).await.ok()?;
            Beat::decode(&block).filter(|beat| !beat.stopped && Some(beat.session) != own)
        }))
    };
    let before = look().await;
    if before.iter().all(Option::is_none) {
        return Ok(());
    }
    sleep(interval * 5 / 2).await;
    for ((candidate, before), after) in candidates.iter().zip(before).zip(look().await) {
        if let Some(beat) = after.filter(|after| Some(*after) != before) {
            return Err(ArrayError::DeviceInUse { device: candidate.name(), session: beat.session });
        }
    }
    Ok(())
}

/// Says that the array is in use, until it is not. Each member by itself: one
/// that does not answer hides from nobody what the others say.
pub(crate) async fn beat(core: Rc<Core>) {
    let _running = Running::new(&core);
    let counter = Cell::new(0);
    let members = join_all(core.members.iter().map(|member| {
        let settle = async |result| core.settle(vec![(member.index, result)]).await.is_ok();
        beat_on(&core, member, &counter, settle)
    }));
    futures_util::join!(members, crate::witness::beat(&core, &counter));
}

/// Looks at the beat on a member, and again where that took so long that another
/// may have taken it over meanwhile: its beat must not be written over.
async fn look(core: &Core, member: &Member) -> (Stamp, MemberResult<BufMut>) {
    let mut looks = 1;
    loop {
        let looked = Stamp::now();
        let read = member.read(HEARTBEAT_AT, BLOCK).await;
        if read.is_err() || looks == LOOKS || looked.age() < core.options.heartbeat {
            return (looked, read);
        }
        looks += 1;
    }
}

/// Says it on one member, and looks whether another host does, until the array ends
/// or `settle` says that this is the end of it; `settle` is given how that went.
pub(crate) async fn beat_on(
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
        let (looked, read) = look(core, member).await;
        let beats = [(member.index, read)];
        if let Some((member, other)) = core.rivals_of(&beats).first() {
            core.halt(&format!("session {} has taken it over, member {member} says", other.session));
            return;
        }
        counter.set(counter.get() + 1);
        let count = counter.get();
        let [(_, read)] = beats;
        let result = match read {
            // A member that does not answer is lost, which is how one is found
            // out that dies while nobody writes; and an error is told once: it
            // may be the word of a member that has lost its power in between.
            Err(e) if e.is_absence() => Err(e),
            _ => {
                member.reach.looked(looked);
                let incarnation = member.incarnation();
                let beat = core.beat(count, false);
                let result = member.write_beat(beat.encode()).await;
                if result.is_ok() && member.incarnation() == incarnation {
                    member.beat.set(count.max(member.beat.get()));
                    member.elapsed.set(beat.elapsed.max(member.elapsed.get()));
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

/// Says that the array is not in use any more.
pub(crate) async fn release(core: &Rc<Core>) {
    let beat = core.beat(0, true).encode();
    let usable = core.places().filter(|member| member.is_usable());
    join_all(usable.map(|member| member.write_beat(beat.clone()))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_is_read_back() {
        let (array, session) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let elapsed = Duration::from_millis(1500);
        let before = Some((Uuid::from_u128(9), Duration::from_millis(2500)));
        let beat = Beat { array, session, counter: 3, stopped: true, confirmed: 7, elapsed, before };
        let first = Beat { before: None, ..beat };
        assert_eq!(Beat::decode(&first.encode()), Some(first));
        let mut block = beat.encode().to_vec();
        assert_eq!(Beat::decode(&block), Some(beat));
        block[20] ^= 1;
        assert_eq!(Beat::decode(&block), None);
    }
}
