//! Locks of files: those of flock(2) and of fcntl(2), which do not conflict with each other.

use crate::attributes::Attributes;
use crate::call::{Handle, Node};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A lock on bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// What has it: of flock(2) an open file description, of fcntl(2) the descriptors of a process.
    pub owner: u64,
    /// The open file by which it was taken.
    pub handle: Handle,
    /// It is one of flock(2), which is for the whole file.
    pub flock: bool,
    /// Others may not have a shared lock either.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// The process; 0 if it is on another host.
    pub pid: u32,
}

impl FileLock {
    /// Whether both cannot be had at the same time.
    pub fn conflicts(&self, other: &FileLock) -> bool {
        self.owner != other.owner && self.meets(other) && (self.exclusive || other.exclusive)
    }

    /// Whether they are of the same kind, and have a byte in common.
    pub fn meets(&self, other: &FileLock) -> bool {
        self.flock == other.flock && self.start <= other.end && other.start <= self.end
    }
}

/// Whether the process that waits for a lock has given up.
#[derive(Clone, Debug, Default)]
pub struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    /// It gives up; [`Locks::look`] makes the wait end.
    pub fn set(&self) {
        self.0.store(true, SeqCst);
    }

    /// Whether it has given up.
    pub fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// A call about the locks of a file.
#[derive(Clone, Debug)]
pub enum LockCall {
    /// Takes a lock, in place of what its owner has of these bytes: [`LockReply::Held`]; `EAGAIN` if another
    /// owner has one that conflicts.
    Lock {
        /// The lock.
        lock: FileLock,
        /// It is waited for: `EINTR` once the process has given up, and `EDEADLK` if each owner would wait for
        /// the other.
        waits: Option<GivenUp>,
    },
    /// Gives up what the owner has of these bytes, after what was written is durable and visible to other
    /// hosts: [`LockReply::Done`].
    Unlock(FileLock),
    /// A descriptor was closed: the owner's locks of fcntl(2) end as by an unlock: [`LockReply::Done`].
    Flush {
        /// The owner.
        owner: u64,
    },
    /// An open file was closed: the locks that were taken by it end, and those of flock(2) of this owner:
    /// [`LockReply::Done`].
    Release {
        /// The open file.
        handle: Handle,
        /// The owner.
        flock_owner: Option<u64>,
    },
    /// The lock that keeps this one from being had: [`LockReply::Conflict`].
    Test(FileLock),
}

/// The reply to a [`LockCall`].
#[derive(Clone, Debug)]
pub enum LockReply {
    /// It is done.
    Done,
    /// The lock is had. Of a file that other hosts may have changed since its last lock, its attributes now.
    Held(Option<Attributes>),
    /// A lock that conflicts, if there is one.
    Conflict(Option<FileLock>),
}

/// Receives the reply to a call about locks, once. It may be called on any thread, and must not wait.
pub type LockDone = Box<dyn FnOnce(Result<LockReply, Errno>) + Send>;

/// Locks that hold between hosts.
pub trait Locks: Send + Sync {
    /// Starts a call; those about one file are made one after the other.
    fn start(&self, node: Node, call: LockCall, done: LockDone);

    /// A process that waits for a lock of this file has given up.
    fn look(&self, node: Node);
}
