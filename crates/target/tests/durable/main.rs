//! What the target promises of a device's write cache and of aborted commands, over a device that
//! forgets on a power cut whatever was not made durable. Each test first shows that it does forget.

#![allow(dead_code, unreachable_pub, reason = "modules of one test; the client is shared with `hostile`")]

#[path = "../hostile/client.rs"]
mod client;

use client::{BLOCK, Host, NQN, Name, PATIENCE, pattern, read, write};
use longhaul_block::IoError;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule, Operation};
use longhaul_target::{Config, Target};
use longhaul_wire::command::{DsmRange, ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::Status;
use longhaul_wire::feature::fid;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;
use zerocopy::IntoBytes;

const NSID: u32 = 1;

/// A target that exports devices as namespaces 1, 2, …, and a host.
fn serve(devices: &[&FaultDisk]) -> (Target, Host) {
    let listen = vec!["127.0.0.1:0".parse().expect("address")];
    let target = Target::start(Config { listen, threads: 1, ..Config::default() }).expect("started");
    for device in devices {
        target.export(NQN, "disk", Arc::new((*device).clone()), Uuid::new_v4()).expect("exported");
    }
    let host = Host::new(target.addresses()[0], 32, 0);
    (target, host)
}

fn with_fua(opcode: u8, lba: u64) -> Sqe {
    let sqe = ReadWrite { fua: true, ..ReadWrite::new(lba, 1) }.to_sqe(opcode, NSID);
    match opcode {
        io::WRITE => sqe.with_sgl(Sgl::in_capsule(0, BLOCK as u32)),
        io::READ => sqe.with_sgl(Sgl::transport(BLOCK as u32)),
        _ => sqe,
    }
}

impl Host {
    /// A command that has to succeed; its data.
    fn done(&mut self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        let done = self.io.call(sqe, data);
        assert_eq!(done.status, Status::SUCCESS, "{sqe:?}");
        done.data
    }

    /// Switches the write cache on or off, by Set Features.
    fn write_cache(&mut self, on: bool) {
        self.admin.result(&Sqe::set_features(fid::VOLATILE_WRITE_CACHE, 0, u32::from(on), false));
    }
}

fn code(status: Status) -> (u8, u8) {
    (status.sct(), status.sc())
}

fn disk() -> FaultDisk {
    FaultDisk::with(16 * BLOCK as u64, |info| info.block_size = BLOCK as u32)
}

/// A block as a read returns it.
fn block(disk: &FaultDisk, lba: u64) -> Vec<u8> {
    disk.content(lba * BLOCK as u64..(lba + 1) * BLOCK as u64)
}

/// Reads of these bytes fail.
fn damage(disk: &FaultDisk, bytes: Range<u64>) {
    let bad = Fault::Error(IoError::Medium("a bad block".into()));
    disk.inject(FaultRule::new(OpKind::Read, bad).within(bytes));
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

//= test: NVMe Base 2.1, Flush command
#[test]
fn a_flush_makes_every_completed_write_of_its_namespaces_durable() {
    let (one, two) = (disk(), disk());
    let (_target, mut host) = serve(&[&one, &two]);
    let data = pattern(BLOCK, 1);
    host.done(&write(NSID, 0, BLOCK), &data);
    one.forget();
    assert_eq!(block(&one, 0), [0; BLOCK], "the device forgets what was not flushed");

    host.done(&write(NSID, 0, BLOCK), &data);
    host.done(&write(2, 3, BLOCK), &data);
    host.done(&Sqe::flush(NSID), &[]);
    one.forget();
    two.forget();
    assert!(block(&one, 0) == data, "flushed");
    assert_eq!(block(&two, 3), [0; BLOCK], "a flush of one namespace does not flush another");

    host.done(&write(NSID, 1, BLOCK), &data);
    host.done(&write(2, 3, BLOCK), &data);
    host.done(&Sqe::flush(u32::MAX), &[]);
    one.forget();
    two.forget();
    assert!(block(&one, 1) == data && block(&two, 3) == data, "a flush of all namespaces");
}

//= test: NVM Command Set 1.1, Write command
#[test]
fn what_is_written_with_fua_is_durable_when_it_completes() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 2);
    host.done(&write(NSID, 0, BLOCK), &data);
    host.done(&with_fua(io::WRITE, 1), &data);
    device.forget();
    assert_eq!(block(&device, 0), [0; BLOCK], "without FUA it is forgotten");
    assert!(block(&device, 1) == data, "with FUA it is not");

    host.done(&ReadWrite::new(1, 1).to_sqe(io::WRITE_ZEROES, NSID), &[]);
    device.forget();
    assert!(block(&device, 1) == data, "zeroes without FUA are forgotten");
    host.done(&with_fua(io::WRITE_ZEROES, 1), &[]);
    device.forget();
    assert_eq!(block(&device, 1), [0; BLOCK], "zeroes with FUA are not");
}

