//! Keeps an I/O queue connected: after a connection is lost, the commands that it left
//! unanswered are resent on the next one.
//!
//! The invariants are those of [`IoQueue`](super::IoQueue): held commands are resent in the
//! order of their submission, and changes only once the old connection is fenced.

use super::{Gate, IoQueueInner};
use crate::error::{self, Error, Result};
use crate::queue::{Queue, take_where};
use crate::reservation::check_registered;
use crate::session::Session;
use crate::split::split;
use crate::watch::watch;
use futures_util::FutureExt;
use longhaul_block::IoError;
use longhaul_engine::{now, sleep, spawn, timeout};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for the last words of a queue (why it ends the connection) to go.
const FAREWELL: Duration = Duration::from_secs(1);
/// Wait before a queue is asked for again that the controller does not grant,
/// or whose connection it does not take.
const NO_QUEUE: Duration = Duration::from_millis(500);
/// How often calls are offered to other paths while this one is away.
const LEAVE_AGAIN: Duration = Duration::from_millis(100);
/// How often a first connection is tried that is not taken although the
/// controller is there.
const TRIES: u32 = 3;

impl IoQueueInner {
    /// The first queue, as [`Session::open_queue`] gives it.
    pub(super) async fn first(&self) -> Result<(Arc<Session>, (Queue, u16, u32))> {
        let mut tries = 1;
        loop {
            let session = self.controller.session().await.map_err(|e| {
                let addr = self.controller.info().address.clone();
                Error::Unreachable { addr, reason: error::reason(&e), connect: None }
            })?;
            match self.open_queue(&session).await {
                Ok(opened) => return Ok((session, opened)),
                Err(e @ (Error::Refused { .. } | Error::NotFound(_) | Error::Local(_))) => return Err(e),
                // It takes no more connections than it has.
                Err(e) if self.is_there(&session).await => {
                    if tries == TRIES {
                        let why = format!("{}; the others go on", e);
                        return Err(session.endpoint.refused("another connection", why));
                    }
                    tries += 1;
                    sleep(NO_QUEUE).await;
                }
                Err(e) => {
                    if !session.has_ended() {
                        self.controller.lost(session.epoch, e.to_string());
                    }
                    if self.controller.settings.options.ctrl_loss.is_some_and(|limit| limit.is_zero()) {
                        return Err(e);
                    }
                    self.controller.ended(session.epoch).await;
                }
            }
        }
    }

    /// A connected queue, which this host may use.
    async fn open_queue(&self, session: &Arc<Session>) -> Result<(Queue, u16, u32)> {
        let opened = session.open_queue(&self.done_bytes).await?;
        check_registered(&self.controller, session, &opened.0).await?;
        Ok(opened)
    }

    /// Whether the controller answers, so that the connection to it that failed
    /// was one by itself.
    async fn is_there(&self, session: &Session) -> bool {
        let limit = self.controller.settings.options.connect_timeout.min(session.endpoint.patience);
        !session.has_ended()
            && timeout(limit, self.controller.namespaces()).await.is_ok_and(|answer| answer.is_ok())
            && !session.has_ended()
    }

    pub(super) fn adopt(&self, session: &Session, queue: Queue, qid: u16) {
        let limit = session.info.max_transfer.unwrap_or(u64::MAX);
        let limit = limit.min(self.controller.settings.options.max_transfer.into()) as u32;
        let block = 1u32 << self.shift;
        self.max_transfer.set((limit / block * block).max(block));
        self.place.set((session.epoch, qid));
        queue.set_other_path(Rc::clone(&self.other_path));
        *self.queue.borrow_mut() = Some(Rc::new(queue));
        self.open_gate();
    }

