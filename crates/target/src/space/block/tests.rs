use super::*;
use crate::space::NamespaceLabel;
use longhaul_block::{BlockIo, IoError, MemDevice, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config, Engine};
use std::rc::Rc;

const SIZE: u64 = 16 << 20;

/// How the machine ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// Before the step.
    Before,
    /// In the middle of the step.
    Within,
    /// After the step; nothing is kept that was not made durable.
    Unsynced,
}

/// A device in memory until a crash at a given step. From then on every step fails.
#[derive(Clone)]
struct Crashing(Arc<Mutex<Crash>>);

struct Crash {
    content: Vec<u8>,
    /// Steps until the crash.
    left: usize,
    end: End,
    crashed: bool,
    /// Content before each write that is not durable yet.
    unsynced: Vec<(usize, Vec<u8>)>,
}

impl Crash {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.unsynced.push((at, self.content[at..at + bytes.len()].to_vec()));
        self.content[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn lose(&mut self) {
        for (at, before) in std::mem::take(&mut self.unsynced).into_iter().rev() {
            self.content[at..at + before.len()].copy_from_slice(&before);
        }
    }
}

impl Crashing {
    fn new(content: Vec<u8>, left: usize, end: End) -> Crashing {
        Crashing(Arc::new(Mutex::new(Crash { content, left, end, crashed: false, unsynced: Vec::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Crash> {
        self.0.lock().expect("no panic")
    }

    fn step(&self, half: impl FnOnce(&mut Crash), whole: impl FnOnce(&mut Crash)) -> io::Result<()> {
        let mut crash = self.lock();
        let dead = || io::Error::other("the machine has crashed");
        if crash.crashed {
            return Err(dead());
        }
        if crash.left > 0 {
            crash.left -= 1;
            whole(&mut crash);
            return Ok(());
        }
        crash.crashed = true;
        match crash.end {
            End::Before => {}
            End::Within => half(&mut crash),
            End::Unsynced => {
                whole(&mut crash);
                crash.lose();
            }
        }
        Err(dead())
    }

    fn open(&self) -> Result<BlockSpace, SpaceError> {
        self.open_as(None, &BlockSpaceOptions::default())
    }

    fn open_as(&self, device: Option<&str>, options: &BlockSpaceOptions) -> Result<BlockSpace, SpaceError> {
        let disk = Arc::new(MemDevice::new(SIZE, 512).expect("mapped"));
        BlockSpace::open_on(disk, Box::new(self.clone()), device.map(str::to_owned), options)
    }
}

impl MapMedium for Crashing {
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = at as usize;
        bytes.copy_from_slice(&self.lock().content[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = at as usize;
        self.step(|crash| crash.write(at, &bytes[..bytes.len() / 2]), |crash| crash.write(at, bytes))
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        let (at, zeroes) = (at as usize, vec![0; len as usize]);
        self.step(|crash| crash.write(at, &zeroes[..zeroes.len() / 2]), |crash| crash.write(at, &zeroes))
    }

    fn sync(&self) -> io::Result<()> {
        self.step(|_| {}, |crash| crash.unsynced.clear())
    }
}

const HOST: &str = "nqn.2014-08.org.example:a";

fn label(job: &str) -> NamespaceLabel {
    NamespaceLabel { hosts: vec![HOST.into()], job: job.into(), ..NamespaceLabel::default() }
}

/// A namespace of so many MiB.
fn new(mib: u64) -> NewNamespace {
    NewNamespace { blocks: mib << 8, block_shift: 12, shared: true, label: label("one") }
}

type Shown = Vec<(u32, u64, String)>;

/// What there is: by NSID the size, and the job of the label.
fn content(space: &BlockSpace) -> Shown {
    let of = |ns: SpaceNamespace| (ns.nsid, ns.device.info().size, ns.label.job);
    space.namespaces().into_iter().map(of).collect()
}

/// Extents of all namespaces.
fn extents(space: &BlockSpace) -> Vec<(u64, u64)> {
    space.lock().map.namespaces.iter().flat_map(|mapped| mapped.extents.clone()).collect()
}

type Change = fn(&BlockSpace) -> Result<(), SpaceError>;

fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("create", |space| space.create(3, &new(2)).map(drop)),
        ("delete", |space| space.delete(2)),
        ("label", |space| space.set_label(2, &label("another"))),
        ("grow", |space| space.grow(2, 5 << 20)),
        ("grow within an extent", |space| space.grow(1, (1 << 20) + 4096)),
    ]
}

/// A device with namespaces 1 and 2, and noise where nothing is.
fn before() -> Vec<u8> {
    let medium = Crashing::new(vec![0; SIZE as usize], usize::MAX, End::Before);
    let space = medium.open().expect("made");
    space.create(1, &new(1)).expect("made");
    space.create(2, &new(3)).expect("made");
    let first = (space.places.first_extent() + (4 << 20)) as usize;
    drop(space);
    let mut content = medium.lock().content.clone();
    content[first..].fill(0xA5);
    content
}

#[test]
fn a_change_that_a_crash_ends_at_any_step_is_made_wholly_or_not_at_all() {
    let was = [(1, 1 << 20, "one".to_owned()), (2, 3 << 20, "one".to_owned())];
    for (name, change) in changes() {
        let space = Crashing::new(before(), usize::MAX, End::Before).open().expect("opened");
        change(&space).expect("done");
        let done = content(&space);
        for end in [End::Before, End::Within, End::Unsynced] {
            for step in 0.. {
                let at = format!("{name}, {end:?} step {step}");
                let medium = Crashing::new(before(), usize::MAX, end);
                let space = medium.open().expect("opened");
                medium.lock().left = step;
                let result = change(&space);
                drop(space);
                let crashed = medium.lock().crashed;
                if end == End::Unsynced {
                    // Without a crash before the acknowledgement there is one after it.
                    medium.lock().lose();
                }
                let rest = medium.lock().content.clone();
                let rest = Crashing::new(rest, usize::MAX, End::Before);
                let space = rest.open().expect("opened after the crash");
                let is = content(&space);
                if result.is_ok() {
                    assert_eq!(is, done, "{at}: it was acknowledged");
                } else {
                    assert!(crashed, "{at}: {result:?}");
                    assert!(is == was || is == done, "{at}: {is:?}");
                }
                // What a namespace has got reads as zeroes, whatever was there.
                for (start, len) in extents(&space) {
                    let bytes = &rest.lock().content[start as usize..(start + len) as usize];
                    assert!(bytes.iter().all(|byte| *byte == 0), "{at}: extent at {start}");
                }
                // And it goes on.
                space.create(7, &new(1)).expect("made");
                if !crashed {
                    assert!(step > 5, "{at}: it has steps");
                    break;
                }
            }
        }
    }
}

/// A second crash ends the next start.
#[test]
fn a_crash_while_another_one_is_cleared_up_is_no_worse() {
    for (name, change) in changes() {
        for (first, second) in (0..10).flat_map(|first| (0..9).map(move |second| (first, second))) {
            let medium = Crashing::new(before(), usize::MAX, End::Within);
            let space = medium.open().expect("opened");
            medium.lock().left = first;
            let acknowledged = change(&space).is_ok();
            let done = content(&space);
            drop(space);
            let again = Crashing::new(medium.lock().content.clone(), second, End::Within);
            drop(again.open());
            let last = Crashing::new(again.lock().content.clone(), usize::MAX, End::Before);
            let is = content(&last.open().expect("opened"));
            assert!(!acknowledged || is == done, "{name}, {first} and {second}: {is:?}");
            assert_eq!(is[0].0, 1, "{name}, {first} and {second}");
        }
    }
}

#[test]
fn a_damaged_copy_costs_nothing_and_two_are_refused() {
    let good = before();
    let places = Places::of_size(SIZE);
    let spots = |copy: usize| [HEADS[copy] + 3, HEADS[copy] + 20, places.text(copy) + 40, HEADS[copy] + 65];
    for copy in 0..2 {
        for spot in spots(copy) {
            let mut content_of = good.clone();
            content_of[spot as usize] ^= 0x10;
            let medium = Crashing::new(content_of, usize::MAX, End::Before);
            assert_eq!(content(&medium.open().expect("opened")).len(), 2, "copy {copy}, byte {spot}");
            // It is whole again.
            let mut repaired = medium.lock().content.clone();
            repaired[spots(1 - copy)[2] as usize] ^= 0x10;
            let medium = Crashing::new(repaired, usize::MAX, End::Before);
            assert_eq!(content(&medium.open().expect("opened")).len(), 2, "the other one");
        }
    }
    let mut bad = good.clone();
    (0..2).for_each(|copy| bad[spots(copy)[2] as usize] ^= 0x10);
    let medium = Crashing::new(bad.clone(), usize::MAX, End::Before);
    let refused = medium.open().expect_err("both").to_string();
    assert!(refused.contains("neither copy") && refused.contains("overwrite"), "{refused}");
    assert!(medium.lock().content == bad, "nothing is written");
}

#[test]
fn a_device_with_something_else_on_it_is_refused() {
    let mut content_of = vec![0; SIZE as usize];
    content_of[..4].copy_from_slice(b"XFSB");
    let medium = Crashing::new(content_of.clone(), usize::MAX, End::Before);
    let refused = medium.open().expect_err("XFS").to_string();
    assert!(refused.contains("at byte 0") && refused.contains("overwrite"), "{refused}");
    assert!(medium.lock().content == content_of, "nothing is written");
    let overwrite = BlockSpaceOptions { overwrite: true, ..BlockSpaceOptions::default() };
    medium.open_as(None, &overwrite).expect("overwritten").create(1, &new(1)).expect("made");
    // The second time nothing is lost.
    assert_eq!(content(&medium.open_as(None, &overwrite).expect("opened")).len(), 1);
    let small = Arc::new(MemDevice::new(1 << 20, 512).expect("mapped"));
    let medium = Box::new(Crashing::new(vec![0; 1 << 20], usize::MAX, End::Before));
    let refused = BlockSpace::open_on(small, medium, None, &BlockSpaceOptions::default()).expect_err("small");
    assert!(refused.to_string().contains("a space needs"), "{refused}");
}

#[test]
fn a_copy_on_another_device_is_noticed() {
    let medium = Crashing::new(vec![0; SIZE as usize], usize::MAX, End::Before);
    let plain = BlockSpaceOptions::default();
    let identity = medium.open_as(Some("block wwid a"), &plain).expect("made").identity;
    let clone = Crashing::new(medium.lock().content.clone(), usize::MAX, End::Before);
    let refused = clone.open_as(Some("block wwid b"), &plain).expect_err("a copy").to_string();
    assert!(refused.contains("is a copy of the space") && refused.contains("add adopt"), "{refused}");
    let adopt = BlockSpaceOptions { adopt: true, ..plain };
    assert_eq!(clone.open_as(Some("block wwid b"), &adopt).expect("adopted").identity, identity);
    clone.open_as(Some("block wwid b"), &plain).expect("it is that device's now");
    medium.open_as(Some("block wwid a"), &plain).expect("this one is as it was");
}

#[test]
fn extents_are_found_for_what_fits_and_no_more() {
    let medium = Crashing::new(vec![0; SIZE as usize], usize::MAX, End::Before);
    let space = medium.open().expect("made");
    let free = space.capacity().expect("known").unallocated >> 20;
    assert_eq!(free, 15, "the map takes less than a MiB");
    for nsid in 1..=free as u32 {
        space.create(nsid, &new(1)).expect("made");
    }
    assert!(matches!(space.create(99, &new(1)), Err(SpaceError::Full(_))));
    assert!(matches!(space.grow(1, 2 << 20), Err(SpaceError::Full(_))));
    [2, 4, 6].iter().for_each(|nsid| space.delete(*nsid).expect("removed"));
    // From three pieces.
    space.create(20, &new(2)).expect("made");
    space.grow(20, 3 << 20).expect("grown");
    assert_eq!(space.lock().map.namespaces.last().expect("made").extents.len(), 3);
    assert_eq!(space.capacity().expect("known").unallocated, 0);
    let mut all = extents(&space);
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "none twice");
    let quota = BlockSpaceOptions { quota: Some(4 << 20), ..BlockSpaceOptions::default() };
    let medium = Crashing::new(vec![0; SIZE as usize], usize::MAX, End::Before);
    let space = medium.open_as(None, &quota).expect("made");
    space.create(1, &new(3)).expect("made");
    assert_eq!(space.capacity().expect("known"), SpaceCapacity { total: 4 << 20, unallocated: 1 << 20 });
    assert!(matches!(space.create(2, &new(2)), Err(SpaceError::Full(_))));
}

fn open_device(device: &Arc<dyn BlockDevice>) -> Rc<dyn BlockIo> {
    Engine::new(&Config::default()).expect("engine").block_on(async { device.open().await.expect("opened") })
}

/// On a real file, as `block:` takes one.
#[test]
fn namespaces_on_a_file_have_their_own_content() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk");
    // No namespace owns the earlier content.
    std::fs::write(&path, vec![0x5A; SIZE as usize]).expect("written");
    let plain = BlockSpaceOptions::default();
    let space = BlockSpace::open(&path, &plain).expect("made");
    let busy = BlockSpace::open(&path, &plain).expect_err("served").to_string();
    assert!(busy.contains("in use"), "{busy}");
    Engine::new(&Config::default()).expect("engine").block_on(async {
        let (one, two) = (space.create(1, &new(2)).expect("made"), space.create(2, &new(2)).expect("made"));
        let (a, b) = (one.device.open().await.expect("opened"), two.device.open().await.expect("opened"));
        let end = (2 << 20) - 4096;
        for (io, byte) in [(&a, 1), (&b, 2)] {
            assert!(io.read(end, BufMut::zeroed(4096)).await.expect("read").iter().all(|byte| *byte == 0));
            io.write(end, Buf::copy_of(&[byte; 4096]), WriteFlags { fua: true }).await.expect("written");
            io.flush().await.expect("flushed");
        }
        space.grow(1, 4 << 20).expect("grown");
        assert_eq!(one.device.info().size, 4 << 20);
        let added = a.read(2 << 20, BufMut::zeroed(1 << 20)).await.expect("read");
        assert!(added.iter().all(|byte| *byte == 0), "what was there before");
        // Across both extents.
        a.write(end, Buf::copy_of(&[3; 8192]), WriteFlags::default()).await.expect("written");
        let across = a.read(end, BufMut::zeroed(8192)).await.expect("read");
        assert!(across.iter().all(|byte| *byte == 3));
        assert!(b.read(end, BufMut::zeroed(4096)).await.expect("read").iter().all(|byte| *byte == 2));
        // Another one gets the extents, and neither its content nor its handles.
        space.delete(2).expect("removed");
        let gone = b.read(0, BufMut::zeroed(4096)).await.expect_err("removed");
        assert!(matches!(gone, IoError::Offline(_)), "{gone}");
        let three = space.create(3, &new(2)).expect("made");
        let c = three.device.open().await.expect("opened");
        assert!(c.read(end, BufMut::zeroed(4096)).await.expect("read").iter().all(|byte| *byte == 0));
    });
    drop(space);
    let space = BlockSpace::open(&path, &plain).expect("opened again");
    assert_eq!(content(&space), [(1, 4 << 20, "one".to_owned()), (3, 2 << 20, "one".to_owned())]);
    let again: Arc<dyn BlockDevice> = space.namespaces().remove(0).device;
    drop(open_device(&again));
    // A copy of the file is noticed.
    drop((again, space));
    let copy = directory.path().join("copy");
    std::fs::copy(&path, &copy).expect("copied");
    let refused = BlockSpace::open(&copy, &plain).expect_err("a copy").to_string();
    assert!(refused.contains("was made on the device 'file "), "{refused}");
}
