//! Members that are lost for good are made again on other targets, without a command.
//!
//! Each mount looks at its members. One that has been missing there for long enough is replaced as `volume repair`
//! replaces it. Mounts do that in turn, the one with the earliest session first, so that they do not all begin at the
//! same moment; what keeps two hosts from moving a member at the same time is the record of the move in the catalog.

use crate::manage::{find, sessions};
use crate::moving::HostMembers;
use crate::session::FsSession;
use crate::workers::PoolFs;
use longhaul_device::{Error, ErrorKind, Opener, Result};
use longhaul_engine::now;
use longhaul_pool::{MoveRun, Pool, Targets, VolumeRecord, shown};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often members are looked at, at most.
const LOOK: Duration = Duration::from_secs(10);
/// By how much a mount waits longer than the one whose session began before its own.
const TURN: Duration = Duration::from_secs(60);
/// How long a replacement that has failed is not tried again: at first, and at most, as it doubles each time. What keeps
/// it from being made, such as that no target has room, seldom changes within minutes.
const AGAIN: Duration = Duration::from_secs(60);
const AGAIN_MAX: Duration = Duration::from_secs(3600);

/// When and how members are replaced.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// How long a member has been missing before.
    pub after: Duration,
    /// Most bytes per second that are read from each of the others.
    pub limit: Option<u64>,
}

/// Replaces members of a mounted file system that are lost for good, until it is dropped. A replacement that is under
/// way then is continued by another mount.
pub struct Replacer {
    _ends: Sender<()>,
}

impl Replacer {
    /// Replaces members of `files`, the file system `name` of `pool`, that have been missing for long enough.
    ///
    /// # Errors
    /// The pool has no such file system, or a thread cannot be started.
    pub fn start(
        files: &Arc<PoolFs>,
        pool: &Pool,
        name: &str,
        opener: &Opener,
        how: Replacement,
    ) -> Result<Replacer> {
        let targets = Arc::new(Targets::new(opener.options().clone())?);
        let work = Replacing {
            session: Arc::downgrade(files.session()),
            number: files.session().store.session(),
            volume: find(pool, name)?,
            pool: pool.clone(),
            members: HostMembers::new(&targets, opener.clone()),
            how,
        };
        let (ends, ended) = channel();
        let run = move || {
            let mut missing = Missing::default();
            while ended.recv_timeout(LOOK.min(work.how.after / 2)) == Err(RecvTimeoutError::Timeout)
                && work.look(&mut missing)
            {}
        };
        let started = std::thread::Builder::new().name("longhaul-replace".into()).spawn(run);
        started.map_err(|e| Error::new(ErrorKind::Failed, format!("cannot start a thread: {e}")))?;
        Ok(Replacer { _ends: ends })
    }
}

struct Replacing {
    /// The mount ends though members are being replaced.
    session: Weak<FsSession>,
    number: u64,
    volume: VolumeRecord,
    pool: Pool,
    members: HostMembers,
    how: Replacement,
}

impl Replacing {
    /// Looks at the members once, and replaces what is due; false when the mount has ended.
    fn look(&self, missing: &mut Missing) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        session.members.probe();
        let (live, is_filling) = (session.members.live(), session.members.is_any_filling());
        let has_ended = session.store.has_ended();
        drop(session);
        if has_ended {
            return false;
        }
        missing.note(live.into_iter().map(|is_live| !is_live), is_filling, now());
        // Most looks end here, without asking the catalog.
        if !missing.is_due(self.how.after, now())
            || !missing.is_due(self.how.after.saturating_add(self.turn()), now())
        {
            return true;
        }
        let replaced = self.replace(missing);
        missing.tried(now());
        if let Err(e) = replaced {
            let (pool, name) = (&self.pool.record().name, &self.volume.name);
            tracing::warn!(
                "members of {pool}/{name} that are missing are not replaced: {e}; it is tried again, and \
                 'longhaul volume repair {pool}/{name}' does it on a host that may make namespaces"
            );
        }
        true
    }

    /// How much longer this mount waits than the first one.
    fn turn(&self) -> Duration {
        // Without the catalog nothing is replaced; that says so.
        let all = sessions(&*self.pool.host().catalog, self.volume.uuid).unwrap_or_default();
        let before = all.iter().filter(|(session, _)| *session < self.number).count();
        TURN.saturating_mul(u32::try_from(before).unwrap_or(u32::MAX))
    }

    fn replace(&self, missing: &Missing) -> Result<()> {
        self.pool.check_managed()?;
        let mut run = MoveRun { arrays: &self.members, limit: self.how.limit, show: &mut |_, _| {} };
        // What a lost host has begun comes first: a member moves to one place at a time.
        for why in self.pool.resume_moves(&mut run)? {
            tracing::info!("pool {}: {why}", self.pool.record().name);
        }
        for planned in self.pool.plan_repair(&self.volume.name, &self.members)? {
            let step = &planned.step;
            if !missing.members(self.how.after, now()).contains(&step.index) {
                continue;
            }
            let (pool, to) = (&self.pool.record().name, shown(&step.to));
            let what = format!("member {} of {pool}/{}", step.index, step.volume);
            tracing::warn!(
                "{what} has been missing for {} s: it is made again on {to}",
                self.how.after.as_secs()
            );
            self.pool.move_member(&step.volume, step.index, &planned.to, &mut run)?;
            tracing::info!("{what} is on {to} now");
        }
        Ok(())
    }
}

