use crate::controller::testing::*;
use crate::controller::*;
use longhaul_wire::command::NSID_ALL;
use longhaul_wire::identify::{IdentifyController, IdentifyNamespace, cns, decode_nsid_list, nmic};
use longhaul_wire::management::{
    AttachmentAction, ChangeAction, LABEL_AT, LABEL_LEN, NamespaceCreate, NamespaceLabel,
    encode_controller_list,
};
use std::sync::Arc;

/// An administrator's controller of a space with namespaces 1, 3 and 4 attached, and 6 not.
fn rig() -> Rig {
    let mut rig = Rig::ready();
    let Content::Nvm(nvm) = &mut rig.subsystem.content else { panic!("namespaces") };
    let label = NamespaceLabel { pool: "p".into(), ..NamespaceLabel::default() }.encode().expect("short");
    let label: Arc<[u8]> = label[..64].into();
    let mut allocated: Vec<_> = nvm.namespaces.clone();
    allocated.push(NamespaceView { shared: false, ..namespace(6, 77, 12) });
    let allocated =
        allocated.into_iter().map(|namespace| AllocatedView { namespace, label: Arc::clone(&label) });
    let view = SpaceView { allocated: allocated.collect(), total: 1 << 70, unallocated: 1 << 69 };
    nvm.space = Some(Arc::new(view));
    rig
}

fn identify(rig: &mut Rig, cns: u8, nsid: u32) -> Vec<u8> {
    rig.data(Sqe::identify(cns, nsid, 0))
}

//= test: NVMe Base 2.1, Identify Controller, OACS
#[test]
fn a_host_that_is_no_administrator_finds_no_management() {
    let mut rig = Rig::ready();
    let attach = Sqe::namespace_attachment(1, AttachmentAction::Attach);
    let label = Sqe::namespace_change(1, ChangeAction::Label);
    for sqe in [Sqe::create_namespace(), Sqe::delete_namespace(1), attach, label] {
        assert_eq!(rig.failure(sqe), Status::INVALID_OPCODE.dnr(), "{sqe:?}");
    }
    for cns in [0x10, 0x11, 0x12, 0x13, 0x1A, 0x1B] {
        assert_eq!(rig.failure(Sqe::identify(cns, 1, 0)), Status::INVALID_FIELD.dnr(), "CNS {cns:02x}h");
    }
    assert_eq!(rig.failure(Sqe::identify(cns::NAMESPACE, NSID_ALL, 0)), Status::INVALID_NAMESPACE.dnr());
    let id = IdentifyController::decode(&identify(&mut rig, cns::CONTROLLER, 0)).expect("4096 bytes");
    assert_eq!((id.oacs, id.tnvmcap, id.unvmcap), (0, 0, 0));
    assert_eq!(rig.log(5, 4096)[4 * 0x0D..4 * 0x0E], [0; 4]);
}

