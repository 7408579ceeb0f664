//! Devices that lie, each in its own way, and loads that find out.

use longhaul_bench::{FaultKind, Job, Results, Rw, Stop, Threads, run};
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, MemDevice, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Config};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BLOCK: u64 = 4096;
/// The block that the lies are about.
const VICTIM: u64 = 17 * BLOCK;
const OTHER: u64 = 23 * BLOCK;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    None,
    /// A bit of the victim is read wrong.
    Flip,
    /// What is written to the victim ends at the other place, too.
    Misplace,
    /// Writes of the victim after the first are acknowledged and lost.
    Lose,
    /// Writes of the victim are acknowledged and lost, all of them.
    LoseAll,
    /// Of writes of the victim after the first, half arrives.
    Tear,
}

struct Liar {
    inner: MemDevice,
    lie: Lie,
    writes: Arc<AtomicU64>,
}

impl BlockDevice for Liar {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let inner = self.inner.open().await?;
            let io: Rc<dyn BlockIo> =
                Rc::new(LiarIo { inner, lie: self.lie, writes: Arc::clone(&self.writes) });
            Ok(io)
        })
    }
}

struct LiarIo {
    inner: Rc<dyn BlockIo>,
    lie: Lie,
    writes: Arc<AtomicU64>,
}