//= test: NVM Command Set 1.1, Read command
#[test]
fn what_is_read_with_fua_is_durable() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 3);
    host.done(&write(NSID, 0, BLOCK), &data);
    assert!(host.done(&read(NSID, 0, BLOCK), &[]) == data);
    device.forget();
    assert_eq!(block(&device, 0), [0; BLOCK], "a read without FUA makes nothing durable");
    host.done(&write(NSID, 0, BLOCK), &data);
    assert!(host.done(&with_fua(io::READ, 0), &[]) == data);
    device.forget();
    assert!(block(&device, 0) == data);
}

//= test: NVMe Base 2.1, Volatile Write Cache feature
#[test]
fn with_the_write_cache_off_every_completed_write_is_durable() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 4);
    host.done(&write(NSID, 0, BLOCK), &data);
    host.write_cache(false);
    device.forget();
    assert!(block(&device, 0) == data, "earlier writes are durable once the cache is off");

    host.done(&write(NSID, 1, BLOCK), &data);
    let asked_for = host.io.call_r2t(&write(NSID, 2, BLOCK), &data);
    assert_eq!(asked_for.status, Status::SUCCESS);
    host.done(&ReadWrite::new(0, 1).to_sqe(io::WRITE_ZEROES, NSID), &[]);
    device.forget();
    assert!(block(&device, 1) == data && block(&device, 2) == data);
    assert_eq!(block(&device, 0), [0; BLOCK], "zeroes too");

    host.write_cache(true);
    host.done(&write(NSID, 3, BLOCK), &data);
    device.forget();
    assert_eq!(block(&device, 3), [0; BLOCK], "it is on again");
}

/// The next flush of the device fails, once, and what was not durable is gone.
fn lose(disk: &FaultDisk) {
    disk.inject(FaultRule::new(OpKind::Flush, lost()).times(1));
}

fn lost() -> Fault {
    Fault::Error(IoError::Medium("the page is lost".into()))
}

/// Writes `data`, and begins a flush that loses it once the device is released.
fn losing_flush(host: &mut Host, device: &FaultDisk, data: &[u8]) -> Sqe {
    host.done(&write(NSID, 0, BLOCK), data);
    device.hold(OpKind::Flush, 1);
    lose(device);
    let sqe = Sqe::flush(NSID).with_cid(host.io.next_cid());
    let capsule = host.io.capsule(&sqe, &[]);
    host.io.send(&capsule);
    until("the flush to begin", || device.held() > 0);
    sqe
}

#[test]
fn a_host_does_not_repeat_a_flush_that_has_told_of_a_loss() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 10);
    for nsid in [NSID, u32::MAX] {
        host.done(&write(NSID, 0, BLOCK), &data);
        lose(&device);
        let status = host.io.call(&Sqe::flush(nsid), &[]).status;
        assert!(status.is(Status::WRITE_FAULT) && status.is_dnr(), "{status}: repeated, it succeeds");
        host.done(&Sqe::flush(nsid), &[]);
    }
    // After this one nothing is lost, and hosts repeat it.
    let away = Fault::Error(IoError::Unreachable("no route".into()));
    device.inject(FaultRule::new(OpKind::Flush, away).times(1));
    let status = host.io.call(&Sqe::flush(NSID), &[]).status;
    assert!(status.is(Status::INTERNAL_PATH_ERROR) && !status.is_dnr(), "{status}");
    host.done(&Sqe::flush(NSID), &[]);
}

