//! Is the far side still there?

use crate::call::Data;
use crate::error::reason;
use crate::session::Session;
use crate::setup::Admin;
use crate::watch::Silence;
use futures_util::FutureExt;
use longhaul_engine::sync::Notify;
use longhaul_engine::{now, sleep};
use longhaul_wire::command::Sqe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a Keep Alive that nobody asked for waits before another one, if
/// the time-out is switched off: it is still sent when somebody asks.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// How long an answer may take where there is no time-out.
const ANSWER: Duration = Duration::from_secs(15);
/// How often TCP is asked while an answer is awaited.
const LOOK: Duration = Duration::from_millis(500);

/// Sends Keep Alive often enough, and not at all while other traffic shows
/// the controller that this host lives, where it counts that; and at once
/// whenever `probe` is given. Returns why the controller is lost.
pub(crate) async fn keep_alive(admin: Rc<Admin>, session: Arc<Session>, probe: Rc<Notify>) -> String {
    let info = &session.info;
    // A half, so that one lost beat is not the end.
    let interval = if info.kato.is_zero() { NEVER } else { info.kato / 2 };
    loop {
        let asked = {
            let mut pause = std::pin::pin!(sleep(interval).fuse());
            futures_util::select_biased! {
                () = probe.notified().fuse() => true,
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
    }
}

/// One Keep Alive. While it is not answered, anything else that comes from
/// the controller shows as well that it is there: a pipe that is full is not
/// dead.
async fn beat(admin: &Admin, session: &Session) -> Result<(), String> {
    let mut answer = admin.queue.submit(Sqe::keep_alive(), Data::None).fuse();
    let kato = session.info.kato;
    let limit = if kato.is_zero() { ANSWER } else { kato };
    let mut silence = Silence::default();
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
        if let Some(reason) = silence.look(admin.queue.life()) {
            return Err(reason);
        }
        if session.signs.traffic.swap(false, Ordering::Relaxed) {
            since = now();
        }
        if since.elapsed() >= limit {
            return Err(format!("no answer to Keep Alive for {} ms", limit.as_millis()));
        }
    }
}
