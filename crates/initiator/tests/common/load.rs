//! A load whose content is compared during the run, and as a whole at the end.

use super::{in_time, pattern, until};
use longhaul_block::{BlockDevice, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine, spawn};
use longhaul_initiator::RemoteDevice;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK: usize = 16_384;

/// Writers and readers at depth, until they are stopped; then every block holds its last write.
/// Returns the number of I/Os.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Load {
    /// I/Os at a time.
    pub const SLOTS: u64 = 16;
    const BLOCKS: u64 = 32;

    /// Begins on a thread of its own, in the caller's namespace.
    pub fn start(remote: Arc<RemoteDevice>, engine: EngineConfig) -> Load {
        Load::start_on(remote, engine)
    }

    /// As [`start`](Self::start), on any device.
    pub fn start_on(remote: Arc<dyn BlockDevice>, engine: EngineConfig) -> Load {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            Engine::new(&engine).expect("engine").block_on(async {
                let io = remote.open().await.expect("opened");
                let slots = (0..Load::SLOTS).map(|slot| {
                    let (io, stopped, count) = (Rc::clone(&io), Arc::clone(&stopped), Arc::clone(&count));
                    spawn(async move {
                        let mut last = vec![None; Load::BLOCKS as usize];
                        let mut i = 0;
                        while !stopped.load(Ordering::Relaxed) {
                            let block = i * 7 % Load::BLOCKS;
                            let at = (slot * Load::BLOCKS + block) * BLOCK as u64;
                            let seed = slot << 40 | i;
                            let bytes = Buf::copy_of(&pattern(BLOCK, seed));
                            io.write(at, bytes, WriteFlags::default()).await.expect("written");
                            last[block as usize] = Some(seed);
                            let found = io.read(at, BufMut::zeroed(BLOCK)).await.expect("read");
                            assert!(found[..] == pattern(BLOCK, seed), "slot {slot}, block {block}");
                            count.fetch_add(2, Ordering::Relaxed);
                            i += 1;
                        }
                        for (block, seed) in (0..).zip(last) {
                            let Some(seed) = seed else { continue };
                            let at = (slot * Load::BLOCKS + block) * BLOCK as u64;
                            let found = io.read(at, BufMut::zeroed(BLOCK)).await.expect("read");
                            assert!(found[..] == pattern(BLOCK, seed), "slot {slot}, block {block}");
                        }
                    })
                });
                for slot in slots.collect::<Vec<_>>() {
                    slot.await;
                }
            });
        });
        Load { stop, done, thread }
    }

    /// Waits for `n` more I/Os.
    pub fn more(&self, n: u64) {
        let from = self.done.load(Ordering::Relaxed);
        until("I/O to continue", || {
            self.done.load(Ordering::Relaxed) >= from + n || self.thread.is_finished()
        });
    }

    /// Ends it, and compares everything.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        in_time("the load", move || self.thread.join().expect("no fault"));
    }
}
