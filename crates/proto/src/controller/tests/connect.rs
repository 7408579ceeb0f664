use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::fabrics::{ConnectData, InvalidParameter, cattr};
use zerocopy::IntoBytes;

fn invalid(parameter: InvalidParameter) -> Reply {
    Reply { status: Status::CONNECT_INVALID_PARAMETERS.dnr(), result: parameter.to_dw0().into() }
}

/// What an admin queue's Connect is answered.
fn admin(sqe: Sqe, data: &[u8], subsystem: &SubsystemView) -> Result<QueueParams, Reply> {
    let request = ConnectRequest::parse(&sqe, data)?;
    Controller::connect(request, CNTLID, subsystem, Instant::now()).map(|(_, params)| params)
}

fn good_data() -> Vec<u8> {
    connect_data(0xFFFF, SUBNQN)
}

/// The data of a good Connect with bytes replaced from `at`.
fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut data = good_data();
    data[at..at + bytes.len()].copy_from_slice(bytes);
    data
}

#[test]
fn a_connect_makes_a_controller() {
    let params = admin(Sqe::connect(0, 31, cattr::NO_FLOW_CONTROL, 0), &good_data(), &subsystem());
    let expected = QueueParams { cntlid: CNTLID, qid: 0, entries: 32, flow_control: false };
    assert_eq!(params, Ok(expected));
    assert_eq!(expected.reply(), Reply::ok(CNTLID.into()));
    let largest = admin(Sqe::connect(0, 127, 0, 0), &good_data(), &subsystem()).expect("the largest queue");
    assert_eq!((largest.entries, largest.flow_control), (128, true));
}

//= test: NVMe Base 2.1, Connect command
//= test: NVMe Base 2.1, Connect command data
//= test: NVMe Base 2.1, NVMe Qualified Names
//= test: NVMe Base 2.1, Dynamic controller model
#[test]
fn a_bad_admin_connect_is_told_what_is_wrong() {
    let connect = Sqe::connect(0, 31, 0, 5000);
    let data = InvalidParameter::data;
    let command = InvalidParameter::command;
    let cases: [(&str, Sqe, Vec<u8>, Reply); 14] = [
        ("not Connect", Sqe::property_get(0, true), good_data(), Status::SEQUENCE_ERROR.dnr().into()),
        ("not Fabrics", Sqe::identify(1, 0, 0), good_data(), Status::SEQUENCE_ERROR.dnr().into()),
        ("RECFMT", connect.with_cdw(10, 1), good_data(), Status::INCOMPATIBLE_FORMAT.dnr().into()),
        ("short data", connect, good_data()[..1023].to_vec(), Status::DATA_SGL_LENGTH.dnr().into()),
        ("no data", connect, Vec::new(), Status::DATA_SGL_LENGTH.dnr().into()),
        ("SQSIZE 0", Sqe::connect(0, 0, 0, 0), good_data(), invalid(command(44))),
        ("SQSIZE above MQES", Sqe::connect(0, 128, 0, 0), good_data(), invalid(command(44))),
        ("QID", Sqe::connect(1, 31, 0, 0), good_data(), invalid(command(42))),
        ("CNTLID", connect, connect_data(1, SUBNQN), invalid(data(16))),
        ("HOSTID", connect, patched(0, &[0; 16]), invalid(data(0))),
        ("unknown SUBNQN", connect, connect_data(0xFFFF, "nqn.2014-08.org.example:x"), invalid(data(256))),
        ("unterminated SUBNQN", connect, patched(256, &[b'a'; 256]), invalid(data(256))),
        ("unterminated HOSTNQN", connect, patched(512, &[b'a'; 256]), invalid(data(512))),
        ("HOSTNQN not UTF-8", connect, patched(512, &[0xFF]), invalid(data(512))),
    ];
    for (name, sqe, data, expected) in cases {
        assert_eq!(admin(sqe, &data, &subsystem()), Err(expected), "{name}");
    }
}

