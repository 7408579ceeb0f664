//! Namespaces of any target, each of which is a target of a pool as a whole.
//!
//! A target without spaces makes no namespaces for hosts, and keeps no labels with them. What its administrator has
//! made and allowed this host can be in a pool all the same: it has one member of a file system, and the label of that
//! is in front of it.
//!
//! | bytes from | what |
//! |---|---|
//! | 0 and 64 KiB | records, which are written in turn: the valid one with the larger number counts |
//! | 1 MiB | the member |
//!
//! A record, with numbers in little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 7 | `LHLABEL\0` |
//! | 8 to 11 | version: 1 |
//! | 12 to 15 | bytes of the label |
//! | 16 to 23 | number of the record |
//! | 24 to 39 | identity of the namespace, a UUID that it has from when the label is first written |
//! | 40 to 43 | CRC32C of the bytes 0 to 39 and the label |
//! | 48 onwards | the label, as text |
//!
//! Invariants:
//! - a record is written over the one that does not count, its first block last, and is durable before it is used; one
//!   that is erased loses its first block first. So a crash leaves the former label or the new one;
//! - a namespace that was taken out has no record, and when it is taken again it has another identity. So what a host
//!   does late to the former one finds another namespace.

use crate::label::Label;
use crate::spaces::{Namespace, NamespaceId, Space, SpaceError, SpaceResult};
use crate::users::{KEY, preempt};
use crate::wire::uri_of;
use longhaul_block::signature::{Content, POOL_MEMBER, look};
use longhaul_block::units::format_size;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoResult, Open, PartDevice, WriteFlags, read_range,
};
use longhaul_device::Opener;
use longhaul_engine::Buf;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"LHLABEL\0";
const FORMAT: u32 = 1;
/// Where records are, and the bytes of each.
const SLOTS: [u64; 2] = [0, SLOT];
const SLOT: u64 = 64 << 10;
/// Where the member begins.
const MEMBER: u64 = 1 << 20;
/// Bytes of a record before its label.
const HEADER: usize = 48;

/// What the address of such a namespace ends with, before its number.
const NSID: &str = "?nsid=";

/// Whether an address is that of a namespace.
pub(crate) fn is_whole(address: &str) -> bool {
    address.contains(NSID)
}

/// The number of the namespace at an address.
pub(crate) fn nsid_of(address: &str) -> SpaceResult<u32> {
    let nsid = address.rsplit_once(NSID).and_then(|(_, nsid)| nsid.parse().ok());
    nsid.ok_or_else(|| {
        SpaceError::Failed(format!("'{address}' has no number of a namespace: end it with {NSID}N"))
    })
}

/// The address that a name of this form means.
pub(crate) fn address_of(name: &str) -> SpaceResult<String> {
    let scheme = longhaul_initiator::SCHEME;
    let bare = name.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).unwrap_or(name);
    let nsid = nsid_of(bare)?;
    let uri = uri_of(bare, Some(nsid))?;
    if !uri.subnqn.starts_with("nqn.") || uri.is_multipath() {
        let why = format!("'{name}' does not name a namespace: the form is HOST[:PORT]/NQN{NSID}N");
        return Err(SpaceError::Failed(why));
    }
    Ok(format!("{}/{}{NSID}{nsid}", crate::wire::authority(&uri.host, uri.port), uri.subnqn))
}

/// What is in front of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WholeRecord {
    /// Which of the places it is in.
    slot: usize,
    number: u64,
    uuid: Uuid,
    label: Result<Label, String>,
}

impl WholeRecord {
    fn encode(number: u64, uuid: Uuid, label: &Label, block: u32) -> SpaceResult<Vec<u8>> {
        let text = label.to_text();
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(SLOT as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(uuid.as_bytes());
        let sum = sum(&bytes, text.as_bytes());
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(block as usize), 0);
        if bytes.len() as u64 > SLOT {
            return Err(SpaceError::Failed(format!(
                "a label of {len} bytes, with so many hosts, has no room there"
            )));
        }
        Ok(bytes)
    }

