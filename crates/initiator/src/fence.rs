//! Fencing: no write of an earlier connection takes effect after one of a later connection.
//!
//! Commands of a lost connection may still be under way: in the network, in a socket of the target,
//! or with a slow device. They must have ended before anything that was not acknowledged is written
//! again. Either the target confirms it (Cross-Controller Reset), or the old controller must have
//! ended by itself, since it has heard nothing from this host for longer than its keep-alive
//! timeout. Reads need not wait.

use crate::call::{Data, Pending};
use crate::controller::Controller;
use crate::options::Options;
use crate::session::Session;
use crate::setup::{Admin, still_exists};
use futures_channel::oneshot;
use futures_util::FutureExt;
use longhaul_engine::{now, sleep, sleep_until};
use longhaul_wire::command::CrossControllerReset;
use longhaul_wire::completion::Status;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two questions whether the reset is done.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Interval of checks whether the old controller has ended: each takes a connection.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Writes that wait for so long are logged.
const TELL: Duration = Duration::from_secs(1);

/// What is known of the end of a lost session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FencedBy {
    /// The target has ended it, so the target was not restarted since.
    Target,
    /// It has ended by now, whether or not the target was restarted.
    Time,
}

/// A session that is lost, and the command that ends its controller.
pub(crate) type Reset = (Arc<Session>, Option<Pending>);

/// Sends the commands that end the controllers of `sessions`, without waiting.
pub(crate) fn begin(admin: &Admin, sessions: Vec<Arc<Session>>) -> Vec<Reset> {
    let send = |session: &Session| session.reset().map(|sqe| admin.queue.submit(sqe, Data::None));
    sessions.into_iter().map(|session| (Arc::clone(&session), send(&session))).collect()
}

/// Waits until nothing of earlier sessions can have any effect, and then lets
/// changes through on the one of `admin`.
pub(crate) async fn complete(
    weak: Weak<Controller>,
    admin: Rc<Admin>,
    options: Options,
    (epoch, cntlid): (u64, u16),
    resets: Vec<Reset>,
) {
    for (session, pending) in resets {
        // A target reuses the identifier of a controller that has ended.
        let replaced = session.info.cntlid == cntlid;
        let ended = async {
            if replaced {
                return;
            }
            if let Some(pending) = pending
                && by_target(&admin, &session, pending, false).await
            {
                return;
            }
            by_time(&admin, &options, &session).await;
        };
        let told = tell(&session).fuse();
        futures_util::select_biased! {
            () = std::pin::pin!(ended.fuse()) => {}
            never = std::pin::pin!(told) => match never {},
        }
        let Some(controller) = weak.upgrade() else { return };
        controller.fenced(&session);
    }
    if let Some(controller) = weak.upgrade() {
        controller.open_for_changes(epoch);
    }
}

/// Says that writes wait, once they do for long enough to be wondered at. Does
/// not end.
async fn tell(session: &Session) -> Infallible {
    sleep(TELL).await;
    let (address, cntlid) = (&session.info.address, session.info.cntlid);
    tracing::warn!(
        "{address}: writes wait until controller {cntlid}, whose connection was lost, has ended: what was \
         sent to it may still be under way"
    );
    std::future::pending().await
}

/// Ends a lost session of another path from this one, and replies once nothing of it can have an
/// effect any more, or not at all if that is not wanted any more.
///
/// That this target knows no such controller proves nothing here: the other path may lead to another
/// target. Only the confirmation counts, or the time after which any target has ended it. A target
/// that stands by confirms nothing before it has taken the namespace over.
pub(crate) async fn for_other_path(
    admin: Rc<Admin>,
    lost: Arc<Session>,
    mut reply: oneshot::Sender<FencedBy>,
) {
    let by = {
        let ended = async {
            let by_time = async {
                loop {
                    match lost.gone_at() {
                        Some(at) if at <= now() => return FencedBy::Time,
                        Some(at) => sleep_until(at).await,
                        None => sleep(LOOK_AGAIN).await,
                    }
                }
            };
            let by_target = async {
                if let Some(sqe) = lost.reset() {
                    let pending = admin.queue.submit(sqe, Data::None);
                    if by_target(&admin, &lost, pending, true).await {
                        return FencedBy::Target;
                    }
                }
                std::future::pending().await
            };
            futures_util::select_biased! {
                by = std::pin::pin!(by_target.fuse()) => by,
                by = std::pin::pin!(by_time.fuse()) => by,
            }
        };
        futures_util::select_biased! {
            by = std::pin::pin!(ended.fuse()) => by,
            () = std::pin::pin!(reply.cancellation().fuse()) => return,
        }
    };
    let _ = reply.send(by);
}

/// Whether the target has ended the session. If it has not, it cannot; `other`: the session is one of
/// another path, and this target may be able to say more once it serves the namespace.
async fn by_target(admin: &Admin, session: &Session, mut pending: Pending, other: bool) -> bool {
    loop {
        let Ok(done) = pending.await else {
            // The new connection is lost, too; the next one tries again.
            return std::future::pending().await;
        };
        let status = done.cqe.status();
        if status.is_success() && done.cqe.dw0() & CrossControllerReset::DONE != 0 {
            return true;
        }
        let mut later = vec![Status::RESET_IN_PROGRESS, Status::RESET_LIMIT, Status::RESET_LOG_FULL];
        if other {
            later.extend([Status::ANA_INACCESSIBLE, Status::ANA_TRANSITION]);
        }
        if !status.is_success() && !later.iter().any(|&s| status.is(s)) {
            let address = &session.info.address;
            tracing::warn!("{address}: it does not end the earlier connection ({status}); writes wait");
            return false;
        }
        sleep(ASK_AGAIN).await;
        let Some(sqe) = session.reset() else { return false };
        pending = admin.queue.submit(sqe, Data::None);
    }
}

/// Waits until the old controller has ended by itself.
async fn by_time(admin: &Admin, options: &Options, session: &Session) {
    loop {
        let gone_at = session.gone_at();
        if gone_at.is_some_and(|at| at <= now()) {
            return;
        }
        if !still_exists(&admin.endpoint, options, &session.info).await {
            return;
        }
        let look = now() + LOOK_AGAIN;
        sleep_until(gone_at.map_or(look, |at| at.min(look))).await;
    }
}
