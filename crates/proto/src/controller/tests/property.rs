use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::fabrics::{Cap, offset};

//= test: NVMe Base 2.1, Property Get command
#[test]
fn properties_are_read_with_their_size() {
    let mut rig = Rig::connected(subsystem());
    let cap = Cap(rig.result(Sqe::property_get(offset::CAP, true)));
    assert_eq!((cap.mqes(), cap.cqr(), cap.css(), cap.mpsmin(), cap.mpsmax()), (127, 1, 0x41, 0, 0));
    assert!(cap.timeout() > 0);
    assert_eq!(rig.result(Sqe::property_get(offset::VS, false)), 0x0002_0100);
    assert_eq!(rig.result(Sqe::property_get(offset::CC, false)), 0);
    assert_eq!(rig.result(Sqe::property_get(offset::CSTS, false)), 0);
    assert_eq!(rig.result(Sqe::property_get(offset::CRTO, false)), 30);
    for (offset, wide) in [
        (offset::CAP, false),
        (offset::VS, true),
        (offset::CC, true),
        (offset::CSTS, true),
        (offset::NSSR, false),
        (0x04, false),
        (0x0C, false),
        (0x1000, true),
        (u32::MAX, false),
    ] {
        assert_eq!(rig.failure(Sqe::property_get(offset, wide)), Status::INVALID_FIELD.dnr(), "{offset:X}h");
    }
    let odd_size = Sqe::property_get(offset::VS, false).with_cdw(10, 2);
    assert_eq!(rig.failure(odd_size), Status::INVALID_FIELD.dnr());
}

//= test: NVMe Base 2.1, Property Set command
#[test]
fn only_cc_is_written() {
    let mut rig = Rig::connected(subsystem());
    for offset in [offset::CAP, offset::VS, offset::CSTS, offset::NSSR, offset::CRTO, 0x18] {
        let status = rig.failure(Sqe::property_set(offset, false, 0));
        assert_eq!(status, Status::INVALID_FIELD.dnr(), "{offset:X}h");
    }
    assert_eq!(rig.failure(Sqe::property_set(offset::CC, true, 1)), Status::INVALID_FIELD.dnr());
    assert_eq!(rig.csts(), Csts(0));
}

//= test: NVMe Base 2.1, CC.EN
#[test]
fn enable_reset_and_enable_again() {
    let mut rig = Rig::connected(subsystem());
    assert_eq!(rig.failure(Sqe::identify(1, 0, 0)), Status::SEQUENCE_ERROR.dnr(), "not enabled");
    assert_eq!(rig.set_cc(CC_ENABLE), Action::Change(Change::Enabled));
    assert_eq!(rig.csts().rdy(), 1);
    rig.result(Sqe::set_features(0x0B, 0, 0x100, false));
    assert_eq!(rig.admin(Sqe::async_event_request().with_cid(1)), Action::Hold);

    assert_eq!(rig.set_cc(CC_ENABLE - 1), Action::Change(Change::Disabling));
    assert_eq!(rig.csts().rdy(), 1, "until I/O queues are closed");
    assert!(!rig.controller.is_ready());
    assert_eq!(rig.failure(Sqe::keep_alive()), Status::SEQUENCE_ERROR.dnr());
    rig.controller.change_done(Change::Disabling);
    assert_eq!(rig.csts(), Csts(0));
    rig.controller.namespaces_changed([1]);
    assert_eq!(rig.controller.poll_event(), None, "requests are forgotten");

    assert_eq!(rig.set_cc(CC_ENABLE), Action::Change(Change::Enabled));
    assert_eq!(rig.result(Sqe::get_features(0x0B, 0, 0)), 0, "features are back at their defaults");
}

//= test: NVMe Base 2.1, CC.EN
#[test]
fn a_host_that_enables_too_early_gets_ready_after_the_reset() {
    let mut rig = Rig::ready();
    assert_eq!(rig.set_cc(0), Action::Change(Change::Disabling));
    assert_eq!(rig.set_cc(CC_ENABLE), Action::Change(Change::Enabled));
    assert!(!rig.controller.is_ready());
    rig.controller.change_done(Change::Disabling);
    assert!(rig.controller.is_ready());
}

//= test: NVMe Base 2.1, CSTS.SHST
//= test: NVMe Base 2.1, CSTS.CFS
#[test]
fn a_shutdown_that_fails_is_not_complete() {
    let mut rig = Rig::ready();
    assert_eq!(rig.set_cc(CC_ENABLE | 1 << 14), Action::Change(Change::ShuttingDown { abrupt: false }));
    rig.controller.shutdown_failed();
    assert_eq!((rig.csts().cfs(), rig.csts().shst()), (1, 1));
    // A second try does not hide it; a reset ends it.
    assert_eq!(rig.set_cc(CC_ENABLE | 1 << 14), Action::Complete(Reply::ok(0)));
    assert_eq!((rig.csts().cfs(), rig.csts().shst()), (1, 1));
    assert_eq!(rig.set_cc(CC_ENABLE & !1), Action::Change(Change::Disabling));
    rig.controller.change_done(Change::Disabling);
    assert_eq!(rig.csts().0, 0);
}

//= test: NVMe Base 2.1, CC.SHN
#[test]
fn shutdown_is_told_in_csts() {
    for (shn, abrupt) in [(0x4000, false), (0x8000, true)] {
        let mut rig = Rig::ready();
        let change = Change::ShuttingDown { abrupt };
        assert_eq!(rig.set_cc(CC_ENABLE | shn), Action::Change(change));
        assert_eq!(rig.csts().shst(), 1);
        assert_eq!(rig.set_cc(CC_ENABLE | shn), Action::Complete(Reply::ok(0)), "begun already");
        rig.controller.change_done(change);
        assert_eq!(rig.csts().shst(), 2);
        assert_eq!(rig.failure(Sqe::keep_alive()), Status::SEQUENCE_ERROR.dnr());
        assert_eq!(rig.set_cc(0), Action::Change(Change::Disabling));
        rig.controller.change_done(Change::Disabling);
        assert_eq!(rig.csts(), Csts(0));
    }
}

//= test: NVMe Base 2.1, CC
#[test]
fn what_cap_does_not_offer_is_fatal() {
    for cc in [CC_ENABLE | 1 << 7, CC_ENABLE | 1 << 11, CC_ENABLE | 1 << 4] {
        let mut rig = Rig::connected(subsystem());
        assert_eq!(rig.set_cc(cc), Action::Complete(Reply::ok(0)));
        assert_eq!((rig.csts().cfs(), rig.csts().rdy()), (1, 0), "{cc:X}h");
        assert_eq!(rig.set_cc(0), Action::Change(Change::Disabling));
        rig.controller.change_done(Change::Disabling);
        assert_eq!(rig.set_cc(CC_ENABLE), Action::Change(Change::Enabled), "a reset clears it");
    }
    for css in [0b110 << 4, 0b111 << 4] {
        let mut rig = Rig::connected(subsystem());
        assert_eq!(rig.set_cc(CC_ENABLE | css), Action::Change(Change::Enabled));
    }
}
