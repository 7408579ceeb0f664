//! Serving an attached device until a signal, a detach request or its last user ends it.

use crate::detach::{is_waited_for, unreachable_device};
use crate::error::AttachError;
use crate::front_end::FrontEnd;
use crate::users;
use longhaul_device::attached::{Attachment, DetachRequest, DetachServer, HeldRecord};
use longhaul_device::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Interval at which size and faults of the device are checked.
const POLL: Duration = Duration::from_secs(1);

/// An event in the life of an attachment.
#[derive(Debug)]
pub enum ServiceEvent {
    /// The process is to end: the first time once the device is idle, the second time at once. Both
    /// flush, and so may wait for the device.
    Stop,
    /// Another process asks to detach.
    Detach(DetachRequest),
    /// The front end has ended: the file cannot be opened any more, and has no users.
    Ended,
}

/// Starts to listen for requests to detach the attachment at `path`.
///
/// # Errors
/// The control socket cannot be made.
pub fn listen(path: &Path, sender: &Sender<ServiceEvent>) -> Result<DetachServer> {
    let sender = sender.clone();
    DetachServer::start(path, move |request| {
        // Without a receiver the request is dropped, which closes its connection.
        let _ = sender.send(ServiceEvent::Detach(request));
    })
}

/// Hears of what happens to an attachment, to report it.
pub trait ServiceObserver {
    /// The device at `path` has another size, in bytes.
    fn resized(&self, path: &Path, before: u64, now: u64);

    /// The end waits for these users; `why` is the error of the attempt to detach.
    fn waiting(&self, users: Vec<String>, why: &Error);

    /// The path cannot be removed meanwhile.
    fn visible(&self, why: &Error);
}

/// A served attachment: its front end, its device and its record.
pub struct Service<'a> {
    /// The front end.
    pub front_end: Box<dyn FrontEnd>,
    /// The path of the attachment, as in its record and messages.
    pub path: &'a Path,
    /// The size of the device in bytes; 0 if a directory is served.
    pub size: Box<dyn Fn() -> u64 + 'a>,
    /// The present fault of the devices, as [`OpenDevice::trouble`](crate::OpenDevice::trouble) returns it.
    pub trouble: Box<dyn Fn() -> Option<String> + 'a>,
    /// Unmounts the file system that this process mounted, lazily if the argument is set; does
    /// nothing for an attached device.
    pub release: Box<dyn FnMut(bool) -> Result<()> + 'a>,
    /// Whether another process, such as `umount`, has unmounted that file system.
    pub released: Box<dyn Fn() -> bool + 'a>,
    /// The record that other processes read.
    pub record: Attachment,
    /// Its lock.
    pub held: &'a mut HeldRecord,
    /// Hears of what happens.
    pub observer: &'a dyn ServiceObserver,
}

/// What a front end shows of the size of its device.
struct ShownSize {
    size: u64,
    /// A size that it does not take, which has been logged.
    refused: Option<u64>,
}