impl BlockIo for LiarIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let read = self.inner.read(offset, dst);
        if self.lie != Lie::Flip || offset != VICTIM {
            return read;
        }
        IoFuture::new(async move {
            let mut buf = read.await?;
            buf[1000] ^= 4;
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        if offset != VICTIM {
            return self.inner.write(offset, src, flags);
        }
        let earlier = self.writes.fetch_add(1, Relaxed);
        match self.lie {
            Lie::LoseAll => IoFuture::ready(Ok(())),
            Lie::Lose if earlier > 0 => IoFuture::ready(Ok(())),
            Lie::Tear if earlier > 0 => self.inner.write(offset, src.slice(0..2048), flags),
            Lie::Misplace => {
                let both =
                    (self.inner.write(OTHER, src.clone(), flags), self.inner.write(offset, src, flags));
                IoFuture::new(async move { both.0.await.and(both.1.await) })
            }
            _ => self.inner.write(offset, src, flags),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.inner.write_zeroes(offset, len, flags)
    }
}

fn liar(lie: Lie) -> Arc<dyn BlockDevice> {
    Arc::new(Liar { inner: MemDevice::new(64 * BLOCK, 512).expect("mapped"), lie, writes: Arc::default() })
}

fn load(device: &Arc<dyn BlockDevice>, job: &Job) -> Results {
    let job = Job { verify: true, ..job.clone() };
    let threads = Threads::Own(Config::default());
    let results =
        run(std::slice::from_ref(device), &job, &threads, &Stop::new(), &mut |_| {}).expect("begun");
    assert_eq!(results.error(), None);
    results
}

/// Writes everything twice (in two passes of one run) and checks.
fn write_twice(device: &Arc<dyn BlockDevice>) -> Results {
    let job = Job { rw: Rw::Write, size: Some(64 * BLOCK), ..Job::default() };
    let twice = Job {
        // A load with a time passes over the device again and again.
        runtime: Some(std::time::Duration::from_millis(500)),
        time_based: true,
        ..job
    };
    load(device, &twice)
}

fn only(results: &Results, kind: FaultKind, address: u64) {
    let report = results.verify();
    assert!(report.faults() > 0, "nothing found");
    assert_eq!(report.count(kind), report.faults(), "{:?}", report.first);
    assert!(
        report.first.iter().all(|fault| (fault.address, fault.len) == (address, BLOCK)),
        "{:?}",
        report.first
    );
    let fio = results.to_fio(true);
    assert_eq!(fio.jobs[0].error, libc::EILSEQ);
    let verify = fio.jobs[0].verify.as_ref().expect("verified");
    assert_eq!(verify.faults.get(&kind.name().replace(' ', "_")), Some(&report.faults()));
}

#[test]
fn an_honest_device_passes() {
    for (rw, checked) in [(Rw::Write, 64), (Rw::RandWrite, 64)] {
        let report = load(&liar(Lie::None), &Job { rw, iodepth: 8, ..Job::default() }).verify();
        assert_eq!((report.checked_blocks, report.faults()), (checked, 0), "{rw}");
    }
    let report = write_twice(&liar(Lie::None)).verify();
    assert_eq!((report.checked_blocks, report.faults()), (64, 0));
}

#[test]
fn a_flipped_bit_is_corruption() {
    only(&write_twice(&liar(Lie::Flip)), FaultKind::Corrupted, VICTIM);
}

#[test]
fn a_lost_write_leaves_stale_content() {
    only(&write_twice(&liar(Lie::Lose)), FaultKind::Stale, VICTIM);
}

#[test]
fn a_first_write_lost_leaves_nothing() {
    only(&write_twice(&liar(Lie::LoseAll)), FaultKind::NeverWritten, VICTIM);
}

#[test]
fn half_a_write_is_torn() {
    only(&write_twice(&liar(Lie::Tear)), FaultKind::Torn, VICTIM);
}

#[test]
fn a_write_at_the_wrong_place_is_misplaced() {
    // Backwards in the random order of some seed the other block is written
    // before the victim, and so spoilt by it.
    let found = (0..16).any(|seed| {
        let job = Job { rw: Rw::RandWrite, seed, ..Job::default() };
        let results = load(&liar(Lie::Misplace), &job);
        let faults = results.verify().faults();
        if faults > 0 {
            only(&results, FaultKind::Misplaced, OTHER);
        }
        faults > 0
    });
    assert!(found, "no order of sixteen wrote the victim last");
}

#[test]
fn mixed_loads_verify_without_false_alarms() {
    let slow = longhaul_block::BackendSpec::parse("mem:256k,delay=200us").expect("understood");
    let device = slow.open().expect("opened");
    let job = Job {
        rw: Rw::RandRw,
        iodepth: 32,
        runtime: Some(std::time::Duration::from_millis(300)),
        time_based: true,
        ..Job::default()
    };
    let report = load(&device, &job).verify();
    assert_eq!(report.faults(), 0, "{:?}", report.first);
    assert!(report.checked_blocks > 64, "reads on the way were checked, not only the end");
}

#[test]
fn mixed_loads_detect_corruption_while_they_run() {
    let job = Job {
        rw: Rw::RandRw,
        runtime: Some(std::time::Duration::from_millis(500)),
        time_based: true,
        ..Job::default()
    };
    let report = load(&liar(Lie::Flip), &job).verify();
    assert!(report.count(FaultKind::Corrupted) > 1, "once at the end and before: {report:?}");
}

#[test]
fn jobs_do_not_disturb_each_other() {
    let job = Job { rw: Rw::RandWrite, numjobs: 4, iodepth: 4, ..Job::default() };
    let report = load(&liar(Lie::None), &job).verify();
    assert_eq!((report.checked_blocks, report.faults()), (64, 0));
}

#[test]
fn an_earlier_runs_blocks_are_checked_by_reading() {
    let device = liar(Lie::None);
    load(&device, &Job { rw: Rw::Write, size: Some(32 * BLOCK), ..Job::default() });
    let half = Job { rw: Rw::RandRead, size: Some(32 * BLOCK), ..Job::default() };
    let report = load(&device, &half).verify();
    assert_eq!((report.checked_blocks, report.faults()), (32, 0));
    let all = load(&device, &Job { rw: Rw::Read, ..Job::default() }).verify();
    assert_eq!((all.checked_blocks, all.count(FaultKind::NeverWritten)), (64, 32));
    let larger = Job { rw: Rw::Read, bs: 2 * BLOCK, size: Some(32 * BLOCK), ..Job::default() };
    assert_eq!(load(&device, &larger).verify().faults(), 16, "blocks of another size");
}
