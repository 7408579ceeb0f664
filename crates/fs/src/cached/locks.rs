//! Locks of the file system below: what is in memory of a file is below before a lock of it is given up, and
//! what was read ahead is dropped before one is had.

use super::Shared;
use super::behind::Behind;
use crate::call::{Call, Node};
use crate::locks::{LockCall, LockDone, Locks};
use rustix::io::Errno;
use std::sync::Arc;

pub(super) struct CachedLocks {
    pub(super) shared: Arc<Shared>,
    pub(super) below: Arc<dyn Locks>,
}

impl CachedLocks {
    fn is_drained(&self, node: Node) -> bool {
        self.shared.lock().behind.get(&node).is_none_or(Behind::is_drained)
    }
}

impl Locks for CachedLocks {
    fn start(&self, node: Node, call: LockCall, done: LockDone) {
        let (handle, done): (_, LockDone) = match &call {
            LockCall::Lock { lock, .. } => {
                let shared = Arc::clone(&self.shared);
                let had: LockDone = Box::new(move |result| {
                    let mut steps = Vec::new();
                    shared.lock().drop_ahead(node, &mut steps);
                    shared.run(steps);
                    done(result);
                });
                (lock.handle, had)
            }
            LockCall::Unlock(lock) => (lock.handle, done),
            // Those of a close, whose flush was answered.
            LockCall::Flush { .. } | LockCall::Release { .. } | LockCall::Test(_) => {
                return self.below.start(node, call, done);
            }
        };
        if self.is_drained(node) {
            return self.below.start(node, call, done);
        }
        let below = Arc::clone(&self.below);
        let flushed = move |flushed: Result<_, Errno>| {
            let gives_up = matches!(call, LockCall::Unlock(_));
            let both: LockDone = Box::new(move |result| match flushed {
                // It is given up all the same.
                Err(e) if gives_up => done(result.and(Err(e))),
                // The error is that of a write, which the next sync reports.
                _ => done(result),
            });
            below.start(node, call, both);
        };
        self.shared.start(Call::Flush { handle }, Box::new(flushed));
    }

    fn look(&self, node: Node) {
        self.below.look(node);
    }
}
