//! Error information (01h), SMART / health information (02h) and firmware
//! slot information (03h).

use crate::layout::layout;
use crate::text::Ascii;

layout! {
    /// One entry of the Error Information log page.
    pub struct ErrorEntry: 64 {
        /// Counts errors from 1 over the controller's life; 0: unused entry.
        0 => error_count: u64,
        /// Submission queue of the command.
        8 => sqid: u16,
        /// Its command identifier.
        10 => cid: u16,
        /// Its status, as in bytes 15:14 of the completion.
        12 => status: u16,
        /// Where in the command the fault is: byte (7:0) and bit (10:8);
        /// FFFFh if nowhere.
        14 => parameter: u16,
        /// First logical block in error.
        16 => lba: u64,
        /// NSID of the command; 0 if it has none.
        24 => nsid: u32,
        /// Log page with vendor information; 0: none.
        28 => vendor: u8,
        /// Transport type of the controller.
        29 => trtype: u8,
        /// Command set of the command.
        30 => csi: u8,
        /// Opcode of the command.
        31 => opcode: u8,
        /// Command specific information.
        32 => command_info: u64,
        /// Transport specific information.
        40 => transport_info: u16,
        /// Version of the layout: 1 says that `csi` and `opcode` are set.
        63 => version: u8,
    }
}

layout! {
    /// SMART / Health Information log page.
    pub struct SmartHealth: 512 {
        /// Critical warnings, a bit each.
        0 => critical_warning: u8,
        /// Composite temperature in kelvin.
        1 => temperature: u16,
        /// Available spare in percent.
        3 => available_spare: u8,
        /// Threshold of `available_spare` in percent.
        4 => spare_threshold: u8,
        /// Life used in percent.
        5 => percentage_used: u8,
        /// Data read, in thousands of 512-byte units, rounded up.
        32 => data_units_read: u128,
        /// Data written, in thousands of 512-byte units, rounded up.
        48 => data_units_written: u128,
        /// Read commands completed.
        64 => host_reads: u128,
        /// Write commands completed.
        80 => host_writes: u128,
        /// Time with I/O outstanding, in minutes.
        96 => busy_minutes: u128,
        /// Number of power cycles.
        112 => power_cycles: u128,
        /// Hours for which the controller was powered.
        128 => power_on_hours: u128,
        /// Number of losses of power without a shutdown.
        144 => unsafe_shutdowns: u128,
        /// Media and data integrity errors.
        160 => media_errors: u128,
        /// Error log entries over the controller's life.
        176 => error_entries: u128,
        /// Minutes above the warning temperature.
        192 => warning_minutes: u32,
        /// Minutes above the critical temperature.
        196 => critical_minutes: u32,
    }
}

impl SmartHealth {
    /// Bytes as a data unit field: thousands of 512 bytes, rounded up.
    pub fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

layout! {
    /// Firmware Slot Information log page.
    pub struct FirmwareSlots: 512 {
        /// Active slot (2:0), and slot of the next reset (6:4; 0: the same).
        0 => active: u8,
        /// Revision in slot 1.
        8 => slot1: Ascii<8>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{check_layout, place};

    #[test]
    fn layouts_are_consistent() {
        check_layout!(ErrorEntry, SmartHealth, FirmwareSlots);
    }

    #[test]
    fn fields_sit_where_the_figures_have_them() {
        for (name, at) in [
            ("status", (13, 12)),
            ("parameter", (15, 14)),
            ("lba", (23, 16)),
            ("nsid", (27, 24)),
            ("trtype", (29, 29)),
        ] {
            assert_eq!(place(ErrorEntry::FIELDS, name), at, "{name}");
        }
        for (name, at) in [
            ("temperature", (2, 1)),
            ("data_units_read", (47, 32)),
            ("data_units_written", (63, 48)),
            ("host_reads", (79, 64)),
            ("host_writes", (95, 80)),
            ("busy_minutes", (111, 96)),
            ("power_cycles", (127, 112)),
            ("power_on_hours", (143, 128)),
            ("unsafe_shutdowns", (159, 144)),
            ("media_errors", (175, 160)),
            ("error_entries", (191, 176)),
        ] {
            assert_eq!(place(SmartHealth::FIELDS, name), at, "{name}");
        }
        assert_eq!(place(FirmwareSlots::FIELDS, "slot1"), (15, 8));
    }

    #[test]
    fn data_units_are_rounded_up() {
        assert_eq!(SmartHealth::data_units(0), 0);
        assert_eq!(SmartHealth::data_units(1), 1);
        assert_eq!(SmartHealth::data_units(512_000), 1);
        assert_eq!(SmartHealth::data_units(512_001), 2);
    }
}
