//! What front ends may rely on: order, honest flushes, bounds, read-ahead.

use longhaul_attach::{Request, Requests, Served};
use longhaul_block::filter::{Delay, Errors, Filtered, OpKind, OpSet, Stats};
use longhaul_block::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, MemDevice, Open, WriteFlags,
    ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Config, sleep, spawn};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Numbers that look random, the same in every run.
struct Random(Cell<u64>);

impl Random {
    fn below(&self, n: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        (x >> 11) % n
    }
}

/// A device that begins what it is asked at times of its own, so that nothing
/// but its user keeps an order; it counts what is under way.
#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    most: AtomicU64,
    flushes: AtomicU64,
}

struct Late {
    inner: Arc<dyn BlockDevice>,
    counts: Arc<Counts>,
}

struct LateIo {
    inner: Rc<dyn BlockIo>,
    counts: Arc<Counts>,
    random: Random,
}

impl BlockDevice for Late {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { volatile_cache: true, max_io: 64 << 10, ..self.inner.info() }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let inner = self.inner.open().await?;
            let random = Random(Cell::new(0x9e37_79b9_7f4a_7c15));
            Ok(Rc::new(LateIo { inner, counts: Arc::clone(&self.counts), random }) as Rc<dyn BlockIo>)
        })
    }
}

impl LateIo {
    fn late<T: Unpin + 'static>(
        &self,
        bytes: u64,
        begin: impl FnOnce(&dyn BlockIo) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let (inner, counts) = (Rc::clone(&self.inner), Arc::clone(&self.counts));
        let now = counts.bytes.fetch_add(bytes, Relaxed) + bytes;
        counts.most.fetch_max(now, Relaxed);
        let time = Duration::from_micros(self.random.below(2000));
        let task = spawn(async move {
            sleep(time).await;
            let result = begin(&*inner).await;
            counts.bytes.fetch_sub(bytes, Relaxed);
            result
        });
        IoFuture::new(task)
    }
}

impl BlockIo for LateIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.late(dst.len() as u64, move |io| io.read(offset, dst))
    }
    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.late(src.len() as u64, move |io| io.write(offset, src, flags))
    }
    fn flush(&self) -> IoFuture<()> {
        self.counts.flushes.fetch_add(1, Relaxed);
        self.late(0, |io| io.flush())
    }
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.late(0, move |io| io.discard(offset, len))
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.late(0, move |io| io.write_zeroes(offset, len, flags))
    }
}

fn late(size: u64) -> (Served, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let inner = Arc::new(MemDevice::new(size, 4096).expect("mapped"));
    let device = Late { inner, counts: Arc::clone(&counts) };
    (Served::open(Arc::new(device), Config::default(), 256 * MIB).expect("opened"), counts)
}

fn flush(served: &Served) -> IoResult<()> {
    served.wait(Request::Flush(served.handle())).map(drop)
}

#[test]
fn changes_of_the_same_bytes_happen_in_the_order_in_which_they_came() {
    const SIZE: u64 = MIB;
    let (served, _) = late(SIZE);
    let mut model = vec![0; SIZE as usize];
    let random = Random(Cell::new(7));
    for round in 0..8u8 {
        let (tell, told) = channel();
        for n in 0..64u8 {
            // Any bytes, often the same ones, sometimes across several I/Os.
            let offset = random.below(SIZE / 4);
            let len = 1 + random.below(if n % 8 == 0 { 200_000 } else { 9000 });
            let range = offset as usize..(offset + len) as usize;
            let tell = tell.clone();
            let request = if n % 5 == 0 {
                model[range].fill(0);
                let flags = ZeroFlags { may_deallocate: n % 2 == 0, fua: n % 3 == 0 };
                Request::Zero { offset, len, flags }
            } else {
                model[range].fill(round.wrapping_mul(64).wrapping_add(n) | 1);
                let data = Buf::copy_of(&vec![round.wrapping_mul(64).wrapping_add(n) | 1; len as usize]);
                Request::Write { offset, data, fua: n % 7 == 0 }
            };
            served.start(request, Box::new(move |result| tell.send(result.map(drop)).expect("a listener")));
        }
        // Reads that come behind see all of them, acknowledged or not.
        for at in (0..SIZE / 2).step_by(100_000) {
            let read = served.wait(Request::Read { offset: at, len: 100_000 }).expect("read");
            assert!(*read == model[at as usize..at as usize + 100_000], "round {round}, at {at}");
        }
        drop(tell);
        assert_eq!(told.iter().filter(Result::is_ok).count(), 64);
    }
    flush(&served).expect("durable");
}

