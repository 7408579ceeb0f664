//! Small pages and huge ones: which part of a device's memory has which.
//!
//! The first write to a huge page makes the kernel clear 2 MiB, on the thread that writes: a load
//! of 4 KiB writes at random places would wait for that each time, and take 500 times the memory
//! that it uses. So memory begins with small pages. A chunk gets huge ones when it has become
//! dense, from a thread of its own; or at once, if its first write is a large one, of which a huge
//! page holds much.
//!
//! Data is received straight into this memory, and the kernel holds the socket's lock while it does
//! so: a page that has to be cleared first makes acknowledgements late, and then they come at once,
//! the sender sends as much at once, and a short queue on the way drops it. So the memory that a
//! sequential writer is about to reach is made resident ahead of it, by the same thread.
//!
//! Invariants:
//! - a bit is set for each page of a chunk that was written to and not released since, and
//!   `pages` is their number, but for writes and releases at the same time;
//! - a chunk is handed to the thread once until that is done with it;
//! - no call of the system is made for a write to a page that was written to before;
//! - at most [`AHEAD`] bytes are resident that nothing was written to, for each sequential writer
//!   that has stopped.

use super::Mapping;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

/// `MADV_COLLAPSE` of linux/mman.h, which libc has for glibc alone.
const MADV_COLLAPSE: i32 = 25;

/// Bytes that a bit stands for: the smallest page.
const PAGE: usize = 4096;
/// Bytes of a huge page where a small one has 4 KiB (x86-64 and arm64).
pub(super) const HUGE: usize = 2 << 20;
/// Chunks of a device at most: each may be a mapping of the kernel's own, of which a process has
/// 65,530 (vm.max_map_count).
const CHUNKS_MOST: usize = 512;
/// Bytes of a first write from which on a chunk gets huge pages at once: the kernel then clears
/// eight times as much as is written, at most.
const LARGE: usize = 256 << 10;

/// Bytes that a sequential writer has written before memory is made resident ahead of it, and how
/// much: some tenths of a second at 1 Gb/s.
const STREAM: usize = 2 << 20;
const AHEAD: usize = 32 << 20;
/// Writes of a sequential writer, of which several are under way, begin this close to each other.
const NEAR: usize = 4 << 20;

const SMALL: u8 = 0;
const ASKED: u8 = 1;
const LARGE_PAGES: u8 = 2;

/// The residency of the pages of a mapping, as far as it is known.
pub(super) struct Pages {
    chunks: Vec<PageChunk>,
    /// Bytes of a chunk: whole huge pages.
    chunk: usize,
    len: usize,
    writer: Writer,
}

/// The last task that wrote to untouched memory. What threads store at the same
/// time may get lost: then memory is not allocated ahead of a write, or requested twice, and nothing else.
#[derive(Default)]
struct Writer {
    /// How far it has come, and how far without a jump.
    end: AtomicUsize,
    run: AtomicUsize,
    /// Up to where memory was asked for.
    asked: AtomicUsize,
}

impl Writer {
    /// Records a write to fresh memory of `len` bytes; returns the range to make resident.
    fn follow(&self, range: &Range<usize>, len: usize) -> Option<Range<usize>> {
        let end = self.end.load(Relaxed);
        if range.start.abs_diff(end) > NEAR {
            self.end.store(range.end, Relaxed);
            self.run.store(0, Relaxed);
            self.asked.store(0, Relaxed);
            return None;
        }
        self.end.store(end.max(range.end), Relaxed);
        let run = self.run.load(Relaxed).saturating_add(range.end.saturating_sub(end).min(range.len()));
        self.run.store(run, Relaxed);
        let to = match range.end.saturating_add(AHEAD) {
            to if to >= len => len,
            to => to / HUGE * HUGE,
        };
        let asked = self.asked.load(Relaxed).max(range.end.next_multiple_of(HUGE));
        // In pieces, and not with every write.
        let piece = if to == len { 1 } else { AHEAD / 4 };
        if run < STREAM || asked.saturating_add(piece) > to {
            return None;
        }
        self.asked.store(to, Relaxed);
        Some(asked..to)
    }
}

#[derive(Default)]
struct PageChunk {
    /// Made with the first write, so that untouched memory costs nothing.
    written: OnceLock<Box<[AtomicU64]>>,
    pages: AtomicUsize,
    state: AtomicU8,
}

