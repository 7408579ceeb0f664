use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::identify::{
    Identifier, IdentifyController, IdentifyNamespace, IndependentNamespace, NvmController,
    decode_descriptors, decode_nsid_list,
};

fn controller(rig: &mut Rig) -> IdentifyController {
    IdentifyController::decode(&rig.data(Sqe::identify(1, 0, 0))).expect("4096 bytes")
}

/// Commands that a Linux host sends to an I/O controller before it uses it.
//= test: NVMe-TCP 1.1, Identify Controller
//= test: NVMe Base 2.1, Identify Controller
#[test]
fn an_io_controller_suits_a_linux_host() {
    let id = controller(&mut Rig::ready());
    assert_eq!((id.ioccsz, id.iorcsz, id.icdoff, id.msdbd), (4 + 65536, 1, 0, 1));
    assert_eq!(id.sgls & 0b111, 0b001, "SGLs, not keyed");
    assert_eq!(id.sgls >> 20 & 0b11, 0b11, "offsets and transport descriptors");
    assert_eq!(id.sgls >> 18 & 1, 0, "no SGL longer than the data");
    assert_eq!((id.max_transfer(0), id.maxcmd), (Some(1 << 20), 128));
    assert_eq!((id.cntrltype, id.cntlid, id.ver), (1, CNTLID, 0x0002_0100));
    assert_eq!((id.sqes, id.cqes), (0x66, 0x44));
    assert_eq!(id.ctratt, 1 | 1 << 6);
    assert!(id.kas > 0, "needed for keep alive");
    assert_eq!((id.nn, id.mnan), (8, 8));
    assert_eq!(id.oncs, 0b1011_1101);
    assert_eq!((id.vwc, id.oacs, id.fuses), (0b111, 0, 0));
    assert_eq!(id.oaes, 1 << 8 | 1 << 11);
    assert_eq!(id.lpa, 0b10_0110);
    assert_eq!((id.cmic, id.anagrpmax, id.nanagrpid), (0b1011, 8, 8));
    assert!(id.anatt > 0 && id.ofcs == 1);
    assert_eq!(
        (id.sn.text(), id.mn.text(), id.fr.text()),
        ("LH0001".into(), "Longhaul".into(), "0.1.0".into())
    );
    assert_eq!(longhaul_wire::nqn::from_field(&id.subnqn), Ok(SUBNQN));
}

#[test]
fn without_ana_nothing_tells_of_it() {
    let mut rig = Rig::ready();
    let Content::Nvm(nvm) = &mut rig.subsystem.content else { panic!("namespaces") };
    nvm.ana = None;
    let id = controller(&mut rig);
    assert_eq!((id.cmic, id.anacap, id.anatt, id.anagrpmax, id.nanagrpid), (0b0011, 0, 0, 0, 0));
    assert_eq!(id.oaes, 1 << 8);
    assert_eq!(rig.failure(Sqe::get_log_page(0x0C, 0, 0, 16, false)), Status::INVALID_LOG_PAGE.dnr());
    assert_eq!(rig.failure(Sqe::set_features(0x0B, 0, 1 << 11, false)), Status::INVALID_FIELD.dnr());
}

//= test: NVMe Base 2.1, Discovery controllers
#[test]
fn a_discovery_controller_tells_of_itself_only() {
    let mut rig = Rig::discovery();
    let id = controller(&mut rig);
    assert_eq!((id.cntrltype, id.nn, id.oncs, id.vwc), (2, 0, 0, 0));
    assert_eq!((id.oaes, id.lpa, id.sgls & 1), (1 << 31, 0b100, 1));
    assert!(id.kas > 0 && id.maxcmd > 0);
    assert_eq!(longhaul_wire::nqn::from_field(&id.subnqn), Ok(longhaul_wire::nqn::DISCOVERY_NQN));
    for cns in (0..=255).filter(|&cns| cns != 1) {
        assert_eq!(rig.failure(Sqe::identify(cns, 1, 0)), Status::INVALID_FIELD.dnr(), "{cns:02X}h");
    }
}