#[test]
fn a_refusal_names_the_field() {
    let named = |sqe: Sqe, data: &[u8]| {
        admin(sqe, data, &subsystem()).map_err(|reply| wrong_field(&reply).unwrap_or("none")).err()
    };
    let connect = Sqe::connect(0, 31, 0, 0);
    assert_eq!(named(Sqe::connect(0, 0, 0, 0), &good_data()), Some("SQSIZE"));
    assert_eq!(named(Sqe::connect(1, 31, 0, 0), &good_data()), Some("QID"));
    assert_eq!(named(connect, &connect_data(1, SUBNQN)), Some("CNTLID"));
    assert_eq!(named(connect, &patched(0, &[0; 16])), Some("HOSTID"));
    assert_eq!(named(connect, &patched(256, &[0; 256])), Some("SUBNQN"));
    assert_eq!(named(connect, &patched(512, &[0xFF])), Some("HOSTNQN"));
    assert_eq!(named(connect, &good_data()[..10]), Some("none"));
}

/// As SPDK's tools connect when they are given no name.
//= test: NVMe Base 2.1, Connect command
#[test]
fn a_host_without_a_name_connects_where_every_host_may() {
    let nameless = patched(512, &[0; 256]);
    let connect = Sqe::connect(0, 31, 0, 5000);
    assert!(admin(connect, &nameless, &subsystem()).is_ok());
    let mut view = subsystem();
    view.hosts = HostAccess::Only([HOSTNQN.to_owned()].into());
    let refused = Reply {
        status: Status::CONNECT_INVALID_HOST.dnr(),
        result: InvalidParameter::data(512).to_dw0().into(),
    };
    assert_eq!(admin(connect, &nameless, &view), Err(refused));
    assert_eq!(wrong_field(&refused), Some("HOSTNQN"));
    // Its I/O queues are those of no other host.
    let request = ConnectRequest::parse(&connect, &nameless).expect("a sound request");
    let now = Instant::now();
    let (mut controller, _) = Controller::connect(request, CNTLID, &subsystem(), now).expect("connected");
    let io = ConnectRequest::parse(&Sqe::connect(1, 31, 0, 0), &connect_data(CNTLID, SUBNQN)).expect("sound");
    assert_eq!(controller.connect_io(&io, &subsystem()), Err(invalid(InvalidParameter::data(512))));
}

//= test: NVMe Base 2.1, Discovery Log Page Entry
#[test]
fn an_admin_queue_of_32_entries_is_always_to_be_had() {
    let mut view = subsystem();
    view.max_queue_size = 8;
    assert_eq!(admin(Sqe::connect(0, 31, 0, 0), &good_data(), &view).map(|params| params.entries), Ok(32));
    let too_large = admin(Sqe::connect(0, 32, 0, 0), &good_data(), &view);
    assert_eq!(too_large, Err(invalid(InvalidParameter::command(44))));
}

//= test: NVMe Base 2.1, Connect command
#[test]
fn only_listed_hosts_connect() {
    let mut view = subsystem();
    view.hosts = HostAccess::Only(["nqn.2014-08.org.example:other".to_owned()].into());
    let reply = admin(Sqe::connect(0, 31, 0, 0), &good_data(), &view).expect_err("not listed");
    assert_eq!(reply.status, Status::CONNECT_INVALID_HOST.dnr());
    view.hosts = HostAccess::Only([HOSTNQN.to_owned()].into());
    assert!(admin(Sqe::connect(0, 31, 0, 0), &good_data(), &view).is_ok());
}

#[test]
fn io_queues_connect_up_to_the_number_granted() {
    let mut rig = Rig::ready();
    let params = rig.connect_io(Sqe::connect(8, 127, cattr::NO_FLOW_CONTROL, 0)).expect("the last queue");
    assert_eq!(params, QueueParams { cntlid: CNTLID, qid: 8, entries: 128, flow_control: false });
    assert_eq!(rig.controller.queues().collect::<Vec<_>>(), [8]);
    let qid = invalid(InvalidParameter::command(42));
    assert_eq!(rig.connect_io(Sqe::connect(9, 127, 0, 0)), Err(qid));
    assert_eq!(rig.connect_io(Sqe::connect(0, 127, 0, 0)), Err(qid));
    let mut rig = Rig::ready();
    assert_eq!(rig.result(Sqe::set_features(7, 0, 0x0001_0001, false)), 0x0001_0001);
    assert!(rig.connect_io(Sqe::connect(2, 127, 0, 0)).is_ok());
    assert_eq!(rig.connect_io(Sqe::connect(3, 127, 0, 0)), Err(qid));
}

