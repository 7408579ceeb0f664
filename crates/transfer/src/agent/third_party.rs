//! Third-party copies: the data goes from one agent to another, and the machine that
//! requested the copy receives progress and failures only.
//!
//! Invariants:
//! - an agent connects to another only if it was started with `--onward`, or over ssh for
//!   this copy;
//! - the copy ends when its requester disconnects.

use crate::copy::CopyError;
use crate::copy::task::CopyTask;
use crate::link::{Link, Tx};
use crate::monitor::{Monitor, Note};
use crate::send::spec::SendSpec;
use crate::session::error::SessionError;
use crate::session::{ReceiverMessage, Sender};
use crate::wire::{Counts, Frame, Refusal, RefusalKind};
use futures_util::future::{Either, join, select};
use longhaul_engine::sync::Notify;
use longhaul_engine::timeout;
use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

/// Interval of progress reports to the requester.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Follows the progress of a copy that an agent carries out, until it is complete.
///
/// # Errors
/// The copy failed, or the agent disconnected.
pub(crate) async fn follow(mut link: Link, monitor: &Monitor) -> Result<Counts, SessionError> {
    // The agent sends the frames of a receiver.
    let mut sender = Sender::<()>::new(0);
    while let Some(frame) = link.rx.frame().await? {
        match sender.handle(frame)? {
            ReceiverMessage::Trouble(trouble) => monitor.trouble(trouble),
            ReceiverMessage::Planned(planned) => monitor.planned(planned),
            ReceiverMessage::Tuned(tuned) => monitor.tuned(tuned, true),
            ReceiverMessage::Limit(stage) => monitor.set_peer_limit(stage),
            ReceiverMessage::Progress(counts) => monitor.set_counts(counts),
            ReceiverMessage::Scanned(scanned) => monitor.scan.set(scanned),
            ReceiverMessage::Finished(counts) => {
                monitor.set_counts(counts);
                return Ok(counts);
            }
            ReceiverMessage::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ReceiverMessage::Wanted(_) => {}
        }
    }
    Err(SessionError::Lost)
}

/// Copies to another agent, and reports progress to the requester at the other end of
/// `link`.
///
/// # Errors
/// The copy failed (which is reported to the requester), or the requester disconnected.
pub(crate) async fn carry_out(
    link: &mut Link,
    job: &CopyTask,
    spec: SendSpec,
    server: (String, u16),
) -> Result<Counts, SessionError> {
    let Link { tx, rx } = link;
    let (ended, end) = (Cell::new(false), Notify::new());
    let work = async {
        let push = async {
            let copied = job.send(spec, server).await;
            ended.set(true);
            end.notify();
            copied
        };
        // A report that is being sent is completed before the final frames.
        join(push, report(tx, &job.monitor, &ended, &end)).await
    };
    let copied = match select(pin!(work), pin!(rx.frame())).await {
        Either::Left(((copied, reported), _)) => reported.map(|()| copied)?,
        Either::Right((Err(e), _)) => return Err(e.into()),
        // The requester sends nothing more: any frame or end is a disconnect.
        Either::Right((Ok(_), _)) => return Err(SessionError::Lost),
    };
    let mut frames = news(&job.monitor);
    let result = match copied {
        Ok(summary) => {
            frames.push(Frame::Finished(summary.counts));
            Ok(summary.counts)
        }
        Err(e) => {
            frames.push(Frame::Refuse(refusal(&e)));
            Err(SessionError::Local(e.to_string()))
        }
    };
    link.tx.send(frames).await?;
    result
}

/// Sends progress reports until the copy has ended.
async fn report(
    tx: &mut Tx,
    monitor: &Monitor,
    ended: &Cell<bool>,
    end: &Notify,
) -> Result<(), SessionError> {
    loop {
        // Wakes up for the next report or at the end of the copy.
        let _ = timeout(PROGRESS_INTERVAL, end.notified()).await;
        if ended.get() {
            return Ok(());
        }
        let mut frames = news(monitor);
        let now = monitor.now();
        let scanned = Frame::Scanned(monitor.scan.now());
        frames.extend([Frame::Limit(now.limit), scanned, Frame::Progress(now.counts)]);
        tx.send(frames).await?;
    }
}

/// Frames for everything that was not reported yet.
fn news(monitor: &Monitor) -> Vec<Frame> {
    let mut frames: Vec<Frame> = monitor.take_troubles().into_iter().map(Frame::Trouble).collect();
    frames.extend(monitor.take_planned().into_iter().map(Frame::Planned));
    frames.extend(monitor.take_notes().into_iter().filter_map(|note| match note {
        Note::Tuned { tuned, .. } => Some(Frame::Tuned(tuned)),
        Note::Words(_) => None,
    }));
    frames
}

fn refusal(e: &CopyError) -> Refusal {
    let kind = match e {
        CopyError::Refused(refusal) | CopyError::Session(SessionError::Refused(refusal)) => refusal.kind,
        CopyError::Unreachable { .. } | CopyError::Session(SessionError::Link(_) | SessionError::Lost) => {
            RefusalKind::Unreachable
        }
        CopyError::TimedOut { .. } | CopyError::Session(SessionError::Silent(_)) => RefusalKind::TimedOut,
        _ => RefusalKind::Failed,
    };
    Refusal::new(kind, format_args!("the sending agent reports: {e}{}", e.hint()))
}