#[test]
fn namespaces_as_hosts_see_them() {
    let mut rig = Rig::ready();
    let ns = IdentifyNamespace::decode(&rig.data(Sqe::identify(0, 1, 0))).expect("4096 bytes");
    assert_eq!((ns.nsze, ns.ncap, ns.nuse), (1000, 1000, 1000));
    assert_eq!(ns.format().map(|f| (f.lbads, f.metadata)), Some((12, 0)));
    assert_eq!((ns.nlbaf, ns.flbas, ns.nmic, ns.nsattr), (0, 0, 1, 0));
    assert_eq!((ns.nsfeat, ns.npwg, ns.npwa, ns.npdg, ns.npda, ns.nows), (0x10, 0, 0, 0, 0, 31));
    assert_eq!((ns.dlfeat, ns.anagrpid, ns.nguid), (0b1001, 1, [1; 16]));
    assert_eq!(ns.nvmcap, 1000 * 4096);
    let ns = IdentifyNamespace::decode(&rig.data(Sqe::identify(0, 3, 0))).expect("4096 bytes");
    assert_eq!(ns.format().map(|f| f.lbads), Some(9));
    assert_eq!((ns.npwg, ns.npdg, ns.nows, ns.nsattr), (7, 7, 255, 1));

    let ns = IndependentNamespace::decode(&rig.data(Sqe::identify(8, 1, 0))).expect("4096 bytes");
    assert_eq!((ns.nstat, ns.nmic, ns.nsattr, ns.nsfeat, ns.anagrpid), (1, 1, 0, 0, 1));
    let ns = IndependentNamespace::decode(&rig.data(Sqe::identify(8, 3, 0))).expect("4096 bytes");
    assert_eq!((ns.nsattr, ns.nsfeat), (1, 0x20), "read only, no volatile cache");
    assert_eq!(rig.data(Sqe::identify(5, 1, 0)), vec![0; 4096], "no protection information");
}

//= test: NVMe Base 2.1, Namespace Identification Descriptor list
#[test]
fn descriptors_of_a_namespace() {
    let mut rig = Rig::ready();
    let expected = [Identifier::Nguid([3; 16]), Identifier::Uuid(Uuid::from_u128(3)), Identifier::Csi(0)];
    assert_eq!(decode_descriptors(&rig.data(Sqe::identify(3, 3, 0))), expected);
    let Content::Nvm(nvm) = &mut rig.subsystem.content else { panic!("namespaces") };
    (nvm.namespaces[0].uuid, nvm.namespaces[0].nguid) = (None, [0; 16]);
    assert_eq!(decode_descriptors(&rig.data(Sqe::identify(3, 1, 0))), [Identifier::Csi(0)]);
}

//= test: NVMe Base 2.1, Active Namespace ID list
#[test]
fn active_namespaces_after_an_nsid() {
    let mut rig = Rig::ready();
    for cns in [2, 7] {
        for (after, expected) in
            [(0, &[1, 3, 4][..]), (1, &[3, 4]), (2, &[3, 4]), (4, &[]), (0xFFFF_FFFD, &[])]
        {
            let list = rig.data(Sqe::identify(cns, after, 0));
            assert_eq!(decode_nsid_list(&list).collect::<Vec<_>>(), expected, "CNS {cns} after {after}");
        }
    }
}

#[test]
fn command_sets() {
    let mut rig = Rig::ready();
    let nvm = NvmController::decode(&rig.data(Sqe::identify(6, 0, 0))).expect("4096 bytes");
    // 2^13 pages of 4 KiB, and no limits of Dataset Management.
    assert_eq!(nvm, NvmController { ver: 0x0001_0100, vsl: 13, wzsl: 13, ..Default::default() });
    let sets = |cntid: u32| Sqe::identify(0x1C, 0, 0).with_cdw(10, 0x1C | cntid << 16);
    assert_eq!(rig.data(sets(0xFFFF))[..16], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.data(sets(CNTLID.into()))[0], 1);
    assert_eq!(rig.failure(sets(9)), Status::INVALID_FIELD.dnr());
}

//= test: NVMe Base 2.1, Identify command
//= test: NVMe Base 2.1, Active Namespace ID list
//= test: NVMe Base 2.1, Namespace Identification Descriptor list
//= test: NVMe Base 2.1, Data SGL Length Invalid
#[test]
fn refused_or_empty() {
    let mut rig = Rig::ready();
    let cases = [
        (Sqe::identify(0, 0, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(0, 9, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(0, u32::MAX, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(5, 0, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(8, 9, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(2, 0xFFFF_FFFE, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(7, 0xFFFF_FFFF, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(3, 0, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(3, 2, 0), Status::INVALID_NAMESPACE),
        (Sqe::identify(5, 1, 2), Status::INVALID_FIELD),
        (Sqe::identify(6, 0, 1), Status::INVALID_FIELD),
        (Sqe::identify(7, 0, 1), Status::INVALID_FIELD),
        (with_len(Sqe::identify(1, 0, 0), 4092), Status::DATA_SGL_LENGTH),
        (with_len(Sqe::identify(1, 0, 0), 8192), Status::DATA_SGL_LENGTH),
        (with_len(Sqe::identify(0, 1, 0), 0), Status::DATA_SGL_LENGTH),
    ];
    for (sqe, status) in cases {
        assert_eq!(rig.failure(sqe), status.dnr(), "{sqe:?}");
    }
    for cns in [0, 5, 8] {
        assert_eq!(rig.data(Sqe::identify(cns, 2, 0)), vec![0; 4096], "inactive, CNS {cns}");
    }
    let known = [0, 1, 2, 3, 5, 6, 7, 8, 0x1C];
    for cns in (0..=255).filter(|cns| !known.contains(cns)) {
        assert_eq!(rig.failure(Sqe::identify(cns, 1, 0)), Status::INVALID_FIELD.dnr(), "{cns:02X}h");
    }
}
