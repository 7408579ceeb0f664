//! Identify.

use super::action::Action;
use super::event::AER_LIMIT;
use super::keep_alive::KAS;
use super::log::{self, ERROR_ENTRIES, TEMPERATURE_CRITICAL, TEMPERATURE_WARNING};
use super::property::VERSION;
use super::subsystem::{Content, NamespaceView, NvmContent, PAGE, SubsystemView};
use super::{ABORT_LIMIT, Controller, Instance, RESET_LIMIT, io, space};
use longhaul_wire::command::{self, NSID_ALL, SQE_LEN, Sqe};
use longhaul_wire::completion::{CQE_LEN, Status};
use longhaul_wire::fabrics::Version;
use longhaul_wire::identify::{
    CSI_NVM, IDENTIFY_LEN, Identifier, IdentifyController, IdentifyNamespace, IndependentNamespace,
    LbaFormat, NSID_LIST_MAX, NvmController, NvmNamespace, anacap, cmic, cns, cntrltype, ctratt, dctype,
    dlfeat, encode_descriptors, encode_nsid_list, lpa, nmic, nsattr, nsfeat, nstat, oacs, oaes, ofcs, oncs,
    sgls, vwc,
};
use longhaul_wire::{Ascii, nqn};

/// The version of the NVM Command Set Specification that is spoken.
const NVM_VERSION: Version = Version::new(1, 1, 0);

/// RTD3E and RTD3R in microseconds: hosts wait that long for a shutdown,
/// which flushes every namespace.
const SHUTDOWN_US: u32 = 30_000_000;

/// ANATT in seconds: a transition takes no longer.
const ANA_TRANSITION_S: u8 = 10;

/// IOCCSZ and IORCSZ count in units of 16 bytes.
const UNIT: usize = 16;

/// CNTID of Identify that stands for the controller that is asked.
const CNTID_THIS: u16 = 0xFFFF;

impl Controller {
    pub(super) fn identify(&self, sqe: &Sqe, subsystem: &SubsystemView) -> Action {
        if let Some(list) = space::controllers(sqe, subsystem) {
            return list;
        }
        match self.identify_data(sqe, subsystem) {
            Ok(data) => log::data(sqe, data),
            Err(status) => status.dnr().into(),
        }
    }

