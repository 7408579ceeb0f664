//! The device of a space, as its map is read and written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a write of zeroes where the device has no faster way.
const ZERO_PIECE: u64 = 1 << 20;
/// Bytes that one call deallocates: a device may take long.
const ZERO_RANGE: u64 = 16 << 30;

/// What is done to a device beside the I/O of hosts. Each call is one step, which a crash ends.
pub(super) trait MapMedium: Send + Sync {
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Not durable before [`sync`](Self::sync).
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a range read as zeroes. Not durable before [`sync`](Self::sync).
    fn zero(&self, at: u64, len: u64) -> io::Result<()>;

    fn sync(&self) -> io::Result<()>;
}

impl MapMedium for File {
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags as How;
        let mut done = 0;
        while done < len {
            let n = ZERO_RANGE.min(len - done);
            // A block device does this only if it has a fast way that leaves zeroes.
            match rustix::fs::fallocate(self, How::PUNCH_HOLE | How::KEEP_SIZE, at + done, n) {
                Ok(()) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::NODEV) => {
                    let zeroes = vec![0; ZERO_PIECE.min(n) as usize];
                    for piece in (0..n).step_by(zeroes.len()) {
                        let part = ZERO_PIECE.min(n - piece) as usize;
                        self.write_all_at(&zeroes[..part], at + done + piece)?;
                    }
                }
                Err(e) => return Err(e.into()),
            }
            done += n;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
