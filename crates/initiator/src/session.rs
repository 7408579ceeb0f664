//! One association with a controller: from its admin queue's Connect to the
//! loss of any of its connections. What outlives it is the
//! [`Controller`](crate::controller::Controller).
//!
//! Invariants:
//! - a queue identifier is leased once at a time, and given back when the
//!   connection sends nothing more;
//! - after [`Session::end`] no queue is leased.

use crate::error::{Error, Result};
use crate::info::ControllerInfo;
use crate::options::Options;
use crate::prepared::{Pool, Prepared};
use crate::queue::{Queue, Signs};
use crate::setup::{Endpoint, connect, host_config};
use longhaul_wire::command::Sqe;
use longhaul_wire::identify::IdentifyController;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that commands of a controller may take to end after its keep-alive
/// timer has expired, where it does not report it (CQT).
const QUIESCE: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Session {
    pub(crate) epoch: u64,
    pub(crate) info: Arc<ControllerInfo>,
    pub(crate) endpoint: Endpoint,
    pub(crate) signs: Signs,
    options: Options,
    /// As in [`crate::setup::Admin`].
    fabrics_in_capsule: u32,
    /// Controller Instance Uniquifier, 0 if it has none.
    ciu: u8,
    /// Controller Instance Random Number.
    cirn: u64,
    cqt: Duration,
    /// Connections of I/O queues that wait for a thread.
    prepared: Pool,
    state: Mutex<SessionState>,
}

#[derive(Default)]
struct SessionState {
    /// I/O queue identifiers in use.
    qids: BTreeSet<u16>,
    /// The last one used: the next is another one, since the controller may not have noticed yet
    /// that a queue has ended.
    last_qid: u16,
    /// A queue was in use: there may be commands to be afraid of.
    used: bool,
    /// When the last queue was given back.
    quiet: Option<Instant>,
    /// When the controller last answered Keep Alive.
    answered: Option<Instant>,
    /// Why it has ended, and when.
    ended: Option<(String, Instant)>,
}

