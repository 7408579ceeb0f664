//! File systems as calls and replies.
//!
//! A [`FileSystem`] is what a front end (FUSE) asks, and what a back end answers: objects are
//! [`Node`]s, open files are [`Handle`]s, and each call is a [`Call`] with one [`Reply`] or an
//! error number of POSIX.
//!
//! | room | contents |
//! |---|---|
//! | `call`, `attributes` | calls, replies, and what they are made of |
//! | `directory` | [`Directory`]: a directory of this machine behind the interface |
//! | `cached` | [`Cached`]: read-ahead and write-behind over a file system that is far away |
//! | `locks` | [`Locks`]: locks of files that hold between hosts, where a file system has them |
//! | `counted` | [`Counted`]: counts the calls to a file system |

#![forbid(unsafe_code)]

mod attributes;
mod cached;
mod call;
mod counted;
mod directory;
mod locks;

pub use attributes::{Attributes, Changes, FileKind, Time, TimeChange};
pub use cached::{Cached, CachedOptions};
pub use call::{Call, DATA_MAX, DirectoryEntry, Handle, Node, Reply, Statistics, Stream, check_name};
pub use counted::{CallCounts, CallKind, Counted};
pub use directory::Directory;
pub use locks::{FileLock, GivenUp, LockCall, LockDone, LockReply, Locks};
pub use rustix::io::Errno;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long names and attributes of objects may be used without asking again: as long as other clients'
/// changes to them may go unseen. What a file is opened with is always new.
pub const NAMES_VALID: Duration = Duration::from_secs(5);

/// Receives the reply to a call. It may be called on any thread, and must not wait.
pub type Done = Box<dyn FnOnce(Result<Reply, Errno>) + Send>;

/// A [`Done`] that is called with `EIO` if it is dropped.
pub struct Answer(Option<Done>);

impl Answer {
    /// The answer that `done` gets.
    pub fn new(done: Done) -> Answer {
        Answer(Some(done))
    }

    /// Gives it.
    pub fn give(mut self, result: Result<Reply, Errno>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(Errno::IO));
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({})", if self.0.is_some() { "awaited" } else { "given" })
    }
}

/// A user of this host with its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A file system, for many threads at the same time.
pub trait FileSystem: Send + Sync {
    /// Starts a call; `done` gets its reply exactly once.
    ///
    /// Calls that are under way at the same time may be executed in any order.
    fn start(&self, call: Call, done: Done);

    /// As [`start`](Self::start), for one of many users: what the call makes belongs to that one, where the file system
    /// lets objects belong to others than the user that mounted it.
    fn start_for(&self, caller: Caller, call: Call, done: Done) {
        let _ = caller;
        self.start(call, done);
    }

    /// Its locks that hold between hosts; without them the kernel's hold between the programs of this one.
    fn locks(&self) -> Option<Arc<dyn Locks>> {
        None
    }

    /// Whether no object of it can have an extended attribute of this name. `ls -l` asks each object for its access
    /// control list and its label, unless the first answer is that the file system has none.
    fn refuses_xattr(&self, name: &[u8]) -> bool {
        let _ = name;
        false
    }

    /// Waits for the reply to a call; not for use on an engine's thread.
    ///
    /// # Errors
    /// The error number of the file system; `EIO` if it has ended.
    fn wait(&self, call: Call) -> Result<Reply, Errno> {
        let (tell, told) = channel();
        self.start(call, Box::new(move |result| drop(tell.send(result))));
        told.recv().unwrap_or(Err(Errno::IO))
    }
}
