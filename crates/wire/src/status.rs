//! Status codes of a completion.

use std::fmt;

/// The status of a completion: code type (SCT), code (SC), and the DNR, M
/// and CRD bits. Two values are equal only if all of these are; compare
/// [`code`](Self::code) to leave the bits out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

const DNR: u16 = 1 << 14;
const MORE: u16 = 1 << 13;

impl Status {
    /// Generic command status.
    pub const GENERIC: u8 = 0;
    /// Command specific status.
    pub const COMMAND_SPECIFIC: u8 = 1;
    /// Media and data integrity errors.
    pub const MEDIA: u8 = 2;
    /// Path related status.
    pub const PATH: u8 = 3;

    /// A status with neither DNR, M nor CRD.
    pub const fn new(sct: u8, sc: u8) -> Status {
        Status((sct as u16 & 0b111) << 8 | sc as u16)
    }

    /// From bytes 15:14 of a completion; the phase bit is dropped.
    pub const fn from_wire(raw: u16) -> Status {
        Status(raw >> 1)
    }

    /// Bytes 15:14 of a completion, with a phase bit of 0.
    pub const fn to_wire(self) -> u16 {
        self.0 << 1
    }

    /// Status code type.
    pub const fn sct(self) -> u8 {
        (self.0 >> 8 & 0b111) as u8
    }

    /// SC: the status code within its type.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Command Retry Delay: 0 for none, else an index into CRDT1 to CRDT3.
    pub const fn crd(self) -> u8 {
        (self.0 >> 11 & 0b11) as u8
    }

    /// More information is in the error log.
    pub const fn is_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Do Not Retry: the same command would fail again.
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.0 & 0x7FF == 0
    }

    /// The same code with Do Not Retry set.
    #[must_use]
    pub const fn dnr(self) -> Status {
        Status(self.0 | DNR)
    }

    /// The same code with More set.
    #[must_use]
    pub const fn more(self) -> Status {
        Status(self.0 | MORE)
    }

    /// The same code with a Command Retry Delay.
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Status {
        Status(self.0 & !(0b11 << 11) | (crd as u16 & 0b11) << 11)
    }

    /// The code alone, without DNR, M and CRD: for comparison.
    #[must_use]
    pub const fn code(self) -> Status {
        Status(self.0 & 0x7FF)
    }

    /// Whether the code is that of `other`, whatever the other bits.
    pub const fn is(self, other: Status) -> bool {
        self.0 & 0x7FF == other.0 & 0x7FF
    }
}

macro_rules! statuses {
    ($($name:ident = $sct:literal, $sc:literal, $text:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($text, ".")]
                pub const $name: Status = Status::new($sct, $sc);
            )*

            /// What the specification calls the code, if it names it. Two
            /// codes of type 1 have two meanings (I/O and Fabrics commands);
            /// the name gives both.
            pub fn name(self) -> Option<&'static str> {
                match (self.sct(), self.sc()) {
                    $(($sct, $sc) => Some($text),)*
                    _ => None,
                }
            }

            #[cfg(test)]
            const ALL: &'static [Status] = &[$(Status::$name),*];
        }
    };
}

