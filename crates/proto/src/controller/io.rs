//! I/O commands of the NVM command set: from a submission queue entry to
//! bytes of a device.
//!
//! Everything here is a function of the command and of immutable views: the
//! I/O path takes no lock and allocates nothing. The type of the SGL
//! descriptor and the length of in-capsule data are the transport's to check;
//! that the SGL is as long as the data of the command is checked here.

use super::subsystem::{NamespaceView, SubsystemView};
use longhaul_wire::command::{DatasetManagement, DsmRange, NSID_ALL, ReadWrite, Sqe, io};
use longhaul_wire::completion::Status;
use longhaul_wire::log::AnaState;
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
        /// First byte.
        offset: u64,
        /// Length.
        len: u32,
        /// What is read is on the medium when the command completes.
        fua: bool,
    },
    /// Take data from the host.
    Write {
        /// First byte.
        offset: u64,
        /// Length.
        len: u32,
        /// The data is on the medium when the command completes.
        fua: bool,
    },
    /// Take data from the host and compare (Compare Failure if it differs).
    Compare {
        /// First byte.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Read without sending anything.
    Verify {
        /// First byte.
        offset: u64,
        /// Length: [`VERIFY_MAX`] at most.
        len: u64,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// First byte.
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
}

/// Parses an I/O command other than a Fabrics command. `ns` is the namespace
/// that its NSID names, if there is one.
#[inline]
pub fn parse(sqe: &Sqe, ns: Option<&NamespaceView>, limits: &Limits) -> Result<IoCommand, Status> {
    let known =
        [io::READ, io::WRITE, io::FLUSH, io::COMPARE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::VERIFY];
    //= NVMe Base 2.1, Status Code: an opcode that is not supported gets Invalid Command Opcode
    if !known.contains(&sqe.opcode) {
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
    if ns.read_only && writes {
        return Err(Status::WRITE_PROTECTED.dnr());
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
