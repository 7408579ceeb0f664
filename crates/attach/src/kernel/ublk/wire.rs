//! Commands and structures of the ublk driver, of `linux/ublk_cmd.h`. All numbers are in the
//! machine's byte order.

use longhaul_block::DeviceInfo as Device;

/// Control commands (`UBLK_CMD_*`).
pub(super) const GET_INFO: u32 = 0x02;
pub(super) const ADD: u32 = 0x04;
pub(super) const DELETE: u32 = 0x05;
pub(super) const START: u32 = 0x06;
pub(super) const STOP: u32 = 0x07;
pub(super) const SET_PARAMETERS: u32 = 0x08;
/// Of Linux 6.16.
pub(super) const UPDATE_SIZE: u32 = 0x15;

/// Queue commands (`UBLK_IO_*`).
pub(super) const FETCH: u32 = 0x20;
pub(super) const COMMIT_AND_FETCH: u32 = 0x21;

/// `_IOWR('u', command, …)` of a structure of so many bytes.
const fn number(command: u32, size: u32) -> u32 {
    3 << 30 | size << 16 | (b'u' as u32) << 8 | command
}

/// The number of a control command.
pub(super) const fn control(command: u32) -> u32 {
    match command {
        // `_IOR`: the command only reads.
        GET_INFO => number(command, 32) & !(1 << 30),
        command => number(command, 32),
    }
}

/// The number of a queue command.
pub(super) const fn queue(command: u32) -> u32 {
    number(command, 16)
}

/// Operations of a request.
pub(super) mod op {
    pub(in crate::kernel::ublk) const READ: u8 = 0;
    pub(in crate::kernel::ublk) const WRITE: u8 = 1;
    pub(in crate::kernel::ublk) const FLUSH: u8 = 2;
    pub(in crate::kernel::ublk) const DISCARD: u8 = 3;
    pub(in crate::kernel::ublk) const WRITE_ZEROES: u8 = 5;
}

/// Flags of a request, above its operation in the same number.
pub(super) const FUA: u32 = 1 << 13;
pub(super) const NO_UNMAP: u32 = 1 << 15;

/// The driver counts in sectors of 512 bytes.
pub(super) const SECTOR_SHIFT: u32 = 9;

/// Requests at a time, and bytes of one at most: each has a buffer of that size, whose untouched
/// pages take no memory.
const DEPTH: u16 = 128;
const IO_MAX: u32 = 512 << 10;

/// `ublksrv_ctrl_cmd`, at the end of a 128-byte submission entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    pub(super) device: u32,
    pub(super) len: u16,
    pub(super) address: u64,
    pub(super) data: u64,
}

impl Control {
    pub(super) fn bytes(self) -> [u8; 80] {
        let mut out = [0; 80];
        out[..4].copy_from_slice(&self.device.to_ne_bytes());
        // Not about one queue.
        out[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        out[6..8].copy_from_slice(&self.len.to_ne_bytes());
        out[8..16].copy_from_slice(&self.address.to_ne_bytes());
        out[16..24].copy_from_slice(&self.data.to_ne_bytes());
        out
    }
}

/// `ublksrv_ctrl_dev_info`: the fields used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub(super) depth: u16,
    pub(super) io_max: u32,
    pub(super) id: u32,
    /// The process that serves it: `u32::MAX` when it was stopped.
    pub(super) process: u32,
    state: u16,
}

/// A state: stopped, and another server may recover it.
const STATE_QUIESCED: u16 = 2;

impl DeviceInfo {
    /// Whether the process that served it has ended.
    pub(super) fn is_left(&self, lives: impl Fn(u32) -> bool) -> bool {
        self.state != STATE_QUIESCED && (self.process == u32::MAX || !lives(self.process))
    }

    /// A device with any number, served by a process.
    pub(super) fn wanted(process: u32) -> DeviceInfo {
        DeviceInfo { depth: DEPTH, io_max: IO_MAX, id: u32::MAX, process, state: 0 }
    }

    pub(super) fn bytes(self) -> [u8; 64] {
        let mut out = [0; 64];
        // One queue.
        out[..2].copy_from_slice(&1u16.to_ne_bytes());
        out[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        out[8..12].copy_from_slice(&self.io_max.to_ne_bytes());
        out[12..16].copy_from_slice(&self.id.to_ne_bytes());
        out[16..20].copy_from_slice(&self.process.to_ne_bytes());
        out
    }

    /// The device as the driver has set it up.
    pub(super) fn parse(bytes: &[u8; 64]) -> DeviceInfo {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        DeviceInfo {
            depth: u16::from_ne_bytes([bytes[2], bytes[3]]),
            io_max: word(8),
            id: word(12),
            process: word(16),
            state: u16::from_ne_bytes([bytes[4], bytes[5]]),
        }
    }
}

/// `ublk_params`: the properties of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    block_shift: u8,
    optimal_shift: u8,
    sectors: u64,
    read_only: bool,
    discard: bool,
}

