//! Serving an attached device until its end, whoever brings it about.

mod local;

use crate::attached::{Attachment, DetachRequest, DetachServer, HeldRecord};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
pub(crate) use local::Attached;
use longhaul_attach::{AttachError, Requests, users};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often the size is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Signals to end that are taken as such: the first one asks, the second one
/// insists. What they bring about may have to wait for the device.
const SIGNALS: usize = 2;

/// What happens to an attachment.
pub(crate) enum Event {
    Signal(i32),
    Detach(DetachRequest),
    /// Nobody can reach the file any more.
    Ended,
}

/// Events of this process: signals from now on, and what others send. A third
/// signal to end is no event: it ends the process, whatever that waits for.
pub(crate) fn events() -> Result<(Sender<Event>, Receiver<Event>), Failure> {
    let (tell, events) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    let signalled = tell.clone();
    std::thread::Builder::new()
        .name("longhaul-sig".into())
        .spawn(move || {
            let mut told = 0;
            for signal in signals.forever() {
                told += usize::from(signal != SIGHUP);
                if told > SIGNALS {
                    crate::output::say(
                        "ended by a third signal: what was not durable is lost, as in a power cut",
                    );
                    std::process::exit(Exit::Partly as i32);
                }
                if signalled.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
        .map_err(Failure::failed)?;
    Ok((tell, events))
}

/// Starts to listen for requests to detach what is at `path`.
pub(crate) fn listen(path: &Path, tell: &Sender<Event>) -> Result<DetachServer, Failure> {
    let tell = tell.clone();
    DetachServer::start(path, move |asked| {
        // If nobody takes it, it is dropped, and whoever asked sees that.
        let _ = tell.send(Event::Detach(asked));
    })
}

impl From<AttachError> for Failure {
    fn from(e: AttachError) -> Failure {
        match e {
            AttachError::Device(e) => e.into(),
            AttachError::Path { .. } => Failure::usage(e),
            AttachError::Busy { .. } => Failure::new(Exit::Refused, e),
            e => Failure::failed(e),
        }
    }
}

/// What is served, and what of it can be taken away.
pub(crate) struct Service<'a> {
    pub(crate) file: Box<dyn Attached>,
    /// Where people see it.
    pub(crate) path: &'a Path,
    pub(crate) requests: &'a dyn Requests,
    /// What is wrong with the devices now.
    pub(crate) trouble: Box<dyn Fn() -> Option<String> + 'a>,
    /// Ends the use that this process began itself (a mount), or lazily takes
    /// it out of sight.
    pub(crate) release: Box<dyn FnMut(bool) -> Result<(), Failure> + 'a>,
    /// Whether somebody else has ended that use.
    pub(crate) released: Box<dyn Fn() -> bool + 'a>,
    /// What others are told of it.
    pub(crate) record: Attachment,
    pub(crate) held: &'a mut HeldRecord,
    pub(crate) output: Output,
}

impl Service<'_> {
    /// Serves until the end. Who asked for it, if somebody did, is left in
    /// `by`: to be answered when all that is held has been given back.
    pub(crate) fn run(mut self, events: &Receiver<Event>, by: &mut Option<DetachRequest>) -> Outcome {
        let mut told = false;
        loop {
            match events.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                    if let Some(result) = self.look_for_the_end(told) {
                        return result;
                    }
                }
                // Of a way that was given up for another one.
                Ok(Event::Ended) if !self.file.ends_by_itself() => {}
                // A terminal that goes away takes nobody's device along.
                Ok(Event::Signal(SIGHUP)) => {}
                Err(RecvTimeoutError::Disconnected) | Ok(Event::Ended) => return Ok(self.file.finish()?),
                Ok(Event::Signal(_)) if told => {
                    // Dropping the file cuts its users off; what they were
                    // told is written is made durable first.
                    let why = format!("{}: ended while it was in use", self.path.display());
                    self.file.flush()?;
                    return Err(Failure::new(Exit::Partly, why));
                }
                Ok(Event::Signal(_)) => {
                    told = true;
                    if self.stop()? {
                        return Ok(());
                    }
                }
                Ok(Event::Detach(asked)) if asked.lazily => {
                    // What was written and is not durable stays with this process, which
                    // ends when that is done or lost.
                    told = true;
                    asked.answer(&self.hide());
                }
                Ok(Event::Detach(asked)) => {
                    if let Some(why) = (self.trouble)().filter(|why| super::is_waited_for(why)) {
                        asked.answer(&Err(super::waits(self.path, &why)));
                        continue;
                    }
                    let result = self.end();
                    // Whatever went wrong, who still uses it keeps it.
                    if result.is_ok() || self.file.has_ended() {
                        *by = Some(asked);
                        return result;
                    }
                    asked.answer(&result);
                }
            }
        }
    }

    /// Ends it, if nobody uses it.
    fn end(&mut self) -> Outcome {
        (self.release)(false)?;
        self.file.detach().map_err(|e| match e {
            // Where people know it to be.
            AttachError::Busy { by, .. } => AttachError::Busy { path: self.path.to_owned(), by }.into(),
            e => e.into(),
        })
    }

    /// Ends if nobody uses it; else it goes out of sight, and its users keep
    /// it. Whether it has ended.
    fn stop(&mut self) -> Result<bool, Failure> {
        match self.end() {
            Ok(()) => Ok(true),
            Err(failure) if self.file.has_ended() => Err(failure),
            Err(failure) => {
                let by = users::of(self.path);
                self.output.event("waiting", json!({ "users": by }));
                self.output.note(format_args!(
                    "{}; waiting for them: another signal ends it at once",
                    failure.message
                ));
                if let Err(failure) = self.hide() {
                    self.output.note(format_args!("it stays in sight: {}", failure.message));
                }
                Ok(false)
            }
        }
    }

    /// Takes it out of sight; its users keep it.
    fn hide(&mut self) -> Outcome {
        (self.release)(true)?;
        Ok(self.file.hide()?)
    }

    /// Ends what does not end by itself, once nobody is to use it any more
    /// and nobody does.
    fn look_for_the_end(&mut self, told: bool) -> Option<Outcome> {
        if self.file.ends_by_itself() || !(told || (self.released)()) {
            return None;
        }
        match self.file.detach() {
            Err(AttachError::Busy { .. }) => None,
            other => Some(other.map_err(Failure::from)),
        }
    }

    /// Tells of a size that has changed, and keeps what is wrong with the devices where
    /// others find it.
    fn look(&mut self) {
        let trouble = (self.trouble)();
        if trouble != self.record.trouble {
            self.record.trouble = trouble;
            self.keep();
        }
        let (before, now) = (self.record.size, self.requests.info().size);
        if now == before {
            return;
        }
        let path = self.path.display();
        if now < before {
            tracing::error!(
                "{path}: the device has shrunk from {before} to {now} bytes: I/O behind that fails; unmount what is \
                 on it, give the device its size back, and check the file system"
            );
        }
        self.output.event("resized", json!({ "size": now }));
        self.output.note(format_args!("{path}: {now} bytes now, {before} before"));
        self.record.size = now;
        self.keep();
    }

    /// Writes what has changed of the record.
    fn keep(&mut self) {
        if let Err(failure) = self.held.write(&self.record) {
            tracing::warn!("{}: {}", self.path.display(), failure.message);
        }
    }
}
