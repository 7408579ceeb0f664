//! What happens to a path that is lost.
//!
//! Its own task reconnects it. Meanwhile the other paths end its association at the target, so that
//! they can take over its changes: by Cross-Controller Reset where the target has that; otherwise the
//! old controller has ended after its keep-alive timeout and the time in which it ends commands
//! (`fence`). I/O fails once no path has been connected for the limit of `ctrl_loss`.

use super::Shared;
use crate::controller::Controller;
use crate::fence::FencedBy;
use crate::session::Session;
use futures_util::FutureExt;
use futures_util::future::select_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use longhaul_block::IoError;
use longhaul_engine::{now, sleep};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which lost paths are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Has lost associations of the path ended over other paths. Does not end.
pub(super) async fn follow(shared: &Shared, number: usize) {
    let Some(controller) = shared.paths[number].controller() else { return };
    loop {
        let lost = controller.next_unfenced().await;
        futures_util::select_biased! {
            // The path itself has reconnected, and has done it.
            () = std::pin::pin!(controller.is_fenced(&lost).fuse()) => {}
            by = std::pin::pin!(fence_over_others(shared, number, &lost).fuse()) => controller.fenced(&lost, by),
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

/// Gives all paths up once there has been none for the time that the options allow. Does not end
/// before.
pub(super) async fn give_up_in_time(shared: Arc<Shared>) {
    let Some(limit) = shared.options.ctrl_loss else { return };
    loop {
        let all: Vec<Arc<Controller>> = shared.controllers().map(|(_, one)| Arc::clone(one)).collect();
        select_all(all.iter().map(|one| Box::pin(one.away()))).await;
        while shared.controllers().any(|(_, one)| one.outage().is_some()) {
            if shared.away_since().is_some_and(|since| now().saturating_duration_since(since) >= limit) {
                let whys = shared.controllers().filter_map(|(_, one)| one.outage()).map(|outage| outage.why);
                let whys: Vec<String> = whys.collect();
                let why = format!(
                    "no path for {} s (the limit that --ctrl-loss-timeout sets): {}",
                    limit.as_secs_f64(),
                    whys.join("; ")
                );
                for one in all {
                    one.over(IoError::Unreachable(why.clone()));
                    one.close().await;
                }
                return;
            }
            sleep(LOOK).await;
        }
    }
}
