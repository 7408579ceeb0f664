//! Hosts that another one has preempted.

use crate::client::{BLOCK, Host, Name, pattern, read, write};
use crate::rig::Rig;
use longhaul_block::testing::FaultDisk;
use longhaul_block::{BlockDevice, MemDevice};
use longhaul_engine::EngineKind;
use longhaul_target::{Registration, ReservationRecord, ReservationStore};
use longhaul_wire::command::{Sgl, Sqe, admin, io as io_opcode};
use longhaul_wire::completion::Status;
use longhaul_wire::feature::fid;
use longhaul_wire::log::{ReservationNotice, ReservationNoticeKind, lid};
use longhaul_wire::pdu::flags;
use longhaul_wire::reservation::{
    AcquireAction, AcquireFields, PersistChange, RegisterAction, RegisterFields, ReleaseAction,
    ReleaseFields, ReservationReport, ReservationType, encode_keys,
};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const CONFLICT: Status = Status::RESERVATION_CONFLICT;

fn with_keys(opcode: u8, nsid: u32, cdw10: u32, keys: &[u8]) -> Sqe {
    let sgl = Sgl::in_capsule(0, keys.len() as u32);
    Sqe::new(opcode).with_nsid(nsid).with_cdw(10, cdw10).with_sgl(sgl)
}

fn register(host: &mut Host, nsid: u32, key: u64) -> Status {
    let fields =
        RegisterFields { action: RegisterAction::Register, ignore_key: false, persist: PersistChange::None };
    let keys = encode_keys(0, key);
    host.io.call(&with_keys(io_opcode::RESERVATION_REGISTER, nsid, fields.cdw10(), &keys), &keys).status
}

fn acquire(
    host: &mut Host,
    nsid: u32,
    action: AcquireAction,
    kind: ReservationType,
    keys: [u64; 2],
) -> Status {
    let fields = AcquireFields { action, ignore_key: false, kind };
    let keys = encode_keys(keys[0], keys[1]);
    host.io.call(&with_keys(io_opcode::RESERVATION_ACQUIRE, nsid, fields.cdw10(), &keys), &keys).status
}

fn release(host: &mut Host, nsid: u32, kind: ReservationType, key: u64) -> Status {
    let fields = ReleaseFields { action: ReleaseAction::Release, ignore_key: false, kind: Some(kind) };
    let keys = key.to_le_bytes();
    host.io.call(&with_keys(io_opcode::RESERVATION_RELEASE, nsid, fields.cdw10(), &keys), &keys).status
}

fn report(host: &mut Host, nsid: u32) -> ReservationReport {
    const LEN: u32 = 1024;
    let sqe =
        Sqe::new(io_opcode::RESERVATION_REPORT).with_nsid(nsid).with_cdw(10, LEN / 4 - 1).with_cdw(11, 1);
    let done = host.io.call(&sqe.with_sgl(Sgl::transport(LEN)), &[]);
    assert_eq!((done.status, done.data.len()), (Status::SUCCESS, LEN as usize));
    ReservationReport::decode(&done.data).expect("a header")
}

/// The oldest notice that waits for the host.
fn notice(host: &mut Host) -> Option<ReservationNotice> {
    let sqe = Sqe::get_log_page(lid::RESERVATION_NOTICE, 0, 0, 64, false);
    let done = host.admin.call(&sqe.with_sgl(Sgl::transport(64)), &[]);
    assert_eq!(done.status, Status::SUCCESS);
    ReservationNotice::decode(&done.data.try_into().expect("64 bytes"))
}