impl Pages {
    /// Of `len` bytes that nothing was written to.
    pub(super) fn new(len: usize) -> Pages {
        let chunk = len.div_ceil(CHUNKS_MOST).next_multiple_of(HUGE);
        let chunks = (0..len.div_ceil(chunk)).map(|_| PageChunk::default()).collect();
        Pages { chunks, chunk, len, writer: Writer::default() }
    }

    /// The bytes of a chunk.
    fn range(&self, index: usize) -> Range<usize> {
        index * self.chunk..((index + 1) * self.chunk).min(self.len)
    }

    /// The parts of a range that lie in one chunk each, as pages of the chunk. Parts of pages
    /// count as whole ones if `touched`, and else not at all.
    fn parts(&self, range: Range<usize>, touched: bool) -> impl Iterator<Item = (usize, Range<usize>)> {
        let chunk = self.chunk;
        let chunks = if range.is_empty() { 0..0 } else { range.start / chunk..range.end.div_ceil(chunk) };
        chunks.map(move |index| {
            let at = index * chunk;
            let (start, end) = (range.start.max(at) - at, range.end.min(at + chunk) - at);
            let pages =
                if touched { start / PAGE..end.div_ceil(PAGE) } else { start.div_ceil(PAGE)..end / PAGE };
            (index, pages)
        })
    }

    /// A range is about to be written to.
    #[inline]
    pub(super) fn write(&self, memory: &Arc<Mapping>, range: Range<usize>) {
        let large = range.len() >= LARGE;
        let mut fresh = false;
        for (index, pages) in self.parts(range.clone(), true) {
            let chunk = &self.chunks[index];
            if large {
                self.begin_huge(memory, index);
            }
            if chunk.set(pages, self.chunk) {
                fresh = true;
                if self.is_dense(index) && chunk.begin_change() {
                    hand_over(memory, Work::MakeHuge(index));
                }
            }
        }
        if fresh && let Some(ahead) = self.writer.follow(&range, self.len) {
            hand_over(memory, Work::Populate(ahead));
        }
    }

    /// Lets a chunk that nothing was written to begin with huge pages.
    fn begin_huge(&self, memory: &Mapping, index: usize) {
        let chunk = &self.chunks[index];
        if chunk.pages.load(Relaxed) == 0 && chunk.begin_change() {
            memory.advise(self.range(index), libc::MADV_HUGEPAGE);
            chunk.state.store(LARGE_PAGES, Relaxed);
        }
    }

    /// Makes memory resident that is about to be written to; on no thread that does I/O.
    fn populate(&self, memory: &Mapping, range: Range<usize>) {
        for at in range.clone().step_by(HUGE) {
            self.begin_huge(memory, at / self.chunk);
            // Where the kernel does not know this (before Linux 5.14), writing does it.
            memory.advise(at..range.end.min(at + HUGE), libc::MADV_POPULATE_WRITE);
        }
    }

    /// A range has been given back to the system.
    pub(super) fn release(&self, memory: &Mapping, range: Range<usize>) {
        for (index, pages) in self.parts(range, false) {
            let chunk = &self.chunks[index];
            chunk.clear(pages);
            // It may be written to again in small pieces.
            let half = self.range(index).len() / PAGE / 2;
            if chunk.pages.load(Relaxed) < half
                && chunk.state.compare_exchange(LARGE_PAGES, ASKED, Relaxed, Relaxed).is_ok()
            {
                memory.advise(self.range(index), libc::MADV_NOHUGEPAGE);
                chunk.state.store(SMALL, Relaxed);
            }
        }
    }

    /// Whether seven of eight pages of a chunk are in use: a huge page then takes an eighth more.
    fn is_dense(&self, index: usize) -> bool {
        let all = self.range(index).len() / PAGE;
        self.chunks[index].pages.load(Relaxed) >= all - all / 8
    }

    /// Gives a dense chunk huge pages; on no thread that does I/O.
    fn make_huge(&self, memory: &Mapping, index: usize) {
        if !self.is_dense(index) {
            self.chunks[index].state.store(SMALL, Relaxed);
            return;
        }
        let range = self.range(index);
        memory.advise(range.clone(), libc::MADV_HUGEPAGE);
        for at in range.clone().step_by(HUGE) {
            // Where the kernel does not know this (before Linux 6.1), its own thread does it
            // sometime.
            memory.advise(at..range.end.min(at + HUGE), MADV_COLLAPSE);
            std::thread::yield_now();
        }
        self.chunks[index].state.store(LARGE_PAGES, Relaxed);
    }
}