//= test: NVMe Base 2.1, Identify command
#[test]
fn an_administrator_sees_what_is_allocated() {
    let mut rig = rig();
    let id = IdentifyController::decode(&identify(&mut rig, cns::CONTROLLER, 0)).expect("4096 bytes");
    assert_eq!((id.oacs, id.tnvmcap, id.unvmcap), (1 << 3, 1 << 70, 1 << 69));
    let list = |rig: &mut Rig, cns, after| decode_nsid_list(&identify(rig, cns, after)).collect::<Vec<_>>();
    assert_eq!(list(&mut rig, cns::ALLOCATED_NAMESPACES, 0), [1, 3, 4, 6]);
    assert_eq!(list(&mut rig, cns::CS_ALLOCATED_NAMESPACES, 3), [4, 6]);
    assert_eq!(list(&mut rig, cns::ACTIVE_NAMESPACES, 0), [1, 3, 4]);
    let bytes = identify(&mut rig, cns::ALLOCATED_NAMESPACE, 6);
    let ns = IdentifyNamespace::decode(&bytes).expect("4096 bytes");
    assert_eq!((ns.nsze, ns.nmic, ns.nguid), (77, 0, [6; 16]));
    assert_eq!(NamespaceLabel::decode(&bytes[LABEL_AT..]).map(|label| label.pool), Ok("p".into()));
    assert_eq!(identify(&mut rig, cns::NAMESPACE, 6), vec![0; 4096], "it is not attached");
    assert_eq!(identify(&mut rig, cns::ALLOCATED_NAMESPACE, 2), vec![0; 4096], "nor allocated");
    let active = identify(&mut rig, cns::NAMESPACE, 1);
    assert!(active[LABEL_AT..].iter().all(|byte| *byte == 0), "labels are for administrators");
    for nsid in [0, 9, NSID_ALL] {
        let refused = rig.failure(Sqe::identify(cns::ALLOCATED_NAMESPACE, nsid, 0));
        assert_eq!(refused, Status::INVALID_NAMESPACE.dnr(), "{nsid}");
    }
    let refused = rig.failure(Sqe::identify(cns::CS_ALLOCATED_NAMESPACES, 0, 2));
    assert_eq!(refused, Status::INVALID_FIELD.dnr(), "another command set");
    let common =
        IdentifyNamespace::decode(&identify(&mut rig, cns::NAMESPACE, NSID_ALL)).expect("4096 bytes");
    assert_eq!((common.nlbaf, common.lbaf[0].lbads, common.lbaf[1].lbads), (1, 9, 12));
    assert_eq!((common.nsze, common.nmic), (0, nmic::SHARED));
    let effects = rig.log(5, 4096);
    for opcode in [0x0D, 0x15, 0xC1] {
        assert_eq!(effects[4 * opcode] & 0b1011, 0b1011, "{opcode:02x}h changes the inventory");
    }
}

#[test]
fn controllers_are_listed_by_the_driver() {
    let mut rig = rig();
    let of = |cns: u8, nsid, from: u32| Sqe::identify(cns, nsid, 0).with_cdw(10, u32::from(cns) | from << 16);
    let every = Action::Controllers { nsid: None, from: 7 };
    assert_eq!(rig.admin(of(cns::CONTROLLERS, 0, 7)), every);
    let one = Action::Controllers { nsid: Some(6), from: 0 };
    assert_eq!(rig.admin(of(cns::NAMESPACE_CONTROLLERS, 6, 0)), one);
    assert_eq!(rig.failure(of(cns::NAMESPACE_CONTROLLERS, 5, 0)), Status::INVALID_NAMESPACE.dnr());
}

//= test: NVMe Base 2.1, Namespace Management command
#[test]
fn commands_name_allocated_namespaces() {
    let mut rig = rig();
    let manage = |rig: &mut Rig, sqe| rig.admin(sqe);
    assert_eq!(manage(&mut rig, Sqe::create_namespace()), Action::Manage(SpaceCommand::Create));
    let zoned = Sqe::create_namespace().with_cdw(11, 2 << 24);
    assert_eq!(rig.failure(zoned), Status::COMMAND_SET_NOT_SUPPORTED.dnr());
    let delete = |nsid| Action::Manage(SpaceCommand::Delete { nsid });
    assert_eq!(manage(&mut rig, Sqe::delete_namespace(6)), delete(Some(6)));
    assert_eq!(manage(&mut rig, Sqe::delete_namespace(NSID_ALL)), delete(None));
    let attach = Sqe::namespace_attachment(6, AttachmentAction::Attach);
    assert_eq!(manage(&mut rig, attach), Action::Manage(SpaceCommand::Attach { nsid: 6 }));
    let grow = Sqe::namespace_change(6, ChangeAction::Grow { blocks: 1 << 40 });
    let command = SpaceCommand::Grow { nsid: 6, blocks: 1 << 40 };
    assert_eq!(manage(&mut rig, grow), Action::Manage(command));
    let label = Sqe::namespace_change(6, ChangeAction::Label);
    let clone = Sqe::namespace_change(6, ChangeAction::Clone { only_try: true });
    let command = SpaceCommand::Clone { nsid: 6, only_try: true };
    assert_eq!((manage(&mut rig, clone), command.data_len()), (Action::Manage(command), LABEL_LEN));
    for sqe in [Sqe::delete_namespace(6), attach, grow, label, clone] {
        for nsid in [0, 2, 9] {
            assert_eq!(rig.failure(sqe.with_nsid(nsid)), Status::INVALID_NAMESPACE.dnr(), "{sqe:?}");
        }
        assert_eq!(rig.failure(sqe.with_cdw(10, 9)), Status::INVALID_FIELD.dnr(), "{sqe:?}");
    }
    let lens = [SpaceCommand::Create, SpaceCommand::Label { nsid: 1 }, SpaceCommand::Delete { nsid: None }];
    assert_eq!(lens.map(SpaceCommand::data_len), [4096, LABEL_LEN, 0]);
}

