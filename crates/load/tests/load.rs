//! Loads on devices in memory.

use longhaul_block::filter::{Delay, Filtered, OpKind, Stats};
use longhaul_block::{BackendSpec, BlockDevice, IoError, NullDevice};
use longhaul_engine::{Config, Thread};
use longhaul_load::{BenchError, Job, Live, Phase, Results, Rw, Stop, Threads, run};
use std::sync::Arc;
use std::time::Duration;

fn device(spec: &str) -> Arc<dyn BlockDevice> {
    BackendSpec::parse(spec).expect("understood").open().expect("opened")
}

fn load(device: &Arc<dyn BlockDevice>, job: &Job) -> Results {
    let threads = Threads::Own(Config::default());
    run(std::slice::from_ref(device), job, &threads, &Stop::new(), &mut |_| {}).expect("begun")
}

/// What `stats` saw of a load on a device that takes `delay` for each I/O.
fn counted(delay: Duration, job: &Job) -> (Results, u64) {
    let slow = Filtered::new(Arc::new(NullDevice::new(1 << 30, 4096).expect("mapped")), Delay::new(delay));
    let stats = Arc::new(Filtered::new(Arc::new(slow), Stats::default()));
    let device: Arc<dyn BlockDevice> = stats.clone();
    let results = load(&device, job);
    assert_eq!(results.error(), None);
    (results, stats.filter().snapshot().of(OpKind::Read).done)
}

#[test]
fn bytes_after_the_window_are_not_counted() {
    let job = Job {
        rw: Rw::RandRead,
        iodepth: 8,
        runtime: Some(Duration::from_millis(300)),
        time_based: true,
        ..Job::default()
    };
    let (results, done) = counted(Duration::from_millis(40), &job);
    let read = &results.jobs[0].read;
    // Each slot ends with one I/O that completes after the window, however
    // slow this machine is.
    assert_eq!(read.ios, done - 8);
    assert!(read.ios > 0 && read.ios <= 7 * 8, "{} I/Os of 40 ms in 300 ms at depth 8", read.ios);
    assert_eq!(results.jobs[0].window, Duration::from_millis(300));
    assert!(results.jobs[0].elapsed >= Duration::from_millis(300));
    let fio = results.to_fio(false);
    assert_eq!(fio.jobs[0].read.bw_bytes, (read.bytes as f64 / 0.3) as u64);
    assert!(read.lat.min() >= 40_000_000 && read.lat.count() == read.ios);
}

#[test]
fn bytes_of_the_ramp_are_not_counted() {
    let window = Duration::from_millis(200);
    let job = Job { iodepth: 4, ramp: window, runtime: Some(window), time_based: true, ..Job::default() };
    let (results, done) = counted(Duration::from_millis(20), &job);
    let read = &results.jobs[0].read;
    assert!(read.ios <= 10 * 4 && done - read.ios >= 4 + 4, "{} of {done} counted", read.ios);
    assert_eq!(results.jobs[0].window, window);
}

#[test]
fn a_load_without_a_run_time_covers_its_size_once() {
    let device = device("mem:1MiB");
    for (rw, reads, writes) in
        [(Rw::Read, 256, 0), (Rw::RandRead, 256, 0), (Rw::Write, 0, 256), (Rw::RandWrite, 0, 256)]
    {
        let results = load(&device, &Job { rw, iodepth: 16, ..Job::default() });
        let job = &results.jobs[0];
        assert_eq!((job.read.ios, job.write.ios), (reads, writes), "{rw}");
        assert_eq!(job.read.bytes + job.write.bytes, 1 << 20);
        assert!(job.window > Duration::ZERO && job.window <= job.elapsed);
    }
    let mixed = load(&device, &Job { rw: Rw::RandRw, rwmixread: 70, ..Job::default() });
    let job = &mixed.jobs[0];
    assert_eq!(job.read.ios + job.write.ios, 256);
    assert!((140..220).contains(&job.read.ios), "{} reads of 256 at 70 %", job.read.ios);
}

#[test]
fn jobs_add_up_on_threads_of_the_caller_too() {
    let devices = [device("mem:1MiB"), device("mem:2MiB")];
    let job = Job { numjobs: 2, iodepth: 4, fdatasync: 16, rw: Rw::Write, bs: 16384, ..Job::default() };
    // The engine ends with its thread's handle; the handles that are left refuse.
    let ended = Thread::start("test", Config::default()).expect("started").handle();
    let gone = run(&devices, &job, &Threads::On(vec![ended]), &Stop::new(), &mut |_| {});
    assert!(matches!(gone, Err(BenchError::Lost)), "{gone:?}");

    let thread = Thread::start("test", Config::default()).expect("started");
    let threads = Threads::On(vec![thread.handle()]);
    let results = run(&devices, &job, &threads, &Stop::new(), &mut |_| {}).expect("begun");
    assert_eq!(
        results.jobs.iter().map(|j| j.write.bytes).collect::<Vec<_>>(),
        [1 << 20, 1 << 20, 2 << 20, 2 << 20]
    );
    let all = results.total().expect("jobs");
    assert_eq!((all.write.ios, all.write.lat.count(), all.sync.count()), (384, 384, 24));
    assert_eq!(results.to_fio(true).jobs.len(), 1);
    assert_eq!(results.to_fio(false).jobs.len(), 4);
}

