use crate::controller::io::{IoCommand, Limits, deallocate_ranges, parse};
use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::command::{DsmRange, NSID_ALL, Prinfo, ReadWrite, Sgl, io};
use longhaul_wire::log::AnaState;
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn run(sqe: Sqe) -> Result<IoCommand, Status> {
    let view = subsystem();
    let ns = view.nvm().and_then(|nvm| nvm.namespace(sqe.nsid()));
    parse(&sqe, ns, &Limits::of(&view))
}

/// A command on namespace 1 (1000 blocks of 4 KiB) with a fitting SGL.
fn on_1(opcode: u8, fields: ReadWrite) -> Sqe {
    fields.to_sqe(opcode, 1).with_sgl(Sgl::transport(fields.blocks * 4096))
}

fn rw(slba: u64, blocks: u32) -> ReadWrite {
    ReadWrite::new(slba, blocks)
}

#[test]
fn every_command_in_bytes() {
    let fua = ReadWrite { fua: true, ..rw(2, 3) };
    let deac = ReadWrite { deallocate: true, ..rw(0, 1000) };
    let (offset, len) = (8192, 12288);
    let cases = [
        (on_1(io::READ, rw(2, 3)), IoCommand::Read { offset, len, fua: false }),
        (on_1(io::READ, fua), IoCommand::Read { offset, len, fua: true }),
        (on_1(io::WRITE, rw(2, 3)), IoCommand::Write { offset, len, fua: false }),
        (on_1(io::WRITE, fua), IoCommand::Write { offset, len, fua: true }),
        (on_1(io::COMPARE, rw(2, 3)), IoCommand::Compare { offset, len }),
        (on_1(io::READ, rw(744, 256)), IoCommand::Read { offset: 744 * 4096, len: 1 << 20, fua: false }),
        (rw(0, 1000).to_sqe(io::VERIFY, 1), IoCommand::Verify { offset: 0, len: 4_096_000 }),
        (
            deac.to_sqe(io::WRITE_ZEROES, 1),
            IoCommand::WriteZeroes { offset: 0, len: 4_096_000, fua: false, deallocate: true },
        ),
        (
            fua.to_sqe(io::WRITE_ZEROES, 1),
            IoCommand::WriteZeroes { offset, len: 12288, fua: true, deallocate: false },
        ),
        (Sqe::flush(1), IoCommand::Flush),
        (Sqe::flush(3), IoCommand::Flush),
        (Sqe::flush(NSID_ALL), IoCommand::FlushAll),
        (Sqe::deallocate(1, 256), IoCommand::Deallocate { ranges: 256 }),
        (Sqe::deallocate(1, 1).with_sgl(Sgl::transport(4096)), IoCommand::Deallocate { ranges: 1 }),
        (Sqe::deallocate(1, 1).with_cdw(11, 0b11), IoCommand::Hint { ranges: 1 }),
        (
            rw(2047, 1).to_sqe(io::READ, 3).with_sgl(Sgl::transport(512)),
            IoCommand::Read { offset: 2047 * 512, len: 512, fua: false },
        ),
    ];
    for (sqe, expected) in cases {
        assert_eq!(run(sqe), Ok(expected), "{sqe:?}");
    }
}

//= test: NVMe Base 2.1, Reservation Register command
//= test: NVMe Base 2.1, Reservation Report command
#[test]
fn reservation_commands_are_parsed() {
    use longhaul_wire::reservation::*;
    let sqe = |opcode, cdw10, len| {
        Sqe::new(opcode).with_nsid(1).with_cdw(10, cdw10).with_cdw(11, 1).with_sgl(Sgl::transport(len))
    };
    let register =
        RegisterFields { action: RegisterAction::Replace, ignore_key: true, persist: PersistChange::Clear };
    let acquire = AcquireFields {
        action: AcquireAction::Preempt,
        ignore_key: false,
        kind: ReservationType::ExclusiveAccess,
    };
    let release = ReleaseFields { action: ReleaseAction::Clear, ignore_key: false, kind: None };
    let good = [
        (sqe(io::RESERVATION_REGISTER, register.cdw10(), 16), IoCommand::Register(register)),
        (sqe(io::RESERVATION_ACQUIRE, acquire.cdw10(), 16), IoCommand::Acquire(acquire)),
        (sqe(io::RESERVATION_RELEASE, release.cdw10(), 8), IoCommand::Release(release)),
        (sqe(io::RESERVATION_REPORT, 1023, 4096), IoCommand::Report { len: 4096 }),
    ];
    for (sqe, expected) in good {
        assert_eq!((run(sqe), expected.access()), (Ok(expected), None), "{sqe:?}");
    }
    let bad = [
        (sqe(io::RESERVATION_REGISTER, 3, 16), Status::INVALID_FIELD),
        (sqe(io::RESERVATION_REGISTER, 0, 8), Status::DATA_SGL_LENGTH),
        (sqe(io::RESERVATION_ACQUIRE, 0, 16), Status::INVALID_FIELD),
        (sqe(io::RESERVATION_RELEASE, 1 << 8, 16), Status::DATA_SGL_LENGTH),
        (sqe(io::RESERVATION_REPORT, 1023, 2048), Status::DATA_SGL_LENGTH),
        (sqe(io::RESERVATION_REPORT, u32::MAX, 0), Status::INVALID_FIELD),
        (sqe(io::RESERVATION_REPORT, 1023, 4096).with_cdw(11, 0), Status::HOST_ID_FORMAT),
    ];
    for (sqe, status) in bad {
        assert_eq!(run(sqe), Err(status.dnr()), "{sqe:?}");
    }
}

