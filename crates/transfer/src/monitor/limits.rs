//! The limit of a copy: the stage, the rate limit or the silent peer that the others wait
//! for.

use crate::guard::lock;
use crate::link::peer_timeout::QUIET;
use crate::queue::Gauge;
use crate::wire::{Limit, Stage};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

type GaugeFn = Box<dyn Fn() -> Gauge + Send + Sync>;

/// Observations of one side that decide what limits the copy.
#[derive(Default)]
pub(super) struct Limits {
    /// Queues, in the order of the stages that take from them.
    gauges: Mutex<Vec<(Stage, GaugeFn)>>,
    /// The last frame had to wait for the rate limit.
    is_rate_limited: AtomicBool,
    /// How long the peer has been silent, in milliseconds.
    silent: AtomicU64,
    /// The limit that the peer reports.
    peer: Mutex<Option<Limit>>,
}

impl Limits {
    pub(super) fn watch(&self, stage: Stage, look: impl Fn() -> Gauge + Send + Sync + 'static) {
        lock(&self.gauges).push((stage, Box::new(look)));
    }

    pub(super) fn rate_limited(&self, waited: bool) {
        self.is_rate_limited.store(waited, Relaxed);
    }

    pub(super) fn silent(&self, time: Duration) {
        self.silent.store(time.as_millis().try_into().unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn silence(&self) -> Duration {
        Duration::from_millis(self.silent.load(Relaxed))
    }

    pub(super) fn set_peer(&self, limit: Option<Limit>) {
        *lock(&self.peer) = limit;
    }

    /// What limits the copy: on this side, or on the peer's where this side waits for it.
    pub(super) fn now(&self, scan_done: bool) -> Option<Limit> {
        let far = *lock(&self.peer);
        // With a rate limit at the peer, pauses are expected.
        if self.silence() >= QUIET && far != Some(Limit::Rate) {
            return Some(Limit::Silence);
        }
        match self.here(scan_done) {
            // A full send queue may mean that the peer cannot write fast enough.
            Some(Limit::Stage(Stage::Send)) => {
                far.filter(|limit| *limit == Limit::Stage(Stage::Write)).or(Some(Limit::Stage(Stage::Send)))
            }
            None => far,
            here => here,
        }
    }

    /// What limits the copy on this side: the rate limit if frames wait for it, else the
    /// last stage whose queue is more than half full, since the stages before it wait and
    /// those behind it idle. With no such queue it is reading while there is work for it,
    /// and else scanning. `None` on a side that only writes: it waits for the peer.
    pub(super) fn here(&self, scan_done: bool) -> Option<Limit> {
        let gauges = lock(&self.gauges);
        let full = gauges.iter().rev().find(|(_, look)| look().fill > 0.5).map(|(stage, _)| *stage);
        // In a local copy slow writing may fill all queues.
        if self.is_rate_limited.load(Relaxed) && full != Some(Stage::Write) {
            return Some(Limit::Rate);
        }
        if let Some(stage) = full {
            return Some(Limit::Stage(stage));
        }
        let read = gauges.iter().find(|(stage, _)| *stage == Stage::Read).map(|(_, look)| look());
        let stage = match (read, scan_done) {
            (Some(read), _) if !read.empty => Stage::Read,
            (Some(_), true) => Stage::Send,
            (Some(_), false) => Stage::Scan,
            (None, _) => return None,
        };
        Some(Limit::Stage(stage))
    }
}
