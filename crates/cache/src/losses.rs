//! Acknowledged writes that failed, and which handles have had their errors.

use longhaul_block::{IoError, IoResult};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of acknowledged writes of a device that failed.
#[derive(Clone, Debug, Default)]
pub struct Losses(Arc<AtomicU64>);

impl Losses {
    /// A new handle: it gets the errors of later losses.
    pub fn handle(&self) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(self.0.load(Relaxed)))
    }
}

/// Number of losses whose error one handle has got.
#[derive(Debug)]
pub struct ErrorCursor(AtomicU64);

/// Losses and the error of the last one, on the thread that writes.
pub(crate) struct LossLog {
    losses: Losses,
    last: RefCell<Option<IoError>>,
}

impl LossLog {
    pub(crate) fn new(losses: Losses) -> LossLog {
        LossLog { losses, last: RefCell::new(None) }
    }

    /// Another write is lost.
    pub(crate) fn add(&self, error: IoError) {
        self.losses.0.fetch_add(1, Relaxed);
        *self.last.borrow_mut() = Some(error);
    }

    /// The error of the losses that this handle has not got yet, which it still gets by [`new_loss`](Self::new_loss).
    pub(crate) fn unseen_loss(&self, cursor: &ErrorCursor) -> IoResult<()> {
        if cursor.0.load(Relaxed) == self.losses.0.load(Relaxed) {
            return Ok(());
        }
        Err(self.error())
    }

    /// The error of the losses that this handle has not got yet.
    pub(crate) fn new_loss(&self, cursor: &ErrorCursor) -> IoResult<()> {
        let lost = self.losses.0.load(Relaxed);
        if cursor.0.swap(lost, Relaxed) == lost {
            return Ok(());
        }
        Err(self.error())
    }

    fn error(&self) -> IoError {
        self.last.borrow().clone().unwrap_or(IoError::Aborted)
    }
}