//= test: NVMe Base 2.1, Connect command
//= test: NVMe Base 2.1, CC
#[test]
fn io_queues_need_a_ready_controller_with_the_right_entry_sizes() {
    let refused = Err(Status::SEQUENCE_ERROR.dnr().into());
    let connect = Sqe::connect(1, 31, 0, 0);
    let mut rig = Rig::connected(subsystem());
    assert_eq!(rig.connect_io(connect), refused);
    for cc in [0x0045_0001, 0x0036_0001, 0x0046_0071] {
        let mut rig = Rig::connected(subsystem());
        assert_eq!(rig.set_cc(cc), Action::Change(Change::Enabled));
        assert_eq!(rig.connect_io(connect), refused, "{cc:X}h");
    }
    let mut rig = Rig::ready();
    assert!(rig.connect_io(connect).is_ok());
    assert_eq!(rig.connect_io(connect), Err(Status::INVALID_QID.dnr().into()), "in use");
    rig.controller.queue_closed(1);
    assert!(rig.connect_io(connect).is_ok(), "free again");
}

//= test: NVMe Base 2.1, Connect command
#[test]
fn io_queues_belong_to_the_host_of_the_admin_queue() {
    let other = "nqn.2014-08.org.example:other";
    let cases = [
        (ConnectData::new(HOSTID, CNTLID, SUBNQN, other), 512),
        (ConnectData::new(Uuid::from_u128(9), CNTLID, SUBNQN, HOSTNQN), 0),
        (ConnectData::new(HOSTID, CNTLID, other, HOSTNQN), 256),
    ];
    let mut rig = Rig::ready();
    for (data, offset) in cases {
        let request = ConnectRequest::parse(&Sqe::connect(1, 31, 0, 0), data.as_bytes()).expect("sound");
        let reply = rig.controller.connect_io(&request, &rig.subsystem);
        assert_eq!(reply, Err(invalid(InvalidParameter::data(offset))));
        assert_eq!(request.unknown_controller(), invalid(InvalidParameter::data(16)));
    }
}

//= test: NVMe Base 2.1, Discovery controllers
#[test]
fn discovery_controllers_have_no_io_queues() {
    let mut rig = Rig::discovery();
    let data = connect_data(CNTLID, &rig.subsystem.nqn);
    let request = ConnectRequest::parse(&Sqe::connect(1, 31, 0, 0), &data).expect("sound");
    let reply = rig.controller.connect_io(&request, &rig.subsystem);
    assert_eq!(reply, Err(invalid(InvalidParameter::command(42))));
}

//= test: NVMe Base 2.1, Connect command
//= test: NVMe Base 2.1, Disconnect command
//= test: NVMe Base 2.1, Fabrics commands
#[test]
fn fabrics_commands_of_an_io_queue() {
    let mut rig = Rig::ready();
    rig.connect_io(Sqe::connect(3, 31, 0, 0)).expect("connected");
    let mut status = |sqe: Sqe| match rig.controller.handle_io_fabrics(3, &sqe) {
        Action::Complete(reply) => reply.status.code(),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(Sqe::connect(3, 31, 0, 0)), Status::SEQUENCE_ERROR);
    assert_eq!(status(Sqe::disconnect().with_cdw(10, 1)), Status::INCOMPATIBLE_FORMAT);
    assert_eq!(status(Sqe::property_get(0, true)), Status::INVALID_OPCODE);
    assert_eq!(status(Sqe::property_set(0x14, false, 0)), Status::INVALID_OPCODE);
    for fctype in [5, 6, 0xC0] {
        assert_eq!(status(Sqe::disconnect().with_nsid(fctype)), Status::INVALID_OPCODE, "{fctype}");
    }
    assert_eq!(rig.controller.handle_io_fabrics(3, &Sqe::disconnect()), Action::Disconnect);
    assert_eq!(rig.controller.queues().count(), 0);
}
