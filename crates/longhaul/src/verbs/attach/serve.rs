//! Serving an attached device until a signal, a detach request or its last user ends it.

mod front_end;

use crate::events::{DeviceResized, Waiting};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
pub(crate) use front_end::FrontEnd;
use longhaul_attach::{AttachError, Requests, users};
use longhaul_device::attached::{Attachment, DetachRequest, DetachServer, HeldRecord};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Interval at which size and faults of the device are checked.
const POLL: Duration = Duration::from_secs(1);
/// Signals to end that are handled as events: the first detaches when the device is idle, the
/// second at once. Both flush, and so may wait for the device; a further one kills the process.
const SIGNALS_MAX: usize = 2;

/// An event in the life of an attachment.
pub(crate) enum Event {
    Signal(i32),
    Detach(DetachRequest),
    /// The front end has ended: the file cannot be opened any more, and has no users.
    Ended,
}

/// The event queue of this process, with signals from now on. A third signal to end is not queued:
/// it exits at once, even if a flush waits for the device.
pub(crate) fn events() -> Result<(Sender<Event>, Receiver<Event>), Failure> {
    let (sender, events) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    let signal_sender = sender.clone();
    std::thread::Builder::new()
        .name("longhaul-sig".into())
        .spawn(move || {
            let mut received = 0;
            for signal in signals.forever() {
                received += usize::from(signal != SIGHUP);
                if received > SIGNALS_MAX {
                    crate::output::say(
                        "ended by a third signal: writes that were not flushed are lost, as in a power cut",
                    );
                    std::process::exit(Exit::Partly as i32);
                }
                if signal_sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
        .map_err(Failure::failed)?;
    Ok((sender, events))
}

/// Starts to listen for requests to detach the attachment at `path`.
pub(crate) fn listen(path: &Path, sender: &Sender<Event>) -> Result<DetachServer, Failure> {
    let sender = sender.clone();
    let server = DetachServer::start(path, move |request| {
        // Without a receiver the request is dropped, which closes its connection.
        let _ = sender.send(Event::Detach(request));
    });
    Ok(server?)
}

/// Replies to a request to detach.
pub(super) fn answer(request: DetachRequest, result: &Outcome) {
    request.answer(result.as_ref().copied().map_err(Failure::to_reply));
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

/// A served attachment: its front end, its device and its record.
pub(crate) struct Service<'a> {
    pub(crate) front_end: Box<dyn FrontEnd>,
    /// The path of the attachment, as in its record and messages.
    pub(crate) path: &'a Path,
    pub(crate) requests: &'a dyn Requests,
    /// The present fault of the devices, as [`super::open::OpenDevice::trouble`] returns it.
    pub(crate) trouble: Box<dyn Fn() -> Option<String> + 'a>,
    /// Unmounts the file system that this process mounted, lazily if the argument is set; does
    /// nothing for an attached device.
    pub(crate) release: Box<dyn FnMut(bool) -> Result<(), Failure> + 'a>,
    /// Whether another process, such as `umount`, has unmounted that file system.
    pub(crate) released: Box<dyn Fn() -> bool + 'a>,
    /// The record that other processes read.
    pub(crate) record: Attachment,
    pub(crate) held: &'a mut HeldRecord,
    pub(crate) output: Output,
}

impl Service<'_> {
    /// Serves until the end. A detach request that caused it is left in `by`, for the caller to
    /// answer once locks and record are released.
    pub(crate) fn run(mut self, events: &Receiver<Event>, by: &mut Option<DetachRequest>) -> Outcome {
        let mut ending = false;
        loop {
            match events.recv_timeout(POLL) {
                Err(RecvTimeoutError::Timeout) => {
                    self.update_record();
                    if let Some(result) = self.detach_if_idle(ending) {
                        return result;
                    }
                }
                // Sent by a front end that was started and then passed over.
                Ok(Event::Ended) if !self.front_end.ends_by_itself() => {}
                // A closed terminal does not detach the device.
                Ok(Event::Signal(SIGHUP)) => {}
                Err(RecvTimeoutError::Disconnected) | Ok(Event::Ended) => {
                    return Ok(self.front_end.finish()?);
                }
                Ok(Event::Signal(_)) if ending => {
                    // Dropping the front end fails all later I/O; acknowledged writes are made
                    // durable first.
                    let why = format!("{}: ended while it was in use", self.path.display());
                    self.front_end.flush()?;
                    return Err(Failure::new(Exit::Partly, why));
                }
                Ok(Event::Signal(_)) => {
                    ending = true;
                    if self.stop()? {
                        return Ok(());
                    }
                }
                Ok(Event::Detach(request)) if request.lazily => {
                    // This process keeps the unflushed writes, and ends when they are durable
                    // or lost.
                    ending = true;
                    answer(request, &self.hide());
                }
                Ok(Event::Detach(request)) => {
                    if let Some(why) = (self.trouble)().filter(|why| super::is_waited_for(why)) {
                        answer(request, &Err(super::unreachable_device(self.path, &why)));
                        continue;
                    }
                    let result = self.end();
                    // After an error that left the device attached, its users keep it.
                    if result.is_ok() || self.front_end.has_ended() {
                        *by = Some(request);
                        return result;
                    }
                    answer(request, &result);
                }
            }
        }
    }

    /// Unmounts and detaches; refused while a process uses the device.
    fn end(&mut self) -> Outcome {
        (self.release)(false)?;
        self.front_end.detach().map_err(|e| match e {
            // The path of the attachment, not that of a hidden file below a mount.
            AttachError::Busy { by, .. } => AttachError::Busy { path: self.path.to_owned(), by }.into(),
            e => e.into(),
        })
    }

    /// Ends if no process uses the device; else removes its path, and its users keep it. Returns
    /// whether it has ended.
    fn stop(&mut self) -> Result<bool, Failure> {
        match self.end() {
            Ok(()) => Ok(true),
            Err(failure) if self.front_end.has_ended() => Err(failure),
            Err(failure) => {
                let by = users::of(self.path);
                self.output.event(&Waiting { users: by });
                self.output.note(format_args!(
                    "{}; waiting for them: another signal ends it at once",
                    failure.message
                ));
                if let Err(failure) = self.hide() {
                    self.output.note(format_args!("its path cannot be removed: {}", failure.message));
                }
                Ok(false)
            }
        }
    }

    /// Removes the path; open descriptors and lazily unmounted file systems stay usable.
    fn hide(&mut self) -> Outcome {
        (self.release)(true)?;
        Ok(self.front_end.hide()?)
    }

    /// Detaches a front end that does not report its last user, once it is `ending` or unmounted
    /// and no process uses it; `None` while it is in use.
    fn detach_if_idle(&mut self, ending: bool) -> Option<Outcome> {
        if self.front_end.ends_by_itself() || !(ending || (self.released)()) {
            return None;
        }
        match self.front_end.detach() {
            Err(AttachError::Busy { .. }) => None,
            other => Some(other.map_err(Failure::from)),
        }
    }

    /// Updates size and fault of the device in the record, and reports a changed size.
    fn update_record(&mut self) {
        let trouble = (self.trouble)();
        if trouble != self.record.trouble {
            self.record.trouble = trouble;
            self.write_record();
        }
        let (before, now) = (self.record.size, self.requests.info().size);
        if now == before {
            return;
        }
        let path = self.path.display();
        if now < before {
            tracing::error!(
                "{path}: the device has shrunk from {before} to {now} bytes: I/O beyond its end fails; unmount its \
                 file system, restore the size of the device, and check the file system"
            );
        }
        self.output.event(&DeviceResized { size: now });
        self.output.note(format_args!("{path}: {now} bytes now, {before} before"));
        self.record.size = now;
        self.write_record();
    }

    fn write_record(&mut self) {
        if let Err(e) = self.held.write(&self.record) {
            tracing::warn!("{}: {e}", self.path.display());
        }
    }
}
