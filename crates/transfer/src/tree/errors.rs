//! Errors of file operations: their texts, and their consequences for a copy.

use rustix::io::Errno;
use std::io;

/// The text of a system error, replaced where the system's own text misleads.
pub(crate) fn say(e: &io::Error) -> String {
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP | Errno::XDEV) => "a symbolic link is in the way, and is not followed".into(),
        Some(Errno::NOTDIR) => "something that is not a directory is in the way".into(),
        Some(Errno::NOTEMPTY) => "a directory that is not empty is in the way".into(),
        Some(Errno::NAMETOOLONG) => "the name is too long for the file system".into(),
        Some(Errno::ILSEQ) => "the file system does not accept this name".into(),
        None if e.kind() == io::ErrorKind::NotFound => "No such file or directory".into(),
        _ => {
            let text = e.to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

/// Whether an error means that a path component is not a directory.
pub(crate) fn is_in_the_way(e: &io::Error) -> bool {
    let other = [Errno::NOTDIR, Errno::LOOP];
    e.raw_os_error().is_some_and(|code| other.contains(&Errno::from_raw_os_error(code)))
}

/// Whether an error means that a non-empty directory has the name.
pub(crate) fn is_not_empty(e: &io::Error) -> bool {
    let full = [Errno::NOTEMPTY, Errno::EXIST];
    e.raw_os_error().is_some_and(|code| full.contains(&Errno::from_raw_os_error(code)))
}

/// Whether an error means that the file system accepts no more data.
pub(crate) fn is_full(e: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
    e.raw_os_error().is_some_and(|code| full.contains(&Errno::from_raw_os_error(code)))
}
