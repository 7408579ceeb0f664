//! Errors of the medium: each host hears of those that concern it, and a
//! controller counts as media errors what the medium has lost.

use crate::client::{BLOCK, CC_ENABLE, Client, Host, connect_data, pattern, read, write};
use crate::rig::{MEM, Rig};
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_block::{BackendSpec, IoError};
use longhaul_engine::EngineKind;
use longhaul_wire::command::{ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::{Csts, offset};
use longhaul_wire::log::lid;
use std::sync::Arc;

/// An export of a disk.
fn disk(rig: &Rig) -> (u32, FaultDisk) {
    let disk = FaultDisk::with(1 << 20, |info| info.block_size = BLOCK as u32);
    (rig.export(Arc::new(disk.clone())), disk)
}

/// The next flush fails, once, as that of a file does.
fn fail_next_flush(disk: &FaultDisk) {
    let lost = Fault::Error(IoError::Medium("the page is lost".into()));
    disk.inject(FaultRule::new(OpKind::Flush, lost).times(1));
}

fn wrote(client: &mut Client, nsid: u32) {
    assert_eq!(client.call(&write(nsid, 0, BLOCK), &pattern(BLOCK, 1)).status, Status::SUCCESS);
}

fn flush(client: &mut Client, nsid: u32) -> Status {
    client.call(&Sqe::flush(nsid), &[]).status.code()
}

pub fn a_failed_flush_is_heard_by_every_controller_that_has_written(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let (nsid, device) = disk(&rig);
    let (mut a, mut b, mut reader) = (rig.host(), rig.host(), rig.host());
    assert_eq!(reader.io.call(&read(nsid, 0, BLOCK), &[]).status, Status::SUCCESS);

    wrote(&mut a.io, nsid);
    wrote(&mut b.io, nsid);
    fail_next_flush(&device);
    assert!(flush(&mut b.io, nsid).is(Status::WRITE_FAULT));
    assert!(flush(&mut a.io, nsid).is(Status::WRITE_FAULT), "its writes are lost as well");
    assert_eq!(flush(&mut a.io, nsid), Status::SUCCESS, "the error is returned once");
    assert_eq!(flush(&mut reader.io, nsid), Status::SUCCESS, "it has written nothing");

    // A flush on a queue that has not written, and has not opened the device.
    wrote(&mut a.io, nsid);
    fail_next_flush(&device);
    wrote(&mut b.io, nsid);
    assert!(flush(&mut b.io, nsid).is(Status::WRITE_FAULT));
    let mut second = Client::open(rig.addr, 0);
    let connect = Sqe::connect(2, 31, 0, 0);
    assert!(second.connect(&connect, &connect_data(a.cntlid)).status.is_success());
    assert!(flush(&mut second, nsid).is(Status::WRITE_FAULT), "queues of a controller are one");
    assert_eq!(flush(&mut a.io, nsid), Status::SUCCESS);

    // Flush of all namespaces, and FUA of a write after others.
    wrote(&mut a.io, nsid);
    wrote(&mut b.io, nsid);
    fail_next_flush(&device);
    assert!(flush(&mut b.io, u32::MAX).is(Status::WRITE_FAULT));
    assert!(flush(&mut a.io, u32::MAX).is(Status::WRITE_FAULT));
    assert_eq!(flush(&mut a.io, u32::MAX), Status::SUCCESS);
    drop((a, b, reader, second));
    rig.remove(nsid);
    rig.finish();
}

/// Waits for the end of a shutdown, or its failure.
fn shut_down(host: &mut Host) -> Csts {
    const NORMAL: u64 = 1 << 14;
    host.admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE | NORMAL));
    loop {
        let csts = Csts(host.admin.result(&Sqe::property_get(offset::CSTS, false)) as u32);
        if csts.cfs() == 1 || csts.shst() == 2 {
            return csts;
        }
    }
}

