//! The record that a file carries, in an extended attribute.

use super::{Facts, Hardware};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use uuid::Uuid;

const NAME: &CStr = c"user.longhaul.medium";

/// Longer than any record: a version, a UUID, two numbers and [`Hardware::MOST`] digests.
const RECORD_MOST: usize = 1024;

/// The first word of a record; a later form gets another one.
const VERSION: &str = "1";

/// The record of a file: its UUID, and the facts that it was bound to. `None` if there is no valid
/// record, or the file system has no extended attributes.
pub(super) fn read(file: &File) -> io::Result<Option<(Uuid, Facts)>> {
    let mut record = [0u8; RECORD_MOST];
    // SAFETY: a C string, and a buffer of the length that is passed.
    let len =
        unsafe { libc::fgetxattr(file.as_raw_fd(), NAME.as_ptr(), record.as_mut_ptr().cast(), record.len()) };
    if len < 0 {
        let e = io::Error::last_os_error();
        return match e.raw_os_error() {
            Some(libc::ENODATA | libc::EOPNOTSUPP | libc::ENOSYS | libc::ERANGE | libc::EPERM) => Ok(None),
            _ => Err(e),
        };
    }
    let record = record.get(..len.unsigned_abs()).unwrap_or_default();
    Ok(std::str::from_utf8(record).ok().and_then(decode))
}

/// Makes the file carry a record.
pub(super) fn write(file: &File, facts: &Facts, uuid: Uuid) -> io::Result<()> {
    let record = encode(facts, uuid);
    // SAFETY: a C string, and a buffer of the length that is passed.
    let rc =
        unsafe { libc::fsetxattr(file.as_raw_fd(), NAME.as_ptr(), record.as_ptr().cast(), record.len(), 0) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // It must survive what the content of the file survives.
    file.sync_all()
}

fn encode(facts: &Facts, uuid: Uuid) -> String {
    format!("{VERSION} {uuid} {} {} {}", facts.inode, facts.born, facts.hardware)
}

fn decode(record: &str) -> Option<(Uuid, Facts)> {
    let mut words = record.split(' ');
    if words.next()? != VERSION {
        return None;
    }
    let uuid = words.next()?.parse().ok()?;
    let (inode, born) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let hardware = Hardware::parse(words.next()?)?;
    Some((uuid, Facts { inode, born, hardware }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_anything_else_is_none() {
        for hardware in [Hardware::default(), Hardware::of(["board", "interface"])] {
            let facts = Facts { inode: 7, born: 1_700_000_000_123_456_789, hardware };
            let uuid = Uuid::from_u128(9);
            assert_eq!(decode(&encode(&facts, uuid)), Some((uuid, facts)));
        }
        for text in ["", "1", "2 00000000-0000-0000-0000-000000000009 1 1 -", "1 x 1 1 -"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
