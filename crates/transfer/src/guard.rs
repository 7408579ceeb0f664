//! What becomes of a session when a thread of it panics.

use crate::source::SessionError;
use std::sync::atomic::{AtomicBool, Ordering};

/// Does something if the thread panics while this lives: nobody who waits for the thread
/// would ever hear of it.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// Whether a thread of a session has panicked: what it had is in no queue any more, and
/// may be neither sent nor written.
#[derive(Debug, Default)]
pub(crate) struct Panicked(AtomicBool);

impl Panicked {
    /// One has.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Fails if one has.
    pub(crate) fn check(&self) -> Result<(), SessionError> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(SessionError::Local("internal error (a panic, reported above)".into())),
            false => Ok(()),
        }
    }
}