#[test]
fn an_error_ends_the_load_and_is_reported() {
    let device = device("mem:1MiB,error=100%:ops=write:range=512k-516k:kind=nospace");
    let results = load(&device, &Job { rw: Rw::Write, iodepth: 4, ..Job::default() });
    assert_eq!(results.error(), Some(&IoError::NoSpace));
    assert_eq!(results.jobs[0].write.ios, 128, "I/Os before the error are counted");
    assert_eq!(results.to_fio(false).jobs[0].error, libc::ENOSPC);
}

#[test]
fn stop_ends_a_load_and_keeps_its_results() {
    let device = device("null:1GiB,delay=1ms");
    let stop = Stop::new();
    let job = Job { runtime: Some(Duration::from_secs(3600)), time_based: true, ..Job::default() };
    let mut seen = Vec::new();
    let results = run(&[device], &job, &Threads::Own(Config::default()), &stop, &mut |live: &Live| {
        seen.push(*live);
        stop.stop();
    });
    let results = results.expect("begun");
    assert!(results.jobs[0].read.ios > 0 && results.jobs[0].window < Duration::from_secs(60));
    assert_eq!(seen[0].phase, Phase::Run);
    assert!(seen[0].read.iops > 0.0 && seen[0].remaining > Some(Duration::from_secs(3000)));
}

#[test]
fn jobs_that_the_device_cannot_run_are_refused_with_a_reason() {
    let device = device("mem:1MiB,ro");
    let base = Job::default();
    let cases = [
        (Job { bs: 1000, ..base.clone() }, "bs=1000 is not a multiple of the logical block"),
        (Job { bs: 1 << 30, ..base.clone() }, "is more than the largest request of mem:1048576"),
        (Job { iodepth: 0, ..base.clone() }, "iodepth=0 is not between 1 and"),
        (Job { numjobs: 0, ..base.clone() }, "numjobs=0"),
        (Job { rwmixread: 101, ..base.clone() }, "rwmixread=101"),
        (Job { offset: 512, ..base.clone() }, "offset=512"),
        (Job { size: Some(2 << 20), ..base.clone() }, "go past the end of mem:1048576, 1048576 bytes"),
        (Job { offset_increment: 100, ..base.clone() }, "offset_increment=100 is not a multiple"),
        (
            Job { offset_increment: 512 << 10, numjobs: 3, ..base.clone() },
            "offset_increment=524288 and numjobs=3",
        ),
        (Job { offset_increment: u64::MAX / 4096 * 4096, numjobs: 9, ..base.clone() }, "go past the end"),
        (
            Job { offset_increment: 4096, size: Some(8192), rw: Rw::RandRw, verify: true, ..base.clone() },
            "each other's blocks",
        ),
        (Job { size: Some(100), ..base.clone() }, "no block of bs=4096 fits"),
        (Job { time_based: true, ..base.clone() }, "time_based needs a runtime"),
        (Job { rw: Rw::Write, ..base.clone() }, "read-only: rw=write cannot be done"),
    ];
    for (job, reason) in cases {
        let threads = Threads::Own(Config::default());
        let error = run(std::slice::from_ref(&device), &job, &threads, &Stop::new(), &mut |_| {});
        let error = error.map(drop).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// Each job has a region of its own, both ways of calling alike: its data is found there, and
/// nowhere else.
#[test]
fn a_thousand_jobs_have_a_region_each() {
    const JOBS: u32 = 1000;
    const SIZE: u64 = 32 << 10;
    for sync in [false, true] {
        let memory = device("mem:40MiB");
        let job = Job {
            numjobs: JOBS,
            offset_increment: SIZE,
            sync,
            verify: true,
            iodepth_auto: !sync,
            ..Job::default()
        };
        let write = load(&memory, &Job { rw: Rw::Write, ..job.clone() });
        let read = load(&memory, &Job { rw: Rw::Read, ..job.clone() });
        for results in [&write, &read] {
            assert_eq!(results.error(), None);
            assert_eq!(results.jobs.len(), JOBS as usize);
            assert!(results.jobs.iter().all(|job| job.read.ios + job.write.ios == 8));
            let verify = results.verify();
            assert_eq!((verify.checked_blocks, verify.faults()), (u64::from(JOBS) * 8, 0));
        }
        let after = Job { offset: u64::from(JOBS) * SIZE, offset_increment: 0, numjobs: 1, ..job };
        assert!(load(&memory, &Job { rw: Rw::Read, ..after }).verify().faults() > 0);
    }
}

#[test]
fn jobs_share_the_requested_threads() {
    for (threads, jobs) in [(1, 6), (4, 6), (9, 6)] {
        let memory = device("mem:8MiB");
        let job = Job { rw: Rw::Write, bs: 65_536, numjobs: jobs, ..Job::default() };
        let threads = Threads::Shared(Config::default(), threads);
        let results = run(&[memory], &job, &threads, &Stop::new(), &mut |_| {}).expect("begun");
        assert_eq!(results.total().expect("jobs").write.bytes, u64::from(jobs) * (8 << 20));
    }
}
