//! A host that is lost, and goes on later: what it has sent, and what it sends then, changes no segment that another
//! host uses.

mod common;

use common::{Calls, ROOT, WRITE, memory, pattern};
use longhaul_block::filter::OpKind;
use longhaul_fs::Errno;
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, PoolFs};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

/// Segments of small file systems, all of which a host fills.
const SEGMENTS: u32 = 6;
/// How long an event is waited for.
const LIMIT: Duration = Duration::from_secs(20);

fn small(fences: bool) -> TestFs {
    match fences {
        true => TestFs::fenced(memory(), 3, (2, 1), SEGMENTS),
        false => TestFs::new(memory(), 3, (2, 1), SEGMENTS),
    }
    .expect("made")
}

fn mount(fs: &TestFs, settle: Duration) -> PoolFs {
    let options = FsOptions { settle, ..TestFs::options() };
    fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted")
}

fn write(fs: &PoolFs, name: &[u8], data: &[u8]) -> Result<(), Errno> {
    let (_, handle) = fs.create(ROOT, name, WRITE)?;
    for (index, part) in data.chunks(1 << 20).enumerate() {
        fs.write(handle, (index as u64) << 20, part)?;
    }
    fs.close(handle)
}

/// As much as all segments have room for but those that are kept for moves.
fn all_that_fits(fs: &PoolFs) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut files = Vec::new();
    for n in 0.. {
        let (name, data) = (format!("new {n}").into_bytes(), pattern(120_000, 100 + n));
        match write(fs, &name, &data) {
            Ok(()) => files.push((name, data)),
            Err(Errno::NOSPC) => break,
            Err(e) => panic!("{e}"),
        }
    }
    files
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A host with writes that do not reach the disks yet, whose lease has run out.
fn lost_with_writes_under_way(fs: &TestFs) -> (Arc<PoolFs>, JoinHandle<Result<(), Errno>>) {
    let lost = Arc::new(mount(fs, Duration::ZERO));
    for disk in &fs.disks {
        disk.disk.hold(OpKind::Write, 4);
    }
    let writer = Arc::clone(&lost);
    let late = spawn(move || write(&writer, b"late", &pattern(300_000, 7)));
    until("nothing is written", || fs.disks.iter().all(|disk| disk.disk.held() > 0));
    // Those that come later go through.
    fs.disks.iter().for_each(|disk| disk.disk.hold(OpKind::Write, 0));
    fs.catalog.revoke(lost.lease()).expect("it has run out");
    (lost, late)
}

/// How many units and files of another host, which has taken over, are wrong after the lost one went on.
fn wrong_after_the_lost_host_goes_on(fences: bool) -> usize {
    let fs = small(fences);
    let (lost, late) = lost_with_writes_under_way(&fs);
    // With fencing no time has to pass.
    let settle = if fences { Duration::from_secs(3600) } else { Duration::ZERO };
    let other = mount(&fs, settle);
    other.tidy().expect("cleaned");
    other.tidy().expect("cleaned");
    let files = all_that_fits(&other);
    let room = files.iter().map(|(_, data)| data.len()).sum::<usize>();
    assert!(room > 1_200_000, "the segments of the lost host are in use: only {room} bytes fit");
    fs.disks.iter().for_each(|disk| disk.disk.release());
    assert_eq!(late.join().expect("no panic"), Err(Errno::IO), "the lost host commits nothing");
    assert!(lost.lookup(ROOT, b"late").is_err() || lost.content(ROOT, b"late").is_ok_and(|data| data.is_empty()));
    assert!(other.content(ROOT, b"late").is_ok_and(|data| data.is_empty()));
    if fences {
        let trouble = lost.trouble().expect("it has ended");
        assert!(trouble.starts_with("failed: its session has run out"), "{trouble}");
        assert_eq!(write(&lost, b"later", &[1; 100]), Err(Errno::IO));
    }
    // Before anything is read, and repaired.
    let scrubbed = other.scrub().expect("read");
    let is_right = |(name, data): &&(Vec<u8>, Vec<u8>)| other.content(ROOT, name).ok().as_ref() == Some(data);
    let wrong = files.iter().filter(|file| !is_right(file)).count();
    usize::try_from(scrubbed.wrong).expect("few") + wrong
}

#[test]
fn writes_of_a_lost_host_that_arrive_late_change_nothing() {
    assert_eq!(wrong_after_the_lost_host_goes_on(true), 0);
    // Which they do where hosts are not fenced, and do not wait: the test attacks what it is to attack.
    assert_ne!(wrong_after_the_lost_host_goes_on(false), 0);
}
