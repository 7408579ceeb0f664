//! The first invariant of the write-intent bitmap: before an array changes a data region, the
//! region is marked on every member.

mod common;

use common::rig::{SIZE, UNIT};
use common::{Disk, Model, disks, make, options, simulate};
use longhaul_array::{ArrayDevice, Geometry, Layout, Options, assemble_as};
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, sleep, timeout};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use uuid::Uuid;

/// Offset of a member's bitmap, bytes of a page before its bits, and bytes of a page, as
/// docs/array-safety.md describes the format.
const INTENT_AT: u64 = 192 << 10;
const HEAD: u64 = 32;
const PAGE: u64 = 4096;

/// State shared by the members of one array.
struct Watch {
    disks: Vec<Arc<Disk>>,
    /// Set once the array runs; earlier writes are not checked.
    geometry: OnceLock<Geometry>,
    /// Number of changes to data, and descriptions of those without a mark on some member.
    seen: Mutex<(u64, Vec<String>)>,
}

impl Watch {
    /// Checks an operation that is about to change a member.
    fn check_marked(&self, what: &str, member: usize, offset: u64) {
        let Some(geometry) = self.geometry.get() else { return };
        let data_at = geometry.end() - geometry.rows * geometry.unit;
        let Some(within) = offset.checked_sub(data_at) else { return };
        let region = within / geometry.unit * geometry.unit / geometry.region;
        let (page, bit) = (region / ((PAGE - HEAD) * 8), region % ((PAGE - HEAD) * 8));
        let at = INTENT_AT + page * PAGE + HEAD + bit / 8;
        let marked = |disk: &Arc<Disk>| disk.peek(at, 1)[0] & 1 << (bit % 8) != 0;
        let unmarked: Vec<usize> = (0..self.disks.len()).filter(|m| !marked(&self.disks[*m])).collect();
        let mut seen = self.seen.lock().unwrap();
        seen.0 += 1;
        if !unmarked.is_empty() {
            seen.1.push(format!(
                "{what} at {offset} of member {member}: no mark of region {region} on {unmarked:?}"
            ));
        }
    }

    /// Waits for a change: what is in the journal is acknowledged before it is in its place.
    async fn until_changed(&self) {
        while self.seen.lock().unwrap().0 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Number of changes since the last call; fails if one was not marked.
    fn changes(&self, of: &str) -> u64 {
        let (changes, wrong) = std::mem::take(&mut *self.seen.lock().unwrap());
        assert!(wrong.is_empty(), "{of}: {} of {changes} changes: {}", wrong.len(), wrong[0]);
        changes
    }
}

struct Watched {
    member: usize,
    watch: Arc<Watch>,
}

impl BlockDevice for Watched {
    fn info(&self) -> DeviceInfo {
        self.watch.disks[self.member].info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let io = self.watch.disks[self.member].open().await?;
            Ok(Rc::new(WatchedIo { io, member: self.member, watch: Arc::clone(&self.watch) })
                as Rc<dyn BlockIo>)
        })
    }
}

struct WatchedIo {
    io: Rc<dyn BlockIo>,
    member: usize,
    watch: Arc<Watch>,
}

impl BlockIo for WatchedIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.io.read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.watch.check_marked("a write", self.member, offset);
        self.io.write(offset, src, flags)
    }

    fn flush(&self) -> IoFuture<()> {
        self.io.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.watch.check_marked("a discard", self.member, offset);
        self.io.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.watch.check_marked("zeroes", self.member, offset);
        self.io.write_zeroes(offset, len, flags)
    }
}

/// Waits until no region is marked any more.
async fn idle(array: &ArrayDevice) {
    while array.status().await.expect("status").marked_regions.0 > 0 {
        sleep(Duration::from_millis(200)).await;
    }
}

async fn check(layout: Layout) {
    let (disks, _power) = disks(4, SIZE);
    make(&disks, layout, UNIT).await;
    let watch = Arc::new(Watch { disks, geometry: OnceLock::new(), seen: Mutex::default() });
    let member = |member| Arc::new(Watched { member, watch: Arc::clone(&watch) }) as Arc<dyn BlockDevice>;
    let short = Options { intent_idle: Duration::from_millis(100), ..options() };
    let array = assemble_as(&(0..4).map(member).collect::<Vec<_>>(), short, Uuid::from_u128(8)).await;
    let array = array.expect("assembled");
    let geometry = array.status().await.expect("status").geometry;
    watch.geometry.set(geometry).expect("set once");
    let io = array.open().await.expect("opened");
    let model = Model::new(array.info().size);
    let blocks = geometry.stripe() / PAGE;

    model.write(&*io, 0, 3 * blocks).await.expect("whole stripes");
    assert!(watch.changes("whole stripes") > 0, "{layout}");
    idle(&array).await;
    model.write(&*io, 1, 2).await.expect("a part of a stripe");
    let changed = Box::pin(watch.until_changed());
    timeout(Duration::from_secs(60), changed)
        .await
        .unwrap_or_else(|_| panic!("{layout}: nothing is written"));
    idle(&array).await;
    watch.changes("a part of a stripe");
    model.zero(&*io, 0, 2 * blocks).await.expect("zeroes of whole stripes");
    assert!(watch.changes("zeroes of whole stripes") > 0, "{layout}");
    idle(&array).await;
    io.discard(0, 2 * geometry.stripe()).await.expect("discarded");
    idle(&array).await;
    watch.changes("a discard");
    if geometry.redundancy() > 0 {
        model.write(&*io, 2 * blocks, blocks).await.expect("written");
        idle(&array).await;
        watch.changes("a whole stripe");
        let data_at = geometry.end() - geometry.rows * geometry.unit;
        watch.disks[1].flip(data_at + 2 * geometry.unit + 7);
        let scrub = array.scrub().await.expect("scrubbed");
        assert!(scrub.repaired > 0 && watch.changes("a repair by a scrub") > 0, "{layout}: {scrub:?}");
        idle(&array).await;
        watch.disks[1].flip(data_at + 2 * geometry.unit + 7);
        model.check(&*io).await.expect("read");
        watch.changes("a repair by a read");
    }
}

#[test]
fn every_change_of_a_region_is_marked_on_all_members_before_it_begins() {
    for layout in [Layout::Mirror, Layout::StripeMirror, Layout::Parity, Layout::DoubleParity] {
        simulate(61, check(layout));
    }
}
