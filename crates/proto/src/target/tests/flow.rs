//! What hosts may do, and what commands get that fail alone.

use super::*;
use crate::pair::{BLOCK, Pending};
use crate::transport::RESPONSES_MAX;

#[test]
fn the_host_ends_the_connection() {
    let mut bench = TargetBench::new();
    let term = TermReq::new(PduType::H2CTermReq, Fes::DataOutOfRange, 5, 100);
    bench.end.receive(&[term.as_bytes(), &[0; 100]].concat());
    assert_eq!(bench.end.closed, Some(CloseReason::Terminated { fes: 4, fei: 5 }));
    assert!(bench.end.transmit().is_empty(), "a TermReq is not answered by one");
}

#[test]
fn a_property_command_takes_the_identifier_of_a_held_event_request() {
    let mut bench = TargetBench::new();
    let event = Sqe::async_event_request().with_cid(5);
    bench.end.receive(&bench.capsule(event, &[]));
    let held = bench.end.pending.remove(0).slot;
    // Only a command that is held gives way, and only to a property command.
    bench.end.receive(&bench.capsule(Sqe::property_get(0x1C, false).with_cid(5), &[]));
    assert_eq!(bench.response().status().code(), Status::COMMAND_ID_CONFLICT);
    bench.end.queue.hold(held);
    bench.end.receive(&bench.capsule(Sqe::keep_alive().with_cid(5), &[]));
    assert_eq!(bench.response().status().code(), Status::COMMAND_ID_CONFLICT);
    let before = bench.end.queue.open_commands();
    for result in [7, 8] {
        bench.end.receive(&bench.capsule(Sqe::property_get(0x1C, false).with_cid(5), &[]));
        assert_eq!(bench.end.queue.open_commands(), before, "one in place of the other");
        let slot = bench.end.pending.remove(0).slot;
        bench.end.queue.complete(slot, Status::SUCCESS, result);
        let cqe = bench.response();
        assert_eq!((cqe.cid(), cqe.status(), cqe.result()), (5, Status::SUCCESS, result));
        // And one more held request.
        bench.end.receive(&bench.capsule(event, &[]));
        let held = bench.end.pending.remove(0).slot;
        bench.end.queue.hold(held);
    }
    assert_eq!(bench.end.displaced, [5, 5]);
    // Every slot is there: as many commands as entries are taken.
    for cid in 10..10 + LIMITS.entries - 1 {
        bench.end.receive(&bench.capsule(Sqe::keep_alive().with_cid(cid), &[]));
    }
    assert_eq!(bench.end.pending.len(), usize::from(LIMITS.entries) - 1);
    assert!(bench.end.closed.is_none());
}

//= test: NVMe Base 2.1, Command Identifier
#[test]
fn an_identifier_in_use_is_a_conflict() {
    let mut bench = TargetBench::new();
    bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(5), &[]));
    let sqe = Sqe::new(WRITE).with_cid(5).with_sgl(Sgl::in_capsule(0, 512));
    bench.end.receive(&bench.capsule(sqe, &[0; 512]));
    let cqe = bench.response();
    assert_eq!((cqe.status().code(), cqe.cid()), (Status::COMMAND_ID_CONFLICT, 5));
    let first = bench.end.pending.remove(0);
    assert!(bench.end.pending.is_empty() && bench.end.closed.is_none());
    assert_eq!(bench.end.queue.find(5), Some(first.slot));
    bench.end.queue.complete(first.slot, Status::SUCCESS, 0);
    assert_eq!(bench.response().status(), Status::SUCCESS);
    bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(5), &[]));
    assert_eq!(bench.end.pending.len(), 1, "free again");
}

