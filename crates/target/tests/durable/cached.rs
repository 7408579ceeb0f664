//! A device with a volatile write cache, which forgets what was not made durable when its power is
//! taken away, and which can hold operations until a test lets them go.

use crate::client::BLOCK;
use futures_channel::oneshot;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

/// Operations that can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Open,
    Write,
}

#[derive(Default)]
struct State {
    /// What a power cut leaves.
    medium: Vec<u8>,
    /// What reads return.
    cache: Vec<u8>,
    flushes: u64,
    fua: u64,
    discards: Vec<(u64, u64)>,
    unreadable: Option<Range<u64>>,
    /// Bytes of a read or write at most.
    max_io: u32,
    hold: Option<Held>,
    held: Vec<oneshot::Sender<()>>,
}

impl State {
    fn change(&mut self, offset: u64, len: u64, fua: bool, content: impl Fn(usize) -> u8) {
        let range = offset as usize..(offset + len) as usize;
        for (n, byte) in self.cache[range.clone()].iter_mut().enumerate() {
            *byte = content(n);
        }
        if fua {
            self.fua += 1;
            self.medium[range.clone()].copy_from_slice(&self.cache[range]);
        }
    }
}

/// The device; clones are the same one.
#[derive(Clone)]
pub struct Cached(Arc<Mutex<State>>);

impl Cached {
    /// Of so many blocks, all zeroes.
    pub fn new(blocks: usize) -> Cached {
        Cached::limited(blocks, 1 << 20)
    }

    /// The same, which refuses reads and writes of more than `max_io` bytes.
    pub fn limited(blocks: usize, max_io: u32) -> Cached {
        let zeroes = vec![0; blocks * BLOCK];
        let state = State { medium: zeroes.clone(), cache: zeroes, max_io, ..State::default() };
        Cached(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    /// All that was not made durable is gone.
    pub fn cut_power(&self) {
        let mut state = self.state();
        state.cache = state.medium.clone();
    }

    /// A block as a read returns it.
    pub fn block(&self, lba: u64) -> Vec<u8> {
        self.state().cache[lba as usize * BLOCK..][..BLOCK].to_vec()
    }

    /// Flushes, and changes with FUA, so far.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.flushes, state.fua)
    }

    /// Ranges of bytes that were discarded: offset and length.
    pub fn discards(&self) -> Vec<(u64, u64)> {
        self.state().discards.clone()
    }

    /// Reads of these bytes fail.
    pub fn damage(&self, bytes: Range<u64>) {
        self.state().unreadable = Some(bytes);
    }

    /// Operations of a kind wait from now on.
    pub fn hold(&self, what: Held) {
        self.state().hold = Some(what);
    }

    /// How many wait.
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Lets go of those that wait, and holds no more.
    pub fn release(&self) {
        let mut state = self.state();
        state.hold = None;
        state.held.clear();
    }

    /// What an operation has to wait for.
    fn gate(&self, what: Held) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state();
        (state.hold == Some(what)).then(|| {
            let (sender, receiver) = oneshot::channel();
            state.held.push(sender);
            receiver
        })
    }
}

impl BlockDevice for Cached {
    fn info(&self) -> DeviceInfo {
        let state = self.state();
        DeviceInfo {
            name: "cached".into(),
            size: state.cache.len() as u64,
            block_size: BLOCK as u32,
            max_io: state.max_io,
            optimal_io: 0,
            read_only: false,
            volatile_cache: true,
            discard: true,
            uuid: None,
        }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            if let Some(gate) = self.gate(Held::Open) {
                let _ = gate.await;
            }
            Ok(Rc::new(self.clone()) as Rc<dyn BlockIo>)
        })
    }
}

fn done<T>(result: IoResult<T>) -> IoFuture<T> {
    IoFuture::ready(result)
}

impl BlockIo for Cached {
    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        let state = self.state();
        let end = offset + dst.len() as u64;
        if dst.len() > state.max_io as usize {
            return done(Err(IoError::Unsupported("a read of more than max_io")));
        }
        if state.unreadable.as_ref().is_some_and(|bad| offset < bad.end && bad.start < end) {
            return done(Err(IoError::Medium("a bad block".into())));
        }
        dst.copy_from_slice(&state.cache[offset as usize..end as usize]);
        done(Ok(dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        if src.len() > self.state().max_io as usize {
            return done(Err(IoError::Unsupported("a write of more than max_io")));
        }
        let this = self.clone();
        let write = move || {
            this.state().change(offset, src.len() as u64, flags.fua, |n| src[n]);
            Ok(())
        };
        match self.gate(Held::Write) {
            None => done(write()),
            Some(gate) => IoFuture::new(async move {
                let _ = gate.await;
                write()
            }),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        let mut state = self.state();
        state.flushes += 1;
        state.medium = state.cache.clone();
        done(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.state().discards.push((offset, len));
        done(Ok(()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.state().change(offset, len, flags.fua, |_| 0);
        done(Ok(()))
    }
}
