//! How many connections and commands can still change something, and the tasks that wait until none can.

use crate::subsystem::lock;
use futures_channel::oneshot;
use std::sync::{Arc, Mutex};

/// See the module.
#[derive(Default)]
pub(crate) struct Attendance(Mutex<Present>);

#[derive(Default)]
struct Present {
    count: usize,
    /// Dropped when the count reaches zero.
    waiters: Vec<oneshot::Sender<()>>,
}

/// A connection that may bring data, or a command that a device is busy with.
pub(crate) struct Presence(Arc<Attendance>);

impl Attendance {
    /// Counts one more, until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Presence {
        lock(&self.0).count += 1;
        Presence(Arc::clone(self))
    }

    pub(crate) fn is_present(&self) -> bool {
        lock(&self.0).count > 0
    }

    /// Ends once none is present.
    pub(crate) fn absence(&self) -> impl Future<Output = ()> + use<> {
        let mut present = lock(&self.0);
        let (sender, gone) = oneshot::channel();
        if present.count > 0 {
            present.waiters.push(sender);
        }
        async move { _ = gone.await }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut present = lock(&self.0.0);
        present.count -= 1;
        if present.count == 0 {
            present.waiters.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn the_last_one_that_leaves_ends_the_wait() {
        let all = Arc::<Attendance>::default();
        assert!(all.absence().now_or_never().is_some(), "none was there");
        let (one, two) = (all.enter(), all.enter());
        let mut gone = Box::pin(all.absence());
        drop(one);
        assert!(all.is_present() && (&mut gone).now_or_never().is_none());
        drop(two);
        assert!(!all.is_present() && gone.now_or_never().is_some());
    }
}
