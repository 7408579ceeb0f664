//! Distinguishes a slow connection from a dead one.
//!
//! - TCP knows: segments that were retransmitted several times stay unacknowledged. The peer's
//!   kernel acknowledges, however busy the target.
//! - A connection on which bytes arrive or are acknowledged is alive.
//! - Where neither is conclusive, the admin queue is queried; the target answers there, however
//!   busy its devices. If it answers while the connection hangs, see [`crate::black_hole`].

use crate::black_hole;
use crate::io_queue::IoQueueInner;
use crate::options::SILENCE;
use crate::queue::Queue;
use crate::session::Session;
use longhaul_engine::net::Life;
use longhaul_engine::{now, since, sleep, spawn};
use longhaul_wire::command::opcode_name;
use std::fmt;
use std::time::{Duration, Instant};

/// On a long path, so many round trips.
const SILENCE_ROUND_TRIPS: u32 = 10;
/// Unanswered probes of a closed window from which on they count as silence.
const PROBES: u8 = 3;

/// A connection on which nothing was acknowledged for too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent {
    /// Time of the last acknowledgement.
    pub(crate) since: Instant,
    /// What TCP knows.
    pub(crate) life: Life,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was acknowledged for {:.1} s", since(self.since).as_secs_f64())
    }
}

/// How long TCP may be silent on a path with this round trip, at least `least`.
pub(crate) fn silence(least: Duration, round_trip: Duration) -> Duration {
    least.max(round_trip * SILENCE_ROUND_TRIPS)
}

/// Looks at TCP from time to time, and finds silence.
#[derive(Debug)]
pub(crate) struct Silence {
    /// How long it may last on a short path.
    least: Duration,
    /// Something is unacknowledged since then, and nothing has come.
    since: Option<Instant>,
}

impl Silence {
    pub(crate) fn new(least: Duration) -> Silence {
        Silence { least, since: None }
    }

    /// Takes a look: what shows that the connection is dead, if it is.
    pub(crate) fn look(&mut self, life: Option<Life>) -> Option<Silent> {
        let life = life?;
        let waits = life.unacked > 0 || life.probes >= PROBES;
        let begun = *self.since.get_or_insert_with(now);
        // An acknowledgement that has come since then breaks the silence.
        if !waits || life.last_ack < since(begun) {
            self.since = waits.then(now);
            return None;
        }
        (since(begun) >= silence(self.least, life.round_trip)).then_some(Silent { since: begun, life })
    }
}

/// How often a connection with commands under way is looked at.
const TICK: Duration = Duration::from_millis(250);
/// Without progress for so long, the admin queue is asked.
const STALL: Duration = Duration::from_secs(1);
/// Without progress for so long, it is asked for more than a packet, and again
/// after this time.
const STALL_LARGE: (Duration, Duration) = (SILENCE, Duration::from_secs(10));
/// The kernel's own questions on a connection that has stalled: how far apart,
/// and how many without an answer end it.
const ASK: (Duration, u32) = (Duration::from_secs(1), 4);

/// Watches a queue. Returns why it is to be given up.
pub(crate) async fn watch(io_queue: &IoQueueInner, queue: &Queue, session: &Session) -> String {
    let mut silence = Silence::new(io_queue.controller.settings.options.silence);
    let mut stall = Stall::new(queue);
    let mut tick: u32 = 1;
    loop {
        queue.busy().await;
        sleep(TICK).await;
        tick += 1;
        if let Some(silent) = silence.look(queue.life()) {
            let small = session.has_answered_since(silent.since);
            let named = if small { black_hole::there(&silent) } else { None };
            return named.unwrap_or_else(|| silent.to_string());
        }
        stall.look(io_queue, queue, session.epoch);
        if let Some(reason) = overdue(io_queue, queue, tick) {
            return reason;
        }
    }
}

/// Has the controller asked whether it is there while a queue makes no progress.
struct Stall {
    progress: u64,
    moved: Instant,
    asked: Instant,
    asked_large: Option<Instant>,
}

impl Stall {
    fn new(queue: &Queue) -> Stall {
        Stall { progress: queue.progress(), moved: now(), asked: now(), asked_large: None }
    }

    fn look(&mut self, io_queue: &IoQueueInner, queue: &Queue, epoch: u64) {
        let progress = queue.progress();
        if progress != self.progress || queue.outstanding() == 0 {
            *self = Stall { asked: self.asked, ..Stall::new(queue) };
        }
        if since(self.moved) < STALL || since(self.asked) < STALL {
            return;
        }
        self.asked = now();
        if let Ok(tcp) = queue.channel().tcp() {
            let _ = tcp.keep_alive(ASK.0, ASK.1);
        }
        let (first, again) = STALL_LARGE;
        let large = since(self.moved) >= first && self.asked_large.is_none_or(|at| since(at) >= again);
        if large {
            self.asked_large = Some(now());
        }
        io_queue.controller.probe(epoch, large);
    }
}

/// Aborts commands that are late. A command's time begins when everything ahead
/// of it is done, so that a long queue makes no command late. An aborted command
/// is retried; one that does not end for as long again ends the connection, and
/// the reason is returned.
fn overdue(io_queue: &IoQueueInner, queue: &Queue, tick: u32) -> Option<String> {
    let limit = io_queue.controller.settings.options.io_timeout;
    if limit.is_zero() {
        return None;
    }
    let ticks = u32::try_from(limit.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX / 4);
    let done = io_queue.done_bytes();
    let mut reason = None;
    queue.each(|call, cid| {
        if call.due.get() == 0 && done >= call.ahead {
            call.due.set(tick);
        }
        let late = if call.due.get() == 0 { 0 } else { tick - call.due.get() };
        if late > ticks.saturating_mul(2) {
            let seconds = limit.as_secs_f64() * 2.0;
            let what = opcode_name(false, call.sqe.opcode, 0);
            reason = Some(format!("a {what} command has not ended for {seconds:.0} s, nor by Abort"));
        } else if late > ticks && !call.aborting.replace(true) {
            tracing::warn!("a command has not ended for {} s: it is aborted", limit.as_secs_f64());
            let abort = io_queue.abort_on_wire(cid);
            spawn(async move { _ = abort.await }).detach();
        }
    });
    reason
}
