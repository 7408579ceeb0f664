//! Namespaces that hosts make and remove: Namespace Management, Namespace Attachment, and Identify
//! of allocated namespaces.

use super::action::Action;
use super::identify::{identify_namespace, nsid_list};
use super::subsystem::{NamespaceView, NvmContent, SubsystemView};
use longhaul_wire::command::{Identify, NSID_ALL, Sqe, admin};
use longhaul_wire::completion::Status;
use longhaul_wire::identify::{
    CSI_NVM, IDENTIFY_LEN, IdentifyNamespace, LbaFormat, cns, dlfeat, nmic, nsfeat,
};
use longhaul_wire::management::{
    AttachmentAction, BLOCK_SHIFTS, ChangeAction, LABEL_AT, LABEL_LEN, ManagementAction, NamespaceCreate,
    NamespaceLabel, decode_controller_list,
};
use std::sync::Arc;

/// The ANA group of every namespace of a space.
const ANA_GROUP: u32 = 1;

/// A space as its administrators see it.
#[derive(Clone, Debug, Default)]
pub struct SpaceView {
    /// Every namespace, whichever hosts it is attached to, in increasing order of the NSIDs.
    pub allocated: Vec<AllocatedView>,
    /// Capacity in bytes.
    pub total: u128,
    /// Capacity that no namespace has taken, in bytes.
    pub unallocated: u128,
}

/// A namespace of a space.
#[derive(Clone, Debug)]
pub struct AllocatedView {
    /// The namespace.
    pub namespace: NamespaceView,
    /// Its label: at most [`LABEL_LEN`] bytes. What is missing at the end is zero.
    pub label: Arc<[u8]>,
}

impl SpaceView {
    fn namespace(&self, nsid: u32) -> Option<&AllocatedView> {
        let at = self.allocated.binary_search_by_key(&nsid, |one| one.namespace.nsid).ok()?;
        self.allocated.get(at)
    }
}

/// A command that changes a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceCommand {
    /// Make a namespace as the data says ([`parse_create`]); complete with its NSID.
    Create,
    /// Remove a namespace, or all.
    Delete {
        /// NSID of an allocated namespace; none for every namespace.
        nsid: Option<u32>,
    },
    /// Attach a namespace to the hosts of the controllers in the data ([`parse_controllers`]).
    Attach {
        /// NSID of an allocated namespace.
        nsid: u32,
    },
    /// Detach it from them.
    Detach {
        /// NSID of an allocated namespace.
        nsid: u32,
    },
    /// Put the label in the data ([`parse_label`]) in place of the label of a namespace.
    Label {
        /// NSID of an allocated namespace.
        nsid: u32,
    },
    /// Make a namespace larger.
    Grow {
        /// NSID of an allocated namespace.
        nsid: u32,
        /// Its new size in logical blocks.
        blocks: u64,
    },
    /// Make a namespace with the content of this one, and the label in the data ([`parse_label`]);
    /// complete with its NSID.
    Clone {
        /// NSID of an allocated namespace.
        nsid: u32,
        /// Make nothing, and say whether that can be done.
        only_try: bool,
    },
}

impl SpaceCommand {
    /// Bytes of data that the host sends with it, exactly.
    pub fn data_len(self) -> usize {
        match self {
            SpaceCommand::Create => NamespaceCreate::LEN,
            SpaceCommand::Attach { .. } | SpaceCommand::Detach { .. } => IDENTIFY_LEN,
            SpaceCommand::Label { .. } | SpaceCommand::Clone { .. } => LABEL_LEN,
            SpaceCommand::Delete { .. } | SpaceCommand::Grow { .. } => 0,
        }
    }
}

/// A namespace to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNamespace {
    /// Size in logical blocks, 1 at least.
    pub blocks: u64,
    /// Logical block size, 2^n bytes.
    pub block_shift: u8,
    /// Controllers of several hosts may have it at a time.
    pub shared: bool,
    /// The hosts that it is attached to, and its purpose.
    pub label: NamespaceLabel,
}