impl Session {
    #[allow(clippy::too_many_arguments, reason = "it is made in one place")]
    pub(crate) fn new(
        epoch: u64,
        endpoint: Endpoint,
        options: Options,
        id: &IdentifyController,
        info: ControllerInfo,
        fabrics_in_capsule: u32,
        signs: Signs,
        prepared: Pool,
    ) -> Session {
        Session {
            epoch,
            info: Arc::new(info),
            endpoint,
            signs,
            options,
            fabrics_in_capsule,
            ciu: id.ciu,
            cirn: id.cirn,
            cqt: Duration::from_millis(id.cqt.into()),
            prepared,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No queue is leased from now on.
    pub(crate) fn end(&self, reason: &str) {
        self.lock().ended.get_or_insert_with(|| (reason.to_owned(), longhaul_engine::now()));
        self.prepared.keep(0);
    }

    /// Ends the connections that were made ahead and not taken.
    pub(crate) fn release_prepared(&self) {
        self.prepared.keep(0);
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// When it has ended.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.lock().ended.as_ref().map(|ended| ended.1)
    }

    /// Silence of TCP that ends a connection.
    pub(crate) fn silence(&self) -> Duration {
        self.options.silence
    }

    /// The controller has answered Keep Alive.
    pub(crate) fn answered(&self) {
        self.lock().answered = Some(longhaul_engine::now());
    }

    /// Whether it has since then.
    pub(crate) fn has_answered_since(&self, since: Instant) -> bool {
        self.lock().answered.is_some_and(|at| at > since)
    }

    /// Whether commands of it may have reached the controller.
    pub(crate) fn was_used(&self) -> bool {
        self.lock().used
    }

    /// The command that ends its controller, if the controller can be named that way.
    pub(crate) fn reset(&self) -> Option<Sqe> {
        let named = self.info.resets_others;
        named.then(|| Sqe::cross_controller_reset(self.info.cntlid, self.ciu, self.cirn))
    }

    /// When its controller has ended by itself, once that is known: the host
    /// shows no sign of life any more, so the keep-alive timer expires.
    pub(crate) fn gone_at(&self) -> Option<Instant> {
        let state = self.lock();
        let quiet = if state.qids.is_empty() { state.quiet? } else { return None };
        let kato = self.info.kato;
        if kato.is_zero() {
            return None;
        }
        //= NVMe Base 2.1, Keep Alive: the timeout is rounded up to the granularity, which is at most 1 s here
        let kato = Duration::from_secs(kato.as_secs() + u64::from(kato.subsec_nanos() > 0));
        //= NVMe Base 2.1, Traffic Based Keep Alive: a command restarts the timer only when it has expired once
        let intervals = if self.info.traffic_keep_alive { 2 } else { 1 };
        let quiesce = if self.cqt.is_zero() { QUIESCE } else { self.cqt };
        Some(quiet + kato * intervals + quiesce)
    }

    fn take_qid(&self) -> Result<u16> {
        let mut state = self.lock();
        if let Some((reason, _)) = &state.ended {
            return Err(self.endpoint.unreachable(reason));
        }
        let (last, most) = (state.last_qid, self.info.queues);
        let mut order = (last + 1..=most).chain(1..=last.min(most));
        let qid = order
            .find(|qid| !state.qids.contains(qid))
            .ok_or_else(|| self.endpoint.refused("another I/O queue", format!("it grants {most} in all")))?;
        state.qids.insert(qid);
        state.last_qid = qid;
        state.used = true;
        Ok(qid)
    }

    /// Entries of each I/O queue.
    pub(crate) fn entries(&self) -> u16 {
        let most = u16::try_from(self.info.queue_entries).unwrap_or(u16::MAX);
        self.options.queue_size.clamp(2, most.max(2))
    }

    /// Connects an I/O queue on the calling engine thread: it, its identifier,
    /// and the round trips that it took after those of the controller.
    pub(crate) async fn open_queue(
        self: &Arc<Self>,
        done_bytes: &Rc<Cell<u64>>,
    ) -> Result<(Queue, u16, u32)> {
        let qid = self.take_qid()?;
        let lease = Lease { session: Arc::clone(self), qid };
        let in_capsule = u32::try_from(self.info.in_capsule).unwrap_or(u32::MAX);
        let mut round_trips = 1;
        let early = match self.prepared.take().await {
            Some(prepared) => Some(self.connect_queue(prepared, qid, in_capsule, done_bytes).await),
            None => None,
        };
        let (queue, more) = match early {
            // A target does not wait for Connect for ever: one that came too
            // late for the connection that was prepared begins again.
            None | Some(Err(Error::Unreachable { .. })) => {
                round_trips +=
                    Prepared::round_trips(&self.endpoint, &self.options) + u32::from(early.is_some());
                let config = host_config(&self.options, self.entries(), Some(in_capsule));
                let fresh = Prepared::open(&self.endpoint, &self.options, &self.info.subnqn, config).await?;
                self.connect_queue(fresh, qid, in_capsule, done_bytes).await?
            }
            Some(result) => result?,
        };
        round_trips += more;
        queue.keep(lease);
        if let Some((reason, _)) = &self.lock().ended {
            return Err(self.endpoint.unreachable(reason));
        }
        Ok((queue, qid, round_trips))
    }

    async fn connect_queue(
        &self,
        prepared: Prepared,
        qid: u16,
        in_capsule: u32,
        done_bytes: &Rc<Cell<u64>>,
    ) -> Result<(Queue, u32)> {
        let queue = prepared.serve(&self.signs, done_bytes)?;
        queue.limit_entries(self.entries());
        queue.set_in_capsule(in_capsule);
        queue.set_fabrics_in_capsule(self.fabrics_in_capsule);
        let (nqn, sqsize) = (&self.info.subnqn, self.entries() - 1);
        let cntlid = Some(self.info.cntlid);
        let more = connect(&self.endpoint, &self.options, &queue, nqn, qid, sqsize, cntlid).await?;
        Ok((queue, more))
    }
}

/// Keeps the session, and gives a queue identifier back.
struct Lease {
    session: Arc<Session>,
    qid: u16,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        state.qids.remove(&self.qid);
        state.quiet = Some(longhaul_engine::now());
    }
}