//= test: NVMe-TCP 1.1, Data transfer
#[test]
fn descriptors_are_refused_with_a_status() {
    let mut bench = TargetBench::new();
    let cases = [
        (READ, Sgl::in_capsule(0, 512), 0, Status::SGL_TYPE),
        (WRITE, Sgl::in_capsule(8, 504), 512, Status::SGL_OFFSET),
        (WRITE, Sgl::in_capsule(0, 1024), 512, Status::DATA_SGL_LENGTH),
        (WRITE, Sgl::make(0, 16, 0x30), 0, Status::INVALID_SGL_COUNT),
        (READ, Sgl::make(0, 16, 0x00), 0, Status::SGL_TYPE),
        (FLUSH, Sgl::none(), 512, Status::INVALID_FIELD),
    ];
    for (i, (opcode, sgl, in_capsule, status)) in cases.into_iter().enumerate() {
        let sqe = Sqe::new(opcode).with_cid(i as u16).with_sgl(sgl);
        bench.end.receive(&bench.capsule(sqe, &vec![0; in_capsule]));
        let cqe = bench.response();
        assert_eq!((cqe.status(), cqe.cid()), (status.dnr(), i as u16));
        assert_eq!((bench.end.stuck(), bench.end.queue.open_commands()), (0, 0));
    }
}

//= test: NVMe-TCP 1.1, PDU Data Digest
#[test]
fn a_data_digest_error_costs_the_command_only() {
    let mut bench = TargetBench::with(TargetConfig::default(), 2);
    let sqe = Sqe::new(WRITE).with_cid(1).with_sgl(Sgl::in_capsule(0, 512));
    let mut bad = bench.capsule(sqe, &[1; 512]);
    bad[100] ^= 1;
    bench.end.receive(&bad);
    let command = bench.end.pending.pop().expect("the write");
    bench.end.execute(command);
    bench.end.pump();
    assert_eq!(bench.end.complete, [(command.slot, Err(Status::TRANSIENT_TRANSPORT))]);
    bench.end.store(command.slot, Err(Status::TRANSIENT_TRANSPORT));
    assert_eq!(bench.response().status(), Status::TRANSIENT_TRANSPORT);

    // In the first of two H2CData PDUs: the second is taken all the same.
    let (slot, ttag) = bench.granted(2);
    let mut bad = bench.h2c(2, ttag, 0, &[1; 4096], false);
    let end = bad.len() - 1;
    bad[end] ^= 0x80;
    bench.end.receive(&bad);
    bench.end.receive(&bench.h2c(2, ttag, 4096, &[1; 4096], true));
    assert_eq!(bench.end.complete[1], (slot, Err(Status::TRANSIENT_TRANSPORT)));
    assert_eq!(bench.end.closed, None);
}

#[test]
fn in_capsule_data_waits_for_memory() {
    let mut bench = TargetBench::new();
    let sqe = Sqe::new(WRITE).with_cid(1).with_sgl(Sgl::in_capsule(0, 512));
    let next = bench.capsule(Sqe::new(FLUSH).with_cid(2), &[]);
    let stream = [bench.capsule(sqe, &[9; 512]), next.clone()].concat();
    bench.end.receive(&stream);
    assert_eq!((bench.end.stuck(), bench.end.pending.len()), (512 + next.len(), 1));
    assert_eq!(bench.end.queue.want(), Want::Nothing);
    let command = bench.end.pending.remove(0);
    bench.end.allocate(command.slot, 512);
    bench.end.queue.accept_payload(command.slot);
    assert_eq!(bench.end.queue.want(), Want::Payload { slot: command.slot, offset: 0, len: 512 });
    bench.end.pump();
    assert_eq!(bench.end.complete, [(command.slot, Ok(()))]);
    assert_eq!((bench.end.stuck(), bench.end.pending.len()), (0, 1));
}

//= test: NVMe-TCP 1.1, R2T PDU
#[test]
fn a_write_completed_early_waits_for_the_data_it_asked_for() {
    let mut bench = TargetBench::new();
    let (slot, ttag) = bench.granted(7);
    bench.end.receive(&bench.h2c(7, ttag, 0, &[1; 4096], false)[..100]);
    bench.end.queue.complete(slot, Status::ABORT_REQUESTED, 0);
    assert!(bench.end.transmit().is_empty(), "not before the data has come");
    assert_eq!(bench.end.queue.want(), Want::Bytes, "dropped from now on");
    bench.end.receive(&bench.h2c(7, ttag, 0, &[1; 4096], false)[100..]);
    bench.end.receive(&bench.h2c(7, ttag, 4096, &[1; 4096], true));
    let cqe = bench.response();
    assert_eq!((cqe.cid(), cqe.status()), (7, Status::ABORT_REQUESTED));
    assert!(bench.end.complete.is_empty());
    assert_eq!(bench.end.queue.open_commands(), 0);
}