/// A command that manages namespaces.
pub(super) fn manage(sqe: &Sqe, subsystem: &SubsystemView) -> Action {
    match command(sqe, subsystem) {
        Ok(command) => Action::Manage(command),
        Err(status) => status.dnr().into(),
    }
}

fn command(sqe: &Sqe, subsystem: &SubsystemView) -> Result<SpaceCommand, Status> {
    //= NVMe Base 2.1, Identify Controller, OACS: where bit 3 is cleared Namespace Management and Attachment are not supported
    let nvm = subsystem.nvm().ok_or(Status::INVALID_OPCODE)?;
    let space = nvm.space.as_ref().ok_or(Status::INVALID_OPCODE)?;
    let allocated = || match space.namespace(sqe.nsid()) {
        Some(_) => Ok(sqe.nsid()),
        None => Err(Status::INVALID_NAMESPACE),
    };
    match sqe.opcode {
        admin::NAMESPACE_MANAGEMENT => match ManagementAction::of(sqe).ok_or(Status::INVALID_FIELD)? {
            //= NVMe Base 2.1, Namespace Management command: a command set that is not supported gets I/O Command Set Not Supported
            ManagementAction::Create { csi } if csi != CSI_NVM => Err(Status::COMMAND_SET_NOT_SUPPORTED),
            ManagementAction::Create { .. } => Ok(SpaceCommand::Create),
            //= NVMe Base 2.1, Namespace Management command: a delete of NSID FFFFFFFFh removes every namespace
            ManagementAction::Delete if sqe.nsid() == NSID_ALL => Ok(SpaceCommand::Delete { nsid: None }),
            ManagementAction::Delete => Ok(SpaceCommand::Delete { nsid: Some(allocated()?) }),
        },
        admin::NAMESPACE_ATTACHMENT => match AttachmentAction::of(sqe).ok_or(Status::INVALID_FIELD)? {
            AttachmentAction::Attach => Ok(SpaceCommand::Attach { nsid: allocated()? }),
            AttachmentAction::Detach => Ok(SpaceCommand::Detach { nsid: allocated()? }),
        },
        _ => match ChangeAction::of(sqe).ok_or(Status::INVALID_FIELD)? {
            ChangeAction::Label => Ok(SpaceCommand::Label { nsid: allocated()? }),
            ChangeAction::Grow { blocks } => Ok(SpaceCommand::Grow { nsid: allocated()?, blocks }),
            ChangeAction::Clone { only_try } => Ok(SpaceCommand::Clone { nsid: allocated()?, only_try }),
        },
    }
}

/// Reads the data of [`SpaceCommand::Create`].
///
/// # Errors
/// The status that completes the command.
pub fn parse_create(data: &[u8]) -> Result<NewNamespace, Status> {
    let fields = NamespaceCreate::decode(data).ok_or(Status::DATA_SGL_LENGTH)?;
    //= NVMe Base 2.1, Namespace Management command: an LBA format that is not supported gets Invalid Format
    let block_shift = *BLOCK_SHIFTS.get(usize::from(fields.format())).ok_or(Status::INVALID_FORMAT)?;
    if fields.has_extended_metadata() {
        return Err(Status::INVALID_FORMAT);
    }
    if fields.nsze == 0 || fields.ncap > fields.nsze || fields.dps != 0 || fields.lbstm != 0 {
        return Err(Status::INVALID_FIELD);
    }
    //= NVMe Base 2.1, Namespace Management command: NCAP less than NSZE gets Thin Provisioning Not Supported where NSFEAT has no such support
    if fields.ncap < fields.nsze {
        return Err(Status::THIN_NOT_SUPPORTED);
    }
    //= NVMe Base 2.1, Namespace Management command: an ANA group that does not exist gets ANA Group Identifier Invalid
    if fields.anagrpid > ANA_GROUP {
        return Err(Status::ANA_GROUP_INVALID);
    }
    if fields.nvmsetid != 0 || fields.endgid != 0 {
        return Err(Status::INVALID_FIELD);
    }
    //= NVMe Base 2.1, Namespace Management command: more than there is gets Namespace Insufficient Capacity
    if fields.nsze > (i64::MAX as u64) >> block_shift {
        return Err(Status::INSUFFICIENT_CAPACITY);
    }
    let shared = fields.nmic & nmic::SHARED != 0;
    let label = parse_label(&fields.vendor)?;
    if !shared && label.hosts.len() > 1 {
        return Err(Status::NAMESPACE_PRIVATE);
    }
    Ok(NewNamespace { blocks: fields.nsze, block_shift, shared, label })
}

