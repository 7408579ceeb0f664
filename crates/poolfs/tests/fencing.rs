//! A host that is lost, and goes on later: what it has sent, and what it sends then, changes no segment that another
//! host uses.

mod common;

use common::{Calls, ROOT, WRITE, assert_right, memory, pattern, until};
use longhaul_block::filter::OpKind;
use longhaul_catalog::Txn;
use longhaul_fs::Errno;
use longhaul_poolfs::testing::{TestDisk, TestFs};
use longhaul_poolfs::{FsOptions, PoolFs};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

/// Segments of small file systems, all of which a host fills.
const SEGMENTS: u32 = 12;

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
    assert!(
        lost.lookup(ROOT, b"late").is_err() || lost.content(ROOT, b"late").is_ok_and(|data| data.is_empty())
    );
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
    for _ in 0..4 {
        assert_eq!(wrong_after_the_lost_host_goes_on(true), 0);
    }
    // Which they do where hosts are not fenced, and do not wait: the test attacks what it is to attack. Two of the
    // segments are kept for moves, and may be those of the lost host.
    assert!((0..10).any(|_| wrong_after_the_lost_host_goes_on(false) > 0));
}

/// Keys that are registered with each disk, and whether these are reserved for all of them.
fn registered(fs: &TestFs) -> Vec<(bool, Vec<u64>)> {
    let of = |disk: &TestDisk| {
        let state = disk.disk.reservation();
        (state.is_shared && state.holder.is_some(), state.registered)
    };
    fs.disks.iter().map(of).collect()
}

fn key(fs: &PoolFs) -> u64 {
    0x4C46 << 48 | fs.number()
}

#[test]
fn a_session_is_registered_while_it_lasts() {
    let fs = small(true);
    let (one, two) = (mount(&fs, Duration::ZERO), mount(&fs, Duration::ZERO));
    assert_eq!(registered(&fs), vec![(true, vec![key(&one), key(&two)]); 3]);
    write(&one, b"one", &pattern(300_000, 1)).expect("written");
    write(&two, b"two", &pattern(300_000, 2)).expect("written");
    let left = key(&two);
    drop(one);
    assert_eq!(registered(&fs), vec![(true, vec![left]); 3]);
    write(&two, b"three", &pattern(300_000, 3)).expect("written");
    drop(two);
    assert_eq!(registered(&fs), vec![(false, vec![]); 3]);
    assert_right(&fs);
}

/// As after a kill and a new mount on the same host: the former session is in the way of nothing.
#[test]
fn a_new_session_of_the_same_host_takes_over_without_waiting() {
    let fs = small(true);
    let killed = mount(&fs, Duration::from_secs(3600));
    write(&killed, b"file", &pattern(300_000, 1)).expect("written");
    let (lease, gone) = (killed.lease(), key(&killed));
    killed.lose();
    let next = mount(&fs, Duration::from_secs(3600));
    write(&next, b"next", &pattern(300_000, 2)).expect("written before the lease has run out");
    next.tidy().expect("cleaned");
    assert_eq!(registered(&fs), vec![(true, vec![gone, key(&next)]); 3]);
    fs.catalog.revoke(lease).expect("it has run out");
    next.tidy().expect("cleaned");
    assert_eq!(registered(&fs), vec![(true, vec![key(&next)]); 3]);
    assert!(fs.check().expect("checked").left.is_empty());
    assert_eq!(next.content(ROOT, b"file").expect("read"), pattern(300_000, 1));
    drop(next);
    assert_right(&fs);
}

#[test]
fn registrations_that_lost_sessions_leave_are_swept() {
    let fs = small(true);
    let idle = mount(&fs, Duration::ZERO);
    let lease = idle.lease();
    idle.lose();
    fs.catalog.revoke(lease).expect("it has run out");
    let next = mount(&fs, Duration::ZERO);
    next.begin_fencing().expect("swept");
    assert_eq!(registered(&fs), vec![(true, vec![key(&next)]); 3]);
}

