//! Locks of files whose file system has them between hosts: the kernel's requests as calls of
//! [`Locks`](longhaul_fs::Locks).
//!
//! The kernel keeps no locks itself then: it passes each request on, and what ends a lock: that a descriptor is
//! closed (`FUSE_FLUSH`), or an open file (`FUSE_RELEASE`). A program that is interrupted while it waits is
//! reported by `FUSE_INTERRUPT`, and waits until the request is answered, also when it was killed.

use super::tree_session::{Stale, Tree, UNEXPECTED};
use longhaul_fs::{Call, Errno, FileLock, GivenUp, Handle, LockCall, LockReply, Locks, Node};
use longhaul_fuse::{Lock, Release, Reply as Answer};
use std::sync::Arc;

fn file_lock(lock: &Lock) -> FileLock {
    FileLock {
        owner: lock.owner,
        handle: Handle(lock.handle),
        flock: lock.flock,
        exclusive: lock.kind == libc::F_WRLCK,
        start: lock.start,
        end: lock.end,
        pid: lock.pid,
    }
}

fn done(reply: Answer, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e.raw_os_error()),
    }
}

impl Tree {
    fn locks(&self) -> Option<Arc<dyn Locks>> {
        self.locks.clone()
    }

    /// Whether a lock would be given.
    pub(super) fn get_lock(&self, node: Node, asked: Lock, reply: Answer) {
        let Some(locks) = self.locks() else { return reply.error(libc::ENOSYS) };
        let answer = move |result: Result<LockReply, Errno>| match result {
            Ok(LockReply::Conflict(None)) => reply.lock(&Lock { kind: libc::F_UNLCK, ..asked }),
            Ok(LockReply::Conflict(Some(FileLock { exclusive, start, end, pid, .. }))) => {
                let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.lock(&Lock { kind, start, end, pid, ..asked });
            }
            Ok(_) => reply.error(UNEXPECTED),
            Err(e) => reply.error(e.raw_os_error()),
        };
        locks.start(node, LockCall::Test(file_lock(&asked)), Box::new(answer));
    }

    /// Takes a lock, or gives one up. Before it is had, the kernel drops what it has of a file that other hosts
    /// may have changed.
    pub(super) fn set_lock(&self, node: Node, lock: Lock, waits: bool, mut reply: Answer) {
        let Some(locks) = self.locks() else { return reply.error(libc::ENOSYS) };
        let call = match lock.kind {
            libc::F_UNLCK => LockCall::Unlock(file_lock(&lock)),
            _ => {
                let waits = waits.then(GivenUp::default);
                if let Some(waits) = waits.clone() {
                    let locks = Arc::clone(&locks);
                    reply.on_interrupt(move || {
                        waits.set();
                        locks.look(node);
                    });
                }
                LockCall::Lock { lock: file_lock(&lock), waits }
            }
        };
        let stale = self.stale.clone();
        let answer = move |result: Result<LockReply, Errno>| match result {
            Ok(LockReply::Held(Some(_))) => {
                // The thread lives as long as the session.
                let _ = stale.send(Stale { node: node.0, then: Box::new(move || reply.ok()) });
            }
            Ok(LockReply::Done | LockReply::Held(None)) => reply.ok(),
            Ok(LockReply::Conflict(_)) => reply.error(UNEXPECTED),
            Err(e) => reply.error(e.raw_os_error()),
        };
        locks.start(node, call, Box::new(answer));
    }

    /// A descriptor was closed: what was written is with the server, and the locks of fcntl(2) of its process
    /// end.
    pub(super) fn flush(&self, node: Node, handle: Handle, owner: u64, reply: Answer) {
        let call = Call::Flush { handle };
        let Some(locks) = self.locks() else { return self.done(call, reply) };
        let flushed = move |flushed: Result<longhaul_fs::Reply, Errno>| {
            let unlocked = move |unlocked: Result<LockReply, Errno>| {
                done(reply, flushed.map(drop).and(unlocked.map(drop)));
            };
            locks.start(node, LockCall::Flush { owner }, Box::new(unlocked));
        };
        self.files.start(call, Box::new(flushed));
    }

    /// An open file was closed: the locks end that were taken by it.
    pub(super) fn release(&self, node: Node, release: Release, reply: Answer) {
        let handle = Handle(release.handle);
        let call = Call::Close { handle };
        let Some(locks) = self.locks() else { return self.done(call, reply) };
        let files = Arc::clone(&self.files);
        let unlocked = move |unlocked: Result<LockReply, Errno>| {
            let closed = move |closed: Result<longhaul_fs::Reply, Errno>| {
                done(reply, closed.map(drop).and(unlocked.map(drop)));
            };
            files.start(call, Box::new(closed));
        };
        locks.start(node, LockCall::Release { handle, flock_owner: release.flock_owner }, Box::new(unlocked));
    }
}