#[test]
fn a_loss_that_a_read_or_a_feature_met_is_told_to_the_next_flush() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 11);
    host.done(&write(NSID, 0, BLOCK), &data);
    lose(&device);
    for _ in 0..2 {
        let status = host.io.call(&with_fua(io::READ, 0), &[]).status;
        assert!(status.is(Status::UNRECOVERED_READ) && status.is_dnr(), "{status}");
    }
    assert!(host.io.call(&Sqe::flush(NSID), &[]).status.is(Status::WRITE_FAULT));
    assert!(host.done(&with_fua(io::READ, 0), &[]) == data);
    host.done(&Sqe::flush(NSID), &[]);

    host.done(&write(NSID, 0, BLOCK), &data);
    lose(&device);
    let off = Sqe::set_features(fid::VOLATILE_WRITE_CACHE, 0, 0, false);
    let status = host.admin.call(&off, &[]).status;
    assert!(status.is(Status::INTERNAL_ERROR) && status.is_dnr(), "{status}");
    assert!(host.io.call(&Sqe::flush(NSID), &[]).status.is(Status::WRITE_FAULT));
    host.write_cache(false);
}

//= test: NVMe Base 2.1, Abort command
#[test]
fn a_loss_that_an_aborted_flush_met_is_told_to_the_next_one() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 12);
    let sqe = losing_flush(&mut host, &device, &data);
    assert_eq!(host.admin.result(&Sqe::abort(1, sqe.cid())) & 1, 0, "it was aborted");
    assert_eq!(code(host.io.finish(sqe.cid(), &[]).status), code(Status::ABORT_REQUESTED));
    device.release();
    // A flush that overtakes the aborted one may succeed: then the one after that reports the loss.
    let mut flushes = std::iter::repeat_with(|| host.io.call(&Sqe::flush(NSID), &[]).status);
    assert!(flushes.by_ref().take(1000).any(|status| status.is(Status::WRITE_FAULT)), "no flush reports it");
    host.done(&Sqe::flush(NSID), &[]);
}

#[test]
fn a_host_that_comes_back_hears_of_what_its_last_controller_lost() {
    let device = disk();
    let (target, mut host) = serve(&[&device]);
    let observer = target.observer();
    let data = pattern(BLOCK, 13);
    // The host waits for a flush too long, and disconnects.
    losing_flush(&mut host, &device, &data);
    drop(host);
    until("the controller to end", || observer.controllers().is_empty());
    device.release();
    let mut host = Host::new(target.addresses()[0], 32, 0);
    assert!(host.io.call(&Sqe::flush(NSID), &[]).status.is(Status::WRITE_FAULT));
    host.done(&Sqe::flush(NSID), &[]);

    // Another host's flush meets the loss while this one is away.
    host.done(&write(NSID, 0, BLOCK), &data);
    drop(host);
    until("the controller to end", || observer.controllers().is_empty());
    let name = Name { hostnqn: format!("{NQN}:other"), hostid: Uuid::from_u128(7), ..Name::default() };
    let mut other = Host::named(target.addresses()[0], 32, 0, name);
    other.done(&write(NSID, 1, BLOCK), &data);
    lose(&device);
    assert!(other.io.call(&Sqe::flush(NSID), &[]).status.is(Status::WRITE_FAULT));
    let mut host = Host::new(target.addresses()[0], 32, 0);
    assert!(host.io.call(&Sqe::flush(u32::MAX), &[]).status.is(Status::WRITE_FAULT));
    host.done(&Sqe::flush(NSID), &[]);
    other.done(&Sqe::flush(NSID), &[]);
}

//= test: NVMe Base 2.1, Abort command
#[test]
fn an_aborted_write_has_no_effect() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 5);
    // The first command of a queue has the namespace opened, and others wait for that.
    device.hold(Operation::Open, 1);
    let sqe = write(NSID, 0, BLOCK).with_cid(host.io.next_cid());
    let capsule = host.io.capsule(&sqe, &data);
    host.io.send(&capsule);
    until("the write to wait", || device.held() > 0);
    assert_eq!(host.admin.result(&Sqe::abort(1, sqe.cid())) & 1, 0, "it was aborted");
    let done = host.io.finish(sqe.cid(), &data);
    assert_eq!(code(done.status), code(Status::ABORT_REQUESTED));
    device.release();
    // A later command on the same queue has completed, so all earlier ones have too.
    host.done(&write(NSID, 1, BLOCK), &data);
    assert_eq!(block(&device, 0), [0; BLOCK], "it has no effect after its completion");
    assert!(block(&device, 1) == data);
}

