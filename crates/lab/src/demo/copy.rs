//! Copies of files to devices and back, with many pieces in flight.

use super::files::{DataSet, File, Piece};
use super::window::{Flow, MeasuredRate, Window};
use crate::Error;
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{BufMut, BufPool, Config, Handle, Thread, fs, spawn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128;

/// Pieces in flight for each device: 64 MiB, enough for 34 Gb/s at 15 ms.
const DEPTH: usize = 64;

/// Copies between the files of a data set and devices.
pub(super) struct Copier {
    _thread: Thread,
    handle: Handle,
    devices: Vec<Arc<dyn BlockDevice>>,
    files: Arc<Vec<File>>,
    pieces: Arc<Vec<Piece>>,
    /// Checksums of the pieces, from the files.
    sums: Mutex<Vec<u128>>,
}

/// State that the tasks of one pass share.
struct Pass {
    io: Vec<Rc<dyn BlockIo>>,
    pieces: Arc<Vec<Piece>>,
    files: Arc<Vec<File>>,
    /// The last opened file and its index: pieces are in the order of the files.
    open: RefCell<Option<(usize, fs::File)>>,
    sums: RefCell<Vec<u128>>,
    wrong: RefCell<Vec<String>>,
    next: Cell<usize>,
    pool: BufPool,
    flow: Arc<Flow>,
}

/// Result of a pass: checksums of the pieces, and descriptions of those that differ.
type PassResult = (Vec<u128>, Vec<String>);

impl Copier {
    pub(super) fn new(
        source: &DataSet,
        devices: &[Arc<dyn BlockDevice>],
        config: Config,
    ) -> Result<Copier, Error> {
        let thread = Thread::start("demo", config).map_err(Error::failed)?;
        Ok(Copier {
            handle: thread.handle(),
            _thread: thread,
            devices: devices.to_vec(),
            files: Arc::new(source.files.clone()),
            pieces: Arc::new(source.pieces(devices.len())),
            sums: Mutex::default(),
        })
    }

    /// Writes all files, again from the first one until `window` is over; flushes, and keeps
    /// their checksums.
    pub(super) fn write(&self, window: Window, tell: &mut dyn FnMut(u64)) -> Result<MeasuredRate, Error> {
        let each = |pass: Rc<Pass>, piece| async move { pass.write(piece).await };
        let (counted, (sums, _)) = self.run(window, tell, Vec::new(), each)?;
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
        Ok(counted)
    }

    /// Reads everything back, repeatedly until `window` is over. Also returns the pieces that
    /// differ.
    pub(super) fn read_and_verify(
        &self,
        window: Window,
        tell: &mut dyn FnMut(u64),
    ) -> Result<(MeasuredRate, Vec<String>), Error> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let each = |pass: Rc<Pass>, piece| async move { pass.verify(piece).await };
        let (counted, (_, wrong)) = self.run(window, tell, sums, each)?;
        Ok((counted, wrong))
    }

    fn run<F, Fut>(
        &self,
        window: Window,
        tell: &mut dyn FnMut(u64),
        sums: Vec<u128>,
        each: F,
    ) -> Result<(MeasuredRate, PassResult), Error>
    where
        F: Fn(Rc<Pass>, usize) -> Fut + Copy + Send + 'static,
        Fut: Future<Output = Result<(), Error>> + 'static,
    {
        let (devices, pieces, files) =
            (self.devices.clone(), Arc::clone(&self.pieces), Arc::clone(&self.files));
        let whole = pieces.iter().map(|piece| piece.len as u64).sum();
        let flow = Arc::new(Flow::default());
        let (open, ended) = channel();
        let counts = Arc::clone(&flow);
        let work = self.handle.spawn(move || async move {
            // Dropped when the task ends, also with an error, which ends the measurement.
            let _open = open;
            let mut io = Vec::new();
            for device in &devices {
                io.push(device.open().await?);
            }
            let lanes = DEPTH * io.len();
            let sums = if sums.is_empty() { vec![0; pieces.len()] } else { sums };
            let pass = Rc::new(Pass {
                io,
                pool: BufPool::new(2 * lanes * super::files::PIECE as usize),
                pieces,
                files,
                open: RefCell::default(),
                sums: RefCell::new(sums),
                wrong: RefCell::default(),
                next: Cell::new(0),
                flow: counts,
            });
            let lanes = (0..lanes).map(|_| {
                let pass = Rc::clone(&pass);
                spawn(async move {
                    while let Some(index) = pass.take() {
                        each(Rc::clone(&pass), index).await?;
                        pass.flow.add(pass.pieces[index].len as u64);
                    }
                    Ok::<_, Error>(())
                })
            });
            let lanes: Vec<_> = lanes.collect();
            for lane in lanes {
                lane.await?;
            }
            for io in &pass.io {
                io.flush().await?;
            }
            Ok::<_, Error>((pass.sums.take(), pass.wrong.take()))
        });
        let counted = window.count(&flow, whole, &ended, tell);
        let passed = work.wait().map_err(Error::failed)??;
        let early = || Error::failed("the copy of the demo ended early");
        Ok((counted.ok_or_else(early)?, passed))
    }
}

impl Pass {
    /// The next piece: all of them at least once, and again until the window is over.
    fn take(&self) -> Option<usize> {
        let next = self.next.get();
        if next >= self.pieces.len() && self.flow.has_to_stop() {
            return None;
        }
        self.next.set(next + 1);
        Some(next % self.pieces.len())
    }

    fn file(&self, index: usize) -> Result<fs::File, Error> {
        let mut open = self.open.borrow_mut();
        match &*open {
            Some((i, file)) if *i == index => Ok(file.clone()),
            _ => {
                let path = &self.files[index].path;
                let file = std::fs::File::open(path)
                    .map_err(|e| Error::failed(format!("cannot open {}: {e}", path.display())))?;
                let file = fs::File::from(file);
                *open = Some((index, file.clone()));
                Ok(file)
            }
        }
    }

    async fn write(&self, index: usize) -> Result<(), Error> {
        let piece = self.pieces[index];
        let file = self.file(piece.file)?;
        let path = &self.files[piece.file].path;
        let mut buf = self.pool.alloc(piece.stored()).await;
        let tail = buf.split_off(piece.len);
        let (n, back) = file.read_at(buf, piece.at).await;
        buf = back;
        let n = n.map_err(|e| Error::failed(format!("cannot read {}: {e}", path.display())))?;
        if n < piece.len {
            return Err(Error::failed(format!("{} became shorter while it was copied", path.display())));
        }
        self.sums.borrow_mut()[index] = xxh3_128(&buf);
        let buf = join(buf, tail);
        self.io[piece.device].write(piece.offset, buf.freeze(), WriteFlags::default()).await?;
        Ok(())
    }

    async fn verify(&self, index: usize) -> Result<(), Error> {
        let piece = self.pieces[index];
        let buf = self.pool.alloc(piece.stored()).await;
        let buf = self.io[piece.device].read(piece.offset, buf).await?;
        if xxh3_128(&buf[..piece.len]) != self.sums.borrow()[index] {
            let path = self.files[piece.file].path.display();
            self.wrong.borrow_mut().push(format!("{path}, {} bytes at {}", piece.len, piece.at));
        }
        Ok(())
    }
}

/// Rejoins the two parts of a buffer, of which the second is zeroed as padding.
fn join(mut head: BufMut, mut tail: BufMut) -> BufMut {
    tail.fill(0);
    // Both parts are from one `split_off`, so that `unsplit` cannot fail.
    let _ = head.unsplit(tail);
    head
}
