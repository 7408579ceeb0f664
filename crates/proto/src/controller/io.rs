//! I/O commands of the NVM command set: from a submission queue entry to
//! bytes of a device.
//!
//! Everything here is a function of the command and of immutable views: the
//! I/O path takes no lock and allocates nothing. The type of the SGL
//! descriptor and the length of in-capsule data are the transport's to check;
//! that the SGL is as long as the data of the command is checked here.

use super::subsystem::{NamespaceView, SubsystemView};
use crate::reservation::Access;
use longhaul_wire::command::{DatasetManagement, DsmRange, NSID_ALL, ReadWrite, Sqe, io};
use longhaul_wire::completion::Status;
use longhaul_wire::log::AnaState;
use longhaul_wire::reservation::{AcquireFields, RegisterFields, ReleaseFields, ReservedValue};
use zerocopy::FromBytes;

/// Bytes that one Write Zeroes covers at most, 2^n memory pages (WZSL): what a
/// memory device zeroes in a few milliseconds, so that commands of many hosts
/// take turns.
pub const ZEROES_MAX: u64 = 32 << 20;

/// Bytes that one Verify covers at most, likewise (VSL).
pub const VERIFY_MAX: u64 = 32 << 20;

/// Limits of I/O commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest data transfer in bytes (MDTS).
    pub max_transfer: u32,
}

impl Limits {
    /// The limits of a subsystem.
    pub fn of(subsystem: &SubsystemView) -> Limits {
        Limits { max_transfer: subsystem.mdts_bytes() }
    }
}

/// An I/O command. Offsets and lengths are in bytes, whole logical blocks,
/// within the namespace, and lengths are not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCommand {
    /// Send data to the host.
    Read {
        /// Offset of the first byte in the namespace.
        offset: u64,
        /// Length in bytes, at most MDTS.
        len: u32,
        /// Data read is on the medium when the command completes.
        fua: bool,
    },
    /// Take data from the host.
    Write {
        /// Offset of the first byte in the namespace.
        offset: u64,
        /// Length in bytes, at most MDTS.
        len: u32,
        /// The data is on the medium when the command completes.
        fua: bool,
    },
    /// Take data from the host and compare (Compare Failure if it differs).
    Compare {
        /// Offset of the first byte in the namespace.
        offset: u64,
        /// Length in bytes, at most MDTS.
        len: u32,
    },
    /// Read without sending anything.
    Verify {
        /// Offset of the first byte in the namespace.
        offset: u64,
        /// Length: [`VERIFY_MAX`] at most.
        len: u64,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Offset of the first byte in the namespace.
        offset: u64,
        /// Length: [`ZEROES_MAX`] at most.
        len: u64,
        /// As for a write.
        fua: bool,
        /// The space should be given back.
        deallocate: bool,
    },
    /// Make the writes to the namespace durable.
    Flush,
    /// The same for every namespace.
    FlushAll,
    /// Take a list of this many ranges ([`deallocate_ranges`]) and
    /// deallocate them.
    Deallocate {
        /// Ranges, 1 to 256.
        ranges: u16,
    },
    /// Take a list of ranges with hints that may be ignored.
    Hint {
        /// Ranges, 1 to 256.
        ranges: u16,
    },
    /// Take the current key and a new one ([`decode_keys`](longhaul_wire::reservation::decode_keys)),
    /// and register the host.
    Register(RegisterFields),
    /// Take the current key and that of the host to preempt, and reserve the namespace.
    Acquire(AcquireFields),
    /// Take the current key, and release the reservation.
    Release(ReleaseFields),
    /// Send the host the registrations, and which of them holds the reservation.
    Report {
        /// Bytes: of a longer report the first ones are sent.
        len: u32,
    },
}

impl IoCommand {
    /// What a reservation has to let the host do; nothing for commands of reservations
    /// themselves.
    #[inline]
    pub fn access(&self) -> Option<Access> {
        //= NVMe Base 2.1, Command Behavior in the Presence of a Reservation: Flush is a command that writes
        match self {
            IoCommand::Read { .. } | IoCommand::Compare { .. } | IoCommand::Verify { .. } => {
                Some(Access::Read)
            }
            IoCommand::Write { .. }
            | IoCommand::WriteZeroes { .. }
            | IoCommand::Flush
            | IoCommand::FlushAll
            | IoCommand::Deallocate { .. }
            | IoCommand::Hint { .. } => Some(Access::Write),
            IoCommand::Register(_)
            | IoCommand::Acquire(_)
            | IoCommand::Release(_)
            | IoCommand::Report { .. } => None,
        }
    }
}

/// The I/O commands, without those of Fabrics.
const IO_COMMANDS: [u8; 11] = [
    io::READ,
    io::WRITE,
    io::FLUSH,
    io::COMPARE,
    io::WRITE_ZEROES,
    io::DATASET_MANAGEMENT,
    io::VERIFY,
    io::RESERVATION_REGISTER,
    io::RESERVATION_ACQUIRE,
    io::RESERVATION_RELEASE,
    io::RESERVATION_REPORT,
];

