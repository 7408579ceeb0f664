//! A host that stands by: it watches the heartbeats of the session that runs an array, until that
//! session has ended.
//!
//! Invariants:
//! - nothing is written;
//! - a session counts as ended only after its heartbeats have stood still for as long as a takeover
//!   waits on every member that can be read, or are marked as stopped; and a takeover that relies on
//!   this compares the counters once more.

use crate::array::ArrayFuture;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT};
use crate::format::heartbeat::Heartbeat;
use crate::options::Options;
use crate::session::fence::TAKEOVER_BEATS;
use futures_util::future::join_all;
use longhaul_block::{BlockDevice, BlockIo};
use longhaul_engine::{BufMut, now, sleep, timeout};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Looks at the heartbeats for each one that is written.
const LOOKS: u32 = 4;

/// Sessions whose heartbeats have stood still for as long as a takeover waits, each with its last
/// counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoodStill(pub(crate) Vec<(Uuid, u64)>);

/// A member as it was seen last.
struct Watched {
    device: Arc<dyn BlockDevice>,
    io: Option<Rc<dyn BlockIo>>,
    beat: Option<Heartbeat>,
    /// When the heartbeat was read first.
    since: Instant,
    readable: bool,
}

impl Watched {
    fn new(device: &Arc<dyn BlockDevice>) -> Watched {
        Watched { device: Arc::clone(device), io: None, beat: None, since: now(), readable: false }
    }

    async fn look(&mut self, array: Uuid, limit: Duration) {
        if self.io.is_none() {
            self.io = timeout(limit, self.device.open()).await.ok().and_then(Result::ok);
        }
        let Some(io) = &self.io else { return };
        let read = timeout(limit, io.read(HEARTBEAT_AT, BufMut::zeroed(BLOCK as usize))).await;
        let Ok(Ok(block)) = read else {
            self.readable = false;
            return;
        };
        let beat = Heartbeat::decode(&block).filter(|beat| beat.array == array);
        if beat != self.beat || !self.readable {
            (self.beat, self.since) = (beat, now());
        }
        self.readable = true;
    }

    /// Whether no session runs the array, as far as this member knows.
    fn is_still(&self, wait: Duration, at: Instant) -> bool {
        match &self.beat {
            Some(beat) if !beat.stopped => at.saturating_duration_since(self.since) >= wait,
            _ => true,
        }
    }
}

/// Waits until no session runs the array any more: none has, or its heartbeats have stood still for
/// as long as a takeover waits, on all members that can be read. `None` if `given_up` says so first.
/// [`Options::stood_still`] takes the result, so that the assembly that follows does not wait again.
///
/// While no member can be read nothing is known, and it goes on.
pub fn wait_for_end<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    array: Uuid,
    options: &'a Options,
    given_up: impl Fn() -> bool + 'a,
) -> ArrayFuture<'a, Option<StoodStill>> {
    Box::pin(async move {
        let mut members: Vec<Watched> = devices.iter().map(Watched::new).collect();
        let wait = options.heartbeat * TAKEOVER_BEATS / 2;
        while !given_up() {
            let begun = now();
            join_all(members.iter_mut().map(|member| member.look(array, options.member_timeout))).await;
            let mut readable = members.iter().filter(|member| member.readable).peekable();
            if readable.peek().is_some() && readable.all(|member| member.is_still(wait, begun)) {
                return Some(stood_still(&members));
            }
            sleep(options.heartbeat / LOOKS).await;
        }
        None
    })
}

/// The session that runs an array: one whose heartbeat moves on a device within the time for which a
/// takeover watches it. `None` after that time, if none does. Nothing is written.
pub fn running_session<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    array: Uuid,
    options: &'a Options,
) -> ArrayFuture<'a, Option<Uuid>> {
    Box::pin(async move {
        let mut members: Vec<Watched> = devices.iter().map(Watched::new).collect();
        let end = now() + options.heartbeat * TAKEOVER_BEATS / 2;
        let mut first: HashMap<(usize, Uuid), u64> = HashMap::new();
        loop {
            let is_last = now() >= end;
            join_all(members.iter_mut().map(|member| member.look(array, options.member_timeout))).await;
            let beats = members.iter().enumerate().filter_map(|(at, member)| {
                let beat = member.beat.filter(|beat| member.readable && !beat.stopped)?;
                Some((at, beat))
            });
            for (at, beat) in beats {
                if *first.entry((at, beat.session)).or_insert(beat.counter) != beat.counter {
                    return Some(beat.session);
                }
            }
            if is_last {
                return None;
            }
            sleep(options.heartbeat / LOOKS).await;
        }
    })
}

fn stood_still(members: &[Watched]) -> StoodStill {
    let mut last: HashMap<Uuid, u64> = HashMap::new();
    for beat in members.iter().filter(|member| member.readable).filter_map(|member| member.beat) {
        let counter = last.entry(beat.session).or_default();
        *counter = beat.counter.max(*counter);
    }
    StoodStill(last.into_iter().collect())
}
