use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::log::{
    AnaState, CommandEffects, DISCOVERY_ENTRY_LEN, DiscoveryEntry, DiscoveryHeader, ErrorEntry,
    FeatureEffects, SmartHealth, SubsystemType, SupportedPages, decode_ana, lid,
};

const SUPPORTED: [u8; 10] = [
    lid::SUPPORTED_PAGES,
    lid::ERROR,
    lid::HEALTH,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    lid::ANA,
    lid::FEATURE_EFFECTS,
    lid::MI_COMMAND_EFFECTS,
    lid::RESERVATION_NOTICE,
];

//= test: NVMe Base 2.1, Get Log Page command
//= test: NVMe Base 2.1, Discovery controllers
#[test]
fn supported_pages_are_served_and_others_refused() {
    let mut rig = Rig::ready();
    let pages = SupportedPages::from_bytes(&rig.log(lid::SUPPORTED_PAGES, 1024));
    for id in 0..=255 {
        assert_eq!(pages.has(id), SUPPORTED.contains(&id), "{id:02X}h");
        let sqe = Sqe::get_log_page(id, 0, 0, 16, true);
        if pages.has(id) {
            let _ = rig.data(sqe);
        } else {
            assert_eq!(rig.failure(sqe), Status::INVALID_LOG_PAGE.dnr(), "{id:02X}h");
        }
    }
    let mut rig = Rig::discovery();
    for id in (0..=255).filter(|&id| id != lid::ERROR && id != lid::DISCOVERY) {
        let sqe = Sqe::get_log_page(id, 0, 0, 16, true);
        assert_eq!(rig.failure(sqe), Status::INVALID_LOG_PAGE.dnr(), "{id:02X}h");
    }
}

//= test: NVMe Base 2.1, Get Log Page command
//= test: NVMe Base 2.1, MDTS
//= test: NVMe Base 2.1, SMART / Health Information log page
#[test]
fn refused_reads() {
    let mut rig = Rig::ready();
    let get = |offset, len| Sqe::get_log_page(lid::HEALTH, 0, offset, len, true);
    let cases = [
        (get(2, 4), Status::INVALID_FIELD),
        (get(516, 4), Status::INVALID_FIELD),
        (get(u64::MAX - 3, 4), Status::INVALID_FIELD),
        (get(0, (1 << 20) + 4), Status::INVALID_FIELD),
        (get(0, 512).with_cdw(14, 1 << 23), Status::INVALID_FIELD),
        (with_len(get(0, 512), 508), Status::DATA_SGL_LENGTH),
        (get(0, 512).with_nsid(1), Status::INVALID_FIELD),
    ];
    for (sqe, status) in cases {
        assert_eq!(rig.failure(sqe), status.dnr(), "{sqe:?}");
    }
}

#[test]
fn a_page_can_be_read_in_pieces_and_past_its_end() {
    let mut rig = Rig::ready();
    rig.health.reads = 0x0102_0304_0506_0708;
    let whole = rig.log(lid::HEALTH, 512);
    for (offset, len) in [(0, 4), (64, 8), (508, 4), (60, 100)] {
        let piece = rig.data(Sqe::get_log_page(lid::HEALTH, u32::MAX, offset, len, true));
        assert_eq!(piece, whole[offset as usize..][..len as usize], "{len} bytes at {offset}");
    }
    let beyond = rig.data(Sqe::get_log_page(lid::HEALTH, 0, 500, 1000, true));
    assert_eq!(beyond[..12], whole[500..]);
    assert_eq!(beyond[12..], [0; 988]);
    assert_eq!(rig.data(Sqe::get_log_page(lid::HEALTH, 0, 512, 4, true)), [0; 4]);
}

#[test]
fn health_has_the_real_counts() {
    let mut rig = Rig::ready();
    rig.health = HealthCounters {
        bytes_read: 512_001,
        bytes_written: 1_024_000,
        reads: 3,
        writes: 4,
        busy_ms: 125_000,
        media_errors: 5,
        uptime_s: 7300,
        unsafe_shutdowns: 6,
    };
    let _ = rig.failure(Sqe::new(0xC0));
    let health = SmartHealth::decode(&rig.log(lid::HEALTH, 512)).expect("512 bytes");
    let expected = SmartHealth {
        critical_warning: 0,
        temperature: 298,
        available_spare: 100,
        spare_threshold: 10,
        data_units_read: 2,
        data_units_written: 2,
        host_reads: 3,
        host_writes: 4,
        busy_minutes: 2,
        power_cycles: 1,
        power_on_hours: 2,
        unsafe_shutdowns: 6,
        media_errors: 5,
        error_entries: 1,
        ..Default::default()
    };
    assert_eq!(health, expected);
}

