//! Copies between two other machines: the data goes from one agent to the other,
//! and only what people want to know comes here.
//!
//! Invariants:
//! - an agent connects elsewhere only if it was started to, or by who asks;
//! - the copy ends when who asked for it has gone.

use crate::copy::CopyError;
use crate::job::Job;
use crate::link::{Link, Tx};
use crate::monitor::{Monitor, Note};
use crate::session::{Heard, Sender};
use crate::source::{Plan, SessionError};
use crate::wire::{Counts, Frame, Refusal, RefusalKind};
use futures_util::future::{Either, join, select};
use longhaul_engine::sync::Notify;
use longhaul_engine::timeout;
use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

/// How often who asked is told how far it is.
const TELL: Duration = Duration::from_millis(100);

/// Hears what an agent says of a copy that it was asked for, until all is done.
///
/// # Errors
/// The copy failed, or the agent has gone.
pub(crate) async fn hear(mut link: Link, monitor: &Monitor) -> Result<Counts, SessionError> {
    // The agent speaks as a receiving side does.
    let mut sender = Sender::<()>::new(0);
    while let Some(frame) = link.rx.frame().await? {
        match sender.handle(frame)? {
            Heard::Trouble(trouble) => monitor.trouble(trouble),
            Heard::Planned(planned) => monitor.planned(planned),
            Heard::Tuned(tuned) => monitor.tuned(tuned, true),
            Heard::Limit(stage) => monitor.limit_there(stage),
            Heard::Progress(counts) => monitor.set_counts(counts),
            Heard::Scanned(scanned) => monitor.scanned(scanned),
            Heard::Finished(counts) => {
                monitor.set_counts(counts);
                return Ok(counts);
            }
            Heard::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            Heard::Wanted(_) => {}
        }
    }
    Err(SessionError::Lost)
}

/// Copies to another agent for whoever is at the other end of `link`, and tells
/// how it goes.
///
/// # Errors
/// The copy failed, which the other end is told, or that has gone.
pub(crate) async fn carry_out(
    link: &mut Link,
    job: &Job,
    plan: Plan,
    server: (String, u16),
) -> Result<Counts, SessionError> {
    let Link { tx, rx } = link;
    let (ended, end) = (Cell::new(false), Notify::new());
    let work = async {
        let push = async {
            let copied = job.send(plan, server).await;
            ended.set(true);
            end.notify();
            copied
        };
        // What is being sent is sent to its end, before the last word.
        join(push, tell(tx, &job.monitor, &ended, &end)).await
    };
    let copied = match select(pin!(work), pin!(rx.frame())).await {
        Either::Left(((copied, told), _)) => told.map(|()| copied)?,
        Either::Right((Err(e), _)) => return Err(e.into()),
        // Nothing is to come from there but the end.
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

/// Says how it goes until the copy has ended.
async fn tell(tx: &mut Tx, monitor: &Monitor, ended: &Cell<bool>, end: &Notify) -> Result<(), SessionError> {
    loop {
        // Whether it is time or the end, there is something to say or not.
        let _ = timeout(TELL, end.notified()).await;
        if ended.get() {
            return Ok(());
        }
        let mut frames = news(monitor);
        let now = monitor.now();
        let scanned = Frame::Scanned(monitor.what_is_scanned());
        frames.extend([Frame::Limit(now.limit), scanned, Frame::Progress(now.counts)]);
        tx.send(frames).await?;
    }
}

/// What has not been told yet.
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
    Refusal::new(kind, format_args!("from there: {e}{}", e.hint()))
}
