use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::command::NSID_ALL;
use longhaul_wire::feature::fid;

const CHANGEABLE: u64 = 0b100;

/// Feature, default value, a value to set, and the value then read.
const SIMPLE: [(u8, u64, u32, u64); 7] = [
    (fid::ARBITRATION, 0, 0x0102_0304, 0x0102_0304),
    (fid::POWER_MANAGEMENT, 0, 0x20, 0x20),
    (fid::TEMPERATURE_THRESHOLD, 343, 400, 400),
    (fid::WRITE_ATOMICITY, 0, 1, 1),
    (fid::ASYNC_EVENT_CONFIG, 0, 0x9FF, 0x9FF),
    (fid::KEEP_ALIVE, 0, 1500, 2000),
    (fid::COMMAND_SET_PROFILE, 0, 0, 0),
];

//= test: NVMe Base 2.1, Get Features command
#[test]
fn each_feature_is_set_and_read() {
    let mut rig = Rig::ready();
    for (id, default, value, read) in SIMPLE {
        assert_eq!(rig.result(Sqe::get_features(id, 0, 1)), default, "{id:02X}h default");
        assert_eq!(rig.result(Sqe::get_features(id, 0, 2)), default, "{id:02X}h saved");
        assert_eq!(rig.result(Sqe::get_features(id, 0, 3)), CHANGEABLE, "{id:02X}h supported");
        assert_eq!(rig.result(Sqe::set_features(id, 0, value, false)), 0, "{id:02X}h set");
        assert_eq!(rig.result(Sqe::get_features(id, 0, 0)), read, "{id:02X}h current");
        assert_eq!(rig.failure(Sqe::get_features(id, 0, 4)), Status::INVALID_FIELD.dnr());
    }
}