/// A writer whose data is still to come when another host takes over: none of it lands, however
/// late it comes, and whatever it sends over new connections is refused.
//= test: NVMe Base 2.1, Command Behavior in the Presence of a Reservation
//= test: NVMe Base 2.1, Reservation Acquire
pub fn a_preempted_writer_changes_nothing_any_more(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let nsid = rig.export(Arc::new(MemDevice::new(1 << 20, BLOCK as u32).expect("mapped")));
    let [new, old] = [1, 2].map(Name::other);
    let mut new = Host::named(rig.addr, 32, 0, new);
    let mut stale = Host::named(rig.addr, 32, 0, old.clone());
    let reserved = ReservationType::WriteExclusive;
    assert_eq!(
        acquire(&mut stale, nsid, AcquireAction::Acquire, reserved, [2, 0]).code(),
        CONFLICT,
        "not registered"
    );
    assert!(register(&mut stale, nsid, 2).is_success());
    assert!(acquire(&mut stale, nsid, AcquireAction::Acquire, reserved, [2, 0]).is_success());
    assert_eq!(new.io.call(&write(nsid, 0, BLOCK), &pattern(BLOCK, 9)).status.code(), CONFLICT);
    assert!(new.io.call(&read(nsid, 0, BLOCK), &[]).status.is_success(), "every host reads");
    assert_eq!(new.io.call(&Sqe::flush(nsid), &[]).status.code(), CONFLICT);
    assert_eq!(new.io.call(&Sqe::flush(u32::MAX), &[]).status.code(), CONFLICT);

    // A write that has been asked for its data.
    let data = pattern(2 * BLOCK, 5);
    let sqe =
        write(nsid, 4, data.len()).with_cid(stale.io.next_cid()).with_sgl(Sgl::transport(data.len() as u32));
    let capsule = stale.io.capsule(&sqe, &[]);
    stale.io.send(&capsule);
    let r2t = stale.io.r2t();

    assert!(register(&mut new, nsid, 1).is_success());
    let exclusive = ReservationType::ExclusiveAccess;
    assert!(acquire(&mut new, nsid, AcquireAction::PreemptAndAbort, exclusive, [1, 2]).is_success());
    let late = stale.io.h2c(flags::LAST_PDU, sqe.cid(), r2t.ttag.get(), 0, &data);
    stale.io.send(&late);
    stale.io.expect_end("a queue of a host that was preempted with abort");
    let there = new.io.call(&read(nsid, 4, data.len()), &[]);
    assert!(there.data.iter().all(|byte| *byte == 0), "data of the stale writer has landed");

    let mut again = Host::named(rig.addr, 32, 0, old);
    assert_eq!(again.io.call(&write(nsid, 4, BLOCK), &pattern(BLOCK, 5)).status.code(), CONFLICT);
    assert_eq!(again.io.call_r2t(&write(nsid, 4, 2 * BLOCK), &data).status.code(), CONFLICT);
    assert_eq!(again.io.call(&read(nsid, 4, BLOCK), &[]).status.code(), CONFLICT);
    assert_eq!(
        again.io.call(&Sqe::deallocate(nsid, 1).with_sgl(Sgl::in_capsule(0, 16)), &[0; 16]).status.code(),
        CONFLICT
    );
    assert_eq!(release(&mut again, nsid, exclusive, 2).code(), CONFLICT);
    new.verify(nsid, 4, 7);
    drop((new, again, stale));
    rig.remove(nsid);
    rig.finish();
}

/// A write that waits for its data when another host reserves the namespace, without a preemption: the host is none of
/// its registrants, so nothing of it is ended. Its data comes after that.
pub fn data_that_comes_after_a_reservation_is_refused(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    // It lends no memory that data could come into before it is looked at.
    let disk = FaultDisk::with(1 << 20, |info| info.block_size = BLOCK as u32);
    let nsid = rig.export(Arc::new(disk.clone()));
    let [holder, late] = [7, 8].map(Name::other);
    let mut holder = Host::named(rig.addr, 32, 0, holder);
    let mut late = Host::named(rig.addr, 32, 0, late);
    let data = pattern(2 * BLOCK, 5);
    let sqe =
        write(nsid, 4, data.len()).with_cid(late.io.next_cid()).with_sgl(Sgl::transport(data.len() as u32));
    let capsule = late.io.capsule(&sqe, &[]);
    late.io.send(&capsule);
    let r2t = late.io.r2t();
    assert!(register(&mut holder, nsid, 1).is_success());
    let exclusive = ReservationType::WriteExclusive;
    assert!(acquire(&mut holder, nsid, AcquireAction::Acquire, exclusive, [1, 0]).is_success());
    let pdu = late.io.h2c(flags::LAST_PDU, sqe.cid(), r2t.ttag.get(), 0, &data);
    late.io.send(&pdu);
    assert_eq!(late.io.finish(sqe.cid(), &[]).status.code(), CONFLICT);
    assert!(disk.content(0..1 << 20).iter().all(|byte| *byte == 0), "data has landed that came too late");
    assert!(release(&mut holder, nsid, exclusive, 1).is_success());
    late.verify(nsid, 4, 7);
    drop((holder, late));
    rig.remove(nsid);
    rig.finish();
}