impl Service<'_> {
    /// Serves until the end. A detach request that caused it is left in `by`, for the caller to
    /// answer once locks and record are released.
    ///
    /// # Errors
    /// Of the device or the front end, or [`ErrorKind::Incomplete`] if it ended in use.
    pub fn run(mut self, events: &Receiver<ServiceEvent>, by: &mut Option<DetachRequest>) -> Result<()> {
        let mut ending = false;
        let mut shown = ShownSize { size: self.record.size, refused: None };
        loop {
            match events.recv_timeout(POLL) {
                Err(RecvTimeoutError::Timeout) => {
                    self.update_record();
                    self.show_size(&mut shown);
                    if let Some(result) = self.detach_if_idle(ending) {
                        return result;
                    }
                }
                // Sent by a front end that was started and then passed over.
                Ok(ServiceEvent::Ended) if !self.front_end.ends_by_itself() => {}
                Err(RecvTimeoutError::Disconnected) | Ok(ServiceEvent::Ended) => {
                    return Ok(self.front_end.finish()?);
                }
                Ok(ServiceEvent::Stop) if ending => {
                    // Dropping the front end fails all later I/O; acknowledged writes are made
                    // durable first.
                    let why = format!("{}: ended while it was in use", self.path.display());
                    self.front_end.flush()?;
                    return Err(Error::new(ErrorKind::Incomplete, why));
                }
                Ok(ServiceEvent::Stop) => {
                    ending = true;
                    if self.stop()? {
                        return Ok(());
                    }
                }
                Ok(ServiceEvent::Detach(request)) if request.lazily => {
                    // This process keeps the unflushed writes, and ends when they are durable
                    // or lost.
                    ending = true;
                    request.answer(self.hide());
                }
                Ok(ServiceEvent::Detach(request)) => {
                    if let Some(why) = (self.trouble)().filter(|why| is_waited_for(why)) {
                        request.answer(Err(unreachable_device(self.path, &why)));
                        continue;
                    }
                    let result = self.end();
                    // After an error that left the device attached, its users keep it.
                    if result.is_ok() || self.front_end.has_ended() {
                        *by = Some(request);
                        return result;
                    }
                    request.answer(result);
                }
            }
        }
    }

    /// Unmounts and detaches; refused while a process uses the device.
    fn end(&mut self) -> Result<()> {
        (self.release)(false)?;
        self.front_end.detach().map_err(|e| match e {
            // The path of the attachment, not that of a hidden file below a mount.
            AttachError::Busy { by, .. } => AttachError::Busy { path: self.path.to_owned(), by }.into(),
            e => e.into(),
        })
    }

    /// Ends if no process uses the device; else removes its path, and its users keep it. Returns
    /// whether it has ended.
    fn stop(&mut self) -> Result<bool> {
        match self.end() {
            Ok(()) => Ok(true),
            Err(failure) if self.front_end.has_ended() => Err(failure),
            Err(failure) => {
                self.observer.waiting(users::of(self.path), &failure);
                if let Err(e) = self.hide() {
                    self.observer.visible(&e);
                }
                Ok(false)
            }
        }
    }

    /// Removes the path; open descriptors and lazily unmounted file systems stay usable.
    fn hide(&mut self) -> Result<()> {
        (self.release)(true)?;
        Ok(self.front_end.hide()?)
    }

    /// Detaches a front end that does not report its last user, once it is `ending` or unmounted
    /// and no process uses it; `None` while it is in use.
    fn detach_if_idle(&mut self, ending: bool) -> Option<Result<()>> {
        if self.front_end.ends_by_itself() || !(ending || (self.released)()) {
            return None;
        }
        match self.front_end.detach() {
            Err(AttachError::Busy { .. }) => None,
            other => Some(other.map_err(Error::from)),
        }
    }

    /// Updates size and fault of the device in the record, and reports a changed size.
    fn update_record(&mut self) {
        let trouble = (self.trouble)();
        if trouble != self.record.trouble {
            self.record.trouble = trouble;
            self.write_record();
        }
        let (before, now) = (self.record.size, (self.size)());
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
        self.observer.resized(self.path, before, now);
        self.record.size = now;
        self.write_record();
    }

    /// Has the front end show the size that the device has, which is tried again until it does.
    fn show_size(&mut self, shown: &mut ShownSize) {
        let now = self.record.size;
        if now == shown.size {
            return;
        }
        match self.front_end.resize(now) {
            Ok(()) => *shown = ShownSize { size: now, refused: None },
            Err(e) if shown.refused != Some(now) => {
                shown.refused = Some(now);
                tracing::warn!("{}: its users do not see its new size: {e}", self.path.display());
            }
            Err(_) => {}
        }
    }

    fn write_record(&mut self) {
        if let Err(e) = self.held.write(&self.record) {
            tracing::warn!("{}: {e}", self.path.display());
        }
    }
}
