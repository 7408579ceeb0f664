//! Where reservations persist, and the thread that writes there.
//!
//! A store may block, for as long as a medium takes: no engine thread waits for it.

use crate::reserved::Reserved;
use futures_channel::oneshot;
use longhaul_proto::reservation::ReservationRecord;
use std::io;
use std::sync::{Arc, mpsc};

/// The place of one namespace's reservations that outlives the target.
pub trait ReservationStore: Send + Sync {
    /// The record that was saved last; `None` if nothing was saved.
    ///
    /// # Errors
    /// It cannot be read, or is not a record. The text names the place and says what to do.
    fn load(&self) -> io::Result<Option<ReservationRecord>>;

    /// Replaces the record, or removes it; durable when it returns, and after a crash either the
    /// old or the new one is there. Blocks.
    ///
    /// # Errors
    /// The text names the place.
    fn save(&self, record: Option<&ReservationRecord>) -> io::Result<()>;
}

/// The state to save, and the channel to the connection that waits for the result.
type SaveRequest = (Arc<Reserved>, oneshot::Sender<bool>);

/// A thread that saves reservations, one after the other. It ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Writer(mpsc::Sender<SaveRequest>);

impl Writer {
    pub(crate) fn start() -> io::Result<Writer> {
        let (sender, jobs) = mpsc::channel::<SaveRequest>();
        std::thread::Builder::new().name("target-reserve".into()).spawn(move || {
            for (reserved, reply) in jobs {
                let saved = reserved.write();
                if let Err(e) = &saved {
                    tracing::error!("reservations cannot be saved: {e}");
                }
                // The connection that waited may have ended.
                let _ = reply.send(saved.is_ok());
            }
        })?;
        Ok(Writer(sender))
    }

    /// Ends when the state of `reserved`, as it is now or later, is durable: whether it is.
    pub(crate) async fn save(&self, reserved: &Arc<Reserved>) -> bool {
        let (sender, saved) = oneshot::channel();
        self.0.send((Arc::clone(reserved), sender)).is_ok() && saved.await.unwrap_or(false)
    }
}