#[test]
fn writes_are_taken_before_the_device_has_them_and_no_more_than_it_advises() {
    let (served, counts) = late(64 * MIB);
    for n in 0..64 {
        let data = Buf::copy_of(&vec![n as u8; MIB as usize]);
        served.wait(Request::Write { offset: n * MIB, data, fua: false }).expect("taken");
    }
    let most = counts.most.load(Relaxed);
    assert!(most > MIB, "one after the other: {most} bytes under way at most");
    assert!(most <= Advice::LOCAL.write, "{most} bytes under way");
    assert_eq!(counts.flushes.load(Relaxed), 0);
    flush(&served).expect("durable");
    assert_eq!((counts.flushes.load(Relaxed), counts.bytes.load(Relaxed)), (1, 0));
}

#[test]
fn a_lost_write_fails_the_next_flush_of_each_handle_once() {
    let inner = Arc::new(MemDevice::new(16 * MIB, 4096).expect("mapped"));
    let mut errors = Errors::new(1.0, 0);
    errors.ops = OpSet::NONE.with(OpKind::Write);
    errors.range = Some(0..4096);
    let device = Arc::new(Filtered::new(inner, errors));
    let served = Served::open(device, Config::default(), MIB).expect("opened");
    let (one, two) = (served.handle(), served.handle());
    let write = |offset| {
        let data = Buf::copy_of(&[1; 4096]);
        served.wait(Request::Write { offset, data, fua: false })
    };
    write(0).expect("taken");
    write(4096).expect("taken");
    let flush = |handle: &Arc<_>| served.wait(Request::Flush(Arc::clone(handle))).map(drop);
    assert!(matches!(flush(&one), Err(IoError::Medium(_))));
    assert_eq!(flush(&one), Ok(()));
    assert!(matches!(served.wait(Request::Drain(Arc::clone(&two))), Err(IoError::Medium(_))));
    assert_eq!(flush(&two), Ok(()));
    assert_eq!(flush(&served.handle()), Ok(()));
    let data = Buf::copy_of(&[1; 4096]);
    let durable = served.wait(Request::Write { offset: 0, data, fua: true });
    assert!(matches!(durable, Err(IoError::Medium(_))));
}

#[test]
fn sequential_readers_are_read_ahead_of_and_random_ones_are_not() {
    let inner = Arc::new(MemDevice::new(1024 * MIB, 4096).expect("mapped"));
    let stats = Arc::new(Filtered::new(inner, Stats::default()));
    let counts = Arc::new(Counts::default());
    let device = Late { inner: stats.clone(), counts: Arc::clone(&counts) };
    let served = Served::open(Arc::new(device), Config::default(), 256 * MIB).expect("opened");
    // Two readers, turn by turn.
    for n in 0..128 {
        for base in [0, 32 * MIB] {
            let offset = base + n * (128 << 10);
            served.wait(Request::Read { offset, len: 128 << 10 }).expect("read");
        }
    }
    let most = counts.most.load(Relaxed);
    assert!(most > MIB, "nothing is read ahead: {most} bytes under way at most");
    let read = stats.filter().snapshot().of(OpKind::Read).bytes;
    let most = 32 * MIB + 4 * Advice::LOCAL.read_ahead;
    assert!((32 * MIB..=most).contains(&read), "{read} bytes read");

    // What was read ahead arrives first.
    while counts.bytes.load(Relaxed) > 0 {
        std::thread::yield_now();
    }
    let before = stats.filter().snapshot().of(OpKind::Read).bytes;
    let random = Random(Cell::new(99));
    for _ in 0..200 {
        let offset = 40 * MIB + random.below(200_000) * 4096;
        served.wait(Request::Read { offset, len: 4096 }).expect("read");
    }
    let read = stats.filter().snapshot().of(OpKind::Read).bytes - before;
    assert!(read <= 220 * 4096, "{read} bytes for 200 reads of 4096");
}