//= test: NVMe Base 2.1, Fused operations
//= test: NVMe Base 2.1, Flush command
//= test: NVMe Base 2.1, Namespaces
//= test: NVMe Base 2.1, Namespace Write Protection
//= test: NVMe Base 2.1, Directives
//= test: NVMe Base 2.1, MDTS
//= test: NVMe Base 2.1, Data SGL Length Invalid
//= test: NVM Command Set 1.1, Protection Information
//= test: NVM Command Set 1.1, LBA Out of Range
//= test: NVM Command Set 1.1, Dataset Management command
//= test: NVM Command Set 1.1, Identify Controller data structure
#[test]
fn every_refusal_has_its_status() {
    let mut fused = on_1(io::WRITE, rw(0, 1));
    fused.flags |= 1;
    let prinfo = ReadWrite { prinfo: Prinfo(8), ..rw(0, 1) };
    let storage = ReadWrite { storage_tag_check: true, ..rw(0, 1) };
    let streams = ReadWrite { directive: 1, ..rw(0, 1) };
    let wrong_len = |opcode, len| rw(0, 2).to_sqe(opcode, 1).with_sgl(Sgl::transport(len));
    let cases = [
        (fused, Status::INVALID_FIELD),
        (on_1(io::READ, rw(0, 1)).with_nsid(0), Status::INVALID_NAMESPACE),
        (on_1(io::READ, rw(0, 1)).with_nsid(2), Status::INVALID_NAMESPACE),
        (on_1(io::READ, rw(0, 1)).with_nsid(NSID_ALL), Status::INVALID_NAMESPACE),
        (Sqe::flush(0), Status::INVALID_NAMESPACE),
        (Sqe::deallocate(NSID_ALL, 1), Status::INVALID_NAMESPACE),
        (on_1(io::READ, rw(1000, 1)), Status::LBA_OUT_OF_RANGE),
        (on_1(io::WRITE, rw(999, 2)), Status::LBA_OUT_OF_RANGE),
        (on_1(io::COMPARE, rw(u64::MAX, 1)), Status::LBA_OUT_OF_RANGE),
        (on_1(io::COMPARE, rw(u64::MAX - 7, 8)), Status::LBA_OUT_OF_RANGE),
        (rw(u64::MAX, 65536).to_sqe(io::VERIFY, 1), Status::LBA_OUT_OF_RANGE),
        (rw(0, 1001).to_sqe(io::WRITE_ZEROES, 1), Status::LBA_OUT_OF_RANGE),
        (on_1(io::READ, rw(0, 257)), Status::INVALID_FIELD),
        (on_1(io::WRITE, rw(0, 65536)), Status::INVALID_FIELD),
        (wrong_len(io::READ, 4096), Status::DATA_SGL_LENGTH),
        (wrong_len(io::WRITE, 0), Status::DATA_SGL_LENGTH),
        (wrong_len(io::COMPARE, 8193), Status::DATA_SGL_LENGTH),
        (Sqe::deallocate(1, 2).with_sgl(Sgl::transport(16)), Status::DATA_SGL_LENGTH),
        (Sqe::deallocate(1, 2).with_sgl(Sgl::transport(4097)), Status::DATA_SGL_LENGTH),
        (rw(0, 8193).to_sqe(io::WRITE_ZEROES, 4), Status::INVALID_FIELD),
        (rw(0, 65536).to_sqe(io::VERIFY, 4), Status::INVALID_FIELD),
        (on_1(io::READ, prinfo), Status::INVALID_PROTECTION_INFORMATION),
        (on_1(io::WRITE, storage), Status::INVALID_PROTECTION_INFORMATION),
        (prinfo.to_sqe(io::WRITE_ZEROES, 1), Status::INVALID_PROTECTION_INFORMATION),
        (prinfo.to_sqe(io::VERIFY, 1), Status::INVALID_PROTECTION_INFORMATION),
        (on_1(io::WRITE, streams), Status::INVALID_FIELD),
        (rw(0, 1).to_sqe(io::WRITE, 3).with_sgl(Sgl::transport(512)), Status::WRITE_PROTECTED),
        (rw(0, 1).to_sqe(io::WRITE_ZEROES, 3), Status::WRITE_PROTECTED),
        (Sqe::deallocate(3, 1), Status::WRITE_PROTECTED),
    ];
    for (sqe, status) in cases {
        assert_eq!(run(sqe), Err(status.dnr()), "{sqe:?}");
    }
}

