//! The file of an audit log.
//!
//! Invariants:
//! - a line is there wholly or not at all: what a failed write has left of it is cut off, and what a kill has
//!   left becomes a line of its own before the next one;
//! - one process writes to a file at a time, so that no other one's lines are cut.

use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bits of a mode that let other users write.
const OTHERS_WRITE: u32 = 0o022;

/// A file that lines are added to, or standard output.
#[derive(Debug)]
pub(super) enum AuditPlace {
    Stdout,
    File {
        file: File,
        /// The last line has no end.
        is_torn: bool,
    },
}

/// Why a file is not used, for the operator.
fn unfit(meta: &Metadata) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Some("it is no regular file".to_owned());
    }
    if meta.mode() & OTHERS_WRITE != 0 {
        let mode = meta.mode() & 0o777;
        return Some(format!("its mode is {mode:o}, so that other users may write to it (chmod 600)"));
    }
    (meta.uid() != own && meta.uid() != 0).then(|| "it belongs to another user".to_owned())
}

impl AuditPlace {
    /// Opens a file, which is made with mode 600 if there is none; `-` is standard output.
    ///
    /// # Errors
    /// It cannot be written to, or other users can, or it is a symbolic link, or another process uses it: in
    /// words.
    pub(super) fn open(path: &Path) -> Result<AuditPlace, String> {
        if path == Path::new("-") {
            return Ok(AuditPlace::Stdout);
        }
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags.bits().cast_signed())
            .open(path);
        let file = opened.map_err(|e| match rustix::io::Errno::from_io_error(&e) {
            Some(rustix::io::Errno::LOOP) => "it is a symbolic link; give the path of the file".to_owned(),
            _ => e.to_string(),
        })?;
        let meta = file.metadata().map_err(|e| e.to_string())?;
        if let Some(why) = unfit(&meta) {
            return Err(why);
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| "another process writes to it".to_owned())?;
        // Of a file that was made: its name is to be durable too. Some file systems cannot do that.
        if let Some(parent) = path.parent() {
            let parent = if parent == Path::new("") { Path::new(".") } else { parent };
            let _ = File::open(parent).and_then(|dir| dir.sync_all());
        }
        let mut last = [b'\n'];
        if meta.len() > 0 {
            file.read_exact_at(&mut last, meta.len() - 1).map_err(|e| e.to_string())?;
        }
        Ok(AuditPlace::File { file, is_torn: last != [b'\n'] })
    }

    /// Opens the file of this path anew: another one, if the open one was renamed.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), with the one that is open.
    pub(super) fn reopen(path: &Path, open: AuditPlace) -> Result<AuditPlace, (String, AuditPlace)> {
        // Its own lock is no reason not to open it: another process can have it only for a moment.
        if let AuditPlace::File { file, .. } = &open {
            let _ = flock(file, FlockOperation::Unlock);
        }
        AuditPlace::open(path).map_err(|why| {
            if let AuditPlace::File { file, .. } = &open {
                let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
            }
            (why, open)
        })
    }

    /// Adds a line, which ends with `\n`.
    ///
    /// # Errors
    /// It was not added.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        match self {
            AuditPlace::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(line.as_bytes()).and_then(|()| out.flush())
            }
            AuditPlace::File { file, is_torn } => {
                let before = file.metadata()?.len();
                let start = if *is_torn { "\n" } else { "" };
                let written = file.write_all(format!("{start}{line}").as_bytes());
                if written.is_ok() {
                    *is_torn = false;
                } else if file.metadata()?.len() > before && file.set_len(before).is_err() {
                    *is_torn = true;
                }
                written
            }
        }
    }

    /// Makes the lines durable.
    ///
    /// # Errors
    /// They may not be.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            AuditPlace::Stdout => Ok(()),
            AuditPlace::File { file, .. } => file.sync_data(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_line_that_was_cut_spoils_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        std::fs::write(&path, "{\"a\":1}\n{\"b\":").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
        let mut place = AuditPlace::open(&path).expect("opened");
        place.append("{\"c\":3}\n").expect("written");
        place.append("{\"d\":4}\n").expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text, "{\"a\":1}\n{\"b\":\n{\"c\":3}\n{\"d\":4}\n");
        let again = AuditPlace::open(&path).expect_err("it is in use");
        assert!(again.contains("another process"), "{again}");
    }

    #[test]
    fn what_others_could_write_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("audit"), dir.path().join("link"));
        drop(AuditPlace::open(&path).expect("made"));
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(AuditPlace::open(&link).expect_err("a link").contains("symbolic link"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).expect("changed");
        assert!(AuditPlace::open(&path).expect_err("writable").contains("620"));
        assert!(AuditPlace::open(Path::new("/dev/null")).expect_err("a device").contains("no regular file"));
        AuditPlace::open(dir.path()).expect_err("a directory");
    }
}
