//! Namespaces that are made, removed and attached by commands (NVMe Base 2.1, "Namespace Management
//! command" and "Namespace Attachment command").

mod label;

pub use label::{LABEL_LEN, LabelError, NAME_MAX, NamespaceLabel};

use crate::command::{Sgl, Sqe, admin};
use crate::identify::IDENTIFY_LEN;
use crate::layout::layout;

/// Controllers that one list has room for.
pub const CONTROLLERS_MAX: usize = 2047;

/// Where the vendor specific part of the structures begins that name a namespace: of
/// [`NamespaceCreate`], and of Identify Namespace for an allocated namespace (CNS 11h).
pub const LABEL_AT: usize = 1024;

/// Logical block sizes that a namespace can be made with: 2^n bytes by LBA format.
pub const BLOCK_SHIFTS: [u8; 2] = [9, 12];

layout! {
    /// Host-software-specified fields of Namespace Management (create). Sizes are in logical blocks.
    pub struct NamespaceCreate: 4096 {
        /// NSZE: size in logical blocks.
        0 => nsze: u64,
        /// NCAP: capacity in logical blocks.
        8 => ncap: u64,
        /// FLBAS: LBA format, bits 3:0, and 6:5 above them; bit 4, metadata with the data.
        26 => flbas: u8,
        /// DPS: protection settings, bits.
        29 => dps: u8,
        /// [`nmic`](crate::identify::nmic) bits.
        30 => nmic: u8,
        /// ANAGRPID: ANA group, 0 for one that the controller chooses.
        92 => anagrpid: u32,
        /// NVMSETID: NVM set, 0 for one that the controller chooses.
        100 => nvmsetid: u16,
        /// ENDGID: endurance group, 0 for one that the controller chooses.
        102 => endgid: u16,
        /// LBSTM: logical block storage tag mask.
        384 => lbstm: u64,
        /// Vendor specific: a [`NamespaceLabel`], or zeroes.
        1024 => vendor: [u8; 3072],
    }
}

impl NamespaceCreate {
    /// Number of the LBA format.
    pub fn format(&self) -> u8 {
        self.flbas & 0xF | (self.flbas >> 5 & 0b11) << 4
    }

    /// Whether metadata is to be transferred with the data.
    pub fn has_extended_metadata(&self) -> bool {
        self.flbas & 1 << 4 != 0
    }
}

/// SEL of Namespace Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementAction {
    /// Make a namespace of the command set `csi`.
    Create {
        /// I/O command set.
        csi: u8,
    },
    /// Remove the namespace, or all of them (NSID FFFFFFFFh).
    Delete,
}

impl ManagementAction {
    /// From a command; none for a reserved value.
    pub fn of(sqe: &Sqe) -> Option<ManagementAction> {
        match sqe.cdw10() & 0xF {
            0 => Some(ManagementAction::Create { csi: (sqe.cdw11() >> 24) as u8 }),
            1 => Some(ManagementAction::Delete),
            _ => None,
        }
    }
}

/// SEL of Namespace Attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentAction {
    /// Attach the namespace to the controllers of the list.
    Attach,
    /// Detach it from them.
    Detach,
}

impl AttachmentAction {
    /// From a command; none for a reserved value.
    pub fn of(sqe: &Sqe) -> Option<AttachmentAction> {
        match sqe.cdw10() & 0xF {
            0 => Some(AttachmentAction::Attach),
            1 => Some(AttachmentAction::Detach),
            _ => None,
        }
    }
}

/// SEL of Namespace Change, a vendor specific admin command of Longhaul's targets
/// ([`admin::NAMESPACE_CHANGE`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeAction {
    /// The data (3,072 bytes) is the label from now on, and the namespace is attached to the hosts
    /// that it names and to no other.
    Label,
    /// The namespace grows to this number of logical blocks.
    Grow {
        /// New size in logical blocks.
        blocks: u64,
    },
    /// A further namespace is made with the content that this one has at one moment; the data (3,072
    /// bytes) is its label. The blocks of both are shared until one of them is written to. Completed with
    /// the NSID of the new one in dword 0.
    ///
    /// Not an option of Namespace Management (create): a target that does not know of it would make an
    /// empty namespace. To this one such a target answers Invalid Field.
    Clone {
        /// Nothing is made: it is tried whether the space can clone.
        only_try: bool,
    },
}