//= test: NVMe Base 2.1, Status Code
#[test]
fn every_other_opcode_is_unknown() {
    let known = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x0D, 0x0E, 0x11, 0x15];
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        for nsid in [0, 1, NSID_ALL] {
            assert_eq!(
                run(Sqe::new(opcode).with_nsid(nsid)),
                Err(Status::INVALID_OPCODE.dnr()),
                "{opcode:02X}h"
            );
        }
    }
}

//= test: NVMe Base 2.1, Asymmetric Namespace Access
#[test]
fn access_states() {
    let limits = Limits::of(&subsystem());
    let cases = [
        (AnaState::Optimized, None),
        (AnaState::NonOptimized, None),
        (AnaState::Inaccessible, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::PersistentLoss, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::Change, Some(Status::ANA_TRANSITION)),
    ];
    for (ana_state, expected) in cases {
        let ns = NamespaceView { ana_state, ..namespace(1, 1000, 12) };
        for sqe in [on_1(io::READ, rw(0, 1)), on_1(io::WRITE, rw(0, 1)), Sqe::flush(1), Sqe::deallocate(1, 1)]
        {
            assert_eq!(parse(&sqe, Some(&ns), &limits).err(), expected, "{ana_state:?}");
        }
    }
}

//= test: NVMe Base 2.1, Namespace Write Protection
//= test: NVMe Base 2.1, Status Code
#[test]
fn a_host_that_may_only_read_neither_writes_nor_reserves() {
    let limits = Limits::of(&subsystem());
    let keys = |opcode, data| Sqe::new(opcode).with_nsid(1).with_sgl(Sgl::transport(data));
    let cases = [
        (on_1(io::READ, rw(0, 1)), None),
        (on_1(io::COMPARE, rw(0, 1)), None),
        (rw(0, 1).to_sqe(io::VERIFY, 1), None),
        (Sqe::flush(1), None),
        (keys(io::RESERVATION_REPORT, 4).with_cdw(11, 1), None),
        (on_1(io::WRITE, rw(0, 1)), Some(Status::WRITE_PROTECTED)),
        (rw(0, 1).to_sqe(io::WRITE_ZEROES, 1), Some(Status::WRITE_PROTECTED)),
        (Sqe::deallocate(1, 1), Some(Status::WRITE_PROTECTED)),
        (keys(io::RESERVATION_REGISTER, 16), Some(Status::OPERATION_DENIED)),
        (keys(io::RESERVATION_ACQUIRE, 16).with_cdw(10, 1 << 8), Some(Status::OPERATION_DENIED)),
        (keys(io::RESERVATION_RELEASE, 8).with_cdw(10, 1 << 8), Some(Status::OPERATION_DENIED)),
    ];
    let writer = namespace(1, 1000, 12);
    let reader = writer.clone().for_reader();
    for (sqe, expected) in cases {
        assert_eq!(parse(&sqe, Some(&writer), &limits).err(), None, "{sqe:?}");
        assert_eq!(parse(&sqe, Some(&reader), &limits).err(), expected.map(Status::dnr), "{sqe:?}");
    }
}