//= test: NVMe Base 2.1, Namespace Management command
#[test]
fn what_a_namespace_cannot_be_is_refused() {
    let good = NamespaceCreate { nsze: 8, ncap: 8, flbas: 1, nmic: 1, ..NamespaceCreate::default() };
    let parse = |fields: NamespaceCreate| parse_create(&fields.encode());
    let made = NewNamespace { blocks: 8, block_shift: 12, shared: true, label: NamespaceLabel::default() };
    assert_eq!(parse(good.clone()), Ok(made));
    let private = parse(NamespaceCreate { flbas: 0, nmic: 0, ..good.clone() }).expect("a private one");
    assert_eq!((private.block_shift, private.shared), (9, false));
    let refused = [
        (NamespaceCreate { nsze: 0, ncap: 0, ..good.clone() }, Status::INVALID_FIELD),
        (NamespaceCreate { ncap: 9, ..good.clone() }, Status::INVALID_FIELD),
        (NamespaceCreate { ncap: 7, ..good.clone() }, Status::THIN_NOT_SUPPORTED),
        (NamespaceCreate { flbas: 2, ..good.clone() }, Status::INVALID_FORMAT),
        (NamespaceCreate { flbas: 0b0010_0001, ..good.clone() }, Status::INVALID_FORMAT),
        (NamespaceCreate { flbas: 0b0001_0001, ..good.clone() }, Status::INVALID_FORMAT),
        (NamespaceCreate { dps: 1, ..good.clone() }, Status::INVALID_FIELD),
        (NamespaceCreate { anagrpid: 2, ..good.clone() }, Status::ANA_GROUP_INVALID),
        (NamespaceCreate { nvmsetid: 1, ..good.clone() }, Status::INVALID_FIELD),
        (NamespaceCreate { endgid: 1, ..good.clone() }, Status::INVALID_FIELD),
        (NamespaceCreate { nsze: 1 << 51, ncap: 1 << 51, ..good.clone() }, Status::INSUFFICIENT_CAPACITY),
        (NamespaceCreate { vendor: [7; 3072], ..good.clone() }, Status::INVALID_FIELD),
    ];
    for (fields, status) in refused {
        assert_eq!(parse(fields.clone()), Err(status), "{:?}", (fields.nsze, fields.ncap, fields.flbas));
    }
    let hosts = ["nqn.2014-08.org.example:a", "nqn.2014-08.org.example:b"].map(str::to_owned).to_vec();
    let label = NamespaceLabel { hosts, ..NamespaceLabel::default() }.encode().expect("short");
    let mut fields = NamespaceCreate { nmic: 0, ..good };
    fields.vendor.copy_from_slice(&label);
    assert_eq!(parse(fields), Err(Status::NAMESPACE_PRIVATE));
    assert_eq!(parse_create(&[0; 4095]), Err(Status::DATA_SGL_LENGTH));
}

//= test: NVMe Base 2.1, Namespace Attachment command
#[test]
fn a_list_names_controllers() {
    assert_eq!(parse_controllers(&encode_controller_list(&[4, 2])), Ok(vec![4, 2]));
    assert_eq!(parse_controllers(&encode_controller_list(&[])), Err(Status::CONTROLLER_LIST_INVALID));
    assert_eq!(parse_controllers(&[0xFF; 4096]), Err(Status::CONTROLLER_LIST_INVALID));
}