//= test: NVMe Base 2.1, Reservation Notification Mask feature
#[test]
fn the_reservation_mask_has_a_value_for_each_namespace() {
    let mut rig = Rig::ready();
    let (id, all) = (fid::RESERVATION_NOTICE_MASK, u32::MAX);
    assert_eq!(rig.result(Sqe::get_features(id, 1, 3)), 0b110);
    assert_eq!(rig.result(Sqe::set_features(id, 1, all, false)), 0);
    let get = |nsid| Sqe::get_features(id, nsid, 0);
    assert_eq!((rig.result(get(1)), rig.result(get(3))), (0b1110, 0));
    assert_eq!(rig.result(Sqe::set_features(id, NSID_ALL, 1 << 2, false)), 0);
    assert_eq!((rig.result(get(1)), rig.result(get(3))), (1 << 2, 1 << 2));
    assert_eq!(rig.failure(get(77)), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(rig.failure(Sqe::set_features(id, 77, 0, false)), Status::INVALID_NAMESPACE.dnr());
}

//= test: NVMe Base 2.1, Reservation Persistence feature
#[test]
fn only_reservations_that_can_persist_are_made_to() {
    let mut rig = Rig::ready();
    let id = fid::RESERVATION_PERSISTENCE;
    let get = |nsid| Sqe::get_features(id, nsid, 0);
    let set = |nsid, value| Sqe::set_features(id, nsid, value, false);
    // Of the namespaces 1, 3 and 4 the first has a place to keep them.
    assert_eq!(rig.admin(get(1)), Action::ReservationPersistence { nsid: 1 });
    let change = |persist| Action::PersistReservations { nsids: vec![1], persist };
    assert_eq!(rig.admin(set(1, 1)), change(true));
    assert_eq!(rig.admin(set(NSID_ALL, 0)), change(false));
    assert_eq!(rig.result(Sqe::get_features(id, 1, 1)), 0, "default");
    assert_eq!(rig.result(Sqe::get_features(id, 1, 3)), 0b110, "supported");
    for sqe in [get(3), set(3, 1)] {
        assert_eq!(rig.failure(sqe), Status::INVALID_FIELD.dnr());
    }
    for sqe in [get(77), get(NSID_ALL), set(77, 1)] {
        assert_eq!(rig.failure(sqe), Status::INVALID_NAMESPACE.dnr());
    }
}

//= test: NVMe Base 2.1, Set Features command
//= test: NVMe Base 2.1, Power Management feature
//= test: NVMe Base 2.1, Temperature Threshold feature
//= test: NVMe Base 2.1, I/O Command Set Profile feature
//= test: NVMe Base 2.1, Asynchronous Event Configuration feature
//= test: NVMe Base 2.1, Host Identifier feature
//= test: NVM Command Set 1.1, Error Recovery feature
#[test]
fn refused_values() {
    let set = |id, value| Sqe::set_features(id, 0, value, false);
    let cases = [
        (Sqe::set_features(fid::ARBITRATION, 0, 0, true), Status::FEATURE_NOT_SAVEABLE),
        (Sqe::set_features(fid::ARBITRATION, 1, 0, false), Status::FEATURE_NOT_NAMESPACE),
        (set(fid::POWER_MANAGEMENT, 1), Status::INVALID_FIELD),
        (set(fid::TEMPERATURE_THRESHOLD, 1 << 16), Status::INVALID_FIELD),
        (set(fid::TEMPERATURE_THRESHOLD, 2 << 20), Status::INVALID_FIELD),
        (set(fid::ASYNC_EVENT_CONFIG, 1 << 9), Status::INVALID_FIELD),
        (set(fid::ASYNC_EVENT_CONFIG, 1 << 31), Status::INVALID_FIELD),
        (set(fid::COMMAND_SET_PROFILE, 1), Status::COMMAND_SET_REJECTED),
        (set(fid::HOST_IDENTIFIER, 1), Status::SEQUENCE_ERROR),
        (Sqe::set_features(fid::ERROR_RECOVERY, 1, 1 << 16, false), Status::INVALID_FIELD),
        (Sqe::set_features(fid::ERROR_RECOVERY, 2, 0, false), Status::INVALID_NAMESPACE),
        (set(fid::ERROR_RECOVERY, 0), Status::INVALID_NAMESPACE),
        (Sqe::get_features(fid::ERROR_RECOVERY, NSID_ALL, 0), Status::INVALID_NAMESPACE),
        (Sqe::get_features(fid::TEMPERATURE_THRESHOLD, 0, 0).with_cdw(11, 1 << 16), Status::INVALID_FIELD),
        (Sqe::get_features(fid::HOST_IDENTIFIER, 0, 0), Status::INVALID_FIELD),
    ];
    let mut rig = Rig::ready();
    for (sqe, status) in cases {
        assert_eq!(rig.failure(sqe), status.dnr(), "{sqe:?}");
    }
}

//= test: NVMe Base 2.1, Get Features command
//= test: NVMe Base 2.1, Set Features command
#[test]
fn unknown_features_are_invalid_fields() {
    let io = [1, 2, 4, 5, 6, 7, 0x0A, 0x0B, 0x0F, 0x19, 0x81, 0x82, 0x83];
    let discovery = [0x0B, 0x0F, 0x81];
    for (mut rig, known) in [(Rig::ready(), &io[..]), (Rig::discovery(), &discovery[..])] {
        for id in 0..=255 {
            if known.contains(&id) {
                let _ = rig.result(Sqe::get_features(id, 0, 3));
                continue;
            }
            for sqe in [
                Sqe::get_features(id, 0, 0),
                Sqe::get_features(id, 0, 3),
                Sqe::set_features(id, 0, 0, false),
                Sqe::set_features(id, 0, 0, true),
            ] {
                assert_eq!(rig.failure(sqe), Status::INVALID_FIELD.dnr(), "{id:02X}h");
            }
        }
    }
}

//= test: NVMe Base 2.1, Number of Queues feature
#[test]
fn queues_are_granted_up_to_the_limit_and_before_the_first() {
    let mut rig = Rig::ready();
    let set = |value| Sqe::set_features(fid::NUMBER_OF_QUEUES, 0, value, false);
    assert_eq!(rig.result(Sqe::get_features(fid::NUMBER_OF_QUEUES, 0, 0)), 0x0007_0007);
    assert_eq!(rig.result(set(0x00FE_00FE)), 0x0007_0007);
    assert_eq!(rig.result(set(0x0003_0002)), 0x0002_0002);
    assert_eq!(rig.result(Sqe::get_features(fid::NUMBER_OF_QUEUES, 0, 0)), 0x0002_0002);
    assert_eq!(rig.failure(set(0xFFFF)), Status::INVALID_FIELD.dnr());
    assert_eq!(rig.failure(set(0xFFFF_0000)), Status::INVALID_FIELD.dnr());
    rig.connect_io(Sqe::connect(1, 31, 0, 0)).expect("connected");
    assert_eq!(rig.failure(set(0)), Status::SEQUENCE_ERROR.dnr());
}

#[test]
fn the_write_cache_is_switched_by_the_driver() {
    let mut rig = Rig::ready();
    let set = |value| Sqe::set_features(fid::VOLATILE_WRITE_CACHE, 0, value, false);
    assert!(rig.controller.write_cache());
    assert_eq!(rig.admin(set(0)), Action::WriteCache { enabled: false });
    assert!(!rig.controller.write_cache());
    assert_eq!(rig.result(Sqe::get_features(fid::VOLATILE_WRITE_CACHE, 0, 0)), 0);
    assert_eq!(rig.admin(set(1)), Action::WriteCache { enabled: true });
}

#[test]
fn error_recovery_has_a_value_for_each_namespace() {
    let mut rig = Rig::ready();
    let get = |nsid| Sqe::get_features(fid::ERROR_RECOVERY, nsid, 0);
    assert_eq!(rig.result(Sqe::get_features(fid::ERROR_RECOVERY, 1, 3)), 0b110);
    assert_eq!(rig.result(Sqe::set_features(fid::ERROR_RECOVERY, 1, 7, false)), 0);
    assert_eq!((rig.result(get(1)), rig.result(get(3))), (7, 0));
    assert_eq!(rig.result(Sqe::set_features(fid::ERROR_RECOVERY, NSID_ALL, 9, false)), 0);
    assert_eq!((rig.result(get(1)), rig.result(get(3))), (9, 9));
}

//= test: NVMe Base 2.1, Host Identifier feature
#[test]
fn the_host_identifier_has_16_bytes() {
    let mut rig = Rig::ready();
    let get = Sqe::get_features(fid::HOST_IDENTIFIER, 0, 0).with_cdw(11, 1);
    assert_eq!(rig.data(with_len(get, 16)), HOSTID.as_bytes());
    assert_eq!(rig.failure(with_len(get, 8)), Status::DATA_SGL_LENGTH.dnr());
}

#[test]
fn a_temperature_threshold_that_is_passed_warns() {
    let mut rig = Rig::ready();
    let _ = rig.result(Sqe::set_features(fid::ASYNC_EVENT_CONFIG, 0, 0x02, false));
    let _ = rig.admin(Sqe::async_event_request().with_cid(6));
    let under = 1 << 20;
    let _ = rig.result(Sqe::set_features(fid::TEMPERATURE_THRESHOLD, 0, under | 298, false));
    assert_eq!(rig.controller.poll_event(), Some((6, Reply::ok(0x0002_0101))));
    assert_eq!(rig.log(0x02, 512)[0], 0b10);
    let get = Sqe::get_features(fid::TEMPERATURE_THRESHOLD, 0, 0).with_cdw(11, under);
    assert_eq!(rig.result(get), 298);
    let _ = rig.result(Sqe::set_features(fid::TEMPERATURE_THRESHOLD, 0, under, false));
    assert_eq!(rig.log(0x02, 512)[0], 0);
}

#[test]
fn keep_alive_follows_the_feature() {
    let mut rig = Rig::ready();
    assert_eq!(rig.result(Sqe::get_features(fid::KEEP_ALIVE, 0, 0)), 5000);
    let _ = rig.result(Sqe::set_features(fid::KEEP_ALIVE, 0, 0, false));
    assert_eq!(rig.controller.next_timeout(), None);
    let _ = rig.result(Sqe::set_features(fid::KEEP_ALIVE, 0, 60_000, false));
    assert_eq!(rig.controller.keep_alive_timeout(), Duration::from_secs(60));
    assert_eq!(rig.controller.next_timeout(), Some(rig.now + Duration::from_secs(60)));
}