//= test: NVM Command Set 1.1, Dataset Management command
#[test]
fn ranges_are_checked_before_any_is_given() {
    let ns = namespace(1, 1000, 12);
    let list = |ranges: &[(u64, u32)]| -> Vec<u8> {
        ranges.iter().flat_map(|&(slba, blocks)| DsmRange::new(slba, blocks).as_bytes().to_vec()).collect()
    };
    let good = list(&[(0, 1), (5, 0), (999, 1)]);
    let ranges: Vec<_> = deallocate_ranges(&good, 3, &ns).expect("within").collect();
    assert_eq!(ranges, [(0, 4096), (999 * 4096, 4096)]);
    let status = |data: &[u8], n| deallocate_ranges(data, n, &ns).err().expect("refused");
    assert_eq!(status(&list(&[(0, 1), (999, 2)]), 2), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(status(&list(&[(u64::MAX, u32::MAX)]), 1), Status::LBA_OUT_OF_RANGE.dnr());
    let first: Vec<_> = deallocate_ranges(&good, 1, &ns).expect("within").collect();
    assert_eq!(first, [(0, 4096)], "bytes after the list are ignored");
    assert_eq!(status(&good, 4), Status::DATA_SGL_LENGTH.dnr());
    assert_eq!(status(&good[..47], 3), Status::DATA_SGL_LENGTH.dnr());
    let many = list(&vec![(1, 1); 256]);
    assert_eq!(deallocate_ranges(&many, 256, &ns).expect("within").count(), 256);
}

proptest! {
    /// Whatever the bytes, a range that is accepted lies within the namespace.
    #[test]
    fn accepted_commands_are_within_bounds(
        bytes in any::<[u8; 64]>(),
        opcode in prop::sample::select(vec![0u8, 1, 2, 5, 8, 9, 12, 77]),
        nsid in 0u32..6,
        small in any::<bool>(),
    ) {
        let mut sqe = Sqe::read(&bytes).expect("64 bytes").with_nsid(nsid);
        sqe.opcode = opcode;
        sqe.flags = 0x40;
        if small {
            let blocks = u32::from(bytes[0]) + 1;
            sqe = sqe.with_cdw(10, u32::from(bytes[1])).with_cdw(11, 0).with_cdw(12, blocks - 1);
            sqe = sqe.with_sgl(Sgl::transport(blocks * 4096));
        }
        let view = subsystem();
        let ns = view.nvm().and_then(|nvm| nvm.namespace(nsid));
        let size = ns.map_or(0, |ns| u128::from(ns.blocks) << ns.block_shift);
        let (offset, len) = match parse(&sqe, ns, &Limits::of(&view)) {
            Ok(IoCommand::Read { offset, len, .. }
                | IoCommand::Write { offset, len, .. }
                | IoCommand::Compare { offset, len }) => (offset, u64::from(len)),
            Ok(IoCommand::Verify { offset, len } | IoCommand::WriteZeroes { offset, len, .. }) => (offset, len),
            _ => return Ok(()),
        };
        prop_assert!(len > 0 && u128::from(offset) + u128::from(len) <= size);
    }

    #[test]
    fn no_list_of_ranges_panics(data in prop::collection::vec(any::<u8>(), 0..200), ranges in 0u16..300) {
        let ns = namespace(1, 1000, 12);
        if let Ok(ranges) = deallocate_ranges(&data, ranges, &ns) {
            for (offset, len) in ranges {
                prop_assert!(offset + len <= 4_096_000);
            }
        }
    }

    /// No command on the admin queue panics, nor asks for more than MDTS.
    #[test]
    fn no_admin_command_panics(commands in prop::collection::vec(any::<[u8; 64]>(), 1..40), sane in any::<bool>()) {
        let mut rig = Rig::ready();
        for bytes in commands {
            let mut sqe = Sqe::read(&bytes).expect("64 bytes");
            if sane {
                sqe.opcode = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F][usize::from(bytes[0] % 8)];
                sqe.flags = 0x40;
                sqe = sqe.with_cdw(10, u32::from(bytes[40]) | u32::from(bytes[42]) << 16).with_cdw(12, 0).with_cdw(13, 0);
                sqe = sqe.with_cdw(11, 0).with_nsid(u32::from(bytes[4] % 8)).with_cdw(14, 0);
                let len = if sqe.opcode == 2 { (u32::from(bytes[42]) + 1) * 4 } else { 4096 };
                sqe = sqe.with_sgl(Sgl::transport(len));
            }
            if let Action::Data(data) = rig.admin(sqe) {
                prop_assert!(data.len() <= 1 << 20 && data.len() == sqe.sgl.length() as usize);
            }
            while rig.controller.poll_event().is_some() {}
        }
    }
}
