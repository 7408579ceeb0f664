//! Files to devices and back, many pieces at a time.

use super::files::{File, Piece, Source};
use crate::exit::Failure;
use indicatif::ProgressBar;
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{BufMut, BufPool, Config, Handle, Thread, fs, spawn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

/// Pieces under way for each device: 64 MiB, which is 34 Gb/s at 15 ms.
const DEPTH: usize = 64;

/// Copies between the files of a source and devices.
pub(super) struct Copier {
    _thread: Thread,
    handle: Handle,
    devices: Vec<Arc<dyn BlockDevice>>,
    files: Arc<Vec<File>>,
    pieces: Arc<Vec<Piece>>,
    /// Checksums of the pieces, as they were read from the files.
    sums: std::sync::Mutex<Vec<u128>>,
}

/// What the tasks of one pass share.
struct Pass {
    io: Vec<Rc<dyn BlockIo>>,
    pieces: Arc<Vec<Piece>>,
    files: Arc<Vec<File>>,
    /// The last file that was opened: pieces come file by file.
    open: RefCell<Option<(usize, fs::File)>>,
    sums: RefCell<Vec<u128>>,
    wrong: RefCell<Vec<String>>,
    next: Cell<usize>,
    pool: BufPool,
    bar: ProgressBar,
}

impl Copier {
    pub(super) fn new(
        source: &Source,
        devices: &[Arc<dyn BlockDevice>],
        config: Config,
    ) -> Result<Copier, Failure> {
        let thread = Thread::start("demo", config).map_err(Failure::failed)?;
        Ok(Copier {
            handle: thread.handle(),
            _thread: thread,
            devices: devices.to_vec(),
            files: Arc::new(source.files.clone()),
            pieces: Arc::new(source.pieces(devices.len())),
            sums: std::sync::Mutex::default(),
        })
    }

    /// Writes all files, flushes, and remembers their checksums. Seconds.
    pub(super) fn write(&self, bar: &ProgressBar) -> Result<f64, Failure> {
        let (seconds, sums, _) =
            self.run(bar, Vec::new(), |pass, piece| async move { pass.write(piece).await })?;
        *self.sums.lock().map_err(Failure::failed)? = sums;
        Ok(seconds)
    }

    /// Reads everything back. Seconds, and the pieces that differ.
    pub(super) fn read_and_verify(&self, bar: &ProgressBar) -> Result<(f64, Vec<String>), Failure> {
        let sums = self.sums.lock().map_err(Failure::failed)?.clone();
        let (seconds, _, wrong) =
            self.run(bar, sums, |pass, piece| async move { pass.verify(piece).await })?;
        Ok((seconds, wrong))
    }

    fn run<F, Fut>(
        &self,
        bar: &ProgressBar,
        sums: Vec<u128>,
        each: F,
    ) -> Result<(f64, Vec<u128>, Vec<String>), Failure>
    where
        F: Fn(Rc<Pass>, usize) -> Fut + Copy + Send + 'static,
        Fut: Future<Output = Result<(), Failure>> + 'static,
    {
        let (devices, pieces, files) =
            (self.devices.clone(), Arc::clone(&self.pieces), Arc::clone(&self.files));
        let bar = bar.clone();
        let work = self.handle.spawn(move || async move {
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
                bar,
            });
            let began = Instant::now();
            let lanes = (0..lanes).map(|_| {
                let pass = Rc::clone(&pass);
                spawn(async move {
                    loop {
                        let i = pass.next.get();
                        let Some(piece) = pass.pieces.get(i) else { return Ok::<_, Failure>(()) };
                        pass.next.set(i + 1);
                        let len = piece.len as u64;
                        each(Rc::clone(&pass), i).await?;
                        pass.bar.inc(len);
                    }
                })
            });
            let lanes: Vec<_> = lanes.collect();
            for lane in lanes {
                lane.await?;
            }
            for io in &pass.io {
                io.flush().await?;
            }
            let seconds = began.elapsed().as_secs_f64();
            Ok((seconds, pass.sums.take(), pass.wrong.take()))
        });
        work.wait().map_err(Failure::failed)?
    }
}

impl Pass {
    fn file(&self, index: usize) -> Result<fs::File, Failure> {
        let mut open = self.open.borrow_mut();
        match &*open {
            Some((i, file)) if *i == index => Ok(file.clone()),
            _ => {
                let path = &self.files[index].path;
                let file = std::fs::File::open(path)
                    .map_err(|e| Failure::failed(format!("cannot open {}: {e}", path.display())))?;
                let file = fs::File::from(file);
                *open = Some((index, file.clone()));
                Ok(file)
            }
        }
    }

    async fn write(&self, index: usize) -> Result<(), Failure> {
        let piece = self.pieces[index];
        let file = self.file(piece.file)?;
        let path = &self.files[piece.file].path;
        let mut buf = self.pool.alloc(piece.stored()).await;
        let tail = buf.split_off(piece.len);
        let (n, back) = file.read_at(buf, piece.at).await;
        buf = back;
        let n = n.map_err(|e| Failure::failed(format!("cannot read {}: {e}", path.display())))?;
        if n < piece.len {
            return Err(Failure::failed(format!("{} became shorter while it was copied", path.display())));
        }
        self.sums.borrow_mut()[index] = xxh3_128(&buf);
        let buf = join(buf, tail);
        self.io[piece.device].write(piece.offset, buf.freeze(), WriteFlags::default()).await?;
        Ok(())
    }

    async fn verify(&self, index: usize) -> Result<(), Failure> {
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

/// Both parts of what was one buffer; the second is padding, and zero.
fn join(mut head: BufMut, mut tail: BufMut) -> BufMut {
    tail.fill(0);
    // They come from one `split_off`, so that they always join.
    let _ = head.unsplit(tail);
    head
}