//= test: NVMe Base 2.1, CSTS.SHST
//= test: NVMe Base 2.1, CSTS.CFS
pub fn a_shutdown_whose_flush_fails_does_not_complete(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let (nsid, device) = disk(&rig);
    let (mut a, mut b) = (rig.host(), rig.host());
    wrote(&mut a.io, nsid);
    wrote(&mut b.io, nsid);
    fail_next_flush(&device);
    let csts = shut_down(&mut b);
    assert_eq!((csts.cfs(), csts.shst()), (1, 1), "not complete, and fatal");
    // The other controller's writes are lost too, and its shutdown reports it.
    let csts = shut_down(&mut a);
    assert_eq!((csts.cfs(), csts.shst()), (1, 1));
    let mut c = rig.host();
    wrote(&mut c.io, nsid);
    let csts = shut_down(&mut c);
    assert_eq!((csts.cfs(), csts.shst()), (0, 2), "all of its writes are durable");

    // A reset consumes no failure: the host hears of it in its next flush.
    let mut d = rig.host();
    wrote(&mut d.io, nsid);
    fail_next_flush(&device);
    d.admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE & !1));
    while d.admin.result(&Sqe::property_get(offset::CSTS, false)) & 1 != 0 {}
    d.admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    let mut again = Client::open(rig.addr, 0);
    assert!(again.connect(&Sqe::connect(1, 31, 0, 0), &connect_data(d.cntlid)).status.is_success());
    assert!(flush(&mut again, nsid).is(Status::WRITE_FAULT));
    drop((a, b, c, d, again));
    rig.remove(nsid);
    rig.finish();
}

pub fn a_medium_without_room_is_told_as_such(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let spec = "mem:1MiB,block=4096,error=1:ops=write+zero+flush:kind=nospace";
    let full = rig.export(BackendSpec::parse(spec).expect("understood").open().expect("opened"));
    let mut host = rig.host();
    let data = pattern(BLOCK, 1);
    let zeroes = ReadWrite::new(0, 1).to_sqe(io::WRITE_ZEROES, full);
    assert!(host.io.call(&write(full, 0, BLOCK), &data).status.is(Status::CAPACITY_EXCEEDED));
    assert!(host.io.call_r2t(&write(full, 0, BLOCK), &data).status.is(Status::CAPACITY_EXCEEDED));
    assert!(host.io.call(&zeroes, &[]).status.is(Status::CAPACITY_EXCEEDED));
    assert!(flush(&mut host.io, full).is(Status::CAPACITY_EXCEEDED));
    assert!(host.io.call(&read(full, 0, BLOCK), &[]).data == [0; BLOCK], "the refused write changed nothing");
    drop(host);
    rig.remove(full);
    rig.finish();
}

/// Media and data integrity errors (bytes 160 to 175 of the page).
fn media_errors(host: &mut Host) -> u64 {
    let page = host.admin.call(&Sqe::get_log_page(lid::HEALTH, u32::MAX, 0, 512, true), &[]).data;
    u64::from_le_bytes(page[160..168].try_into().expect("8 bytes"))
}

//= test: NVMe Base 2.1, SMART / Health Information log page
pub fn data_that_differs_is_no_media_error(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let spec = "mem:1MiB,block=4096,error=1:ops=read";
    let bad = rig.export(BackendSpec::parse(spec).expect("understood").open().expect("opened"));
    let mut host = rig.host();
    let (there, other) = (pattern(BLOCK, 1), pattern(BLOCK, 2));
    let compare =
        |nsid| ReadWrite::new(0, 1).to_sqe(io::COMPARE, nsid).with_sgl(Sgl::in_capsule(0, BLOCK as u32));
    assert!(host.io.call(&write(MEM, 0, BLOCK), &there).status.is_success());
    assert!(host.io.call(&compare(MEM), &there).status.is_success());
    assert!(host.io.call(&compare(MEM), &other).status.is(Status::COMPARE_FAILURE));
    assert_eq!(media_errors(&mut host), 0);
    assert!(host.io.call(&compare(bad), &there).status.is(Status::UNRECOVERED_READ));
    assert!(host.io.call(&read(bad, 0, BLOCK), &[]).status.is(Status::UNRECOVERED_READ));
    assert_eq!(media_errors(&mut host), 2);
    drop(host);
    rig.remove(bad);
    rig.finish();
}