    /// The record in the bytes of a place; none where none was written.
    fn decode(slot: usize, bytes: &[u8]) -> Option<Result<WholeRecord, String>> {
        let number = |at: usize| bytes.get(at..at + 4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]));
        if bytes.get(..8)? != MAGIC {
            return None;
        }
        let damaged = || "the label is damaged".to_owned();
        let record = || {
            match number(8) {
                Some(FORMAT) => {}
                found => {
                    let found = found.unwrap_or_default();
                    return Err(format!(
                        "the label has version {found}, and this program knows version {FORMAT}"
                    ));
                }
            }
            let (header, len) =
                (bytes.get(..40).ok_or_else(damaged)?, number(12).ok_or_else(damaged)? as usize);
            let text = bytes.get(HEADER..).and_then(|rest| rest.get(..len)).ok_or_else(damaged)?;
            if number(40) != Some(sum(header, text)) {
                return Err(damaged());
            }
            let label = std::str::from_utf8(text).map_err(|_| damaged())?;
            let number = header[16..24].try_into().map(u64::from_le_bytes).map_err(|_| damaged())?;
            let uuid = Uuid::from_slice(&header[24..40]).map_err(|_| damaged())?;
            Ok(WholeRecord { slot, number, uuid, label: Label::parse(label).map_err(|e| e.to_string()) })
        };
        Some(record())
    }
}

fn sum(header: &[u8], text: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&[header, text].concat())
}

/// A namespace that this host has connected to.
pub(crate) struct Whole {
    io: Rc<dyn BlockIo>,
    device: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    nsid: u32,
}

impl Whole {
    /// Opens it on the engine of this thread, where all that have it open share its connection.
    pub(crate) async fn open(device: &Arc<dyn BlockDevice>, nsid: u32) -> SpaceResult<Whole> {
        let io = device.open().await?;
        Ok(Whole { io, info: device.info(), device: Arc::clone(device), nsid })
    }

    /// The record that counts; none on a namespace that is in no pool. One that cannot be read is an error in its
    /// place, if there is no other.
    async fn record(&self) -> SpaceResult<Option<Result<WholeRecord, String>>> {
        if self.info.size <= MEMBER {
            let (size, least) = (format_size(self.info.size), format_size(MEMBER));
            return Err(SpaceError::Refused(format!("it has {size}, and more than {least} are needed")));
        }
        let read = |at| read_range(&*self.io, &self.info, at, SLOT);
        let (first, second) = futures_util::join!(read(SLOTS[0]), read(SLOTS[1]));
        let found = [first?, second?];
        let found: Vec<_> =
            found.iter().enumerate().filter_map(|(slot, bytes)| WholeRecord::decode(slot, bytes)).collect();
        let newest = found.iter().flatten().max_by_key(|record| record.number).cloned();
        Ok(newest.map(Ok).or_else(|| found.into_iter().next()))
    }

    /// The record of a namespace, if it is still that one.
    async fn current(&self, namespace: NamespaceId) -> SpaceResult<WholeRecord> {
        match self.record().await? {
            Some(Ok(record)) if record.uuid == namespace.uuid => Ok(record),
            Some(Err(why)) => Err(SpaceError::Failed(why)),
            _ => Err(SpaceError::Failed(format!("it is not namespace {} any more", namespace.uuid))),
        }
    }

    fn capacity(&self) -> u64 {
        (self.info.size - MEMBER) / MEMBER * MEMBER
    }

    pub(crate) async fn space(&self, id: String) -> SpaceResult<Space> {
        let record = self.record().await?;
        let capacity = self.capacity();
        let free = match record {
            None => {
                self.check_content().await?;
                capacity
            }
            Some(Ok(WholeRecord { label: Ok(label), .. })) => {
                capacity.saturating_sub(label.shape.member_size)
            }
            Some(_) => 0,
        };
        Ok(Space { id, capacity, free, is_whole: true })
    }

    /// Refuses one with content that is known.
    async fn check_content(&self) -> SpaceResult<()> {
        if self.info.read_only {
            return Err(SpaceError::Refused("it is read-only".to_owned()));
        }
        match look(&*self.io, &self.info).await? {
            // What a crash has left of a label that was erased.
            Content::Known { what: POOL_MEMBER, .. } => Ok(()),
            content @ Content::Known { .. } => Err(SpaceError::Refused(format!(
                "it has {content}: if that is not needed, erase it ('wipefs' or 'blkdiscard' where it is attached)"
            ))),
            Content::Unknown { .. } | Content::Nothing => Ok(()),
        }
    }

