//! Writing files that have holes at the source.
//!
//! Invariant: of a file without holes every byte is written, zeroes too, so that its
//! blocks are allocated.

use crate::tree::File;
use crate::wire::Entry;
use longhaul_engine::Buf;
use std::io;

/// Granularity of holes, in bytes: the block size of most file systems.
const PIECE: usize = 4096;
static ZEROES: [u8; PIECE] = [0; PIECE];

/// Writes data of a file with the metadata `entry` at `offset`, which is a multiple of
/// [`PIECE`]. If the file has holes at the source, whole pieces of zeroes become holes
/// here: skipped in a file created by this run (`fresh`), else punched.
///
/// # Errors
/// Of pwrite(2).
pub(super) fn write(file: &File, entry: &Entry, data: &[u8], offset: u64, fresh: bool) -> io::Result<()> {
    if !entry.sparse {
        return file.write_all_at(data, offset);
    }
    let mut at = 0;
    for run in data.chunks(PIECE).collect::<Vec<_>>().chunk_by(|a, b| is_hole(a) == is_hole(b)) {
        let len = run.iter().map(|piece| piece.len()).sum::<usize>();
        let here = offset + at as u64;
        if !is_hole(run[0]) {
            file.write_all_at(&data[at..at + len], here)?;
        } else if !fresh {
            // Where the file system cannot punch holes, zeroes are written.
            if file.punch(here, len as u64).is_err() {
                file.write_all_at(&data[at..at + len], here)?;
            }
        }
        at += len;
    }
    Ok(())
}

/// The same of a buffer, which is not copied unless there are holes.
///
/// # Errors
/// Of pwrite(2).
pub(super) fn write_buffer(
    file: &File,
    entry: &Entry,
    data: &Buf,
    offset: u64,
    fresh: bool,
) -> io::Result<()> {
    if entry.sparse { write(file, entry, data, offset, fresh) } else { file.write_buffer_at(data, offset) }
}

fn is_hole(piece: &[u8]) -> bool {
    piece == &ZEROES[..piece.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::EntryKind;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn holes_are_kept_and_zeroes_of_dense_files_are_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut data = vec![0; 24 * PIECE + 7];
        data[5 * PIECE] = 1;
        data[6 * PIECE + 1] = 2;
        data[20 * PIECE + 4095] = 3;
        let entry = Entry::plain("f", EntryKind::File, data.len() as u64);
        for (sparse, fresh) in [(true, true), (true, false), (false, true)] {
            let path = dir.path().join(format!("{sparse}{fresh}"));
            // An earlier run may have left any content.
            std::fs::write(&path, if fresh { vec![] } else { vec![9; data.len()] }).expect("written");
            let file = std::fs::File::options().write(true).open(&path).expect("opened");
            file.set_len(data.len() as u64).expect("sized");
            let file = File::from(file);
            write(&file, &Entry { sparse, ..entry.clone() }, &data, 0, fresh).expect("written");
            file.sync_data().expect("synchronised");
            assert_eq!(std::fs::read(&path).expect("read"), data, "{sparse} {fresh}");
            let bytes = 512 * std::fs::metadata(&path).expect("there").blocks();
            match sparse {
                true => assert!(bytes <= 8 * PIECE as u64, "{bytes} bytes, {fresh}"),
                false => assert!(bytes >= data.len() as u64, "{bytes} bytes"),
            }
        }
    }
}