#[test]
fn readers_that_fill_the_path_by_themselves_are_not_read_ahead_of() {
    const LEN: u64 = 128 << 10;
    let inner = Arc::new(MemDevice::new(1024 * MIB, 4096).expect("mapped"));
    let stats = Arc::new(Filtered::new(inner, Stats::default()));
    // Nothing is answered before all is asked.
    let device = Arc::new(Filtered::new(stats.clone(), Delay::new(Duration::from_secs(1))));
    let served = Served::open(device, Config::default(), 256 * MIB).expect("opened");
    let readers = Advice::LOCAL.read / LEN;
    let (tell, told) = channel();
    // Of each reader the first read, and one that follows it.
    for n in 0..2 {
        for reader in 0..readers {
            let (offset, tell) = (reader * 16 * MIB + n * LEN, tell.clone());
            let done = Box::new(move |result| drop(tell.send(result)));
            served.start(Request::Read { offset, len: LEN }, done);
        }
    }
    for _ in 0..2 * readers {
        assert_eq!(told.recv().expect("answered").expect("read").len() as u64, LEN);
    }
    assert_eq!(stats.filter().snapshot().of(OpKind::Read).bytes, 2 * readers * LEN);
}

#[test]
fn what_was_read_ahead_and_is_written_is_read_again() {
    let (served, _) = late(16 * MIB);
    let block = 64 << 10;
    for n in 0..16 {
        served.wait(Request::Read { offset: n * block, len: block }).expect("read");
    }
    let at = 17 * block + 100;
    served.wait(Request::Write { offset: at, data: Buf::copy_of(&[9; 5000]), fua: false }).expect("taken");
    let read = served.wait(Request::Read { offset: 17 * block, len: block }).expect("read");
    assert!(read[..100].iter().all(|&b| b == 0) && read[100..5100].iter().all(|&b| b == 9));
}

#[test]
fn what_does_not_fit_is_refused() {
    let (served, _) = late(MIB);
    let past =
        |offset, len| matches!(served.wait(Request::Read { offset, len }), Err(IoError::OutOfRange { .. }));
    assert!(past(MIB, 1) && past(0, MIB + 1) && past(u64::MAX, 2) && !past(MIB, 0));
    let data = Buf::copy_of(&[0; 2]);
    let write = served.wait(Request::Write { offset: MIB - 1, data, fua: false });
    assert!(matches!(write, Err(IoError::OutOfRange { .. })), "{write:?}");
}

/// A device whose power may go: it is back at once, without what was not
/// flushed, and says so with its generation.
struct Forgetful {
    content: Mutex<Vec<u8>>,
    /// What was there before writes that were not flushed.
    before: Mutex<Vec<(u64, usize, Vec<u8>)>>,
    next: AtomicU64,
    generation: AtomicU64,
    flushes: AtomicU64,
    /// It goes this often, of this many operations.
    goes: AtomicU64,
    /// Flushes fail.
    broken: std::sync::atomic::AtomicBool,
}

impl Forgetful {
    fn new(size: u64) -> Arc<Forgetful> {
        Arc::new(Forgetful {
            content: Mutex::new(vec![0; size as usize]),
            before: Mutex::default(),
            next: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            goes: AtomicU64::new(0),
            broken: false.into(),
        })
    }

    fn lose_power(&self) {
        let mut content = self.content.lock().expect("whole");
        for (_, at, before) in self.before.lock().expect("whole").drain(..).rev() {
            content[at..at + before.len()].copy_from_slice(&before);
        }
        self.generation.fetch_add(1, SeqCst);
    }

