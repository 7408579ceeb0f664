//! Waiting without the interpreter's lock.

use crate::error;
use longhaul_device::{Error, ErrorKind};
use pyo3::prelude::*;
use std::cell::Cell;
use std::process;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often a call that waits looks for signals.
const ASKED: Duration = Duration::from_millis(100);

thread_local! {
    /// What a handler of a signal raised in a call of this thread, such as `KeyboardInterrupt`.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs the handlers of signals that have arrived; whether one of them raised an exception. The interpreter that
/// ends has none.
pub(crate) fn interrupted() -> bool {
    match Python::try_attach(|py| py.check_signals()) {
        None | Some(Ok(())) => false,
        Some(Err(e)) => {
            RAISED.set(Some(e));
            true
        }
    }
}

/// Drops `value` without the interpreter's lock, which what ends with it may need.
pub(crate) fn drop_detached<T: Send>(value: T) {
    // An interpreter that ends calls nothing: the value is dropped all the same.
    let _ = Python::try_attach(|py| py.detach(|| drop(value)));
}

/// The exception of a handler that ended a call of this thread.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Runs `work` on a thread of its own and waits for it without the interpreter's lock. When a signal
/// interrupts the wait `cancel` is called, and `work` ends by itself.
pub(crate) fn patiently<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    cancel: impl FnOnce() + Send,
) -> PyResult<T> {
    let (tell, told) = channel();
    let thread = std::thread::Builder::new().name("longhaul-python".into());
    thread.spawn(move || drop(tell.send(work())))?;
    let waited = py.detach(move || {
        loop {
            match told.recv_timeout(ASKED) {
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if interrupted() => {
                    cancel();
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    });
    waited.ok_or_else(|| {
        let panicked =
            || error::of_device(py, &Error::new(ErrorKind::Failed, "a thread of longhaul panicked"));
        raised().unwrap_or_else(panicked)
    })
}

/// What has threads, and so is of the process that made it. A process that was forked has a copy without the
/// threads: it must neither use it nor end it, since it would wait for them.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    /// There until it is taken.
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> OfProcess<T> {
        OfProcess { value: Some(value), process: process::id() }
    }

    /// The value.
    ///
    /// # Errors
    /// This process is a child of the one that made it.
    pub(crate) fn get(&self) -> Result<&T, Error> {
        match &self.value {
            Some(value) if self.process == process::id() => Ok(value),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                "it was opened before this process was forked: open it again in each process",
            )),
        }
    }

    /// The value, to end it; `None` in a child.
    pub(crate) fn take(mut self) -> Option<T> {
        if self.process == process::id() { self.value.take() } else { None }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
