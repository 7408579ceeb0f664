//! Signals and reports of a process that serves an attachment.

use crate::events::{DeviceResized, Waiting};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use longhaul_attach::{AttachError, ServiceEvent, ServiceObserver};
use longhaul_device::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Signals to end that are handled as events: the first detaches when the device is idle, the
/// second at once. Both flush, and so may wait for the device; a further one kills the process.
const SIGNALS_MAX: usize = 2;

/// The event queue of this process, with signals from now on. A third signal to end is not queued:
/// it exits at once, even if a flush waits for the device.
pub(super) fn events() -> Result<(Sender<ServiceEvent>, Receiver<ServiceEvent>), Failure> {
    let (sender, events) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    let signal_sender = sender.clone();
    std::thread::Builder::new()
        .name("longhaul-sig".into())
        .spawn(move || {
            let mut received = 0;
            // A closed terminal does not detach the device.
            for _ in signals.forever().filter(|signal| *signal != SIGHUP) {
                received += 1;
                if received > SIGNALS_MAX {
                    crate::output::say(
                        "ended by a third signal: writes that were not flushed are lost, as in a power cut",
                    );
                    std::process::exit(Exit::Partly as i32);
                }
                if signal_sender.send(ServiceEvent::Stop).is_err() {
                    return;
                }
            }
        })
        .map_err(Failure::failed)?;
    Ok((sender, events))
}

impl ServiceObserver for Output {
    fn resized(&self, path: &Path, before: u64, now: u64) {
        self.event(&DeviceResized { size: now });
        self.note(format_args!("{}: {now} bytes now, {before} before", path.display()));
    }

    fn waiting(&self, users: Vec<String>, why: &Error) {
        self.event(&Waiting { users });
        self.note(format_args!("{why}; waiting for them: another signal ends it at once"));
    }

    fn visible(&self, why: &Error) {
        self.note(format_args!("its path cannot be removed: {why}"));
    }
}

impl From<AttachError> for Failure {
    fn from(e: AttachError) -> Failure {
        Error::from(e).into()
    }
}
