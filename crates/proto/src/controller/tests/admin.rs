use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::command::admin;

//= test: NVMe Base 2.1, Connect command
//= test: NVMe Base 2.1, Disconnect command
//= test: NVMe Base 2.1, Authentication commands
//= test: NVMe Base 2.1, Fused operations
#[test]
fn refused_on_the_admin_queue() {
    let mut fused = Sqe::keep_alive();
    fused.flags |= 1;
    let cases = [
        (Sqe::connect(0, 31, 0, 0), Status::SEQUENCE_ERROR),
        (Sqe::disconnect(), Status::INVALID_QUEUE_TYPE),
        (Sqe::disconnect().with_nsid(5), Status::INVALID_OPCODE),
        (Sqe::disconnect().with_nsid(6), Status::INVALID_OPCODE),
        (Sqe::disconnect().with_nsid(0x7F), Status::INVALID_OPCODE),
        (fused, Status::INVALID_FIELD),
    ];
    for mut rig in [Rig::ready(), Rig::discovery()] {
        for (sqe, status) in cases {
            assert_eq!(rig.failure(sqe), status.dnr(), "{sqe:?}");
        }
    }
}

/// Every admin opcode is either supported or gets Invalid Command Opcode.
#[test]
fn every_other_opcode_is_unknown() {
    let supported = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
        admin::FABRICS,
    ];
    for mut rig in [Rig::ready(), Rig::discovery()] {
        let more = rig.controller.instance().map(|_| admin::CROSS_CONTROLLER_RESET);
        let known = |opcode: &u8| supported.contains(opcode) || more == Some(*opcode);
        for opcode in (0..=255).filter(|opcode| !known(opcode)) {
            assert_eq!(rig.failure(Sqe::new(opcode)), Status::INVALID_OPCODE.dnr(), "{opcode:02X}h");
        }
    }
}

/// Before the controller is ready every command but Fabrics is out of
/// sequence, whatever its opcode.
//= test: NVMe Base 2.1, CC.EN
#[test]
fn nothing_but_fabrics_before_ready() {
    let mut rig = Rig::connected(subsystem());
    for opcode in (0..=255).filter(|&opcode| opcode != admin::FABRICS) {
        assert_eq!(rig.failure(Sqe::new(opcode)), Status::SEQUENCE_ERROR.dnr(), "{opcode:02X}h");
    }
}

//= test: NVMe Base 2.1, Abort command
#[test]
fn abort_is_the_drivers_and_its_answer_says_what_happened() {
    let mut rig = Rig::ready();
    rig.connect_io(Sqe::connect(2, 31, 0, 0)).expect("connected");
    assert_eq!(rig.admin(Sqe::abort(2, 77)), Action::Abort { sqid: 2, cid: 77 });
    assert_eq!(rig.controller.abort_done(true), Reply::ok(0));
    assert_eq!(rig.admin(Sqe::abort(0, 77)), Action::Abort { sqid: 0, cid: 77 });
    assert_eq!(rig.controller.abort_done(false), Reply::ok(1));
    assert_eq!(rig.failure(Sqe::abort(3, 77)), Status::INVALID_FIELD.dnr(), "no such queue");
    for _ in 0..ABORT_LIMIT {
        assert_eq!(rig.admin(Sqe::abort(2, 1)), Action::Abort { sqid: 2, cid: 1 });
    }
    assert_eq!(rig.failure(Sqe::abort(2, 1)), Status::ABORT_LIMIT);
    let _ = rig.controller.abort_done(true);
    assert_eq!(rig.admin(Sqe::abort(2, 1)), Action::Abort { sqid: 2, cid: 1 });
}

//= test: NVMe Base 2.1, Asynchronous Event Request command
#[test]
fn event_requests_are_held_up_to_the_limit_and_can_be_aborted() {
    let mut rig = Rig::ready();
    for cid in 0..AER_LIMIT as u16 {
        assert_eq!(rig.admin(Sqe::async_event_request().with_cid(cid)), Action::Hold);
    }
    assert_eq!(rig.failure(Sqe::async_event_request().with_cid(9)), Status::AER_LIMIT.dnr());
    assert_eq!(rig.admin(Sqe::abort(0, 2)), Action::Complete(Reply::ok(0)));
    assert_eq!(rig.controller.poll_event(), Some((2, Status::ABORT_REQUESTED.into())));
    assert_eq!(rig.admin(Sqe::async_event_request().with_cid(9)), Action::Hold);
}

#[test]
fn notices_reach_the_host_once_it_asks_for_them() {
    let mut rig = Rig::ready();
    let _ = rig.admin(Sqe::async_event_request().with_cid(3));
    let _ = rig.admin(Sqe::async_event_request().with_cid(4));
    rig.controller.namespaces_changed([1]);
    assert_eq!(rig.controller.poll_event(), None, "not configured");
    let _ = rig.result(Sqe::set_features(0x0B, 0, 0x900, false));
    rig.controller.namespaces_changed([3, 4]);
    rig.controller.ana_changed();
    assert_eq!(rig.controller.poll_event(), Some((3, Reply::ok(0x0004_0002))));
    assert_eq!(rig.controller.poll_event(), Some((4, Reply::ok(0x000C_0302))));
    let list = rig.log(0x04, 4096);
    assert_eq!(list[..16], [1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.log(0x04, 4096)[..4], [0; 4], "cleared when read");

    let mut rig = Rig::discovery();
    let _ = rig.result(Sqe::set_features(0x0B, 0, 1 << 31, false));
    let _ = rig.admin(Sqe::async_event_request().with_cid(3));
    rig.controller.discovery_changed();
    assert_eq!(rig.controller.poll_event(), Some((3, Reply::ok(0x0070_F002))));
}

//= test: NVMe Base 2.1, Keep Alive
#[test]
fn a_silent_host_loses_its_controller() {
    let mut rig = Rig::ready();
    let start = rig.now;
    assert_eq!(rig.controller.next_timeout(), Some(start + Duration::from_secs(5)));
    rig.now = start + Duration::from_secs(4);
    assert_eq!(rig.result(Sqe::keep_alive()), 0);
    let deadline = start + Duration::from_secs(9);
    assert_eq!(rig.controller.next_timeout(), Some(deadline));
    assert_eq!(rig.controller.handle_timeout(deadline - Duration::from_millis(1)), None);
    assert_eq!(rig.controller.handle_timeout(deadline), Some(Expired { after: Duration::from_secs(5) }));
    assert!(!rig.controller.is_ready());
    assert_eq!(rig.csts().cfs(), 1);
    assert_eq!(rig.controller.next_timeout(), None);
}

//= test: NVMe Base 2.1, Traffic Based Keep Alive
#[test]
fn any_command_keeps_the_host_alive() {
    let mut rig = Rig::ready();
    let mut deadline = rig.now;
    let io = rig.controller.traffic();
    for _ in 0..3 {
        deadline += Duration::from_secs(5);
        io.mark();
        assert_eq!(rig.controller.handle_timeout(deadline), None);
    }
    let _ = rig.result(Sqe::get_features(0x0F, 0, 0));
    deadline += Duration::from_secs(5);
    assert_eq!(rig.controller.handle_timeout(deadline), None);
    deadline += Duration::from_secs(5);
    assert!(rig.controller.handle_timeout(deadline).is_some());
}