/// Parses an I/O command other than a Fabrics command. `ns` is the namespace
/// that its NSID names, if there is one.
#[inline]
pub fn parse(sqe: &Sqe, ns: Option<&NamespaceView>, limits: &Limits) -> Result<IoCommand, Status> {
    //= NVMe Base 2.1, Status Code: an opcode that is not supported gets Invalid Command Opcode
    if !IO_COMMANDS.contains(&sqe.opcode) {
        return Err(Status::INVALID_OPCODE.dnr());
    }
    //= NVMe Base 2.1, Fused operations: FUSES is 0, so fused commands are refused
    if sqe.fuse() != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let Some(ns) = ns else {
        //= NVMe Base 2.1, Flush command: NSID FFFFFFFFh flushes all namespaces, as VWC says
        if sqe.opcode == io::FLUSH && sqe.nsid() == NSID_ALL {
            return Ok(IoCommand::FlushAll);
        }
        //= NVMe Base 2.1, Namespaces: an NSID without an active namespace gets Invalid Namespace or Format
        return Err(Status::INVALID_NAMESPACE.dnr());
    };
    check_access(ns, sqe.opcode)?;
    match sqe.opcode {
        io::READ => {
            let (offset, len, fields) = transfer(sqe, ns, limits)?;
            Ok(IoCommand::Read { offset, len, fua: fields.fua })
        }
        io::WRITE => {
            let (offset, len, fields) = transfer(sqe, ns, limits)?;
            //= NVMe Base 2.1, Directives: a directive that is not supported is an invalid field
            if fields.directive != 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            Ok(IoCommand::Write { offset, len, fua: fields.fua })
        }
        io::COMPARE => transfer(sqe, ns, limits).map(|(offset, len, _)| IoCommand::Compare { offset, len }),
        io::VERIFY => {
            let (offset, len, _) = blocks(sqe, ns)?;
            //= NVM Command Set 1.1, Identify Controller data structure: a Verify beyond VSL is an invalid field
            if len > VERIFY_MAX {
                return Err(Status::INVALID_FIELD.dnr());
            }
            Ok(IoCommand::Verify { offset, len })
        }
        io::WRITE_ZEROES => {
            let (offset, len, fields) = blocks(sqe, ns)?;
            //= NVM Command Set 1.1, Identify Controller data structure: a Write Zeroes beyond WZSL is an invalid field
            if len > ZEROES_MAX {
                return Err(Status::INVALID_FIELD.dnr());
            }
            Ok(IoCommand::WriteZeroes { offset, len, fua: fields.fua, deallocate: fields.deallocate })
        }
        io::DATASET_MANAGEMENT => dataset(sqe),
        io::RESERVATION_REGISTER => {
            with_keys(sqe, RegisterFields::DATA, RegisterFields::of).map(IoCommand::Register)
        }
        io::RESERVATION_ACQUIRE => {
            with_keys(sqe, AcquireFields::DATA, AcquireFields::of).map(IoCommand::Acquire)
        }
        io::RESERVATION_RELEASE => {
            with_keys(sqe, ReleaseFields::DATA, ReleaseFields::of).map(IoCommand::Release)
        }
        io::RESERVATION_REPORT => report(sqe, limits),
        _ => Ok(IoCommand::Flush),
    }
}

fn check_access(ns: &NamespaceView, opcode: u8) -> Result<(), Status> {
    match ns.ana_state {
        AnaState::Optimized | AnaState::NonOptimized => {}
        //= NVMe Base 2.1, Asymmetric Namespace Access: states without access answer with a path status of their own
        AnaState::Inaccessible => return Err(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => return Err(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change | AnaState::Reserved(_) => return Err(Status::ANA_TRANSITION),
    }
    let writes = matches!(opcode, io::WRITE | io::WRITE_ZEROES | io::DATASET_MANAGEMENT);
    //= NVMe Base 2.1, Namespace Write Protection: commands that change a write protected namespace are refused
    if writes && !ns.is_writable() {
        return Err(Status::WRITE_PROTECTED.dnr());
    }
    let reserves =
        matches!(opcode, io::RESERVATION_REGISTER | io::RESERVATION_ACQUIRE | io::RESERVATION_RELEASE);
    //= NVMe Base 2.1, Status Code: a command that the host has no right to gets Operation Denied
    if ns.reader && reserves {
        return Err(Status::OPERATION_DENIED.dnr());
    }
    Ok(())
}

/// The range of a command, within the namespace.
#[inline]
fn blocks(sqe: &Sqe, ns: &NamespaceView) -> Result<(u64, u64, ReadWrite), Status> {
    let fields = ReadWrite::of(sqe);
    //= NVM Command Set 1.1, Protection Information: a namespace without it takes no PRACT and no PRCHK
    if fields.prinfo.0 != 0 || fields.storage_tag_check {
        return Err(Status::INVALID_PROTECTION_INFORMATION.dnr());
    }
    let (offset, len) = range(fields.slba, fields.blocks.into(), ns)?;
    Ok((offset, len, fields))
}

/// Logical blocks as bytes.
#[inline]
fn range(slba: u64, blocks: u64, ns: &NamespaceView) -> Result<(u64, u64), Status> {
    let end = slba.checked_add(blocks);
    //= NVM Command Set 1.1, LBA Out of Range: no block of the range is at or beyond NSZE
    if end.is_none_or(|end| end > ns.blocks) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr());
    }
    // Below the size of the namespace in bytes, which is one u64.
    Ok((slba << ns.block_shift, blocks << ns.block_shift))
}