    pub(crate) async fn list(&self) -> SpaceResult<Vec<Namespace>> {
        let namespace = |record: Result<WholeRecord, String>| match record {
            Ok(WholeRecord { uuid, label, .. }) => {
                let size = label.as_ref().map_or(self.capacity(), |label| label.shape.member_size);
                Namespace { id: NamespaceId { nsid: self.nsid, uuid }, size, label: Some(label) }
            }
            Err(why) => Namespace {
                id: NamespaceId { nsid: self.nsid, uuid: Uuid::nil() },
                size: self.capacity(),
                label: Some(Err(why)),
            },
        };
        Ok(self.record().await?.map(namespace).into_iter().collect())
    }

    pub(crate) async fn make(&self, size: u64, label: &Label) -> SpaceResult<NamespaceId> {
        if !label.shape.layout.is_files() {
            return Err(only_files());
        }
        match self.record().await? {
            None => self.check_content().await?,
            Some(Ok(WholeRecord { label: Ok(Label { pool_name, name, .. }), .. })) => {
                return Err(SpaceError::Full(format!("{pool_name}/{name} has it as a whole")));
            }
            Some(Ok(WholeRecord { label: Err(why), .. }) | Err(why)) => {
                let why = format!("{why}: if nothing there is needed, erase its first MiB ('blkdiscard')");
                return Err(SpaceError::Refused(why));
            }
        }
        self.check_size(size)?;
        let made = WholeRecord { slot: 1, number: 0, uuid: Uuid::new_v4(), label: Ok(label.clone()) };
        self.replace(&made, label).await?;
        let id = NamespaceId { nsid: self.nsid, uuid: made.uuid };
        // Another host may have done the same at the same time.
        match self.record().await? {
            Some(Ok(record)) if record.uuid == made.uuid => Ok(id),
            _ => Err(SpaceError::Full("another pool has taken it at the same time".to_owned())),
        }
    }

    fn check_size(&self, size: u64) -> SpaceResult<()> {
        if size > self.capacity() {
            let (size, capacity) = (format_size(size), format_size(self.capacity()));
            return Err(SpaceError::Full(format!("it has room for {capacity}, and {size} are needed")));
        }
        Ok(())
    }

    pub(crate) async fn grow(&self, namespace: NamespaceId, size: u64) -> SpaceResult<()> {
        self.current(namespace).await?;
        self.check_size(size)
    }

    pub(crate) async fn relabel(&self, namespace: NamespaceId, label: &Label) -> SpaceResult<()> {
        let record = self.current(namespace).await?;
        self.replace(&record, label).await
    }

    /// Writes the record that follows another one.
    async fn replace(&self, record: &WholeRecord, label: &Label) -> SpaceResult<()> {
        let bytes = WholeRecord::encode(record.number + 1, record.uuid, label, self.info.block_size)?;
        let at = SLOTS[1 - record.slot.min(1)];
        let block = self.info.block_size as usize;
        let write = || async {
            self.put(at + block as u64, &bytes[block..]).await?;
            self.put(at, &bytes[..block]).await
        };
        Ok(self.permitted(write).await?)
    }

    /// Writes bytes, which are durable then.
    async fn put(&self, at: u64, bytes: &[u8]) -> IoResult<()> {
        let piece = self.info.max_io.max(self.info.block_size) as usize;
        for (index, part) in bytes.chunks(piece).enumerate() {
            self.io.write(at + (index * piece) as u64, Buf::copy_of(part), WriteFlags::default()).await?;
        }
        if bytes.is_empty() { Ok(()) } else { self.io.flush().await }
    }