//= test: NVMe Base 2.1, Abort command
#[test]
fn a_write_that_has_begun_is_not_told_to_be_aborted() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 6);
    device.hold(OpKind::Write, 1);
    let sqe = write(NSID, 0, BLOCK).with_cid(host.io.next_cid());
    let capsule = host.io.capsule(&sqe, &data);
    host.io.send(&capsule);
    until("the write to begin", || device.held() > 0);
    assert_eq!(host.admin.result(&Sqe::abort(1, sqe.cid())) & 1, 1, "it was not aborted");
    device.release();
    assert_eq!(host.io.finish(sqe.cid(), &data).status, Status::SUCCESS);
    assert!(block(&device, 0) == data);
}

//= test: NVM Command Set 1.1, Compare command
//= test: NVM Command Set 1.1, Verify command
//= test: NVM Command Set 1.1, Dataset Management command
#[test]
fn compare_verify_and_deallocate_do_what_they_say() {
    let device = disk();
    let (_target, mut host) = serve(&[&device]);
    let data = pattern(BLOCK, 7);
    host.done(&write(NSID, 4, BLOCK), &data);
    let compare = ReadWrite::new(4, 1).to_sqe(io::COMPARE, NSID).with_sgl(Sgl::in_capsule(0, BLOCK as u32));
    assert_eq!(host.io.call(&compare, &data).status, Status::SUCCESS);
    let mut other = data.clone();
    other[BLOCK - 1] ^= 1;
    assert_eq!(code(host.io.call(&compare, &other).status), code(Status::COMPARE_FAILURE));
    assert!(block(&device, 4) == data, "a comparison changes nothing");

    let verify = ReadWrite::new(0, 16).to_sqe(io::VERIFY, NSID);
    assert_eq!(host.io.call(&verify, &[]).status, Status::SUCCESS);
    damage(&device, 15 * BLOCK as u64..16 * BLOCK as u64);
    let done = host.io.call(&verify, &[]);
    assert!(!done.status.is_success(), "the last block cannot be read");
    assert_eq!(done.status.sct(), Status::MEDIA);

    let ranges = [DsmRange::new(1, 2), DsmRange::new(9, 1)];
    let bytes = ranges.iter().flat_map(|range| range.as_bytes().to_vec()).collect::<Vec<u8>>();
    let sqe = Sqe::deallocate(NSID, ranges.len()).with_sgl(Sgl::in_capsule(0, bytes.len() as u32));
    host.done(&sqe, &bytes);
    let block = BLOCK as u64;
    assert_eq!(device.counts().discards, [(block, 2 * block), (9 * block, block)]);
}

//= test: NVMe Base 2.1, MDTS
#[test]
fn a_device_that_takes_less_than_mdts_at_a_time_is_given_it_in_pieces() {
    let blocks = 8;
    let device = FaultDisk::with(16 * BLOCK as u64, |info| {
        (info.block_size, info.max_io) = (BLOCK as u32, 3 * BLOCK as u32);
    });
    let (_target, mut host) = serve(&[&device]);
    let (len, data) = (blocks * BLOCK, pattern(blocks * BLOCK, 8));
    let whole = |opcode, fua| ReadWrite { fua, ..ReadWrite::new(4, blocks as u32) }.to_sqe(opcode, NSID);
    let in_capsule = |sqe: Sqe| sqe.with_sgl(Sgl::in_capsule(0, len as u32));

    host.done(&in_capsule(whole(io::WRITE, true)), &data);
    assert_eq!(device.counts().fua, 3, "each piece with FUA");
    device.forget();
    assert!(host.done(&read(NSID, 4, len), &[]) == data);
    host.done(&in_capsule(whole(io::COMPARE, false)), &data);
    host.done(&ReadWrite::new(0, 16).to_sqe(io::VERIFY, NSID), &[]);

    // The write completes when its last piece has ended.
    let newer = pattern(len, 9);
    device.hold(OpKind::Write, 3);
    let sqe = write(NSID, 4, len).with_cid(host.io.next_cid());
    let capsule = host.io.capsule(&sqe, &newer);
    host.io.send(&capsule);
    until("all pieces to begin", || device.held() == 3);
    device.release();
    assert_eq!(host.io.finish(sqe.cid(), &newer).status, Status::SUCCESS);
    assert!(host.done(&read(NSID, 4, len), &[]) == newer);
    // A piece that cannot be read fails the whole.
    damage(&device, 10 * BLOCK as u64..11 * BLOCK as u64);
    assert!(!host.io.call(&read(NSID, 4, len), &[]).status.is_success());
}