/// Dword 11 of [`ChangeAction::Clone`]: bit 0.
const ONLY_TRY: u32 = 1;

impl ChangeAction {
    /// From a command; none for a reserved value.
    pub fn of(sqe: &Sqe) -> Option<ChangeAction> {
        match sqe.cdw10() & 0xF {
            0 => Some(ChangeAction::Label),
            1 => {
                let blocks = u64::from(sqe.cdw13()) << 32 | u64::from(sqe.cdw12());
                Some(ChangeAction::Grow { blocks })
            }
            2 => Some(ChangeAction::Clone { only_try: sqe.cdw11() & ONLY_TRY != 0 }),
            _ => None,
        }
    }
}

impl Sqe {
    /// Namespace Management (create) of the NVM command set; a [`NamespaceCreate`] goes with it.
    pub fn create_namespace() -> Sqe {
        Sqe::new(admin::NAMESPACE_MANAGEMENT).with_sgl(Sgl::transport(NamespaceCreate::LEN as u32))
    }

    /// Namespace Management (delete).
    pub fn delete_namespace(nsid: u32) -> Sqe {
        Sqe::new(admin::NAMESPACE_MANAGEMENT).with_nsid(nsid).with_cdw(10, 1)
    }

    /// Namespace Attachment; a controller list goes with it.
    pub fn namespace_attachment(nsid: u32, action: AttachmentAction) -> Sqe {
        let sel = match action {
            AttachmentAction::Attach => 0,
            AttachmentAction::Detach => 1,
        };
        Sqe::new(admin::NAMESPACE_ATTACHMENT)
            .with_nsid(nsid)
            .with_cdw(10, sel)
            .with_sgl(Sgl::transport(IDENTIFY_LEN as u32))
    }

    /// Namespace Change; the bytes of a [`NamespaceLabel`] go with [`ChangeAction::Label`] and
    /// [`ChangeAction::Clone`].
    pub fn namespace_change(nsid: u32, action: ChangeAction) -> Sqe {
        let sqe = Sqe::new(admin::NAMESPACE_CHANGE).with_nsid(nsid);
        match action {
            ChangeAction::Label => sqe.with_sgl(Sgl::transport(LABEL_LEN as u32)),
            ChangeAction::Grow { blocks } => {
                sqe.with_cdw(10, 1).with_cdw(12, blocks as u32).with_cdw(13, (blocks >> 32) as u32)
            }
            ChangeAction::Clone { only_try } => sqe
                .with_cdw(10, 2)
                .with_cdw(11, if only_try { ONLY_TRY } else { 0 })
                .with_sgl(Sgl::transport(LABEL_LEN as u32)),
        }
    }
}

/// A Controller List: up to 2,047 identifiers, 4,096 bytes.
///
/// # Panics
/// If there are more.
pub fn encode_controller_list(cntlids: &[u16]) -> Vec<u8> {
    assert!(cntlids.len() <= CONTROLLERS_MAX, "{} controllers in one list", cntlids.len());
    let mut out = vec![0; IDENTIFY_LEN];
    out[..2].copy_from_slice(&(cntlids.len() as u16).to_le_bytes());
    for (slot, cntlid) in out[2..].chunks_exact_mut(2).zip(cntlids) {
        slot.copy_from_slice(&cntlid.to_le_bytes());
    }
    out
}