    /// Does what changes it, also while sessions of a file system have it reserved.
    async fn permitted<F>(&self, change: impl Fn() -> F) -> IoResult<()>
    where
        F: Future<Output = IoResult<()>>,
    {
        match (change().await, self.io.shared_reservations()) {
            (Err(IoError::Reserved), Some(reservations)) => {
                reservations.register(KEY).await?;
                let done = change().await;
                let left = reservations.unregister(KEY).await;
                done.and(left)
            }
            (done, _) => done,
        }
    }

    pub(crate) async fn remove(&self, namespace: NamespaceId) -> SpaceResult<()> {
        let record = match self.record().await? {
            Some(Ok(record)) if record.uuid == namespace.uuid => record,
            _ => return Ok(()),
        };
        preempt(std::slice::from_ref(&self.device)).await?;
        // The one that counts is erased last: until then nothing has changed.
        for slot in [1 - record.slot.min(1), record.slot] {
            let (block, zeroes) = (self.info.block_size as usize, vec![0; SLOT as usize]);
            let erase = || async {
                self.put(SLOTS[slot], &zeroes[..block]).await?;
                self.put(SLOTS[slot] + block as u64, &zeroes[block..]).await
            };
            self.permitted(erase).await?;
        }
        Ok(())
    }
}

/// Why such a namespace has no member of an array.
pub(crate) fn only_files() -> SpaceError {
    let why = "it is one namespace of another target, which has members of file systems and of no volume";
    SpaceError::Refused(why.to_owned())
}

/// The member that is behind the label of a namespace. Which one it is is looked at when it is opened, on the thread and
/// the connection that use it then.
struct LabelledDevice {
    whole: Arc<dyn BlockDevice>,
    member: PartDevice,
    uuid: Uuid,
}

impl BlockDevice for LabelledDevice {
    fn info(&self) -> DeviceInfo {
        self.member.info()
    }

    fn granularity(&self) -> u32 {
        self.member.granularity()
    }

    fn refresh(&self) -> IoResult<DeviceInfo> {
        self.member.refresh()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let another = |why: String| IoError::Offline(format!("{}: {why}", self.whole.info().name));
            let whole = Whole::open(&self.whole, 0).await.map_err(|e| another(e.to_string()))?;
            match whole.record().await.map_err(|e| another(e.to_string()))? {
                Some(Ok(record)) if record.uuid == self.uuid => self.member.open().await,
                Some(Err(why)) => Err(another(why)),
                _ => Err(another(format!("it is not namespace {} any more", self.uuid))),
            }
        })
    }
}

/// The device of namespace `wanted` of a pool, where a connection has led to `device`: that itself, or what is behind
/// the label on it, which is looked at when it is opened; none if it is another one.
pub(crate) fn member_of(device: Arc<dyn BlockDevice>, wanted: Uuid) -> Option<Arc<dyn BlockDevice>> {
    if device.info().uuid == Some(wanted) {
        return Some(device);
    }
    let member = PartDevice::new(Arc::clone(&device), MEMBER, wanted).ok()?;
    Some(Arc::new(LabelledDevice { whole: device, member, uuid: wanted }))
}

