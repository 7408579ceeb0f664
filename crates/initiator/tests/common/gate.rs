//! A device that holds operations until a test lets them go.

use longhaul_block::filter::OpKind;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use futures_channel::oneshot;

/// Operations to hold, and those that are held.
#[derive(Default)]
struct State {
    /// How many of the next ones are held.
    next: usize,
    held: Vec<oneshot::Sender<()>>,
}

/// Holds operations of one kind before they reach the device below.
pub struct Gate {
    below: Arc<dyn BlockDevice>,
    kind: OpKind,
    state: Arc<Mutex<State>>,
}

impl Gate {
    /// Before `below`, for operations of `kind`.
    pub fn new(below: Arc<dyn BlockDevice>, kind: OpKind) -> Arc<Gate> {
        Arc::new(Gate { below, kind, state: Arc::default() })
    }

    /// Holds the next `n` operations.
    pub fn hold(&self, n: usize) {
        self.state.lock().expect("no panic").next = n;
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.state.lock().expect("no panic").held.len()
    }

    /// Lets them go.
    pub fn release(&self) {
        self.state.lock().expect("no panic").held.clear();
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let below = self.below.open().await?;
            Ok(Rc::new(GateIo { below, kind: self.kind, state: Arc::clone(&self.state) }) as Rc<dyn BlockIo>)
        })
    }
}

struct GateIo {
    below: Rc<dyn BlockIo>,
    kind: OpKind,
    state: Arc<Mutex<State>>,
}

impl GateIo {
    fn through<T: Unpin + 'static>(
        &self,
        kind: OpKind,
        begin: impl FnOnce(Rc<dyn BlockIo>) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let mut state = self.state.lock().expect("no panic");
        if kind != self.kind || state.next == 0 {
            drop(state);
            return begin(Rc::clone(&self.below));
        }
        state.next -= 1;
        let (hold, gone) = oneshot::channel();
        state.held.push(hold);
        let below = Rc::clone(&self.below);
        // In a task of its own, so that it ends even if its caller drops it.
        let (done, result) = oneshot::channel();
        longhaul_engine::spawn(async move {
            let _ = gone.await;
            let _ = done.send(begin(below).await);
        })
        .detach();
        IoFuture::new(async move { result.await.unwrap_or(Err(longhaul_block::IoError::Aborted)) })
    }
}

impl BlockIo for GateIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.through(OpKind::Read, move |io| io.read(offset, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.through(OpKind::Write, move |io| io.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.through(OpKind::Flush, |io| io.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.through(OpKind::Discard, move |io| io.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.through(OpKind::WriteZeroes, move |io| io.write_zeroes(offset, len, flags))
    }
}
