//! What happens to a path that is lost.
//!
//! Its own task reconnects it. Meanwhile the other paths end its association at the target, so that
//! they can take over its changes: by Cross-Controller Reset where the target has that; otherwise the
//! old controller has ended after its keep-alive timeout and the time in which it ends commands
//! (`fence`). I/O fails once no path could be used for the limit of `ctrl_loss`.
//!
//! A target that has taken the namespace over from another one is asked in the same way. That other
//! target may have been paused, so that its connections are still there: a path that is not heard of
//! after the takeover is given up.

use super::Shared;
use crate::controller::{Controller, Paths};
use crate::fence::FencedBy;
use crate::session::Session;
use crate::watch::silence;
use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use longhaul_block::IoError;
use longhaul_engine::{now, sleep, timeout};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a target that may have been overtaken has to say that it serves the namespace: targets that
/// run find out within a few seconds that they do not.
const PROBATION: Duration = Duration::from_secs(5);
/// How long its answer may take, and a pause of it remain unnoticed.
const SILENCE: Duration = Duration::from_secs(1);
/// Interval at which lost paths are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A path, as its controller knows it.
pub(super) struct PathOf {
    pub(super) shared: Weak<Shared>,
    pub(super) number: usize,
}

impl Paths for PathOf {
    fn taken_over(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.taken_over(self.number);
        }
    }
}

/// Has lost associations of the path ended over other paths. Does not end.
pub(super) async fn follow(shared: &Shared, number: usize) {
    let Some(controller) = shared.paths[number].controller() else { return };
    loop {
        let lost = controller.next_unfenced().await;
        futures_util::select_biased! {
            // The path itself has reconnected, and has done it.
            () = std::pin::pin!(controller.is_fenced(&lost).fuse()) => {}
            by = std::pin::pin!(fence_over_others(shared, number, &lost).fuse()) => {
                controller.fenced_by_other(&lost, by);
            }
        }
    }
}

async fn fence_over_others(shared: &Shared, number: usize, lost: &Arc<Session>) -> FencedBy {
    loop {
        let others = shared.controllers().filter(|(other, _)| *other != number);
        let mut asked: FuturesUnordered<_> = others.map(|(_, other)| other.fence(lost)).collect();
        while let Some(answer) = asked.next().await {
            if let Some(by) = answer {
                return by;
            }
        }
        sleep(LOOK).await;
    }
}

/// After each takeover of the namespace by the target of this path, has the state of access over the
/// others read again, and gives those up that do not answer. Does not end.
pub(super) async fn look_after_takeovers(shared: &Shared, number: usize) {
    let Some(controller) = shared.paths[number].controller() else { return };
    let mut seen = 0;
    loop {
        seen = controller.taken_over(seen).await;
        let address = &shared.paths[number].address;
        tracing::warn!("{}: path {address} gives access to the namespace now", shared.name);
        let others = || shared.controllers().filter(|(other, _)| *other != number);
        let looks = others().filter_map(|(number, other)| Some((number, other, other.usable_session()?)));
        let looks = looks.map(|(number, other, session)| async move {
            let heard = is_heard_of(other, session, address).await;
            heard && other.usable_since().is_some() && shared.is_doubted(number)
        });
        if !join_all(looks).await.contains(&true) {
            shared.trust(number);
        }
    }
}

/// Has a path that is doubted used again once its target has said for long enough that it serves the
/// namespace: one that was overtaken notices. Does not end.
pub(super) async fn settle_doubts(shared: &Shared, number: usize) {
    let Some(controller) = shared.paths[number].controller() else { return };
    loop {
        controller.usable_and(|| shared.is_doubted(number)).await;
        let (begun, since) = (now(), controller.usable_since());
        loop {
            let heard = timeout(SILENCE, controller.read_access()).await.is_ok();
            if !heard || !shared.is_doubted(number) || controller.usable_since() != since {
                break;
            }
            let others = shared.controllers().filter(|(other, _)| *other != number);
            let alone =
                others.into_iter().all(|(_, one)| one.outage().is_none() && one.usable_since().is_none());
            if alone || now().saturating_duration_since(begun) >= PROBATION {
                shared.trust(number);
                break;
            }
            sleep(LOOK).await;
        }
        sleep(LOOK).await;
    }
}

/// Gives a session up that does not answer, since the target of another path, at `address`, has taken
/// the namespace over. Whether it answers.
async fn is_heard_of(controller: &Controller, session: Arc<Session>, address: &str) -> bool {
    let round_trip = session.info.round_trip.0;
    let heard = timeout(silence(session.silence(), round_trip), controller.read_access()).await.is_ok();
    if !heard {
        let why = format!("no answer, and {address} has taken the namespace over");
        controller.lost(session.epoch, why);
    }
    heard
}

/// Gives all paths up once none could be used for the time that the options allow. Does not end
/// before.
pub(super) async fn give_up_in_time(shared: Arc<Shared>) {
    let Some(limit) = shared.options.ctrl_loss else { return };
    loop {
        for (_, one) in shared.controllers() {
            one.unusable().await;
        }
        while let Some(since) = shared.away_since() {
            if now().saturating_duration_since(since) >= limit {
                return give_up(&shared, limit).await;
            }
            sleep(LOOK).await;
        }
        if shared.is_over() {
            return;
        }
    }
}

async fn give_up(shared: &Shared, limit: Duration) {
    let whys = shared.controllers().filter_map(|(_, one)| one.unusable_why()).map(|outage| outage.why);
    let whys: Vec<String> = whys.collect();
    let why = format!(
        "no path for {} s (the limit that --ctrl-loss-timeout sets): {}",
        limit.as_secs_f64(),
        whys.join("; ")
    );
    for (_, one) in shared.controllers() {
        one.over(IoError::Unreachable(why.clone()));
        one.close().await;
    }
}