statuses! {
    SUCCESS = 0, 0x00, "Success";
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    MISSING_FUSED = 0, 0x0A, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0, 0x0B, "Invalid Namespace or Format";
    SEQUENCE_ERROR = 0, 0x0C, "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0, 0x0D, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0, 0x0E, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH = 0, 0x0F, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH = 0, 0x10, "Metadata SGL Length Invalid";
    SGL_TYPE = 0, 0x11, "SGL Descriptor Type Invalid";
    INVALID_CMB_USE = 0, 0x12, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET = 0, 0x13, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT = 0, 0x14, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0, 0x15, "Operation Denied";
    SGL_OFFSET = 0, 0x16, "SGL Offset Invalid";
    HOST_ID_FORMAT = 0, 0x18, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0, 0x19, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0, 0x1A, "Keep Alive Timeout Invalid";
    PREEMPTED = 0, 0x1B, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0, 0x1C, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0, 0x1D, "Sanitize In Progress";
    SGL_GRANULARITY = 0, 0x1E, "SGL Data Block Granularity Invalid";
    NOT_IN_CMB_QUEUE = 0, 0x1F, "Command Not Supported for Queue in CMB";
    WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    INTERRUPTED = 0, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT = 0, 0x22, "Transient Transport Error";
    LOCKDOWN = 0, 0x23, "Command Prohibited by Command and Feature Lockdown";
    MEDIA_NOT_READY = 0, 0x24, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";
    CQ_INVALID = 1, 0x00, "Completion Queue Invalid";
    INVALID_QID = 1, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    ABORT_LIMIT = 1, 0x03, "Abort Command Limit Exceeded";
    AER_LIMIT = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 1, 0x06, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 1, 0x07, "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    INVALID_FORMAT = 1, 0x0A, "Invalid Format";
    INVALID_QUEUE_DELETION = 1, 0x0C, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 1, 0x0D, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0E, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE = 1, 0x0F, "Feature Not Namespace Specific";
    OVERLAPPING_RANGE = 1, 0x14, "Overlapping Range";
    INSUFFICIENT_CAPACITY = 1, 0x15, "Namespace Insufficient Capacity";
    NSID_UNAVAILABLE = 1, 0x16, "Namespace Identifier Unavailable";
    ALREADY_ATTACHED = 1, 0x18, "Namespace Already Attached";
    NAMESPACE_PRIVATE = 1, 0x19, "Namespace Is Private";
    NOT_ATTACHED = 1, 0x1A, "Namespace Not Attached";
    THIN_NOT_SUPPORTED = 1, 0x1B, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 1, 0x1C, "Controller List Invalid";
    INVALID_CONTROLLER_ID = 1, 0x1F, "Invalid Controller Identifier";
    ANA_GROUP_INVALID = 1, 0x24, "ANA Group Identifier Invalid";
    ATTACHMENT_LIMIT = 1, 0x27, "Namespace Attachment Limit Exceeded";
    COMMAND_SET_NOT_SUPPORTED = 1, 0x29, "I/O Command Set Not Supported";
    COMMAND_SET_NOT_ENABLED = 1, 0x2A, "I/O Command Set Not Enabled";
    COMMAND_SET_REJECTED = 1, 0x2B, "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 1, 0x2C, "Invalid I/O Command Set";
    INVALID_DISCOVERY_INFORMATION = 1, 0x2F, "Invalid Discovery Information";
    INSUFFICIENT_DISCOVERY_RESOURCES = 1, 0x32, "Insufficient Discovery Resources";
    RESET_IN_PROGRESS = 1, 0x3F, "Cross-Controller Reset in Progress";
    RESET_LOG_FULL = 1, 0x40, "Cross-Controller Reset Log Page Full";
    RESET_LIMIT = 1, 0x41, "Cross-Controller Reset Limit Exceeded";
    INCOMPATIBLE_FORMAT = 1, 0x80, "Incompatible Format (Connect, Disconnect) or Conflicting Attributes";
    CONTROLLER_BUSY = 1, 0x81, "Controller Busy (Connect) or Invalid Protection Information";
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "Connect Invalid Parameters or Attempted Write to Read Only Range";
    CONNECT_RESTART_DISCOVERY = 1, 0x83, "Connect Restart Discovery or Command Size Limit Exceeded";
    CONNECT_INVALID_HOST = 1, 0x84, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 1, 0x85, "Invalid Queue Type";
    DISCOVER_RESTART = 1, 0x90, "Discover Restart";
    AUTHENTICATION_REQUIRED = 1, 0x91, "Authentication Required";
    WRITE_FAULT = 2, 0x80, "Write Fault";
    UNRECOVERED_READ = 2, 0x81, "Unrecovered Read Error";
    GUARD_CHECK = 2, 0x82, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK = 2, 0x83, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK = 2, 0x84, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    DEALLOCATED_BLOCK = 2, 0x87, "Deallocated or Unwritten Logical Block";
    INTERNAL_PATH_ERROR = 3, 0x00, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 3, 0x01, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 3, 0x02, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 3, 0x03, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 3, 0x60, "Controller Pathing Error";
    HOST_PATHING_ERROR = 3, 0x70, "Host Pathing Error";
    ABORTED_BY_HOST = 3, 0x71, "Command Aborted By Host";
    CLONES_NOT_SUPPORTED = 7, 0xC0, "Space Without Clones (vendor specific)";
}

impl Status {
    /// Conflicting Attributes, for I/O commands.
    pub const CONFLICTING_ATTRIBUTES: Status = Status::INCOMPATIBLE_FORMAT;
    /// Invalid Protection Information, for I/O commands.
    pub const INVALID_PROTECTION_INFORMATION: Status = Status::CONTROLLER_BUSY;
    /// Command Size Limit Exceeded, for I/O commands.
    pub const COMMAND_SIZE_LIMIT: Status = Status::CONNECT_RESTART_DISCOVERY;
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.sct() {
            Status::GENERIC => "generic status",
            Status::COMMAND_SPECIFIC => "command specific status",
            Status::MEDIA => "media error",
            Status::PATH => "path error",
            7 => "vendor specific status",
            _ => "reserved status",
        };
        write!(f, "{} ({}/{:02X}h", self.name().unwrap_or(family), self.sct(), self.sc())?;
        if self.is_dnr() {
            f.write_str(", do not retry")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_code() {
        assert_eq!(Status::INVALID_FIELD.to_string(), "Invalid Field in Command (0/02h)");
        assert_eq!(Status::LBA_OUT_OF_RANGE.dnr().to_string(), "LBA Out of Range (0/80h, do not retry)");
        assert_eq!(Status::new(7, 0xC1).to_string(), "vendor specific status (7/C1h)");
    }

    #[test]
    fn bits_are_apart() {
        let status = Status::COMPARE_FAILURE.dnr().more().with_crd(3);
        assert_eq!((status.sct(), status.sc(), status.crd()), (2, 0x85, 3));
        assert!(status.is_dnr() && status.is_more() && !status.is_success());
        assert_eq!(status.to_wire(), 1 << 15 | 1 << 14 | 3 << 12 | 2 << 9 | 0x85 << 1);
        assert_eq!(status.code(), Status::COMPARE_FAILURE);
        assert!(status.is(Status::COMPARE_FAILURE) && !status.is(Status::WRITE_FAULT));
        assert!(Status::SUCCESS.dnr().is_success());
    }

    #[test]
    fn every_wire_value_survives() {
        for raw in 0..=u16::MAX {
            assert_eq!(Status::from_wire(raw).to_wire(), raw & !1);
        }
    }

    #[test]
    fn every_named_code_is_named_once() {
        let mut seen = std::collections::HashSet::new();
        for status in Status::ALL {
            assert!(seen.insert(*status) && status.name().is_some(), "{status}");
        }
    }
}