#[test]
fn a_session_goes_on_when_targets_have_forgotten_it() {
    let fs = small(true);
    let mounted = mount(&fs, Duration::ZERO);
    write(&mounted, b"before", &pattern(200_000, 1)).expect("written");
    let (_, handle) = mounted.create(ROOT, b"across", WRITE).expect("made");
    mounted.write(handle, 0, &pattern(200_000, 2)).expect("in memory");
    // All of them at once, also between a write and its flush.
    fs.disks.iter().for_each(|disk| disk.disk.forget_registrations());
    mounted.close(handle).expect("written");
    assert_eq!(mounted.trouble(), None);
    assert_eq!(
        registered(&fs).iter().map(|(_, keys)| keys.clone()).collect::<Vec<_>>(),
        vec![vec![key(&mounted)]; 3]
    );
    for (name, seed) in [(b"before", 1), (b"across", 2)] {
        assert_eq!(mounted.content(ROOT, name).expect("read"), pattern(200_000, seed));
    }
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_session_that_has_run_out_does_not_register_again() {
    let fs = small(true);
    let lost = mount(&fs, Duration::ZERO);
    write(&lost, b"file", &pattern(200_000, 1)).expect("written");
    fs.catalog.revoke(lost.lease()).expect("it has run out");
    let other = mount(&fs, Duration::from_secs(3600));
    other.tidy().expect("cleaned");
    assert!(fs.check().expect("checked").left.is_empty(), "it is fenced, and taken over");
    fs.disks.iter().for_each(|disk| disk.disk.forget_registrations());
    // It has not heard yet that it has ended.
    assert_eq!(write(&lost, b"later", &pattern(200_000, 2)), Err(Errno::IO));
    lost.find_members();
    assert_eq!(write(&lost, b"later", &pattern(200_000, 2)), Err(Errno::IO));
    let trouble = lost.trouble().expect("it has ended");
    assert!(trouble.starts_with("failed: its session has run out"), "{trouble}");
    write(&other, b"other", &pattern(200_000, 3)).expect("it registers again");
    until("it is withdrawn", || registered(&fs).iter().all(|(_, keys)| *keys == [key(&other)]));
    drop((lost, other));
    assert_right(&fs);
}

#[test]
fn segments_are_kept_until_the_lost_host_is_fenced_at_each_member() {
    let fs = small(true);
    let lost = mount(&fs, Duration::ZERO);
    write(&lost, b"file", &pattern(200_000, 1)).expect("written");
    let number = lost.number();
    fs.catalog.revoke(lost.lease()).expect("it has run out");
    fs.disks[1].set_gone(true);
    // No time that passes is enough.
    let other = mount(&fs, Duration::ZERO);
    for _ in 0..3 {
        other.tidy().expect("cleaned");
    }
    assert_eq!(fs.check().expect("checked").left, [number]);
    write(&other, b"other", &pattern(100_000, 2)).expect("there are others");
    fs.disks[1].set_gone(false);
    other.find_members();
    other.tidy().expect("cleaned");
    assert!(fs.check().expect("checked").left.is_empty());
    lost.lose();
    drop(other);
    assert_right(&fs);
}

/// A member that is replaced is no member any more: the lost host may write there what it likes.
#[test]
fn a_member_that_is_replaced_need_not_be_asked() {
    let fs = small(true);
    let lost = mount(&fs, Duration::ZERO);
    write(&lost, b"file", &pattern(200_000, 1)).expect("written");
    fs.catalog.revoke(lost.lease()).expect("it has run out");
    fs.disks[1].set_gone(true);
    let other = mount(&fs, Duration::from_secs(3600));
    let (uuid, disk) = fs.add_disk(SEGMENTS);
    other.place_member(1, uuid, false).expect("placed");
    assert_eq!(other.fill(1).expect("filled").lost, 0);
    assert!(fs.check().expect("checked").left.is_empty());
    assert_eq!(disk.disk.reservation().registered, [key(&other)]);
    assert!(disk.disk.reservation().is_shared);
    assert_eq!(other.content(ROOT, b"file").expect("read"), pattern(200_000, 1));
    lost.lose();
}

#[test]
fn each_session_registers_with_a_member_that_has_moved() {
    let fs = small(true);
    let (one, two) = (mount(&fs, Duration::ZERO), mount(&fs, Duration::ZERO));
    write(&two, b"file", &pattern(200_000, 1)).expect("written");
    let (uuid, disk) = fs.add_disk(SEGMENTS);
    one.place_member(0, uuid, true).expect("placed");
    two.tidy().expect("it follows");
    two.tidy().expect("it gives up what it does not use");
    one.fill(0).expect("filled");
    assert_eq!(disk.disk.reservation().registered, [key(&one), key(&two)]);
    write(&two, b"later", &pattern(200_000, 2)).expect("written");
    drop((one, two));
    assert_eq!(disk.disk.reservation().registered, [0; 0]);
}

#[test]
fn fencing_begins_when_no_earlier_program_has_it_mounted() {
    let fs = TestFs::earlier(memory(), 3, (2, 1), SEGMENTS).expect("made");
    let (one, earlier) = (mount(&fs, Duration::ZERO), mount(&fs, Duration::ZERO));
    // The session of an earlier program says nothing of what it knows.
    let knows = [format!("fs/{}/e", fs.uuid).as_bytes(), &earlier.number().to_be_bytes()].concat();
    fs.catalog.commit(&Txn::new().delete(&knows)).expect("deleted");
    one.begin_fencing().expect("looked");
    assert!(registered(&fs).iter().all(|(is_reserved, _)| !is_reserved), "{:?}", registered(&fs));
    let lease = earlier.lease();
    write(&earlier, b"file", &pattern(100_000, 1)).expect("written");
    fs.catalog.revoke(lease).expect("it has run out");
    one.begin_fencing().expect("begun");
    until("it is not reserved", || registered(&fs).iter().all(|(is_reserved, _)| *is_reserved));
    let settings =
        fs.catalog.get(format!("fs/{}/s", fs.uuid).as_bytes()).expect("read").expect("there").value;
    assert!(String::from_utf8(settings).expect("text").starts_with("{\"format\":4,"));
    let counters =
        fs.catalog.get(format!("fs/{}/n", fs.uuid).as_bytes()).expect("read").expect("there").value;
    assert_eq!(counters[0], 3, "earlier programs begin no session");
    write(&one, b"one", &pattern(100_000, 2)).expect("it is registered since it was mounted");
    earlier.lose();
    drop(one);
    // A session from before may be of a program that does not register: time has to pass.
    let patient = mount(&fs, Duration::from_secs(3600));
    patient.tidy().expect("cleaned");
    let left = fs.check().expect("checked").left;
    drop(patient);
    let other = mount(&fs, Duration::ZERO);
    other.tidy().expect("cleaned");
    assert!(fs.check().expect("checked").left.is_empty(), "{left:?} before");
    drop(other);
    assert_right(&fs);
}

#[test]
fn members_without_reservations_are_named() {
    let fs = TestFs::new(memory(), 3, (2, 1), SEGMENTS).expect("made");
    let mounted = mount(&fs, Duration::ZERO);
    mounted.begin_fencing().expect("begun");
    let unfenced = format!("fs/{}/m", fs.uuid).into_bytes();
    assert_eq!(fs.catalog.range(&unfenced, None).expect("read").entries.len(), 1);
    write(&mounted, b"file", &pattern(100_000, 1)).expect("written");
    assert_right(&fs);
    drop(mounted);
    let next = mount(&fs, Duration::ZERO);
    assert_eq!(fs.catalog.range(&unfenced, None).expect("read").entries.len(), 1);
    drop(next);
    assert_eq!(fs.catalog.range(&unfenced, None).expect("read").entries.len(), 0, "with the session");
    assert_right(&fs);
}

/// A registration that was under way when the session ran out, and arrives when others have taken over.
#[test]
fn a_registration_that_arrives_late_is_not_used() {
    let fs = small(true);
    let lost = Arc::new(mount(&fs, Duration::ZERO));
    write(&lost, b"file", &pattern(200_000, 1)).expect("written");
    fs.disks[0].set_gone(true);
    write(&lost, b"narrow", &pattern(100_000, 2)).expect("the others have it");
    fs.disks[0].set_gone(false);
    let late = Duration::from_millis(600);
    fs.disks[0].disk.delay_reservations(late);
    let begun = Instant::now();
    let opening = Arc::clone(&lost);
    let opening = spawn(move || opening.find_members());
    until("it is not opened", || begun.elapsed() > late / 3);
    fs.disks[0].disk.delay_reservations(Duration::ZERO);
    fs.catalog.revoke(lost.lease()).expect("it has run out");
    let other = mount(&fs, Duration::from_secs(3600));
    other.tidy().expect("cleaned");
    assert!(fs.check().expect("checked").left.is_empty(), "it is fenced, and taken over");
    assert!(begun.elapsed() < late, "the machine is too slow for this test");
    opening.join().expect("no panic");
    let files = all_that_fits(&other);
    assert_eq!(write(&lost, b"later", &pattern(200_000, 3)), Err(Errno::IO));
    assert!(lost.trouble().expect("it has ended").starts_with("failed: its session has run out"));
    assert_eq!(other.scrub().expect("read").wrong, 0);
    for (name, data) in files {
        assert!(other.content(ROOT, &name).expect("read") == data);
    }
    until("it is withdrawn", || fs.disks[0].disk.reservation().registered == [key(&other)]);
}

#[test]
fn a_mount_waits_for_one_round_trip_to_the_members_at_its_begin_and_at_its_end() {
    let fs = small(true);
    let trip = Duration::from_millis(400);
    fs.disks.iter().for_each(|disk| disk.disk.delay_reservations(trip));
    let begun = Instant::now();
    let mounted = mount(&fs, Duration::ZERO);
    let took = begun.elapsed();
    assert!(took >= trip && took < trip * 2, "the mount took {took:?}");
    let begun = Instant::now();
    write(&mounted, b"file", &pattern(200_000, 1)).expect("written");
    assert!(begun.elapsed() < trip, "a write waits for no reservation: {:?}", begun.elapsed());
    until("it is not reserved", || registered(&fs).iter().all(|(is_reserved, _)| *is_reserved));
    let begun = Instant::now();
    drop(mounted);
    let took = begun.elapsed();
    assert!(took >= trip && took < trip * 2, "its end took {took:?}");
    assert_eq!(registered(&fs), vec![(false, vec![]); 3]);
}
