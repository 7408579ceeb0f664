use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::command::CrossControllerReset;
use longhaul_wire::identify::{IdentifyController, cns};

fn identify(rig: &mut Rig) -> IdentifyController {
    IdentifyController::decode(&rig.data(Sqe::identify(cns::CONTROLLER, 0, 0))).expect("whole")
}

//= test: NVMe Base 2.3, Identify Controller
#[test]
fn every_life_of_a_controller_is_another_instance() {
    let mut rig = Rig::ready();
    let first = identify(&mut rig);
    assert!(first.ciu != 0 && first.ccrl == RESET_LIMIT);
    assert_eq!(rig.controller.instance(), Some(Instance { ciu: first.ciu, cirn: first.cirn }));
    assert_eq!(rig.set_cc(CC_ENABLE & !1), Action::Change(Change::Disabling));
    rig.controller.change_done(Change::Disabling);
    assert_eq!(rig.set_cc(CC_ENABLE), Action::Change(Change::Enabled));
    let second = identify(&mut rig);
    assert!(second.ciu != 0 && second.ciu != first.ciu && second.cirn != first.cirn);

    let discovery = identify(&mut Rig::discovery());
    assert_eq!((discovery.ciu, discovery.cirn, discovery.ccrl), (0, 0, 0));
}

#[test]
fn a_uniquifier_is_never_zero() {
    for random in [0, 1, u64::MAX, 0xFF << 56] {
        let mut rig = Rig::ready();
        rig.controller.set_instance(Instance::new(random));
        for _ in 0..600 {
            assert_ne!(rig.controller.instance().expect("given").ciu, 0);
            rig.controller.renew_instance();
        }
    }
}

//= test: NVMe Base 2.3, Cross-Controller Reset command
#[test]
fn another_controller_is_reset_by_the_driver() {
    let mut rig = Rig::ready();
    let sqe = Sqe::cross_controller_reset(9, 7, 0x0102_0304_0506_0708);
    let fields = CrossControllerReset { icid: 9, ciu: 7, cirn: 0x0102_0304_0506_0708 };
    let answers = [
        (OtherReset::Done, Reply::ok(1)),
        (OtherReset::InProgress, Status::RESET_IN_PROGRESS.into()),
        (OtherReset::NotYours, Status::INVALID_FIELD.dnr().into()),
        (OtherReset::Unknown, Status::ANA_INACCESSIBLE.into()),
    ];
    for (outcome, answer) in answers {
        assert_eq!(rig.admin(sqe), Action::ResetOther(fields));
        assert_eq!(rig.controller.reset_other_done(outcome), answer);
    }
    let own = rig.controller.instance().expect("given");
    let this = Sqe::cross_controller_reset(CNTLID, own.ciu, own.cirn);
    assert_eq!(rig.failure(this), Status::INVALID_FIELD.dnr());
    // The identifier was reused, here or by another target.
    let reused = Sqe::cross_controller_reset(CNTLID, own.ciu, !own.cirn);
    assert!(matches!(rig.admin(reused), Action::ResetOther(_)));
    let _ = rig.controller.reset_other_done(OtherReset::Done);
    for _ in 0..RESET_LIMIT {
        assert_eq!(rig.admin(sqe), Action::ResetOther(fields));
    }
    assert_eq!(rig.failure(sqe), Status::RESET_LIMIT);
    let _ = rig.controller.reset_other_done(OtherReset::Done);
    assert_eq!(rig.admin(sqe), Action::ResetOther(fields));
}