    fn store(&self, at: u64, bytes: &[u8], durable: bool) {
        let at = at as usize;
        let mut content = self.content.lock().expect("whole");
        let mut before = self.before.lock().expect("whole");
        let place = &mut content[at..at + bytes.len()];
        if durable {
            // What comes back when the power goes is what is stored now.
            for (_, from, old) in before.iter_mut() {
                let (begin, end) = ((*from).max(at), (*from + old.len()).min(at + bytes.len()));
                if begin < end {
                    old[begin - *from..end - *from].copy_from_slice(&bytes[begin - at..end - at]);
                }
            }
        } else {
            before.push((self.next.fetch_add(1, SeqCst), at, place.to_vec()));
        }
        place.copy_from_slice(bytes);
    }

    fn content(&self) -> Vec<u8> {
        self.content.lock().expect("whole").clone()
    }
}

struct Power(Arc<Forgetful>);

struct PowerIo {
    device: Arc<Forgetful>,
    random: Rc<Random>,
}

impl BlockDevice for Power {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "forgetful".into(),
            size: self.0.content.lock().expect("whole").len() as u64,
            block_size: 512,
            max_io: 64 << 10,
            optimal_io: 0,
            read_only: false,
            volatile_cache: true,
            discard: true,
            uuid: None,
        }
    }

    fn open(&self) -> Open<'_> {
        let random = Rc::new(Random(Cell::new(0x2545_f491_4f6c_dd1d)));
        let io = PowerIo { device: Arc::clone(&self.0), random };
        Box::pin(async move { Ok(Rc::new(io) as Rc<dyn BlockIo>) })
    }
}

impl PowerIo {
    fn late<T: Unpin + 'static>(
        &self,
        does: impl FnOnce(&Forgetful) -> IoResult<T> + 'static,
    ) -> IoFuture<T> {
        let (device, random) = (Arc::clone(&self.device), Rc::clone(&self.random));
        IoFuture::new(spawn(async move {
            sleep(Duration::from_micros(random.below(500))).await;
            let goes = |random: &Random| {
                let often = device.goes.load(Relaxed);
                if often > 0 && random.below(often) == 0 {
                    device.lose_power();
                }
            };
            goes(&random);
            let result = does(&device);
            goes(&random);
            // The answer is on its way.
            sleep(Duration::from_micros(random.below(500))).await;
            result
        }))
    }
}

impl BlockIo for PowerIo {
    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        self.late(move |device| {
            let len = dst.len();
            dst.copy_from_slice(&device.content()[offset as usize..offset as usize + len]);
            Ok(dst)
        })
    }
    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.late(move |device| {
            device.store(offset, &src, flags.fua);
            Ok(())
        })
    }
    fn flush(&self) -> IoFuture<()> {
        let mark = self.device.next.load(SeqCst);
        self.late(move |device| {
            device.flushes.fetch_add(1, SeqCst);
            if device.broken.load(SeqCst) {
                return Err(IoError::Medium("worn".into()));
            }
            device.before.lock().expect("whole").retain(|(number, ..)| *number >= mark);
            Ok(())
        })
    }
    fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
        self.late(|_| Ok(()))
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.late(move |device| {
            device.store(offset, &vec![0; len as usize], flags.fua);
            Ok(())
        })
    }
    fn generation(&self) -> u64 {
        self.device.generation.load(SeqCst)
    }
}

fn forgetful(size: u64, memory: u64) -> (Served, Arc<Forgetful>) {
    let device = Forgetful::new(size);
    let served = Served::open(Arc::new(Power(Arc::clone(&device))), Config::default(), memory);
    (served.expect("opened"), device)
}

