//! Locks on files, which end with what holds them.
//!
//! A lock of flock(2) belongs to the open file and ends when its last descriptor is closed. A child
//! process has copies of all descriptors from fork to exec, so closing a locked file while another
//! thread starts a program leaves the lock behind for as long as that takes, and refuses the next
//! program that opens the file. Unlocking ends the lock, whatever copies there are.

use std::fs::File;
use std::ops::{Deref, DerefMut};

/// A file whose lock, if it has one, ends when this is dropped. Lock it with [`File::try_lock`] or
/// [`File::try_lock_shared`].
#[derive(Debug)]
pub struct LockedFile(File);

impl From<File> for LockedFile {
    fn from(file: File) -> LockedFile {
        LockedFile(file)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for LockedFile {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Without a lock there is nothing to end; some network file systems have none.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::TryLockError;
    use std::io::{Read, Write};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// Calls `f` while a child process is between fork and exec.
    fn before_exec(f: impl FnOnce()) {
        let (mut begun, child_begun) = std::io::pipe().expect("a pipe");
        let (child_goes_on, go_on) = std::io::pipe().expect("a pipe");
        let spawned = std::thread::spawn(move || {
            let (mut tell, mut wait) = (child_begun, child_goes_on);
            let mut command = Command::new("true");
            // SAFETY: the closure reads and writes descriptors, as a signal handler may.
            unsafe {
                command.pre_exec(move || {
                    tell.write_all(b"1")?;
                    wait.read_exact(&mut [0])
                });
            }
            command.spawn().expect("started").wait().expect("ended")
        });
        begun.read_exact(&mut [0]).expect("the child has begun");
        f();
        (&go_on).write_all(b"1").expect("the child waits");
        assert!(spawned.join().expect("no panic").success());
    }

    #[test]
    fn a_lock_ends_although_a_child_process_has_a_copy() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("locked");
        let open = || File::create(&path).expect("created");

        let (closed, other) = (open(), open());
        closed.try_lock().expect("locked");
        before_exec(|| {
            drop(closed);
            assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)), "the premise of this module");
        });

        let (locked, other) = (LockedFile::from(open()), open());
        locked.try_lock().expect("locked");
        before_exec(|| {
            drop(locked);
            other.try_lock().expect("free");
        });
    }
}
