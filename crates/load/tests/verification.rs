//! Devices that lie, each in its own way, and loads that find out.

use longhaul_block::BlockDevice;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_engine::Config;
use longhaul_load::{FaultKind, Job, Results, Rw, Stop, Threads, run};
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// The block that the lies are about.
const VICTIM: u64 = 17 * BLOCK;
const OTHER: u64 = 23 * BLOCK;

/// A disk with these faults of operations on the victim.
fn liar(rule: Option<FaultRule>) -> Arc<dyn BlockDevice> {
    let disk = FaultDisk::new(64 * BLOCK);
    if let Some(rule) = rule {
        disk.inject(rule.within(VICTIM..VICTIM + 1));
    }
    Arc::new(disk)
}

/// Writes of the victim.
fn writes(fault: Fault) -> FaultRule {
    FaultRule::new(OpKind::Write, fault)
}

/// Reads of the victim have a wrong bit.
fn flip() -> FaultRule {
    FaultRule::new(OpKind::Read, Fault::Flip(1000))
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
        let report = load(&liar(None), &Job { rw, iodepth: 8, ..Job::default() }).verify();
        assert_eq!((report.checked_blocks, report.faults()), (checked, 0), "{rw}");
    }
    let report = write_twice(&liar(None)).verify();
    assert_eq!((report.checked_blocks, report.faults()), (64, 0));
}

#[test]
fn a_flipped_bit_is_corruption() {
    only(&write_twice(&liar(Some(flip()))), FaultKind::Corrupted, VICTIM);
}

#[test]
fn a_lost_write_leaves_stale_content() {
    only(&write_twice(&liar(Some(writes(Fault::Lose).after(1)))), FaultKind::Stale, VICTIM);
}

#[test]
fn a_first_write_lost_leaves_nothing() {
    only(&write_twice(&liar(Some(writes(Fault::Lose)))), FaultKind::NeverWritten, VICTIM);
}

#[test]
fn half_a_write_is_torn() {
    only(&write_twice(&liar(Some(writes(Fault::Tear(2048)).after(1)))), FaultKind::Torn, VICTIM);
}

#[test]
fn a_write_at_the_wrong_place_is_misplaced() {
    // Backwards in the random order of some seed the other block is written
    // before the victim, and so spoilt by it.
    let found = (0..16).any(|seed| {
        let job = Job { rw: Rw::RandWrite, seed, ..Job::default() };
        let results = load(&liar(Some(writes(Fault::Misplace(OTHER)))), &job);
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
    let report = load(&liar(Some(flip())), &job).verify();
    assert!(report.count(FaultKind::Corrupted) > 1, "once at the end and before: {report:?}");
}

#[test]
fn jobs_do_not_disturb_each_other() {
    let job = Job { rw: Rw::RandWrite, numjobs: 4, iodepth: 4, ..Job::default() };
    let report = load(&liar(None), &job).verify();
    assert_eq!((report.checked_blocks, report.faults()), (64, 0));
}

#[test]
fn an_earlier_runs_blocks_are_checked_by_reading() {
    let device = liar(None);
    load(&device, &Job { rw: Rw::Write, size: Some(32 * BLOCK), ..Job::default() });
    let half = Job { rw: Rw::RandRead, size: Some(32 * BLOCK), ..Job::default() };
    let report = load(&device, &half).verify();
    assert_eq!((report.checked_blocks, report.faults()), (32, 0));
    let all = load(&device, &Job { rw: Rw::Read, ..Job::default() }).verify();
    assert_eq!((all.checked_blocks, all.count(FaultKind::NeverWritten)), (64, 32));
    let larger = Job { rw: Rw::Read, bs: 2 * BLOCK, size: Some(32 * BLOCK), ..Job::default() };
    assert_eq!(load(&device, &larger).verify().faults(), 16, "blocks of another size");
}
