//! Panics of threads: the session ends, and locks that the thread held stay usable.

use crate::session::error::SessionError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic of a thread that held it: the session ends then, and
/// its other threads still release what they have.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a function if the thread panics while this value lives; the session would
/// otherwise wait forever for that thread.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// Whether a thread of a session has panicked. The items that it held are lost, so the
/// session cannot succeed.
#[derive(Debug, Default)]
pub(crate) struct Panicked(AtomicBool);

impl Panicked {
    /// Records a panic.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns an error if a thread has panicked.
    pub(crate) fn check(&self) -> Result<(), SessionError> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(SessionError::Local("internal error (a panic, reported above)".into())),
            false => Ok(()),
        }
    }
}