//= test: NVMe Base 2.1, Error Information log page
#[test]
fn failed_commands_are_in_the_error_log_newest_first() {
    let mut rig = Rig::ready();
    let entry = |page: &[u8], at: usize| ErrorEntry::decode(&page[64 * at..]).expect("64 bytes");
    assert_eq!(entry(&rig.log(lid::ERROR, 4096), 0).error_count, 0, "empty");
    let _ = rig.failure(Sqe::new(0xC0).with_cid(7).with_nsid(9));
    let record = ErrorRecord { sqid: 2, cid: 8, opcode: 1, status: Status::WRITE_FAULT, nsid: 1, lba: 99 };
    let status = rig.controller.record_error(record);
    assert!(status.is(Status::WRITE_FAULT) && status.is_more());
    let page = rig.log(lid::ERROR, 4096);
    let newest = entry(&page, 0);
    assert_eq!((newest.error_count, newest.sqid, newest.cid, newest.opcode), (2, 2, 8, 1));
    assert_eq!((newest.lba, newest.nsid, newest.trtype, newest.version), (99, 1, 3, 1));
    assert_eq!(newest.status, status.to_wire());
    let first = entry(&page, 1);
    assert_eq!((first.error_count, first.sqid, first.cid, first.nsid, first.opcode), (1, 0, 7, 9, 0xC0));
    (0..100).for_each(|_| {
        let _ = rig.controller.record_error(record);
    });
    let page = rig.log(lid::ERROR, 4096);
    assert_eq!((entry(&page, 0).error_count, entry(&page, 63).error_count), (102, 39));
}

#[test]
fn firmware_and_effects() {
    let mut rig = Rig::ready();
    let firmware = rig.log(lid::FIRMWARE_SLOT, 512);
    assert_eq!((firmware[0], &firmware[8..16]), (1, &b"0.1.0   "[..]));
    let effects = CommandEffects::from_bytes(&rig.log(lid::COMMAND_EFFECTS, 4096));
    let io: Vec<u8> = (0..=255).filter(|&opcode| effects.io(opcode) != 0).collect();
    assert_eq!(io, [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x0D, 0x0E, 0x11, 0x15]);
    assert_eq!((effects.io(0x01), effects.io(0x02)), (0b11, 0b01));
    let admin: Vec<u8> = (0..=255).filter(|&opcode| effects.admin(opcode) != 0).collect();
    assert_eq!(admin, [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x38]);
    let features = FeatureEffects::from_bytes(&rig.log(lid::FEATURE_EFFECTS, 1024));
    let known: Vec<u8> = (0..=255).filter(|&id| features.get(id) != 0).collect();
    assert_eq!(known, [1, 2, 4, 5, 6, 7, 0x0A, 0x0B, 0x0F, 0x19, 0x81, 0x82, 0x83]);
}

//= test: NVMe Base 2.1, Commands Supported and Effects log page
#[test]
fn effects_are_told_for_each_command_set_that_cap_promises() {
    const CSI_ZONED: u32 = 2;
    let of = |rig: &mut Rig, csi: u32| {
        let sqe = Sqe::get_log_page(lid::COMMAND_EFFECTS, 0, 0, 4096, true).with_cdw(14, csi << 24);
        let log = CommandEffects::from_bytes(&rig.data(sqe));
        let count = |effects: &dyn Fn(u8) -> u32| (0..=255).filter(|opcode| effects(*opcode) != 0).count();
        (count(&|opcode| log.admin(opcode)), count(&|opcode| log.io(opcode)))
    };
    // CC.CSS is 000b: there is only the NVM command set, whatever CSI says.
    let mut rig = Rig::ready();
    assert_eq!((of(&mut rig, 0), of(&mut rig, CSI_ZONED)), ((8, 11), (8, 11)));
    // 110b, as Linux sets it where CAP.CSS has bit 6.
    let mut rig = Rig::connected(subsystem());
    let cap = rig.result(Sqe::property_get(longhaul_wire::fabrics::offset::CAP, true));
    assert_ne!(longhaul_wire::fabrics::Cap(cap).css() & longhaul_wire::fabrics::Cap::CSS_IO_SETS, 0);
    assert_eq!(rig.set_cc(CC_ENABLE | 0b110 << 4), Action::Change(Change::Enabled));
    assert_eq!((of(&mut rig, 0), of(&mut rig, CSI_ZONED)), ((8, 11), (8, 0)));
}