/// Connects to namespace `wanted` of a pool, a member of a file system.
///
/// # Errors
/// [`IoError::Unreachable`] if it cannot be connected to, and [`IoError::Offline`] if another namespace is there, which
/// may be found out when the device is opened.
pub fn open_member(opener: &Opener, uri: &str, wanted: Uuid) -> IoResult<Arc<dyn BlockDevice>> {
    let device = opener.connect(uri).map_err(|e| IoError::Unreachable(e.to_string()))?;
    member_of(device, wanted).ok_or_else(|| IoError::Offline(format!("{uri} is another namespace")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Shape, VolumeLayout};
    use longhaul_array::Layout;
    use longhaul_block::filter::OpKind;
    use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
    use longhaul_engine::{Config, Engine};

    const SIZE: u64 = 4 << 20;

    fn label(name: &str) -> Label {
        let shape =
            Shape::fit(VolumeLayout::Files(Layout::Mirror), 2, 0, 64 << 10, 1 << 20).expect("a shape");
        Label {
            pool: Uuid::from_u128(1),
            pool_name: "p".to_owned(),
            domain: "r1".to_owned(),
            volume: Uuid::from_u128(2),
            name: name.to_owned(),
            renames: 0,
            index: 0,
            shape,
            hosts: vec!["nqn.2014-08.org.example:a".to_owned()],
            job: None,
            expires: None,
            thin: false,
            made_by: "dtn1".to_owned(),
            made_at: 1_780_000_000,
            joining: false,
            snapshot_of: None,
            copied: false,
            manager: None,
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        Engine::new(&Config::default()).expect("an engine").block_on(work)
    }

    async fn open(disk: &FaultDisk) -> Whole {
        let device: Arc<dyn BlockDevice> = Arc::new(disk.clone());
        Whole::open(&device, 1).await.expect("opened")
    }

    async fn name_of(disk: &FaultDisk) -> Result<Option<String>, String> {
        let listed = open(disk).await.list().await.expect("listed");
        listed.into_iter().next().map(|one| one.label.expect("labelled").map(|label| label.name)).transpose()
    }

    /// The host crashes in each write of each change: that is torn, and none follows it.
    #[test]
    fn a_crash_while_a_label_is_written_or_erased_leaves_the_former_or_the_new_one() {
        const CHANGES: [(Option<&str>, Option<&str>); 4] =
            [(None, Some("a")), (Some("a"), Some("b")), (Some("b"), Some("c")), (Some("c"), None)];
        /// Makes the first `count` changes; the last one may fail.
        async fn change(disk: &FaultDisk, count: usize, faults: impl FnOnce(&FaultDisk)) {
            let (whole, mut id, mut faults) = (open(disk).await, None, Some(faults));
            for (at, (former, new)) in CHANGES.iter().take(count).enumerate() {
                if at + 1 == count {
                    faults.take().expect("once")(disk);
                }
                let done = match (former, new, id) {
                    (None, Some(new), _) => {
                        whole.make(1 << 20, &label(new)).await.map(|made| id = Some(made))
                    }
                    (_, Some(new), Some(id)) => whole.relabel(id, &label(new)).await,
                    (_, _, Some(id)) => whole.remove(id).await,
                    _ => unreachable!("made first"),
                };
                assert!(done.is_ok() || at + 1 == count, "{done:?}");
            }
        }
        run(async {
            for (at, (former, new)) in CHANGES.iter().enumerate() {
                let (mut crashes, mut ended) = (0, false);
                for write in 0_u64.. {
                    if ended {
                        break;
                    }
                    for torn in [0, 512, 1024, 40 << 10] {
                        for keeps in [true, false] {
                            let disk = FaultDisk::new(SIZE);
                            let crash = Fault::Error(IoError::Offline("it has crashed".into()));
                            let faults = |disk: &FaultDisk| {
                                let rule = |kind, fault, after| FaultRule::new(kind, fault).after(after);
                                disk.inject(rule(OpKind::Write, Fault::Tear(torn), write).times(1));
                                disk.inject(rule(OpKind::Write, crash.clone(), write));
                                disk.inject(rule(OpKind::Flush, crash.clone(), write));
                            };
                            let before = disk.counts().flushes;
                            change(&disk, at + 1, faults).await;
                            // Each write is followed by a flush: fewer of them, and it was not reached.
                            ended = disk.counts().flushes - before < write;
                            disk.heal();
                            if !keeps {
                                disk.forget();
                            }
                            let found = name_of(&disk).await.expect("readable");
                            assert!(
                                [former, new].contains(&&found.as_deref()),
                                "{at}, {write}, {torn}: {found:?}"
                            );
                            crashes += 1;
                        }
                    }
                }
                assert!(crashes > 16, "{crashes}");
            }
        });
    }

    #[test]
    fn a_namespace_has_one_member_and_another_identity_each_time() {
        run(async {
            let disk = FaultDisk::new(SIZE);
            let whole = open(&disk).await;
            let space = whole.space("id".to_owned()).await.expect("a space");
            assert_eq!((space.capacity, space.free, space.is_whole), (3 << 20, 3 << 20, true));
            let id = whole.make(1 << 20, &label("a")).await.expect("made");
            let taken = whole.make(1 << 20, &label("b")).await.expect_err("taken");
            assert_eq!(taken, SpaceError::Full("p/a has it as a whole".to_owned()));
            assert_eq!(whole.grow(id, 3 << 20).await, Ok(()));
            assert!(matches!(whole.grow(id, 4 << 20).await, Err(SpaceError::Full(_))));
            whole.remove(id).await.expect("removed");
            let again = whole.make(1 << 20, &label("b")).await.expect("made again");
            assert_ne!(again.uuid, id.uuid);
            // Late, by a host that knows the former one.
            whole.remove(id).await.expect("nothing to remove");
            whole.relabel(id, &label("a")).await.expect_err("another one");
            whole.grow(id, 1 << 20).await.expect_err("another one");
            assert_eq!(name_of(&disk).await, Ok(Some("b".to_owned())));
            assert!(disk.content(MEMBER..SIZE).iter().all(|byte| *byte == 0), "the member is not touched");
            let version = disk.open().await.expect("opened");
            let mut block = disk.content(0..512);
            block[8] = 2;
            version.write(0, Buf::copy_of(&block), WriteFlags::default()).await.expect("written");
            let later = "the label has version 2, and this program knows version 1".to_owned();
            assert_eq!(name_of(&disk).await, Err(later));
        });
    }

    #[test]
    fn what_is_on_a_namespace_is_not_overwritten() {
        run(async {
            let disk = FaultDisk::new(SIZE);
            let io = disk.open().await.expect("opened");
            let mut block = vec![0; 512];
            block[..4].copy_from_slice(b"XFSB");
            io.write(0, Buf::copy_of(&block), WriteFlags::default()).await.expect("written");
            let (whole, before) = (open(&disk).await, disk.content(0..SIZE));
            let refused = (whole.space("id".to_owned()).await, whole.make(1 << 20, &label("a")).await);
            assert!(
                matches!(refused, (Err(SpaceError::Refused(_)), Err(SpaceError::Refused(_)))),
                "{refused:?}"
            );
            assert_eq!(disk.content(0..SIZE), before);
            let shape = Shape { layout: VolumeLayout::Single, ..label("a").shape };
            let empty = open(&FaultDisk::new(SIZE)).await;
            assert_eq!(empty.make(1 << 20, &Label { shape, ..label("a") }).await, Err(only_files()));
        });
    }

    /// The sessions of a file system have reserved the namespace, and this host is not registered with it.
    #[test]
    fn a_label_is_written_and_erased_while_the_namespace_is_reserved() {
        run(async {
            let disk = FaultDisk::new(SIZE);
            let session = disk.for_host(1);
            let whole = open(&disk.for_host(2)).await;
            let id = whole.make(1 << 20, &label("a")).await.expect("made");
            let io = session.open().await.expect("opened");
            let reservations = io.shared_reservations().expect("has some");
            reservations.register(7).await.expect("registered");
            reservations.acquire(7).await.expect("reserved");
            whole.relabel(id, &label("b")).await.expect("written");
            assert_eq!(name_of(&disk).await, Ok(Some("b".to_owned())));
            assert_eq!(disk.reservation().registered, [7], "only for that time");
            whole.remove(id).await.expect("removed");
            assert_eq!((name_of(&disk).await, disk.reservation().registered), (Ok(None), vec![]));
        });
    }

    #[test]
    fn addresses_are_told_from_those_of_spaces() {
        let nqn = "nqn.2014-08.org.example:disk";
        for (name, address) in [
            (format!("h/{nqn}?nsid=3"), format!("h:4420/{nqn}?nsid=3")),
            (format!("nvme+tcp://[::1]:99/{nqn}?nsid=3"), format!("[::1]:99/{nqn}?nsid=3")),
        ] {
            assert_eq!(address_of(&name), Ok(address.clone()));
            assert!(is_whole(&address));
            assert_eq!(uri_of(&address, Some(3)).expect("a URI").nsid, Some(3));
        }
        assert!(!is_whole(&format!("h:4420/{nqn}")));
        for wrong in [format!("h/{nqn}?nsid=x"), "h/disk?nsid=3".to_owned(), format!("a,b/{nqn}?nsid=1")] {
            address_of(&wrong).expect_err(&wrong);
        }
    }
}