    fn identify_data(&self, sqe: &Sqe, subsystem: &SubsystemView) -> Result<Vec<u8>, Status> {
        let fields = command::Identify::of(sqe);
        if fields.cns == cns::CONTROLLER {
            return Ok(self.identify_controller(subsystem).encode());
        }
        //= NVMe Base 2.1, Discovery controllers: of Identify they answer Identify Controller only
        let nvm = subsystem.nvm().ok_or(Status::INVALID_FIELD)?;
        //= NVMe Base 2.1, Identify command: a command set that is not supported is an invalid field
        let by_command_set = [
            cns::CS_NAMESPACE,
            cns::CS_CONTROLLER,
            cns::CS_ACTIVE_NAMESPACES,
            cns::CS_ALLOCATED_NAMESPACES,
            cns::CS_ALLOCATED_NAMESPACE,
        ];
        if by_command_set.contains(&fields.cns) && fields.csi != CSI_NVM {
            return Err(Status::INVALID_FIELD);
        }
        match fields.cns {
            //= NVMe Base 2.1, Identify command: NSID FFFFFFFFh gets what all namespaces have in common, where they are managed
            cns::NAMESPACE if sqe.nsid() == NSID_ALL && nvm.space.is_some() => Ok(space::common().encode()),
            cns::NAMESPACE => of_namespace(nvm, sqe.nsid(), |ns| identify_namespace(ns).encode()),
            cns::CS_NAMESPACE => of_namespace(nvm, sqe.nsid(), |_| NvmNamespace::default().encode()),
            cns::INDEPENDENT_NAMESPACE => of_namespace(nvm, sqe.nsid(), |ns| independent(ns).encode()),
            cns::ACTIVE_NAMESPACES | cns::CS_ACTIVE_NAMESPACES => active_list(nvm, sqe.nsid()),
            cns::NAMESPACE_DESCRIPTORS => descriptors(nvm, sqe.nsid()),
            cns::CS_CONTROLLER => Ok(nvm_controller().encode()),
            cns::ALLOCATED_NAMESPACES | cns::CS_ALLOCATED_NAMESPACES => space::list(nvm, sqe.nsid()),
            cns::ALLOCATED_NAMESPACE => space::namespace(nvm, sqe.nsid()),
            cns::CS_ALLOCATED_NAMESPACE => {
                space::namespace(nvm, sqe.nsid()).map(|_| NvmNamespace::default().encode())
            }
            cns::COMMAND_SETS if fields.cntid == CNTID_THIS || fields.cntid == self.cntlid => {
                Ok(command_sets())
            }
            //= NVMe Base 2.1, Identify command: a CNS value that is not supported is an invalid field
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn identify_controller(&self, subsystem: &SubsystemView) -> IdentifyController {
        let mut id = IdentifyController {
            sn: Ascii::new(&subsystem.serial),
            mn: Ascii::new(&subsystem.model),
            fr: Ascii::new(&subsystem.firmware),
            mdts: (subsystem.mdts_bytes() / PAGE).ilog2() as u8,
            cntlid: self.cntlid,
            ver: VERSION.0,
            //= NVMe Base 2.1, Identify Controller: fabrics use host identifiers of 128 bits
            ctratt: ctratt::HOST_ID_128 | ctratt::TRAFFIC_KEEP_ALIVE,
            cntrltype: cntrltype::DISCOVERY,
            acl: ABORT_LIMIT - 1,
            aerl: AER_LIMIT as u8 - 1,
            lpa: lpa::EXTENDED,
            elpe: ERROR_ENTRIES as u8 - 1,
            kas: KAS,
            //= NVMe Base 2.1, Identify Controller: MAXCMD is mandatory over fabrics
            maxcmd: subsystem.max_queue_size,
            oaes: oaes::DISCOVERY_LOG_CHANGE,
            sgls: sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT,
            subnqn: nqn::to_field(&subsystem.nqn),
            //= NVMe-TCP 1.1, Identify Controller: ICDOFF is 0, responses have 16 bytes, a command one descriptor
            ioccsz: (SQE_LEN / UNIT) as u32,
            iorcsz: (CQE_LEN / UNIT) as u32,
            icdoff: 0,
            msdbd: 1,
            ..Default::default()
        };
        match &subsystem.content {
            Content::Nvm(nvm) => io_controller(&mut id, subsystem, nvm),
            //= NVMe Base 2.1, Identify Controller, DCTYPE: a central discovery controller says that it is one
            Content::Discovery(content) if content.registrars.is_some() => id.dctype = dctype::CENTRAL,
            Content::Discovery(_) => {}
        }
        if let Some(Instance { ciu, cirn }) = self.instance() {
            (id.ciu, id.cirn, id.ccrl) = (ciu, cirn, RESET_LIMIT);
            // CQT stays 0, not reported: there is no bound on the time that a device takes to end
            // its operations. The answer to Cross-Controller Reset waits for it instead.
        }
        id
    }
}

/// The size limits of commands that MDTS does not cover.
fn nvm_controller() -> NvmController {
    let pages = |bytes: u64| (bytes / u64::from(PAGE)).ilog2() as u8;
    NvmController {
        vsl: pages(io::VERIFY_MAX),
        wzsl: pages(io::ZEROES_MAX),
        // DMRL, DMRSL and DMSL are 0: Dataset Management has no limit (ONCS
        // bit 2 says so too), and its ranges are deallocated slice by slice.
        ver: NVM_VERSION.0,
        ..Default::default()
    }
}

/// RESCAP: all six types, and IEKEY as revision 1.3 has it; bit 0 says that reservations can
/// persist through a loss of power.
fn reservations(ns: &NamespaceView) -> u8 {
    0b1111_1110 | u8::from(ns.persistent_reservations)
}

/// What only an I/O controller has.
fn io_controller(id: &mut IdentifyController, subsystem: &SubsystemView, nvm: &NvmContent) {
    id.cntrltype = cntrltype::IO;
    id.cmic = cmic::MULTI_PORT | cmic::MULTI_CONTROLLER;
    id.oaes = oaes::NAMESPACE_ATTRIBUTE;
    id.rtd3r = SHUTDOWN_US;
    id.rtd3e = SHUTDOWN_US;
    // One firmware slot, read only.
    id.frmw = 1 << 1 | 1;
    id.lpa |= lpa::EFFECTS | lpa::SUPPORTED_PAGES;
    id.wctemp = TEMPERATURE_WARNING;
    id.cctemp = TEMPERATURE_CRITICAL;
    id.sqes = 0x66;
    id.cqes = 0x44;
    id.nn = nvm.max_nsid;
    id.mnan = nvm.max_nsid;
    id.oncs = oncs::COMPARE
        | oncs::DATASET_MANAGEMENT
        | oncs::WRITE_ZEROES
        | oncs::SAVE_SELECT
        | oncs::VERIFY
        | oncs::RESERVATIONS;
    // A host reads this once, when it connects, so it covers any namespace that may be added later;
    // CNS 08h says which namespaces have no cache.
    id.vwc = vwc::PRESENT | vwc::FLUSH_ALL;
    id.ioccsz = ((SQE_LEN + subsystem.in_capsule as usize) / UNIT) as u32;
    id.ofcs = ofcs::DISCONNECT;
    if let Some(space) = &nvm.space {
        id.oacs = oacs::NAMESPACE_MANAGEMENT;
        (id.tnvmcap, id.unvmcap) = (space.total, space.unallocated);
    }
    if nvm.ana.is_some() {
        id.cmic |= cmic::ANA;
        id.oaes |= oaes::ANA_CHANGE;
        id.anatt = ANA_TRANSITION_S;
        id.anacap = anacap::OPTIMIZED
            | anacap::NON_OPTIMIZED
            | anacap::INACCESSIBLE
            | anacap::PERSISTENT_LOSS
            | anacap::CHANGE
            | anacap::FIXED_GROUP;
        // As many groups as namespaces at most.
        id.anagrpmax = nvm.max_nsid;
        id.nanagrpid = nvm.max_nsid;
    }
}

/// The structure of an active namespace, or zeroes for an inactive one.
fn of_namespace(
    nvm: &NvmContent,
    nsid: u32,
    encode: impl FnOnce(&NamespaceView) -> Vec<u8>,
) -> Result<Vec<u8>, Status> {
    //= NVMe Base 2.1, Identify command: an NSID that is not valid gets Invalid Namespace or Format
    if nsid == 0 || nsid > nvm.max_nsid {
        return Err(Status::INVALID_NAMESPACE);
    }
    //= NVMe Base 2.1, Identify command: an inactive NSID gets a structure of zeroes
    Ok(nvm.namespace(nsid).map_or_else(|| vec![0; IDENTIFY_LEN], encode))
}

/// The active namespaces with an NSID greater than `after`.
fn active_list(nvm: &NvmContent, after: u32) -> Result<Vec<u8>, Status> {
    nsid_list(nvm.namespaces.iter().map(|ns| ns.nsid), after)
}

/// Those of `nsids` that are greater than `after`, as far as there is room.
pub(super) fn nsid_list(nsids: impl Iterator<Item = u32>, after: u32) -> Result<Vec<u8>, Status> {
    //= NVMe Base 2.1, Active Namespace ID list: FFFFFFFEh and FFFFFFFFh are not valid
    if after >= 0xFFFF_FFFE {
        return Err(Status::INVALID_NAMESPACE);
    }
    Ok(encode_nsid_list(nsids.filter(|&nsid| nsid > after).take(NSID_LIST_MAX)))
}

fn descriptors(nvm: &NvmContent, nsid: u32) -> Result<Vec<u8>, Status> {
    //= NVMe Base 2.1, Namespace Identification Descriptor list: the NSID is that of an active namespace
    let ns = nvm.namespace(nsid).ok_or(Status::INVALID_NAMESPACE)?;
    let mut list = Vec::with_capacity(3);
    if ns.nguid != [0; 16] {
        list.push(Identifier::Nguid(ns.nguid));
    }
    list.extend(ns.uuid.map(Identifier::Uuid));
    //= NVMe Base 2.1, Namespace Identification Descriptor list: the command set is always among them
    list.push(Identifier::Csi(CSI_NVM));
    Ok(encode_descriptors(&list))
}

/// Bytes as logical blocks counted from 0, for NPWG and the like.
fn zero_based(bytes: u32, ns: &NamespaceView) -> u16 {
    let blocks = (bytes >> ns.block_shift).max(1);
    u16::try_from(blocks - 1).unwrap_or(u16::MAX)
}

pub(super) fn identify_namespace(ns: &NamespaceView) -> IdentifyNamespace {
    let granularity = zero_based(ns.granularity, ns);
    let mut id = IdentifyNamespace {
        nsze: ns.blocks,
        ncap: ns.blocks,
        nuse: ns.blocks,
        nsfeat: nsfeat::OPTPERF,
        nmic: if ns.shared { nmic::SHARED } else { 0 },
        rescap: reservations(ns),
        npwg: granularity,
        npwa: granularity,
        npdg: granularity,
        npda: granularity,
        nows: zero_based(ns.optimal_io.max(ns.granularity), ns),
        nvmcap: u128::from(ns.blocks) << ns.block_shift,
        anagrpid: ns.ana_group,
        nsattr: if ns.is_writable() { 0 } else { nsattr::WRITE_PROTECTED },
        nguid: ns.nguid,
        ..Default::default()
    };
    if ns.discard {
        id.dlfeat |= dlfeat::WRITE_ZEROES_DEAC;
    }
    if ns.discard_zeroes {
        id.dlfeat |= dlfeat::READS_ZERO;
    }
    id.lbaf[0] = LbaFormat { metadata: 0, lbads: ns.block_shift, rp: 0 };
    id
}

fn independent(ns: &NamespaceView) -> IndependentNamespace {
    IndependentNamespace {
        nsfeat: if ns.volatile_cache { 0 } else { nsfeat::NO_WRITE_CACHE },
        nmic: if ns.shared { nmic::SHARED } else { 0 },
        rescap: reservations(ns),
        anagrpid: ns.ana_group,
        nsattr: if ns.is_writable() { 0 } else { nsattr::WRITE_PROTECTED },
        nstat: nstat::READY,
        ..Default::default()
    }
}

/// I/O Command Set data structure (CNS 1Ch): one combination, NVM alone.
fn command_sets() -> Vec<u8> {
    let mut out = vec![0; IDENTIFY_LEN];
    out[0] = 1 << CSI_NVM;
    out
}