#[test]
fn the_ana_page_is_as_long_as_hosts_compute_from_identify() {
    let mut rig = Rig::ready();
    // NANAGRPID and MNAN are 8 in the rig.
    let len = 16 + 8 * 32 + 8 * 4;
    let at = |offset| Sqe::get_log_page(lid::ANA, 0, offset, 64, true);
    assert_eq!(rig.data(at(len - 64)), [0; 64]);
    assert_eq!(rig.data(at(len)), [0; 64]);
    assert_eq!(rig.failure(at(len + 4)), Status::INVALID_FIELD.dnr());
}

#[test]
fn ana_groups_with_their_namespaces() {
    let mut rig = Rig::ready();
    let Content::Nvm(nvm) = &mut rig.subsystem.content else { panic!("namespaces") };
    nvm.namespaces[1].ana_group = 5;
    nvm.namespaces[1].ana_state = AnaState::Inaccessible;
    let log = decode_ana(&rig.log(lid::ANA, 16 + 2 * 32 + 3 * 4)).expect("whole");
    assert_eq!((log.change_count, log.groups.len()), (7, 2));
    assert_eq!(
        (log.groups[0].id, log.groups[0].state, &log.groups[0].nsids[..]),
        (1, AnaState::Optimized, &[1, 4][..])
    );
    assert_eq!(
        (log.groups[1].id, log.groups[1].state, &log.groups[1].nsids[..]),
        (5, AnaState::Inaccessible, &[3][..])
    );
    let groups_only = Sqe::get_log_page(lid::ANA, 0, 0, 16 + 2 * 32, false);
    let groups_only = groups_only.with_cdw(10, groups_only.cdw10() | 1 << 8);
    let log = decode_ana(&rig.data(groups_only)).expect("whole");
    assert!(log.groups.len() == 2 && log.groups.iter().all(|group| group.nsids.is_empty()));
}

//= test: NVMe Base 2.1, Discovery log page
//= test: NVMe Base 2.1, Discovery Log Page Entry
#[test]
fn the_discovery_log_tells_a_host_what_it_may_use() {
    let mut rig = Rig::discovery();
    let header = DiscoveryHeader::decode(&rig.log(lid::DISCOVERY, 1024)).expect("1024 bytes");
    assert_eq!((header.genctr, header.numrec, header.recfmt), (9, 1, 0));
    let read = Sqe::get_log_page(lid::DISCOVERY, 0, 1024, DISCOVERY_ENTRY_LEN as u32, false);
    let entry = DiscoveryEntry::decode(&rig.data(read)).expect("1024 bytes");
    assert_eq!((entry.trtype, entry.adrfam, entry.subtype), (3, 1, SubsystemType::Nvm));
    assert_eq!((entry.traddr.text(), entry.trsvcid.text()), ("192.0.2.7".into(), "4420".into()));
    assert_eq!(
        (entry.portid, entry.cntlid, entry.asqsz, entry.treq, entry.eflags),
        (1, 0xFFFF, 128, 0b100, 0)
    );
    assert_eq!(longhaul_wire::nqn::from_field(&entry.subnqn), Ok(SUBNQN));

    let addr = "[2001:db8::1]:8009".parse().expect("an address");
    let own = discovery_entry("nqn.d", DiscoveryTarget::ThisDiscovery, addr, 2, 16);
    assert_eq!((own.adrfam, own.subtype, own.asqsz), (2, SubsystemType::CurrentDiscovery, 32));
    assert_eq!((own.eflags, own.traddr.text()), (0b10, "2001:db8::1".into()));
}
