//! Acknowledged writes that failed, and which handles have had their errors.

use longhaul_block::{IoError, IoResult};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of acknowledged writes of a device that failed.
#[derive(Clone, Debug, Default)]
pub struct Losses(Arc<LossCounts>);

#[derive(Debug, Default)]
struct LossCounts {
    lost: AtomicU64,
    /// How many of them some handle has got the error of.
    reported: AtomicU64,
}

impl Losses {
    /// A new handle: it gets the errors of later losses, and of those that no handle has got yet. As with the
    /// kernel's `errseq_t`, the handle that wrote may be closed, and the new one be all that its user has left.
    pub fn handle(&self) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(self.0.reported.load(Relaxed)))
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
        self.losses.0.lost.fetch_add(1, Relaxed);
        *self.last.borrow_mut() = Some(error);
    }

    /// The error of the losses that this handle has not got yet, which it still gets by [`new_loss`](Self::new_loss).
    pub(crate) fn unseen_loss(&self, cursor: &ErrorCursor) -> IoResult<()> {
        if cursor.0.load(Relaxed) == self.losses.0.lost.load(Relaxed) {
            return Ok(());
        }
        Err(self.error())
    }

    /// The error of the losses that this handle has not got yet.
    pub(crate) fn new_loss(&self, cursor: &ErrorCursor) -> IoResult<()> {
        let lost = self.losses.0.lost.load(Relaxed);
        if cursor.0.swap(lost, Relaxed) == lost {
            return Ok(());
        }
        self.losses.0.reported.fetch_max(lost, Relaxed);
        Err(self.error())
    }

    fn error(&self) -> IoError {
        self.last.borrow().clone().unwrap_or(IoError::Aborted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_handle_hears_of_what_no_other_one_was_told() {
        let losses = Losses::default();
        let log = LossLog::new(losses.clone());
        let early = losses.handle();
        log.add(IoError::NoSpace);
        // An error that is only looked at has reached no program.
        assert_eq!(log.unseen_loss(&losses.handle()), Err(IoError::NoSpace));
        let late = losses.handle();
        assert_eq!(log.new_loss(&late), Err(IoError::NoSpace));
        assert_eq!(log.new_loss(&late), Ok(()));
        assert_eq!(log.new_loss(&losses.handle()), Ok(()), "it was reported before this handle was made");
        assert_eq!(log.new_loss(&early), Err(IoError::NoSpace), "each older handle hears");
        log.add(IoError::Aborted);
        assert_eq!(log.new_loss(&losses.handle()), Err(IoError::Aborted));
    }
}