/// Bits that say which parameters are given.
const BASIC: u32 = 1;
const DISCARD: u32 = 1 << 1;
const ATTRIBUTE_READ_ONLY: u32 = 1;
const ATTRIBUTE_CACHE: u32 = 1 << 2;
const ATTRIBUTE_FUA: u32 = 1 << 3;

impl Parameters {
    pub(super) fn of(device: &Device) -> Parameters {
        Parameters {
            block_shift: device.block_size.ilog2() as u8,
            optimal_shift: device.optimal_io.max(device.block_size).ilog2() as u8,
            sectors: device.size >> SECTOR_SHIFT,
            read_only: device.read_only,
            discard: device.discard && !device.read_only,
        }
    }

    /// Length, kinds, the basic parameters (32 bytes from the 8th on), discard.
    pub(super) fn bytes(self) -> [u8; PARAMETERS] {
        let mut out = [0; PARAMETERS];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let kinds = BASIC | if self.discard { DISCARD } else { 0 };
        put(0, &(PARAMETERS as u32).to_ne_bytes());
        put(4, &kinds.to_ne_bytes());
        let read_only = if self.read_only { ATTRIBUTE_READ_ONLY } else { 0 };
        put(8, &(ATTRIBUTE_CACHE | ATTRIBUTE_FUA | read_only).to_ne_bytes());
        // Logical, physical, optimal and minimum I/O size, as logarithms.
        put(12, &[self.block_shift, self.block_shift, self.optimal_shift, self.block_shift]);
        put(16, &(IO_MAX >> SECTOR_SHIFT).to_ne_bytes());
        put(24, &self.sectors.to_ne_bytes());
        if self.discard {
            put(44, &(1u32 << self.block_shift).to_ne_bytes());
            put(48, &u32::MAX.to_ne_bytes());
            put(52, &u32::MAX.to_ne_bytes());
            put(56, &1u16.to_ne_bytes());
        }
        out
    }
}

/// Bytes of the parameters: up to discard, and no further.
const PARAMETERS: usize = 64;

/// `ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Descriptor {
    /// Operation and flags.
    pub(super) op_flags: u32,
    pub(super) sectors: u32,
    pub(super) start: u64,
    pub(super) address: u64,
}

/// `ublksrv_io_cmd`: the answer to a request, and the buffer for the next one's data.
pub(super) fn io_command(tag: u16, result: i32, address: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[2..4].copy_from_slice(&tag.to_ne_bytes());
    out[4..8].copy_from_slice(&result.to_ne_bytes());
    out[8..].copy_from_slice(&address.to_ne_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!(control(ADD), 0xc020_7504);
        assert_eq!(control(GET_INFO), 0x8020_7502);
        assert_eq!(control(UPDATE_SIZE), 0xc020_7515);
        assert_eq!(queue(FETCH), 0xc010_7520);
        assert_eq!(size_of::<Descriptor>(), 24);
    }

    #[test]
    fn what_the_driver_made_is_read_back() {
        let mut bytes = DeviceInfo::wanted(77).bytes();
        bytes[12..16].copy_from_slice(&3u32.to_ne_bytes());
        let info = DeviceInfo::parse(&bytes);
        assert_eq!((info.id, info.depth, info.io_max, info.process), (3, DEPTH, IO_MAX, 77));
    }

    #[test]
    fn only_what_a_process_that_has_gone_left_is_left() {
        let mut bytes = DeviceInfo::wanted(77).bytes();
        let left = |bytes: &[u8; 64], lives: bool| DeviceInfo::parse(bytes).is_left(|_| lives);
        assert!(left(&bytes, false) && !left(&bytes, true));
        bytes[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(left(&bytes, true), "stopped");
        bytes[4..6].copy_from_slice(&STATE_QUIESCED.to_ne_bytes());
        assert!(!left(&bytes, false), "another server may recover it");
    }

    #[test]
    fn sizes_are_in_sectors() {
        let device = Device {
            name: String::new(),
            size: 1 << 30,
            block_size: 4096,
            max_io: 1 << 20,
            optimal_io: 0,
            read_only: false,
            volatile_cache: true,
            discard: true,
            uuid: None,
        };
        let bytes = Parameters::of(&device).bytes();
        assert_eq!(bytes[24..32], (2u64 << 20).to_ne_bytes());
        assert_eq!(bytes[4..8], 3u32.to_ne_bytes());
        assert_eq!(bytes[12..16], [12; 4]);
        let only = Parameters::of(&Device { read_only: true, ..device }).bytes();
        assert_eq!((only[8], only[4]), (0b1101, 1));
    }
}