/// The identifiers of a Controller List; none if it is cut, or says that it has more than it has
/// room for.
pub fn decode_controller_list(bytes: &[u8]) -> Option<Vec<u16>> {
    let mut words = bytes.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    let count = usize::from(words.next()?);
    let cntlids: Vec<u16> = words.take(count.min(CONTROLLERS_MAX)).collect();
    (cntlids.len() == count).then_some(cntlids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Direction, NSID_ALL};
    use crate::layout::{check_layout, place};
    use proptest::prelude::*;

    #[test]
    fn the_structure_of_create_has_its_fields_in_their_places() {
        check_layout!(NamespaceCreate);
        let expected = [
            ("nsze", (7, 0)),
            ("ncap", (15, 8)),
            ("flbas", (26, 26)),
            ("dps", (29, 29)),
            ("nmic", (30, 30)),
            ("anagrpid", (95, 92)),
            ("nvmsetid", (101, 100)),
            ("endgid", (103, 102)),
            ("lbstm", (391, 384)),
            ("vendor", (4095, LABEL_AT)),
        ];
        for (name, at) in expected {
            assert_eq!(place(NamespaceCreate::FIELDS, name), at, "{name}");
        }
        assert_eq!(NamespaceCreate { flbas: 0b0010_0001, ..Default::default() }.format(), 0x11);
        assert!(NamespaceCreate { flbas: 1 << 4, ..Default::default() }.has_extended_metadata());
    }

    #[test]
    fn commands_are_read_back() {
        let create = Sqe::create_namespace();
        assert_eq!((create.opcode, create.nsid(), create.sgl.length()), (0x0D, 0, 4096));
        assert_eq!(ManagementAction::of(&create), Some(ManagementAction::Create { csi: 0 }));
        assert_eq!(create.direction(), Direction::ToController);
        let delete = Sqe::delete_namespace(NSID_ALL);
        assert_eq!((delete.nsid(), delete.cdw10(), delete.sgl.length()), (NSID_ALL, 1, 0));
        assert_eq!(ManagementAction::of(&delete), Some(ManagementAction::Delete));
        assert_eq!(ManagementAction::of(&delete.with_cdw(10, 2)), None);
        let attach = Sqe::namespace_attachment(7, AttachmentAction::Attach);
        assert_eq!((attach.opcode, attach.nsid(), attach.cdw10()), (0x15, 7, 0));
        assert_eq!((attach.direction(), attach.sgl.length()), (Direction::ToController, 4096));
        let detach = Sqe::namespace_attachment(7, AttachmentAction::Detach);
        assert_eq!(AttachmentAction::of(&detach), Some(AttachmentAction::Detach));
        assert_eq!(AttachmentAction::of(&attach.with_cdw(10, 3)), None);
        let label = Sqe::namespace_change(9, ChangeAction::Label);
        assert_eq!((label.opcode, label.direction()), (0xC1, Direction::ToController));
        assert_eq!((ChangeAction::of(&label), label.sgl.length()), (Some(ChangeAction::Label), 3072));
        let grow = ChangeAction::Grow { blocks: 0x0102_0304_0506_0708 };
        assert_eq!(ChangeAction::of(&Sqe::namespace_change(9, grow)), Some(grow));
        for only_try in [false, true] {
            let clone = Sqe::namespace_change(9, ChangeAction::Clone { only_try });
            assert_eq!((clone.cdw10(), clone.cdw11(), clone.sgl.length()), (2, u32::from(only_try), 3072));
            assert_eq!(ChangeAction::of(&clone), Some(ChangeAction::Clone { only_try }));
        }
        assert_eq!(ChangeAction::of(&label.with_cdw(10, 3)), None);
    }

    #[test]
    fn controller_lists_begin_with_their_number() {
        let list = encode_controller_list(&[1, 0x0203]);
        assert_eq!((list.len(), &list[..8]), (4096, &[2, 0, 1, 0, 3, 2, 0, 0][..]));
        assert_eq!(decode_controller_list(&list), Some(vec![1, 0x0203]));
        let full: Vec<u16> = (1..=2047).collect();
        assert_eq!(decode_controller_list(&encode_controller_list(&full)), Some(full));
        let mut more = list.clone();
        more[..2].copy_from_slice(&2048u16.to_le_bytes());
        assert_eq!(decode_controller_list(&more), None, "more than there is room for");
        assert_eq!(decode_controller_list(&list[..4]), None, "cut");
        assert_eq!(decode_controller_list(&[]), None);
    }

    proptest! {
        #[test]
        fn any_list_decodes(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            if let Some(list) = decode_controller_list(&bytes) {
                prop_assert_eq!(decode_controller_list(&encode_controller_list(&list)), Some(list));
            }
        }
    }
}
