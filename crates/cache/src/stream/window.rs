//! The size of the read-ahead window.
//!
//! Invariants:
//! - read-ahead begins when a second read has followed the first, or a read is at the beginning:
//!   random reads read only their own bytes;
//! - the window only grows while its bytes are used, and never above what the device advises.

use crate::sequential::SequentialDetector;

/// The window begins at this many times the read, as with the kernel's, or at
/// this part of the advice if that is more: bytes read in vain cost the path a
/// part of a round trip, and bytes not read ahead cost a whole one.
const FIRST: u64 = 4;
const FIRST_PART: u64 = 4;

/// The read-ahead of one reader. Offsets and lengths are in bytes.
pub(super) struct Window {
    reads: SequentialDetector,
    /// 0 while reads are at random places.
    size: u64,
}

impl Default for Window {
    fn default() -> Window {
        Window { reads: SequentialDetector::new(1, 0), size: 0 }
    }
}

impl Window {
    /// A read of `len` bytes at `offset` is about to be done; at most `most`
    /// may be read ahead. How many bytes should be on their way or here, from
    /// `offset` on.
    pub(super) fn handle_read(&mut self, offset: u64, len: u64, most: u64) -> u64 {
        let continues = self.reads.record(&(offset..offset + len)).is_some();
        // A reader that begins at the beginning means to go on.
        let sequential = offset == 0 || continues;
        self.size = match (sequential, self.size) {
            (false, _) => 0,
            (true, 0) => FIRST.saturating_mul(len).max(most / FIRST_PART),
            (true, size) => size.saturating_mul(2),
        };
        self.size = self.size.min(most);
        self.size.max(len)
    }

    /// The read gave the bytes up to here.
    pub(super) fn handle_end(&mut self, end: u64) {
        self.reads.end_last(end);
    }

    /// Whether reads are sequential at the moment.
    pub(super) fn is_sequential(&self) -> bool {
        self.size > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    #[test]
    fn a_sequential_reader_gets_a_window_that_doubles_to_the_advice() {
        let mut window = Window::default();
        let sizes: Vec<u64> = (0..8).map(|n| window.handle_read(n * 128 * K, 128 * K, 8 << 20) / K).collect();
        assert_eq!(sizes, [2048, 4096, 8192, 8192, 8192, 8192, 8192, 8192]);
        // The path has become shorter.
        assert_eq!(window.handle_read(8 * 128 * K, 128 * K, 256 * K), 256 * K);
    }

    #[test]
    fn a_reader_that_begins_again_gets_its_window_at_once() {
        let mut window = Window::default();
        window.handle_read(0, 128 * K, 64 << 20);
        assert_eq!(window.handle_read(128 * K, 128 * K, 64 << 20), 32 << 20);
        assert_eq!(window.handle_read(0, 128 * K, 64 << 20), 64 << 20);
        // From elsewhere on, there must be two in a row.
        assert_eq!(window.handle_read(7 << 20, 128 * K, 64 << 20), 128 * K);
        assert_eq!(window.handle_read((7 << 20) + 128 * K, 128 * K, 1 << 20), 512 * K);
    }

    #[test]
    fn random_reads_bring_only_themselves() {
        let mut window = Window::default();
        for offset in [7, 3, 9, 1, 8, 2] {
            assert_eq!(window.handle_read(offset * 4096, 4096, 8 << 20), 4096);
            assert!(!window.is_sequential());
        }
        // Two in a row are a beginning.
        assert_eq!(window.handle_read(3 * 4096, 4096, 64 << 10), 4 * 4096);
        assert_eq!(window.handle_read(4096, 4096, 8 << 20), 4096);
    }

    #[test]
    fn read_ahead_can_be_switched_off() {
        let mut window = Window::default();
        for n in 0..4 {
            assert_eq!(window.handle_read(n * 4096, 4096, 0), 4096);
        }
    }
}
