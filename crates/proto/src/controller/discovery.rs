//! The discovery log, and registrations with a central discovery controller.

use super::action::Action;
use super::subsystem::{Content, DiscoveryContent, SubsystemView};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use longhaul_wire::log::{
    DISCOVERY_HEADER_LEN, DiscoveryEntry, DiscoveryHeader, PORT_CNTLID_DYNAMIC, SubsystemType, adrfam,
    eflags, treq, trtype, tsas,
};
use longhaul_wire::registration::{DiscoveryInformation, Registration, RegistrationHeader};
use longhaul_wire::{Ascii, nqn};
use std::net::SocketAddr;

/// Entries of one registration at most. A kilobyte each, they fit into one transfer.
pub const REGISTRATION_ENTRIES_MAX: usize = 1000;

/// What a discovery entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryTarget {
    /// A subsystem with namespaces.
    Nvm,
    /// The discovery subsystem that is asked.
    ThisDiscovery,
    /// Another discovery subsystem.
    Referral,
}

/// An entry of the discovery log for a subsystem that listens on `addr`, which must be an address
/// that hosts can reach (not 0.0.0.0 or ::). `port_id` distinguishes the listeners of the
/// subsystem; `max_admin_entries` is the largest admin queue, 32 at least.
pub fn discovery_entry(
    subnqn: &str,
    target: DiscoveryTarget,
    addr: SocketAddr,
    port_id: u16,
    max_admin_entries: u16,
) -> DiscoveryEntry {
    let discovery = target != DiscoveryTarget::Nvm;
    DiscoveryEntry {
        trtype: trtype::TCP,
        adrfam: if addr.is_ipv4() { adrfam::IPV4 } else { adrfam::IPV6 },
        subtype: match target {
            DiscoveryTarget::Nvm => SubsystemType::Nvm,
            DiscoveryTarget::ThisDiscovery => SubsystemType::CurrentDiscovery,
            DiscoveryTarget::Referral => SubsystemType::Referral,
        },
        // Not "secure channel not required": hosts take that value for an
        // offer and connect with TLS, whether they have a key or not.
        treq: treq::NO_FLOW_CONTROL,
        portid: port_id,
        cntlid: PORT_CNTLID_DYNAMIC,
        //= NVMe Base 2.1, Discovery Log Page Entry: admin queues have room for 32 commands at least
        asqsz: max_admin_entries.max(32),
        //= NVMe Base 2.1, Discovery Log Page Entry: EPCSD says that a discovery controller keeps connections open
        eflags: if discovery { eflags::PERSISTENT } else { 0 },
        trsvcid: Ascii::new(&addr.port().to_string()),
        subnqn: nqn::to_field(subnqn),
        traddr: Ascii::new(&addr.ip().to_string()),
        tsas: tsas::NONE,
    }
}

/// The log page as the host `hostnqn` may see it.
pub(super) fn log(content: &DiscoveryContent, hostnqn: &str) -> Vec<u8> {
    //= NVMe Base 2.1, Discovery log page: a host is told only of what it may connect to
    let seen: Vec<_> = content.records.iter().filter(|record| record.hosts.allows(hostnqn)).collect();
    let header = DiscoveryHeader { genctr: content.generation, numrec: seen.len() as u64, recfmt: 0 };
    let mut out = vec![0; DISCOVERY_HEADER_LEN + seen.len() * DiscoveryEntry::LEN];
    let (head, entries) = out.split_at_mut(DISCOVERY_HEADER_LEN);
    header.encode_into(head);
    for (record, slot) in seen.iter().zip(entries.chunks_exact_mut(DiscoveryEntry::LEN)) {
        record.entry.encode_into(slot);
    }
    out
}

/// What a command that registers, updates a registration or takes it back leads to.
pub(super) fn register(sqe: &Sqe, hostnqn: &str, subsystem: &SubsystemView) -> Action {
    //= NVMe Base 2.1, Discovery Information Management command: it is one of central discovery controllers
    let Content::Discovery(DiscoveryContent { registrars: Some(registrars), .. }) = &subsystem.content else {
        return Status::INVALID_OPCODE.dnr().into();
    };
    if !registrars.allows(hostnqn) {
        return Status::OPERATION_DENIED.dnr().into();
    }
    let fields = DiscoveryInformation::of(sqe);
    let most = Registration::len_with(REGISTRATION_ENTRIES_MAX);
    match (fields.task, usize::try_from(fields.len)) {
        (Some(task), Ok(len)) if (RegistrationHeader::LEN..=most).contains(&len) => {
            Action::Register { task, len }
        }
        (Some(_), Ok(len)) if len > most => Status::INSUFFICIENT_DISCOVERY_RESOURCES.dnr().into(),
        _ => Status::INVALID_FIELD.dnr().into(),
    }
}

/// The information in the data of such a command, of the host that has sent it.
///
/// # Errors
/// The status that completes the command: the data contradicts itself, or is that of another entity.
pub fn parse_registration(data: &[u8], hostnqn: &str) -> Result<Registration, Status> {
    let registration = Registration::decode(data).ok_or(Status::INVALID_FIELD)?;
    //= NVMe Base 2.1, Discovery Information Management command: the entity identifier of a host is its NQN
    match nqn::from_field(&registration.header.eid) {
        Ok(eid) if eid == hostnqn => Ok(registration),
        _ => Err(Status::INVALID_DISCOVERY_INFORMATION),
    }
}