#[test]
fn what_a_device_forgot_is_sent_again_before_a_flush_ends_and_before_it_is_read() {
    let (served, device) = forgetful(MIB, 64 * MIB);
    let told = served.handle();
    let put = |offset, byte, len, fua| {
        served.wait(Request::Write { offset, data: Buf::copy_of(&vec![byte; len]), fua }).expect("taken");
    };
    put(0, 1, 100_000, false);
    served.wait(Request::Drain(Arc::clone(&told))).expect("with the device");
    assert_eq!(device.content()[..100_000], [1; 100_000]);
    device.lose_power();
    assert_eq!(device.content()[..100_000], [0; 100_000]);
    let read = served.wait(Request::Read { offset: 0, len: 100_000 }).expect("read");
    assert!(read.iter().all(|&byte| byte == 1), "what was acknowledged and forgotten was read");

    // Only a part of a block is written behind it, and something durable: none
    // of both is undone.
    device.lose_power();
    put(700, 2, 100, false);
    put(1024, 3, 512, true);
    device.lose_power();
    served.wait(Request::Flush(Arc::clone(&told))).expect("durable");
    device.lose_power();
    let mut wanted = vec![1; 100_000];
    wanted[700..800].fill(2);
    wanted[1024..1536].fill(3);
    assert!(device.content()[..100_000] == wanted, "lost by a flush that said nothing");
    // What is durable is not sent again.
    let flushes = device.flushes.load(SeqCst);
    served.wait(Request::Flush(told)).expect("durable");
    assert_eq!(device.flushes.load(SeqCst), flushes + 1);
}

#[test]
fn nothing_is_lost_when_the_power_goes_at_any_moment() {
    const SIZE: u64 = MIB;
    // With little memory, room has to be made again and again.
    for (seed, memory) in [(1, 64 * MIB), (2, MIB), (3, 128 << 10), (4, 16 << 10)] {
        let (served, device) = forgetful(SIZE, memory);
        let random = Random(Cell::new(seed * 0x9e37_79b9));
        let mut model = vec![0u8; SIZE as usize];
        for round in 0..12u64 {
            device.goes.store(20 + random.below(60), Relaxed);
            let (tell, told) = channel();
            for n in 0..60u64 {
                let (offset, tell) = (random.below(SIZE / 4), tell.clone());
                let len = 1 + random.below(if n % 8 == 0 { 150_000 } else { 6000 });
                let range = offset as usize..(offset + len) as usize;
                let byte = (round * 60 + n) as u8 | 1;
                let request = if n % 6 == 0 {
                    model[range].fill(0);
                    let flags = ZeroFlags { may_deallocate: n % 4 == 0, fua: n % 9 == 0 };
                    Request::Zero { offset, len, flags }
                } else {
                    model[range].fill(byte);
                    Request::Write { offset, data: Buf::copy_of(&vec![byte; len as usize]), fua: n % 7 == 0 }
                };
                served.start(request, Box::new(move |result| drop(tell.send(result.map(drop)))));
                if n % 13 == 0 {
                    let read = served.wait(Request::Read { offset: 0, len: SIZE / 2 }).expect("read");
                    let wrong = (0..read.len()).find(|&at| read[at] != model[at]);
                    assert_eq!(wrong, None, "memory {memory}, round {round}, {n}");
                }
            }
            drop(tell);
            assert_eq!(told.iter().filter(Result::is_ok).count(), 60);
            flush(&served).expect("durable");
            device.goes.store(0, Relaxed);
            device.lose_power();
            let content = device.content();
            let wrong = (0..content.len()).find(|&at| content[at] != model[at]);
            assert_eq!(wrong, None, "memory {memory}, round {round}");
        }
        let (generations, flushes) = (device.generation.load(SeqCst), device.flushes.load(SeqCst));
        assert!(generations > 40, "the power went {generations} times");
        assert!(memory >= MIB || flushes > 60, "{flushes} flushes: more was kept than there is memory");
    }
}

#[test]
fn what_cannot_be_flushed_to_make_room_is_told_as_lost() {
    let (served, device) = forgetful(MIB, 64 << 10);
    let told = served.handle();
    device.broken.store(true, SeqCst);
    for n in 0..16 {
        let data = Buf::copy_of(&[9; 8192]);
        served.wait(Request::Write { offset: n * 8192, data, fua: false }).expect("taken");
    }
    let drained = served.wait(Request::Drain(Arc::clone(&told)));
    assert!(matches!(drained, Err(IoError::Medium(_))), "{drained:?}");
    device.broken.store(false, SeqCst);
    // One that failed meanwhile is told as well, and then no more.
    let _ = served.wait(Request::Flush(Arc::clone(&told)));
    served.wait(Request::Flush(told)).expect("all since then");
}