impl PageChunk {
    /// Whether the caller is the one to change its pages to huge ones.
    fn begin_change(&self) -> bool {
        self.state.compare_exchange(SMALL, ASKED, Relaxed, Relaxed).is_ok()
    }

    /// Notes pages as written to. Whether any was not before.
    fn set(&self, pages: Range<usize>, chunk: usize) -> bool {
        let words = || (0..(chunk / PAGE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let written = self.written.get_or_init(words);
        let mut more = 0;
        for (word, mask) in masks(pages) {
            if written[word].load(Relaxed) & mask != mask {
                more += (mask & !written[word].fetch_or(mask, Relaxed)).count_ones() as usize;
            }
        }
        if more > 0 {
            self.pages.fetch_add(more, Relaxed);
        }
        more > 0
    }

    fn clear(&self, pages: Range<usize>) {
        let Some(written) = self.written.get() else { return };
        let fewer =
            masks(pages).map(|(word, mask)| (mask & written[word].fetch_and(!mask, Relaxed)).count_ones());
        let fewer: u32 = fewer.sum();
        self.pages.fetch_sub(fewer as usize, Relaxed);
    }
}

/// The words and the bits in them that stand for pages.
fn masks(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = if pages.is_empty() { 0..0 } else { pages.start / 64..pages.end.div_ceil(64) };
    words.map(move |word| {
        let (start, end) =
            (pages.start.max(word * 64) - word * 64, pages.end.min(word * 64 + 64) - word * 64);
        let ones = if end - start == 64 { u64::MAX } else { ((1 << (end - start)) - 1) << start };
        (word, ones)
    })
}

/// What the process's thread for it does to a mapping.
enum Work {
    /// Gives a dense chunk huge pages.
    MakeHuge(usize),
    /// Makes a range resident.
    Populate(Range<usize>),
}

/// Work, and the mapping that it is for.
type PageWork = (Arc<Mapping>, Work);

/// Hands work to the process's thread for it.
fn hand_over(memory: &Arc<Mapping>, work: Work) {
    static THREAD: OnceLock<Option<Sender<PageWork>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (jobs, todo) = channel::<PageWork>();
        let run = move || {
            for (memory, work) in todo {
                match work {
                    Work::MakeHuge(index) => memory.pages().make_huge(&memory, index),
                    Work::Populate(range) => memory.pages().populate(&memory, range),
                }
            }
        };
        std::thread::Builder::new().name("longhaul-pages".into()).spawn(run).ok().map(|_| jobs)
    });
    // Without the thread memory is as it was, which is slower and nothing else.
    if let Some(jobs) = thread {
        let _ = jobs.send((Arc::clone(memory), work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident bytes of this process's anonymous memory, and those in huge pages, at `memory`.
    fn resident(memory: &Mapping) -> (usize, usize) {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
        let (first, last) = (memory.at(0).as_ptr().addr(), memory.at(memory.len()).as_ptr().addr());
        let (mut inside, mut rss, mut huge) = (false, 0, 0);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            if let Some((start, end)) = name.split_once('-')
                && let (Ok(start), Ok(end)) =
                    (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                inside = start < last && end > first;
            }
            let mut kib = || words.next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0) << 10;
            match name {
                "Rss:" if inside => rss += kib(),
                "AnonHugePages:" if inside => huge += kib(),
                _ => {}
            }
        }
        (rss, huge)
    }

    fn touch(memory: &Arc<Mapping>, at: usize, len: usize) {
        memory.pages().write(memory, at..at + len);
        memory.fill(at, at + len, 1);
    }

    fn mapping(len: usize) -> Arc<Mapping> {
        Arc::new(Mapping::for_device(len).expect("mapped"))
    }

    #[test]
    fn small_writes_to_fresh_memory_take_as_much_as_is_written() {
        let memory = mapping(256 << 20);
        for n in 0..128 {
            touch(&memory, n * HUGE + 4096 * (n % 512), 4096);
        }
        let (rss, huge) = resident(&memory);
        assert_eq!(huge, 0, "no huge page is cleared for 4 KiB");
        assert!((128 * 4096..2 * HUGE).contains(&rss), "{rss} bytes are resident for 128 writes of 4 KiB");
    }

    #[test]
    fn a_chunk_that_becomes_dense_is_handed_over_once_and_stays_whole() {
        let memory = mapping(2 * HUGE);
        for page in (0..512).rev() {
            touch(&memory, page * PAGE, PAGE);
        }
        let chunk = &memory.pages().chunks[0];
        while chunk.state.load(Relaxed) != LARGE_PAGES {
            std::thread::yield_now();
        }
        assert_eq!(chunk.pages.load(Relaxed), 512);
        assert_eq!(memory.pages().chunks[1].state.load(Relaxed), SMALL);
        assert!((0..HUGE).step_by(PAGE).all(|at| memory.byte(at) == 1), "nothing of it is lost");
        // A released part is untouched again.
        memory.pages().release(&memory, 0..HUGE);
        assert_eq!((chunk.pages.load(Relaxed), chunk.state.load(Relaxed)), (0, SMALL));
    }

    #[test]
    fn a_large_first_write_gets_huge_pages_at_once() {
        let memory = mapping(2 * HUGE);
        touch(&memory, 0, LARGE);
        touch(&memory, HUGE, LARGE - PAGE);
        let states = memory.pages().chunks.iter().map(|chunk| chunk.state.load(Relaxed));
        assert_eq!(states.collect::<Vec<_>>(), [LARGE_PAGES, SMALL]);
    }

    /// The pages after a sequential writer are resident before it writes; a random writer gets none ahead.
    #[test]
    fn memory_is_resident_ahead_of_a_sequential_writer() {
        const BLOCK: usize = 128 << 10;
        let memory = mapping(256 << 20);
        for n in 0..16 {
            touch(&memory, (n * 7 % 16) * (16 << 20), BLOCK);
        }
        assert!(resident(&memory).0 <= 16 * BLOCK, "{} bytes are resident", resident(&memory).0);
        let begin = 17 << 20;
        for n in 0..STREAM / BLOCK + 1 {
            touch(&memory, begin + n * BLOCK, BLOCK);
        }
        let patience = std::time::Instant::now();
        while resident(&memory).0 < AHEAD {
            assert!(patience.elapsed().as_secs() < 60, "{} bytes are resident", resident(&memory).0);
            std::thread::yield_now();
        }
        assert!(resident(&memory).0 < AHEAD + 17 * HUGE, "{} bytes are resident", resident(&memory).0);
    }

    #[test]
    fn what_was_asked_for_is_not_asked_for_again() {
        let writer = Writer::default();
        let len = (80 << 20) + 4096;
        let mut asked = Vec::new();
        // Pairs come in another order, as commands under way do.
        for n in (0..640).map(|n| n ^ 1) {
            let range = n * (128 << 10)..(n + 1) * (128 << 10);
            asked.extend(writer.follow(&range, len));
        }
        assert!(asked.len() < 20 && asked[0].end <= 2 * STREAM + AHEAD + (256 << 10), "{asked:?}");
        assert!(asked.windows(2).all(|two| two[0].end == two[1].start), "{asked:?}");
        assert_eq!(asked.last().map(|range| range.end), Some(len));
    }

    #[test]
    fn pages_are_counted_as_they_are_written_and_released() {
        let pages = Pages::new(3 * HUGE + 512);
        let memory = mapping(3 * HUGE + 512);
        let count = |index: usize| pages.chunks[index].pages.load(Relaxed);
        assert_eq!(pages.chunks.len(), 4);
        pages.write(&memory, HUGE - 512..HUGE + 4097);
        assert_eq!((count(0), count(1)), (1, 2));
        pages.write(&memory, HUGE..HUGE + 4096);
        assert_eq!(count(1), 2, "written before");
        pages.release(&memory, HUGE + 1..HUGE + 8192);
        assert_eq!(count(1), 1, "part of a page stays");
        pages.write(&memory, 3 * HUGE..3 * HUGE + 512);
        assert_eq!(count(3), 1);
        for (pages, expected) in
            [(0..0, vec![]), (63..65, vec![(0, 1 << 63), (1, 1)]), (0..64, vec![(0, u64::MAX)])]
        {
            assert_eq!(masks(pages).collect::<Vec<_>>(), expected);
        }
    }
}