/// How long members have been missing.
#[derive(Default)]
struct Missing {
    /// When each was missing first, of those that are.
    since: Vec<Option<Instant>>,
    /// A member has been filled since then; the host that does it may be lost.
    filling: Option<Instant>,
    /// When replacing is tried again at the earliest, and how much later than the time before that is.
    again: Option<(Instant, Duration)>,
}

impl Missing {
    /// Notes which members are missing `at` this moment, and whether one is being filled.
    fn note(&mut self, missing: impl Iterator<Item = bool>, is_filling: bool, at: Instant) {
        let before = std::mem::take(&mut self.since).into_iter().chain(std::iter::repeat(None));
        self.since = missing.zip(before).map(|(is_so, then)| is_so.then_some(then.unwrap_or(at))).collect();
        self.filling = is_filling.then_some(self.filling.unwrap_or(at));
        if self.filling.is_none() && self.since.iter().all(Option::is_none) {
            self.again = None;
        }
    }

    /// Replacing was tried.
    fn tried(&mut self, at: Instant) {
        let pause = self.again.map_or(AGAIN, |(_, pause)| (pause * 2).min(AGAIN_MAX));
        self.again = at.checked_add(pause).map(|next| (next, pause));
    }

    /// Those that have been missing for `long`.
    fn members(&self, long: Duration, at: Instant) -> Vec<usize> {
        let is_due =
            |then: &Option<Instant>| then.is_some_and(|then| at.saturating_duration_since(then) >= long);
        self.since.iter().enumerate().filter(|(_, then)| is_due(then)).map(|(member, _)| member).collect()
    }

    /// Something has lasted for `long`, and what is done about it was not tried just before.
    fn is_due(&self, long: Duration, at: Instant) -> bool {
        let is_filled_for_long = self.filling.is_some_and(|then| at.saturating_duration_since(then) >= long);
        (is_filled_for_long || !self.members(long, at).is_empty())
            && self.again.is_none_or(|(next, _)| at >= next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(600);

    #[test]
    fn a_member_is_due_once_it_has_been_missing_all_the_time() {
        let begun = now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut missing = Missing::default();
        missing.note([false, true, false].into_iter(), false, at(0));
        missing.note([true, true, false].into_iter(), false, at(300));
        assert_eq!((missing.members(AFTER, at(599)), missing.is_due(AFTER, at(599))), (vec![], false));
        assert_eq!((missing.members(AFTER, at(600)), missing.is_due(AFTER, at(600))), (vec![1], true));
        // It was there for a moment.
        missing.note([true, false, false].into_iter(), false, at(601));
        missing.note([true, true, false].into_iter(), false, at(602));
        assert!(missing.members(AFTER, at(899)).is_empty());
        assert_eq!(missing.members(AFTER, at(900)), [0]);
        assert_eq!(missing.members(AFTER, at(1202)), [0, 1]);
        missing.note([false; 3].into_iter(), false, at(1203));
        assert!(!missing.is_due(AFTER, at(9999)));
    }

    #[test]
    fn what_has_failed_is_tried_again_less_and_less_often() {
        let begun = now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut missing = Missing::default();
        missing.note([true].into_iter(), false, at(0));
        missing.tried(at(700));
        assert!(!missing.is_due(AFTER, at(759)));
        assert!(missing.is_due(AFTER, at(760)));
        missing.tried(at(760));
        assert!(!missing.is_due(AFTER, at(879)));
        assert!(missing.is_due(AFTER, at(880)));
        (0..20).for_each(|_| missing.tried(at(1000)));
        assert!(!missing.is_due(AFTER, at(4599)));
        assert!(missing.is_due(AFTER, at(4600)));
        // Another loss is another matter.
        missing.note([false].into_iter(), false, at(1001));
        missing.note([true].into_iter(), false, at(1002));
        assert!(missing.is_due(AFTER, at(1602)));
    }

    #[test]
    fn a_member_that_is_filled_for_long_is_looked_after() {
        let begun = now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut missing = Missing::default();
        missing.note([false].into_iter(), true, at(0));
        missing.note([false].into_iter(), true, at(500));
        assert!(!missing.is_due(AFTER, at(599)));
        assert!(missing.is_due(AFTER, at(600)));
        missing.note([false].into_iter(), false, at(601));
        assert!(!missing.is_due(AFTER, at(601)));
    }
}