/// Reads the data of [`SpaceCommand::Label`] and [`SpaceCommand::Clone`].
///
/// # Errors
/// The status that completes the command.
pub fn parse_label(data: &[u8]) -> Result<NamespaceLabel, Status> {
    NamespaceLabel::decode(data).map_err(|_| Status::INVALID_FIELD)
}

/// Reads the data of [`SpaceCommand::Attach`] and [`SpaceCommand::Detach`]: controller identifiers.
///
/// # Errors
/// The status that completes the command.
pub fn parse_controllers(data: &[u8]) -> Result<Vec<u16>, Status> {
    //= NVMe Base 2.1, Namespace Attachment command: a list without controllers, or with wrong ones, gets Controller List Invalid
    let list = decode_controller_list(data).filter(|list| !list.is_empty());
    list.ok_or(Status::CONTROLLER_LIST_INVALID)
}

/// The answer to an Identify command that asks for controllers.
pub(super) fn controllers(sqe: &Sqe, subsystem: &SubsystemView) -> Option<Action> {
    let fields = Identify::of(sqe);
    let nsid = match fields.cns {
        cns::NAMESPACE_CONTROLLERS => Some(sqe.nsid()),
        cns::CONTROLLERS => None,
        _ => return None,
    };
    let space = subsystem.nvm().and_then(|nvm| nvm.space.as_ref());
    let result = match (space, nsid) {
        (None, _) => Err(Status::INVALID_FIELD),
        (Some(space), Some(nsid)) if space.namespace(nsid).is_none() => Err(Status::INVALID_NAMESPACE),
        (Some(_), nsid) => Ok(Action::Controllers { nsid, from: fields.cntid }),
    };
    Some(result.unwrap_or_else(|status| status.dnr().into()))
}

/// The allocated namespaces with an NSID greater than `after`.
pub(super) fn list(nvm: &NvmContent, after: u32) -> Result<Vec<u8>, Status> {
    let space = nvm.space.as_ref().ok_or(Status::INVALID_FIELD)?;
    nsid_list(space.allocated.iter().map(|one| one.namespace.nsid), after)
}

/// Identify Namespace of an allocated namespace, with its label in the vendor specific part; zeroes
/// if there is none.
pub(super) fn namespace(nvm: &NvmContent, nsid: u32) -> Result<Vec<u8>, Status> {
    let space = nvm.space.as_ref().ok_or(Status::INVALID_FIELD)?;
    if nsid == 0 || nsid > nvm.max_nsid {
        return Err(Status::INVALID_NAMESPACE);
    }
    //= NVMe Base 2.1, Identify command: an NSID that is not allocated gets a structure of zeroes (CNS 11h)
    let Some(found) = space.namespace(nsid) else { return Ok(vec![0; IDENTIFY_LEN]) };
    let mut bytes = identify_namespace(&found.namespace).encode();
    let room = &mut bytes[LABEL_AT..];
    let len = found.label.len().min(room.len());
    room[..len].copy_from_slice(&found.label[..len]);
    Ok(bytes)
}

/// The properties that all namespaces have in common.
pub(super) fn common() -> IdentifyNamespace {
    let mut id = IdentifyNamespace {
        nlbaf: BLOCK_SHIFTS.len() as u8 - 1,
        nsfeat: nsfeat::OPTPERF,
        nmic: nmic::SHARED,
        dlfeat: dlfeat::READS_ZERO | dlfeat::WRITE_ZEROES_DEAC,
        anagrpid: ANA_GROUP,
        ..Default::default()
    };
    for (format, shift) in id.lbaf.iter_mut().zip(BLOCK_SHIFTS) {
        *format = LbaFormat { metadata: 0, lbads: shift, rp: 0 };
    }
    id
}