#[test]
fn an_abort_that_overtakes_the_last_data() {
    let mut queue = TargetQueue::new(TargetConfig::default());
    let bench = TargetBench::new();
    queue.handle(IcReq::new(0, 0, 0).as_bytes());
    let sqe = Sqe::new(WRITE).with_sgl(Sgl::in_capsule(0, 512));
    queue.handle(&bench.capsule(sqe, &[1; 512]));
    let _ready = queue.poll_event();
    let Some(TargetEvent::Command { slot, .. }) = queue.poll_event() else { panic!("the write") };
    queue.accept_payload(slot);
    queue.handle_payload(&[1; 512]);
    queue.complete(slot, Status::ABORT_REQUESTED, 0);
    assert_eq!(queue.poll_event(), None);
}

#[test]
fn a_read_that_fails_half_way_frees_its_memory() {
    let mut bench = TargetBench::new();
    let sqe = Sqe::new(READ).with_cid(3).with_sgl(Sgl::transport(8192));
    bench.end.receive(&bench.capsule(sqe, &[]));
    let Pending { slot, .. } = bench.end.pending.remove(0);
    bench.end.allocate(slot, 8192);
    bench.end.queue.send_data(slot, 0, 4096, false);
    bench.end.queue.complete(slot, Status::UNRECOVERED_READ, 0);
    // Panics if the slot is not reported as sent exactly once.
    let out = bench.end.transmit();
    assert_eq!(out.len(), 24 + 4096 + 24);
    let cqe = Cqe::read(&out[24 + 4096 + 8..]).expect("an entry");
    assert_eq!((cqe.cid(), cqe.status()), (3, Status::UNRECOVERED_READ));
    bench.end.allocate(slot, 1);
}

#[test]
fn slots_that_are_being_sent_hold_back_input() {
    let mut bench = TargetBench::new();
    let entries = LIMITS.entries;
    for cid in 0..2 * entries {
        let sqe = Sqe::new(READ).with_cid(cid).with_sgl(Sgl::transport(512));
        bench.end.receive(&bench.capsule(sqe, &[]));
        let Pending { slot, .. } = bench.end.pending.remove(0);
        bench.end.allocate(slot, 512);
        bench.end.queue.send_data_and_complete(slot, 0, 512, 0);
    }
    let next = bench.capsule(Sqe::new(FLUSH), &[]);
    bench.end.receive(&next);
    assert_eq!((bench.end.queue.want(), bench.end.stuck()), (Want::Nothing, next.len()));
    bench.end.transmit();
    assert_eq!((bench.end.stuck(), bench.end.pending.len()), (0, 1));
}

#[test]
fn a_host_that_never_reads_is_not_answered_for_ever() {
    let mut bench = TargetBench::new();
    bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(1), &[]));
    let conflict = bench.capsule(Sqe::new(FLUSH).with_cid(1), &[]);
    for _ in 0..RESPONSES_MAX / 24 + 100 {
        bench.end.queue.handle(&conflict);
    }
    assert_eq!(bench.end.queue.want(), Want::Nothing);
    let out = bench.end.transmit();
    assert!(out.len() <= RESPONSES_MAX + 24, "{} bytes", out.len());
    assert_eq!(bench.end.queue.want(), Want::Bytes);
}