/// The range of a command that moves data.
#[inline]
fn transfer(sqe: &Sqe, ns: &NamespaceView, limits: &Limits) -> Result<(u64, u32, ReadWrite), Status> {
    let fields = ReadWrite::of(sqe);
    let bytes = u64::from(fields.blocks) << ns.block_shift;
    //= NVMe Base 2.1, MDTS: a transfer beyond it is an invalid field
    if bytes > limits.max_transfer.into() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let (offset, len, fields) = blocks(sqe, ns)?;
    //= NVMe Base 2.1, Data SGL Length Invalid: the SGL is as long as the data (SGLS bit 18 is cleared)
    if u64::from(sqe.sgl.length()) != len {
        return Err(Status::DATA_SGL_LENGTH.dnr());
    }
    // At most MDTS, so it fits.
    Ok((offset, len as u32, fields))
}

/// Bytes of the longest list of ranges: 256 of them.
const DSM_LIST_MAX: usize = 256 * DsmRange::LEN;

fn dataset(sqe: &Sqe) -> Result<IoCommand, Status> {
    let DatasetManagement { ranges, deallocate } = DatasetManagement::of(sqe);
    //= NVM Command Set 1.1, Dataset Management command: the list has 16 bytes for each of NR + 1 ranges
    let list = usize::from(ranges) * DsmRange::LEN;
    // Linux always sends the longest list, whatever the number of ranges, for
    // the sake of drives that fetch all of it.
    if !(list..=DSM_LIST_MAX).contains(&(sqe.sgl.length() as usize)) {
        return Err(Status::DATA_SGL_LENGTH.dnr());
    }
    Ok(if deallocate { IoCommand::Deallocate { ranges } } else { IoCommand::Hint { ranges } })
}

/// A reservation command that takes so many bytes of keys.
fn with_keys<T>(sqe: &Sqe, data: usize, of: fn(&Sqe) -> Result<T, ReservedValue>) -> Result<T, Status> {
    //= NVMe Base 2.1, Reservation Register command: a reserved value of a field is an invalid field
    let fields = of(sqe).map_err(|ReservedValue| Status::INVALID_FIELD.dnr())?;
    if sqe.sgl.length() as usize != data {
        return Err(Status::DATA_SGL_LENGTH.dnr());
    }
    Ok(fields)
}

fn report(sqe: &Sqe, limits: &Limits) -> Result<IoCommand, Status> {
    //= NVMe Base 2.1, Reservation Report command: hosts with 128-bit identifiers ask for the extended structure
    if sqe.cdw11() & 1 == 0 {
        return Err(Status::HOST_ID_FORMAT.dnr());
    }
    //= NVMe Base 2.1, Reservation Report command: NUMD counts dwords from 0
    let len = (u64::from(sqe.cdw10()) + 1) * 4;
    if len > limits.max_transfer.into() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if u64::from(sqe.sgl.length()) != len {
        return Err(Status::DATA_SGL_LENGTH.dnr());
    }
    Ok(IoCommand::Report { len: len as u32 })
}

/// The first `ranges` of a Dataset Management list as (offset, length) in
/// bytes. All are checked before the first is given; empty ones are passed
/// over.
pub fn deallocate_ranges<'a>(
    data: &'a [u8],
    ranges: u16,
    ns: &'a NamespaceView,
) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status> {
    let list = <[DsmRange]>::ref_from_prefix_with_elems(data, ranges.into());
    let (list, _) = list.map_err(|_| Status::DATA_SGL_LENGTH.dnr())?;
    //= NVM Command Set 1.1, Dataset Management command: a range beyond the namespace gets LBA Out of Range
    for item in list {
        range(item.slba(), item.blocks().into(), ns)?;
    }
    let bytes = |item: &DsmRange| range(item.slba(), item.blocks().into(), ns).ok();
    Ok(list.iter().filter(|item| item.blocks() != 0).filter_map(bytes))
}
