use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::identify::{IdentifyController, dctype};
use longhaul_wire::nqn;
use longhaul_wire::registration::{DiscoveryInformation, Registration, RegistrationTask};

/// A controller of a central discovery controller with which these hosts may register.
fn central(registrars: HostAccess) -> Rig {
    let mut rig = Rig::discovery();
    if let Content::Discovery(content) = &mut rig.subsystem.content {
        content.registrars = Some(registrars);
    }
    rig
}

fn register(len: usize) -> Sqe {
    DiscoveryInformation::sqe(RegistrationTask::Register, u32::try_from(len).expect("short"))
}

//= test: NVMe Base 2.1, Discovery Information Management command
#[test]
fn hosts_that_may_register_with_a_central_controller() {
    let mut rig = central(HostAccess::Only([HOSTNQN.to_owned()].into()));
    for task in [RegistrationTask::Register, RegistrationTask::Deregister, RegistrationTask::Update] {
        assert_eq!(rig.admin(DiscoveryInformation::sqe(task, 1024)), Action::Register { task, len: 1024 });
    }
    let len = Registration::len_with(REGISTRATION_ENTRIES_MAX);
    let task = RegistrationTask::Register;
    assert_eq!(rig.admin(register(len)), Action::Register { task, len });
    for (sqe, status) in [
        (register(len + 1), Status::INSUFFICIENT_DISCOVERY_RESOURCES),
        (register(1023), Status::INVALID_FIELD),
        (register(1024).with_cdw(10, 3), Status::INVALID_FIELD),
    ] {
        assert_eq!(rig.failure(sqe), status.dnr());
    }
    let other = HostAccess::Only(["nqn.2014-08.org.example:other".to_owned()].into());
    assert_eq!(central(other).failure(register(1024)), Status::OPERATION_DENIED.dnr());
    // Not the controllers of other subsystems, and not a direct discovery controller.
    for mut rig in [Rig::ready(), Rig::discovery()] {
        assert_eq!(rig.failure(register(1024)), Status::INVALID_OPCODE.dnr());
    }
}

//= test: NVMe Base 2.1, Identify Controller, DCTYPE
#[test]
fn a_central_controller_says_that_it_is_one() {
    let of = |mut rig: Rig| {
        IdentifyController::decode(&rig.data(Sqe::identify(1, 0, 0))).expect("4096 bytes").dctype
    };
    assert_eq!(of(central(HostAccess::Any)), dctype::CENTRAL);
    assert_eq!([of(Rig::discovery()), of(Rig::ready())], [dctype::NOT_REPORTED; 2]);
}

//= test: NVMe Base 2.1, Discovery Information Management command
#[test]
fn a_host_registers_itself_and_no_other() {
    let of = |eid: &str| Registration::of_direct(nqn::to_field(eid), "dtn1", "1", Vec::new()).encode();
    assert!(parse_registration(&of(HOSTNQN), HOSTNQN).is_ok());
    let other = parse_registration(&of("nqn.2014-08.org.example:other"), HOSTNQN);
    assert_eq!(other, Err(Status::INVALID_DISCOVERY_INFORMATION));
    assert_eq!(parse_registration(&of("no NQN"), HOSTNQN), Err(Status::INVALID_DISCOVERY_INFORMATION));
    assert_eq!(parse_registration(&of(HOSTNQN)[..1023], HOSTNQN), Err(Status::INVALID_FIELD));
}