    /// Sends the held calls that may be sent now.
    pub(super) fn open_gate(&self) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let open = self.controller.is_open_for(self.place.get().0);
        let mut going = match open {
            true => std::mem::take(&mut *self.held.borrow_mut()),
            false => take_where(&mut self.held.borrow_mut(), |call| !call.changes()).into(),
        };
        let max = self.max_transfer();
        while let Some(waiting) = going.pop_front() {
            if waiting.data.len() > max {
                for part in split(waiting, max, self.shift).into_iter().rev() {
                    going.push_front(part);
                }
                continue;
            }
            if let Err((waiting, _)) = queue.push(waiting) {
                // It has ended already: all of it waits for the next one.
                let mut held = self.held.borrow_mut();
                held.push_back(waiting);
                held.extend(going);
                held.make_contiguous().sort_by_key(|waiting| waiting.call.seq);
                return;
            }
        }
        self.gate.set(if open { Gate::Open } else { Gate::Reads });
        if open && self.closing.get() {
            queue.close_when_done();
        }
    }

    /// Keeps the I/O queue connected until its last user drops it, or the controller
    /// is lost for good.
    pub(super) async fn run(self: Rc<Self>, mut session: Arc<Session>) {
        loop {
            let reason = self.serve(&session).await;
            if self.closing.get() && self.held.borrow().is_empty() {
                break;
            }
            self.controller.lost(session.epoch, reason);
            match self.next(session.epoch).await {
                Some(Ok(next)) => session = next,
                Some(Err(e)) => {
                    self.fail(e).await;
                    break;
                }
                None => break,
            }
        }
        self.controller.leave();
    }

    /// Serves the queue until its connection ends; returns the reason. Unfinished calls are held.
    async fn serve(&self, session: &Session) -> String {
        let Some(queue) = self.queue.borrow().clone() else { return String::new() };
        let epoch = session.epoch;
        let (reason, survivors) = {
            let mut over = Box::pin(queue.over().fuse());
            let mut ended = Box::pin(self.controller.ended(epoch).fuse());
            let mut dead = Box::pin(watch(self, &queue, session).fuse());
            let mut open = Box::pin(self.controller.open_for(epoch).fuse());
            loop {
                futures_util::select_biased! {
                    result = over => break result,
                    () = ended => queue.abandon(IoError::Unreachable("the session has ended".into())),
                    reason = dead => queue.abandon(IoError::Unreachable(reason)),
                    () = open => self.open_gate(),
                }
            }
        };
        self.gate.set(Gate::Shut);
        *self.queue.borrow_mut() = None;
        let mut held = self.held.borrow_mut();
        for waiting in survivors {
            if waiting.call.unwanted.get() {
                waiting.call.finish(Err(IoError::Aborted));
            } else {
                held.push_back(waiting);
            }
        }
        held.make_contiguous().sort_by_key(|waiting| waiting.call.seq);
        spawn(async move {
            sleep(FAREWELL).await;
            queue.abandon(IoError::Aborted);
        })
        .detach();
        error::reason(&reason)
    }

    /// Connects to the next session; nothing if the I/O queue is closing and holds no
    /// call.
    async fn next(&self, mut epoch: u64) -> Option<std::result::Result<Arc<Session>, IoError>> {
        let since = now();
        let mut warned = 0;
        loop {
            let connect = async move {
                self.controller.ended(epoch).await;
                let session = self.controller.session().await?;
                Ok((self.open_queue(&session).await, session))
            };
            let mut connect = Box::pin(connect.fuse());
            let mut others = Box::pin(self.serve_by_others(epoch).fuse());
            let result = loop {
                futures_util::select_biased! {
                    result = connect => break result,
                    never = others => match never {},
                    () = self.wake.notified().fuse() => {
                        if self.closing.get() && self.held.borrow().is_empty() {
                            return None;
                        }
                    }
                }
            };
            let (result, session) = match result {
                Ok(found) => found,
                Err(e) => return Some(Err(e)),
            };
            match result {
                Ok((queue, qid, _)) => {
                    self.adopt(&session, queue, qid);
                    return Some(Ok(session));
                }
                Err(e) if matches!(e, Error::Refused { .. }) || self.is_there(&session).await => {
                    if let Some(relief) = &*self.relief.borrow() {
                        // Not borrowed while the relief works: it may come back here.
                        let held = self.held.take();
                        let left = relief(held.into());
                        self.held.borrow_mut().extend(left);
                    }
                    let limit = self.controller.settings.options.ctrl_loss;
                    if limit.is_some_and(|limit| longhaul_engine::since(since) >= limit) {
                        return Some(Err(IoError::Unreachable(e.to_string())));
                    }
                    if std::mem::replace(&mut warned, session.epoch) != session.epoch {
                        tracing::warn!("{e}; the I/O of a thread waits for it");
                    }
                    sleep(NO_QUEUE).await;
                    // The same session may do later.
                    epoch = session.epoch.wrapping_sub(1);
                }
                Err(e) => {
                    self.controller.lost(session.epoch, e.to_string());
                    epoch = session.epoch;
                }
            }
        }
    }

    /// Gives the held calls to another path, if there is one: reads at once, changes when nothing of
    /// this path can have an effect any more. Does not end.
    async fn serve_by_others(&self, epoch: u64) -> Infallible {
        self.controller.ended(epoch).await;
        while self.other_path.borrow().is_some() {
            self.leave_to_others();
            // The other path may be away, too, and calls may still come.
            let fenced = !self.controller.is_away_and_fenced();
            let mut fenced = std::pin::pin!(self.until_fenced(fenced).fuse());
            futures_util::select_biased! {
                () = fenced => {}
                () = std::pin::pin!(sleep(LEAVE_AGAIN).fuse()) => {}
            }
        }
        std::future::pending().await
    }

    /// Waits until nothing of this path can have an effect any more, if that is awaited.
    async fn until_fenced(&self, awaited: bool) {
        match awaited {
            true => self.controller.away_and_fenced().await,
            false => std::future::pending().await,
        }
    }

    /// Whether no call is held any more that another path might take.
    fn leave_to_others(&self) -> bool {
        let Some(other) = self.other_path.borrow().clone() else { return true };
        let going = match self.controller.is_away_and_fenced() {
            true => self.held.take().into(),
            false => take_where(&mut self.held.borrow_mut(), |call| !call.changes()),
        };
        let left = if going.is_empty() { going } else { other.take_over(going) };
        let mut held = self.held.borrow_mut();
        held.extend(left);
        held.make_contiguous().sort_by_key(|waiting| waiting.call.seq);
        held.is_empty() || !other.may_return()
    }

    /// Everything fails, now and later, but for what another path can do.
    async fn fail(&self, reason: IoError) {
        *self.failed.borrow_mut() = Some(reason.clone());
        while !matches!(reason, IoError::Reserved) && !self.leave_to_others() {
            sleep(LEAVE_AGAIN).await;
        }
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for waiting in held {
            waiting.call.finish(Err(reason.clone()));
        }
    }
}
