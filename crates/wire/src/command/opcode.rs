//! Opcodes and Fabrics command types.

/// Admin command opcodes (NVMe Base 2.1, "Opcodes for Admin Commands").
#[allow(missing_docs)]
pub mod admin {
    pub const DELETE_IO_SQ: u8 = 0x00;
    pub const CREATE_IO_SQ: u8 = 0x01;
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const DELETE_IO_CQ: u8 = 0x04;
    pub const CREATE_IO_CQ: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0A;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0D;
    pub const FIRMWARE_COMMIT: u8 = 0x10;
    pub const FIRMWARE_DOWNLOAD: u8 = 0x11;
    pub const DEVICE_SELF_TEST: u8 = 0x14;
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const DIRECTIVE_SEND: u8 = 0x19;
    pub const DIRECTIVE_RECEIVE: u8 = 0x1A;
    pub const VIRTUALIZATION_MANAGEMENT: u8 = 0x1C;
    pub const NVME_MI_SEND: u8 = 0x1D;
    pub const NVME_MI_RECEIVE: u8 = 0x1E;
    pub const CAPACITY_MANAGEMENT: u8 = 0x20;
    pub const DISCOVERY_INFORMATION_MANAGEMENT: u8 = 0x21;
    pub const FABRIC_ZONING_RECEIVE: u8 = 0x22;
    pub const LOCKDOWN: u8 = 0x24;
    pub const FABRIC_ZONING_LOOKUP: u8 = 0x25;
    pub const FABRIC_ZONING_SEND: u8 = 0x29;
    /// Of NVMe Base 2.3.
    pub const CROSS_CONTROLLER_RESET: u8 = 0x38;
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7C;
    pub const FABRICS: u8 = 0x7F;
    pub const FORMAT_NVM: u8 = 0x80;
    pub const SECURITY_SEND: u8 = 0x81;
    pub const SECURITY_RECEIVE: u8 = 0x82;
    pub const SANITIZE: u8 = 0x84;
    pub const GET_LBA_STATUS: u8 = 0x86;
    /// Vendor specific, of Longhaul's targets: changes the label or the size of a namespace, or clones it
    /// ([`ChangeAction`](crate::management::ChangeAction)).
    pub const NAMESPACE_CHANGE: u8 = 0xC1;
}

/// I/O command opcodes of the NVM Command Set and those that all command sets
/// share (NVM Command Set 1.1, "Opcodes for NVM Commands").
#[allow(missing_docs)]
pub mod io {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0C;
    pub const RESERVATION_REGISTER: u8 = 0x0D;
    pub const RESERVATION_REPORT: u8 = 0x0E;
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    pub const IO_MANAGEMENT_RECEIVE: u8 = 0x12;
    pub const RESERVATION_RELEASE: u8 = 0x15;
    pub const CANCEL: u8 = 0x18;
    pub const COPY: u8 = 0x19;
    pub const IO_MANAGEMENT_SEND: u8 = 0x1D;
}

/// Fabrics command types (NVMe Base 2.1, "Fabrics Command Type").
#[allow(missing_docs)]
pub mod fctype {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    pub const DISCONNECT: u8 = 0x08;
}

/// Whether the opcode is that of all Fabrics commands.
pub fn is_fabrics(opcode: u8) -> bool {
    opcode == admin::FABRICS
}

/// The direction of a command's data, if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The command transfers no data.
    None,
    /// The host sends data (a write).
    ToController,
    /// The controller sends data (a read).
    ToHost,
    /// Both (no command that this crate knows).
    Both,
}

impl Direction {
    /// The direction that bits 1:0 of an opcode (or of a Fabrics command
    /// type, for opcode 7Fh) give.
    pub fn of(opcode_or_fctype: u8) -> Direction {
        match opcode_or_fctype & 0b11 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }
}

/// What a command is called, for messages and traces.
pub fn opcode_name(admin_queue: bool, opcode: u8, fctype: u8) -> &'static str {
    match (opcode, admin_queue) {
        (admin::FABRICS, _) => fabrics_name(fctype),
        (_, true) => admin_name(opcode),
        (_, false) => io_name(opcode),
    }
}

fn fabrics_name(fctype: u8) -> &'static str {
    match fctype {
        fctype::PROPERTY_SET => "Property Set",
        fctype::CONNECT => "Connect",
        fctype::PROPERTY_GET => "Property Get",
        fctype::AUTHENTICATION_SEND => "Authentication Send",
        fctype::AUTHENTICATION_RECEIVE => "Authentication Receive",
        fctype::DISCONNECT => "Disconnect",
        _ => "unknown Fabrics command",
    }
}

fn admin_name(opcode: u8) -> &'static str {
    match opcode {
        admin::GET_LOG_PAGE => "Get Log Page",
        admin::IDENTIFY => "Identify",
        admin::ABORT => "Abort",
        admin::SET_FEATURES => "Set Features",
        admin::GET_FEATURES => "Get Features",
        admin::ASYNC_EVENT_REQUEST => "Asynchronous Event Request",
        admin::NAMESPACE_MANAGEMENT => "Namespace Management",
        admin::NAMESPACE_ATTACHMENT => "Namespace Attachment",
        admin::KEEP_ALIVE => "Keep Alive",
        admin::DISCOVERY_INFORMATION_MANAGEMENT => "Discovery Information Management",
        admin::CROSS_CONTROLLER_RESET => "Cross-Controller Reset",
        admin::NAMESPACE_CHANGE => "Namespace Change (vendor specific)",
        _ => "unknown admin command",
    }
}

fn io_name(opcode: u8) -> &'static str {
    match opcode {
        io::FLUSH => "Flush",
        io::WRITE => "Write",
        io::READ => "Read",
        io::COMPARE => "Compare",
        io::WRITE_ZEROES => "Write Zeroes",
        io::DATASET_MANAGEMENT => "Dataset Management",
        io::VERIFY => "Verify",
        _ => "unknown I/O command",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_follows_the_low_bits() {
        use Direction::*;
        let expected = [
            (io::READ, ToHost),
            (io::WRITE, ToController),
            (io::COMPARE, ToController),
            (io::DATASET_MANAGEMENT, ToController),
            (io::FLUSH, None),
            (io::WRITE_ZEROES, None),
            (io::VERIFY, None),
            (admin::IDENTIFY, ToHost),
            (admin::GET_LOG_PAGE, ToHost),
            (admin::SET_FEATURES, ToController),
            (admin::GET_FEATURES, ToHost),
            (admin::KEEP_ALIVE, None),
            (fctype::CONNECT, ToController),
            (fctype::PROPERTY_GET, None),
        ];
        for (code, direction) in expected {
            assert_eq!(Direction::of(code), direction, "{code:02X}h");
        }
    }

    #[test]
    fn names_depend_on_the_queue() {
        assert_eq!(opcode_name(true, 0x02, 0), "Get Log Page");
        assert_eq!(opcode_name(false, 0x02, 0), "Read");
        assert_eq!(opcode_name(false, 0x7F, 1), "Connect");
    }
}
