//! Is the far side still there?

use crate::black_hole;
use crate::call::Data;
use crate::error::reason;
use crate::options::SILENCE;
use crate::session::Session;
use crate::setup::Admin;
use crate::watch::{Silence, silence};
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufMut, Memory, now, sleep};
use longhaul_wire::command::Sqe;
use longhaul_wire::identify::{IDENTIFY_LEN, cns};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval between Keep Alives if the time-out is switched off: in effect only
/// a probe sends one.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// How long an answer may take where there is no time-out.
const ANSWER: Duration = Duration::from_secs(15);
/// How often TCP is asked while an answer is awaited.
const LOOK: Duration = Duration::from_millis(500);

/// Asks for a Keep Alive at once.
#[derive(Default)]
pub(crate) struct Probe {
    wanted: Notify,
    large: Cell<bool>,
}

impl Probe {
    /// Asks; if `large`, whether more than a packet comes as well.
    pub(crate) fn ask(&self, large: bool) {
        self.large.set(self.large.get() | large);
        self.wanted.notify();
    }
}

/// Sends Keep Alive often enough, and not at all while other traffic shows
/// the controller that this host lives, where it counts that; and at once
/// whenever `probe` is given. Returns why the controller is lost.
pub(crate) async fn keep_alive(admin: Rc<Admin>, session: Arc<Session>, probe: Rc<Probe>) -> String {
    let info = &session.info;
    // A half, so that one lost beat is not the end.
    let interval = if info.kato.is_zero() { NEVER } else { info.kato / 2 };
    loop {
        let asked = {
            let mut pause = std::pin::pin!(sleep(interval).fuse());
            futures_util::select_biased! {
                () = probe.wanted.notified().fuse() => true,
                () = pause => false,
            }
        };
        let traffic = session.signs.traffic.swap(false, Ordering::Relaxed);
        if !asked && traffic && info.traffic_keep_alive {
            continue;
        }
        if let Err(reason) = beat(&admin, &session).await {
            return reason;
        }
        session.answered();
        if probe.large.take()
            && let Err(reason) = large(&admin).await
        {
            return reason;
        }
    }
}

/// One Keep Alive. While it is not answered, anything else that comes from
/// the controller shows as well that it is there: a pipe that is full is not
/// dead.
async fn beat(admin: &Admin, session: &Session) -> Result<(), String> {
    let mut answer = admin.queue.submit(Sqe::keep_alive(), Data::None).fuse();
    let kato = session.info.kato;
    let limit = if kato.is_zero() { ANSWER } else { kato };
    let mut silence = Silence::new(session.silence());
    let mut since = now();
    loop {
        let mut pause = std::pin::pin!(sleep(LOOK.min(limit)).fuse());
        futures_util::select_biased! {
            result = answer => return match result {
                Ok(done) if done.cqe.status().is_success() => {
                    // Its own answer is no reason to do without the next one.
                    session.signs.traffic.store(false, Ordering::Relaxed);
                    Ok(())
                }
                Ok(done) => Err(format!("Keep Alive failed: {}", done.cqe.status())),
                Err(e) => Err(reason(&e)),
            },
            () = pause => {}
        }
        if let Some(silent) = silence.look(admin.queue.life()) {
            return Err(silent.to_string());
        }
        if session.signs.traffic.swap(false, Ordering::Relaxed) {
            since = now();
        }
        if longhaul_engine::since(since) >= limit {
            return Err(format!("no answer to Keep Alive for {} ms", limit.as_millis()));
        }
    }
}

/// Has more than a packet come from a controller that has just answered: I/O
/// hangs, since a device is slow, or since large packets vanish.
async fn large(admin: &Admin) -> Result<(), String> {
    let life = admin.queue.life();
    let count = black_hole::identifies(life.map_or(0, |life| life.packet));
    let limit = silence(SILENCE, life.map_or(Duration::ZERO, |life| life.round_trip));
    let identify = |_| {
        let data = Data::Read(Memory::Buf(BufMut::zeroed(IDENTIFY_LEN)));
        admin.queue.submit(Sqe::identify(cns::CONTROLLER, 0, 0), data)
    };
    let mut answers = try_join_all((0..count).map(identify)).fuse();
    let mut unanswered = Silence::new(SILENCE);
    let begun = now();
    loop {
        let mut pause = std::pin::pin!(sleep(LOOK).fuse());
        futures_util::select_biased! {
            result = answers => return result.map(drop).map_err(|e| reason(&e)),
            () = pause => {}
        }
        let life = admin.queue.life();
        // While the question itself is not acknowledged, the way there is at fault.
        let asked = life.is_some_and(|life| life.unacked == 0);
        if let Some(silent) = unanswered.look(life) {
            return Err(silent.to_string());
        }
        if asked && longhaul_engine::since(begun) >= limit {
            return Err(black_hole::back(count * IDENTIFY_LEN, longhaul_engine::since(begun)));
        }
    }
}