//= test: NVMe Base 2.1, Reservation Report command
//= test: NVMe Base 2.1, Reservation Notification log page
pub fn registrants_are_reported_and_notified(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let nsid = rig.export(Arc::new(MemDevice::new(1 << 20, BLOCK as u32).expect("mapped")));
    let [a, b] = [3, 4].map(Name::other);
    let (id_a, id_b) = (a.hostid.into_bytes(), b.hostid.into_bytes());
    let mut a = Host::named(rig.addr, 32, 0, a);
    let mut b = Host::named(rig.addr, 32, 0, b);
    assert!(register(&mut a, nsid, 1).is_success() && register(&mut b, nsid, 2).is_success());
    let kind = ReservationType::WriteExclusiveRegistrants;
    assert!(acquire(&mut a, nsid, AcquireAction::Acquire, kind, [1, 0]).is_success());
    a.verify(nsid, 0, 1);
    b.verify(nsid, 0, 2);
    let said = report(&mut b, nsid);
    assert_eq!((said.kind, said.generation, said.persists), (Some(kind), 2, false));
    let seen: Vec<_> =
        said.registrants.iter().map(|one| (one.cntlid, one.holds, one.hostid, one.key)).collect();
    assert_eq!(seen, [(a.cntlid, true, id_a, 1), (b.cntlid, false, id_b, 2)]);
    // Without EDS, which hosts with 128-bit identifiers need.
    let short =
        Sqe::new(io_opcode::RESERVATION_REPORT).with_nsid(nsid).with_cdw(10, 15).with_sgl(Sgl::transport(64));
    assert_eq!(b.io.call(&short, &[]).status.code(), Status::HOST_ID_FORMAT);
    // This namespace has no place for records, and its RESCAP says so.
    let persist =
        RegisterFields { action: RegisterAction::Replace, ignore_key: true, persist: PersistChange::Set };
    let keys = encode_keys(0, 5);
    let sqe = with_keys(io_opcode::RESERVATION_REGISTER, nsid, persist.cdw10(), &keys);
    assert_eq!(b.io.call(&sqe, &keys).status.code(), Status::INVALID_FIELD);

    let event = Sqe::new(admin::ASYNC_EVENT_REQUEST).with_cid(b.admin.next_cid());
    let capsule = b.admin.capsule(&event, &[]);
    b.admin.send(&capsule);
    assert_eq!(notice(&mut a), None);
    assert!(release(&mut a, nsid, kind, 1).is_success());
    let happened = b.admin.finish(event.cid(), &[]);
    assert_eq!(happened.result, 0x0080_0006, "reservation log page available");
    let first =
        ReservationNotice { count: 1, kind: ReservationNoticeKind::ReservationReleased, more: 0, nsid };
    assert_eq!((notice(&mut b), notice(&mut b)), (Some(first), None));
    assert!(a.io.call(&write(nsid, 0, BLOCK), &pattern(BLOCK, 3)).status.is_success());
    // The registration of a host outlives its controllers.
    drop(a);
    let left = loop {
        let said = report(&mut b, nsid);
        if said.registrants.iter().any(|one| one.hostid == id_a && one.cntlid == 0xFFFF) {
            break said;
        }
    };
    assert_eq!((left.kind, left.registrants.len()), (None, 2));
    drop(b);
    rig.remove(nsid);
    rig.finish();
}

/// A store that lives as long as the test, and fails while `broken` is set.
#[derive(Default)]
struct Kept {
    record: Mutex<Option<ReservationRecord>>,
    broken: AtomicBool,
}

impl Kept {
    fn record(&self) -> Option<ReservationRecord> {
        self.record.lock().expect("not poisoned").clone()
    }
}

impl ReservationStore for Kept {
    fn load(&self) -> io::Result<Option<ReservationRecord>> {
        Ok(self.record())
    }

    fn save(&self, record: Option<&ReservationRecord>) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("the medium is full"));
        }
        *self.record.lock().expect("not poisoned") = record.cloned();
        Ok(())
    }
}

