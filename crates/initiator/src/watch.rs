//! What tells a connection that is slow from one that is dead.
//!
//! - TCP knows: what was sent is not acknowledged although it was sent again
//!   and again. The kernel over there acknowledges, however busy the target.
//! - A connection on which bytes come or go is alive.
//! - Where neither tells anything, the admin queue is asked; the target
//!   answers there, however busy its devices.

use crate::lane;
use crate::queue::Queue;
use longhaul_engine::net::Life;
use longhaul_engine::{now, sleep, spawn};
use longhaul_wire::command::opcode_name;
use std::time::{Duration, Instant};

/// Silence of TCP that ends a connection: four retransmissions on a short
/// path.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
/// On a long path, so many round trips.
const SILENCE_ROUND_TRIPS: u32 = 10;
/// Unanswered probes of a closed window from which on they count as silence.
const PROBES: u8 = 3;

/// Looks at TCP from time to time, and finds silence.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Something is unacknowledged since then, and nothing has come.
    since: Option<Instant>,
}

impl Silence {
    /// Takes a look: why the connection is dead, if it is.
    pub(crate) fn look(&mut self, life: Option<Life>) -> Option<String> {
        let life = life?;
        let waits = life.unacked > 0 || life.probes >= PROBES;
        let begun = *self.since.get_or_insert_with(now);
        // An acknowledgement that has come since then breaks the silence.
        if !waits || life.last_ack < begun.elapsed() {
            self.since = waits.then(now);
            return None;
        }
        let limit = SILENCE.max(life.round_trip * SILENCE_ROUND_TRIPS);
        let silent = begun.elapsed();
        (silent >= limit).then(|| format!("nothing was acknowledged for {:.1} s", silent.as_secs_f64()))
    }
}

/// How often a connection with commands under way is looked at.
const TICK: Duration = Duration::from_millis(250);
/// Without progress for so long, the admin queue is asked.
const STALL: Duration = Duration::from_secs(1);
/// The kernel's own questions on a connection that has stalled: how far apart,
/// and how many without an answer end it.
const ASK: (Duration, u32) = (Duration::from_secs(1), 4);

/// Watches a queue. Returns why it is to be given up.
pub(crate) async fn watch(lane: &lane::Inner, queue: &Queue, epoch: u64) -> String {
    let mut silence = Silence::default();
    let mut tick: u32 = 1;
    let mut moved = (queue.progress(), now());
    let mut asked = now();
    loop {
        queue.busy().await;
        sleep(TICK).await;
        tick += 1;
        let progress = queue.progress();
        if progress != moved.0 || queue.outstanding() == 0 {
            moved = (progress, now());
        }
        if let Some(reason) = silence.look(queue.life()) {
            return reason;
        }
        if moved.1.elapsed() >= STALL && asked.elapsed() >= STALL {
            asked = now();
            let _ = queue.stream().keep_alive(ASK.0, ASK.1);
            lane.controller.probe(epoch);
        }
        if let Some(reason) = overdue(lane, queue, tick) {
            return reason;
        }
    }
}

/// Sees to commands that are late: their time begins when everything ahead of
/// them is done, so that a long queue makes nobody late. What is late is
/// aborted, and tried again if it was; what does not end for as long again
/// ends the connection. Why it does.
fn overdue(lane: &lane::Inner, queue: &Queue, tick: u32) -> Option<String> {
    let limit = lane.controller.settings.options.io_timeout;
    if limit.is_zero() {
        return None;
    }
    let ticks = u32::try_from(limit.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX / 4);
    let done = lane.done_bytes();
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
            let abort = lane.abort_on_wire(cid);
            spawn(async move { _ = abort.await }).detach();
        }
    });
    reason
}