#[test]
fn no_command_is_taken_while_replies_wait_to_be_sent() {
    let mut bench = TargetBench::new();
    bench.end.queue.set_reply_limit(8192);
    let read = |n: u16| Sqe::new(READ).with_cid(n).with_sgl(Sgl::transport(4096));
    for n in 1..=3 {
        bench.end.receive(&bench.capsule(read(n), &[]));
    }
    assert_eq!(bench.end.pending.len(), 2, "the third would be beyond the limit");
    assert_eq!(bench.end.queue.want(), Want::Nothing);
    // Neither the answer nor its being queued makes room: the sending does.
    let Pending { slot, .. } = bench.end.pending.remove(0);
    bench.end.allocate(slot, 4096);
    bench.end.queue.send_data_and_complete(slot, 0, 4096, 0);
    assert_eq!((bench.end.queue.want(), bench.end.pending.len()), (Want::Nothing, 1));
    bench.end.transmit();
    assert_eq!((bench.end.stuck(), bench.end.pending.len()), (0, 2));
    // Nor does a command without data, or one that fails, keep its share.
    for Pending { slot, .. } in std::mem::take(&mut bench.end.pending) {
        bench.end.queue.complete(slot, Status::INVALID_FIELD, 0);
    }
    assert_eq!(bench.end.queue.want(), Want::Bytes);
}

//= test: NVMe Base 2.1, Completion Queue Entry
#[test]
fn responses_carry_sqhd_with_flow_control_only() {
    let mut bench = TargetBench::new();
    for n in 1..10u16 {
        bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(n), &[]));
        let Pending { slot, .. } = bench.end.pending.remove(0);
        bench.end.queue.complete(slot, Status::SUCCESS, 0x1_0000_0002);
        let cqe = bench.response();
        assert_eq!((cqe.sqhd(), cqe.cid(), cqe.result()), (n % LIMITS.entries, n, 0x1_0000_0002));
    }
    bench.end.receive(&bench.capsule(Sqe::new(FLUSH), &[]));
    bench.end.queue.set_limits(QueueLimits { flow_control: false, ..LIMITS });
    let Pending { slot, .. } = bench.end.pending.remove(0);
    bench.end.queue.complete(slot, Status::SUCCESS, 0);
    assert_eq!(bench.response().sqhd(), 0xffff);
}

#[test]
fn half_a_pdu_is_nothing_yet() {
    let mut bench = TargetBench::new();
    let sqe = Sqe::new(READ).with_sgl(Sgl::transport(BLOCK as u32));
    let capsule = bench.capsule(sqe, &[]);
    for at in 0..capsule.len() - 1 {
        bench.end.receive(&capsule[at..=at]);
        assert!(bench.end.pending.is_empty());
    }
    bench.end.receive(&capsule[capsule.len() - 1..]);
    assert_eq!(bench.end.pending.len(), 1);
}

#[test]
fn limits_may_grow_while_commands_are_open() {
    let mut bench = TargetBench::new();
    bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(1), &[]));
    bench.end.queue.set_limits(QueueLimits { entries: 1024, ..LIMITS });
    for cid in 2..=1024 {
        bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(cid), &[]));
    }
    assert_eq!((bench.end.pending.len(), bench.end.closed), (1024, None));
    for Pending { slot, sqe, .. } in std::mem::take(&mut bench.end.pending) {
        assert_eq!(bench.end.queue.find(sqe.cid()), Some(slot));
        bench.end.queue.complete(slot, Status::SUCCESS, 0);
    }
    assert_eq!(bench.end.queue.open_commands(), 0);
}

//= test: NVMe-TCP 1.1, Capsules
#[test]
fn fabrics_commands_carry_8192_bytes_on_every_queue() {
    let mut bench = TargetBench::new();
    bench.end.queue.set_limits(QueueLimits { in_capsule: 0, ..LIMITS });
    let connect = Sqe::connect(1, 3, 0, 0).with_sgl(Sgl::in_capsule(0, IN_CAPSULE_ADMIN));
    bench.end.receive(&bench.capsule(connect, &[0; IN_CAPSULE_ADMIN as usize]));
    let Pending { slot, data, .. } = bench.end.pending.remove(0);
    assert_eq!(data, CommandData::InCapsule { len: IN_CAPSULE_ADMIN });
    bench.end.queue.complete(slot, Status::SUCCESS, 0);
    bench.end.pump();
    let bad = bench.capsule(Sqe::new(WRITE).with_sgl(Sgl::in_capsule(0, 4)), &[0; 4]);
    bench.end.transmit();
    bench.refused(&bad, Fes::InvalidHeaderField, 4);
}