/// Register with Replace and IEKEY, which works whatever the host's registration is.
fn persist(host: &mut Host, nsid: u32, key: u64, persist: PersistChange) -> Status {
    let fields = RegisterFields { action: RegisterAction::Replace, ignore_key: true, persist };
    let keys = encode_keys(0, key);
    host.io.call(&with_keys(io_opcode::RESERVATION_REGISTER, nsid, fields.cdw10(), &keys), &keys).status
}

fn feature(host: &mut Host, sqe: &Sqe) -> Result<u64, Status> {
    let done = host.admin.call(sqe, &[]);
    if done.status.is_success() { Ok(done.result) } else { Err(done.status.code()) }
}

/// A target is killed, and comes back: the host that held the namespace still does, and no other
/// has written in between.
//= test: NVMe Base 2.1, Reservation Persistence feature
//= test: NVMe Base 2.1, Reservation Register command
pub fn persistent_reservations_outlive_the_target(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1 << 20, BLOCK as u32).expect("mapped"));
    let store = Arc::new(Kept::default());
    let [a, b] = [5, 6].map(Name::other);
    let exclusive = ReservationType::WriteExclusive;
    let id = fid::RESERVATION_PERSISTENCE;

    let nsid = rig.export_persistent(Arc::clone(&device), Arc::clone(&store) as _).expect("no record yet");
    let mut holder = Host::named(rig.addr, 32, 0, a.clone());
    assert!(register(&mut holder, nsid, 1).is_success());
    assert_eq!((feature(&mut holder, &Sqe::get_features(id, nsid, 0)), store.record()), (Ok(0), None));
    assert!(persist(&mut holder, nsid, 2, PersistChange::Set).is_success());
    assert_eq!(feature(&mut holder, &Sqe::get_features(id, nsid, 0)), Ok(1));
    assert!(acquire(&mut holder, nsid, AcquireAction::Acquire, exclusive, [2, 0]).is_success());
    let record = store.record().expect("the command has completed, so the record is there");
    assert_eq!(record.registrations, [Registration { host: a.hostid.into_bytes(), key: 2 }]);
    assert_eq!(record.held, Some((exclusive.code(), a.hostid.into_bytes())));
    drop(holder);

    rig.remove(nsid);
    rig.finish();
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let nsid = rig.export_persistent(Arc::clone(&device), Arc::clone(&store) as _).expect("a record");
    let mut other = Host::named(rig.addr, 32, 0, b.clone());
    let data = pattern(BLOCK, 9);
    assert_eq!(
        other.io.call(&write(nsid, 0, BLOCK), &data).status.code(),
        CONFLICT,
        "from the first command"
    );
    let said = report(&mut other, nsid);
    assert_eq!((said.kind, said.persists, said.registrants.len()), (Some(exclusive), true, 1));
    let mut holder = Host::named(rig.addr, 32, 0, a);
    holder.verify(nsid, 0, 1);

    // The medium of the record fails: the command does, and no later one succeeds without a record.
    store.broken.store(true, Ordering::SeqCst);
    assert_eq!(release(&mut holder, nsid, exclusive, 2).code(), Status::INTERNAL_ERROR);
    assert_eq!(release(&mut holder, nsid, exclusive, 2).code(), Status::INTERNAL_ERROR, "again");
    assert_eq!(store.record(), Some(record), "the old record");
    store.broken.store(false, Ordering::SeqCst);
    assert!(release(&mut holder, nsid, exclusive, 2).is_success());
    assert_eq!(store.record().expect("a record").held, None);

    assert_eq!(feature(&mut holder, &Sqe::set_features(id, u32::MAX, 0, false)), Ok(0));
    assert_eq!(store.record(), None, "nothing persists");
    drop((holder, other));
    rig.remove(nsid);

    // A record of a newer version: better no namespace than one without its reservations.
    let newer = ReservationRecord { version: 2, generation: 0, registrations: Vec::new(), held: None };
    *store.record.lock().expect("not poisoned") = Some(newer);
    let refused = rig.export_persistent(device, store).expect_err("a newer record").to_string();
    assert!(refused.contains("version 2") && refused.contains("not served"), "{refused}");
    rig.finish();
}
