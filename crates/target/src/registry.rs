//! What has registered with a central discovery controller.
//!
//! A registration belongs to the association that it came on, and ends with it: a target that is lost is not
//! shown for longer than its keep-alive timeout. Invariants, of `entities` (asserted where they change):
//! - no association has more than [`REGISTRATION_ENTRIES_MAX`] entries, and all together no more than
//!   [`ENTRIES_MAX`];
//! - an entry has an address: one that was registered without has that of the peer.

use crate::subsystem::lock;
use longhaul_proto::controller::{DiscoveryRecord, HostAccess, REGISTRATION_ENTRIES_MAX};
use longhaul_wire::Ascii;
use longhaul_wire::completion::Status;
use longhaul_wire::log::{DiscoveryEntry, SubsystemType, adrfam};
use longhaul_wire::nqn;
use longhaul_wire::registration::{Registration, RegistrationTask, etype};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;

/// Entries of all registrations together at most: 16 MiB of them.
const ENTRIES_MAX: usize = 16_384;

/// Registrations, by the controller of their association.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entities: Mutex<BTreeMap<u16, Vec<DiscoveryEntry>>>,
}

impl Registry {
    /// Carries out the task of a registration that came from `peer` on the association of the controller
    /// `cntlid`. Whether the discovery log has changed.
    ///
    /// # Errors
    /// The status that completes the command: an entry is not valid, or there are too many.
    pub(crate) fn carry_out(
        &self,
        cntlid: u16,
        peer: Option<IpAddr>,
        task: RegistrationTask,
        registration: Registration,
    ) -> Result<bool, Status> {
        if task == RegistrationTask::Deregister {
            return Ok(self.forget(cntlid));
        }
        let entries = match registration.header.etype {
            // Hosts register too: where they are is of no use to other hosts, and not listed.
            etype::HOST => Vec::new(),
            etype::DIRECT | etype::CENTRAL => registration
                .entries
                .into_iter()
                .map(|entry| listed(entry, peer))
                .collect::<Result<Vec<_>, _>>()?,
            _ => return Err(Status::INVALID_DISCOVERY_INFORMATION),
        };
        let mut entities = lock(&self.entities);
        let others: usize =
            entities.iter().filter(|(other, _)| **other != cntlid).map(|(_, entries)| entries.len()).sum();
        if entries.len() > REGISTRATION_ENTRIES_MAX || others + entries.len() > ENTRIES_MAX {
            return Err(Status::INSUFFICIENT_DISCOVERY_RESOURCES);
        }
        assert!(entries.iter().all(|entry| !entry.traddr.text().is_empty()), "an entry without an address");
        let changed = entities.get(&cntlid).map_or(!entries.is_empty(), |before| *before != entries);
        entities.insert(cntlid, entries);
        Ok(changed)
    }

    /// Forgets what has registered on the association of a controller. Whether the discovery log has changed.
    pub(crate) fn forget(&self, cntlid: u16) -> bool {
        lock(&self.entities).remove(&cntlid).is_some_and(|entries| !entries.is_empty())
    }

    /// The records of the discovery log; `hosts` says which hosts see the subsystem of an NQN.
    pub(crate) fn records(&self, hosts: impl Fn(&str) -> HostAccess) -> Vec<DiscoveryRecord> {
        let entities = lock(&self.entities);
        let entries = entities.values().flatten().cloned();
        let record = |entry: DiscoveryEntry| DiscoveryRecord {
            hosts: hosts(nqn::from_field(&entry.subnqn).unwrap_or_default()),
            entry,
        };
        entries.map(record).collect()
    }
}

/// The entry as it is listed.
fn listed(entry: DiscoveryEntry, peer: Option<IpAddr>) -> Result<DiscoveryEntry, Status> {
    nqn::from_field(&entry.subnqn).map_err(|_| Status::INVALID_DISCOVERY_INFORMATION)?;
    let subtype = match entry.subtype {
        SubsystemType::Nvm => SubsystemType::Nvm,
        // What is the current discovery subsystem to that controller is another one to the hosts of this one.
        SubsystemType::CurrentDiscovery | SubsystemType::Referral => SubsystemType::Referral,
        SubsystemType::Reserved(_) => return Err(Status::INVALID_DISCOVERY_INFORMATION),
    };
    let entry = DiscoveryEntry { subtype, ..entry };
    if !entry.traddr.text().is_empty() {
        return Ok(entry);
    }
    // Nothing else reaches what is known by a name of another transport.
    let peer = peer.ok_or(Status::INVALID_DISCOVERY_INFORMATION)?.to_canonical();
    let family = if peer.is_ipv4() { adrfam::IPV4 } else { adrfam::IPV6 };
    Ok(DiscoveryEntry { adrfam: family, traddr: Ascii::new(&peer.to_string()), ..entry })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    fn entry(subtype: SubsystemType, name: &str, traddr: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            subtype,
            subnqn: nqn::to_field(name),
            traddr: Ascii::new(traddr),
            ..DiscoveryEntry::default()
        }
    }

    fn of(entries: Vec<DiscoveryEntry>) -> Registration {
        Registration::of_direct(nqn::to_field("nqn.2014-08.org.example:dtn1"), "dtn1", "1", entries)
    }

    fn named(n: usize) -> Vec<DiscoveryEntry> {
        let name = |i| format!("nqn.2014-08.org.example:{i}");
        (0..n).map(|i| entry(SubsystemType::Nvm, &name(i), "192.0.2.1")).collect()
    }

    fn log(registry: &Registry) -> Vec<(SubsystemType, String, String)> {
        let records = registry.records(|_| HostAccess::Any).into_iter().map(|record| record.entry);
        let name = |entry: &DiscoveryEntry| nqn::from_field(&entry.subnqn).expect("an NQN").to_owned();
        records.map(|entry| (entry.subtype, name(&entry), entry.traddr.text().into_owned())).collect()
    }

    #[test]
    fn a_registration_is_listed_until_it_is_taken_back_or_its_association_ends() {
        let registry = Registry::default();
        let own = entry(SubsystemType::CurrentDiscovery, "nqn.2014-08.org.nvmexpress.discovery", "");
        let a = entry(SubsystemType::Nvm, "nqn.2014-08.org.example:a", "192.0.2.1");
        let register = |cntlid, task, entries| registry.carry_out(cntlid, Some(PEER), task, of(entries));
        assert_eq!(register(1, RegistrationTask::Register, vec![own.clone(), a.clone()]), Ok(true));
        let referral =
            (SubsystemType::Referral, "nqn.2014-08.org.nvmexpress.discovery".into(), PEER.to_string());
        let listed = (SubsystemType::Nvm, "nqn.2014-08.org.example:a".into(), "192.0.2.1".into());
        assert_eq!(log(&registry), [referral.clone(), listed.clone()]);
        assert_eq!(
            register(1, RegistrationTask::Update, vec![own.clone(), a.clone()]),
            Ok(false),
            "the same"
        );
        assert_eq!(register(2, RegistrationTask::Register, vec![a.clone()]), Ok(true));
        assert_eq!(register(1, RegistrationTask::Update, vec![own]), Ok(true));
        assert_eq!(log(&registry), [referral, listed.clone()]);
        assert_eq!(register(1, RegistrationTask::Deregister, Vec::new()), Ok(true));
        assert_eq!(log(&registry), [listed]);
        assert!(registry.forget(2) && !registry.forget(2) && log(&registry).is_empty());
    }

    #[test]
    fn hosts_are_counted_and_not_listed() {
        let registry = Registry::default();
        let mut host = of(named(1));
        host.header.etype = etype::HOST;
        assert_eq!(registry.carry_out(1, Some(PEER), RegistrationTask::Register, host), Ok(false));
        assert_eq!((log(&registry).len(), lock(&registry.entities).len()), (0, 1));
    }

    #[test]
    fn what_is_not_valid_changes_nothing() {
        let registry = Registry::default();
        registry.carry_out(1, Some(PEER), RegistrationTask::Register, of(named(1))).expect("registered");
        let reserved = entry(SubsystemType::Reserved(9), "nqn.2014-08.org.example:a", "192.0.2.1");
        let unnamed = entry(SubsystemType::Nvm, "", "192.0.2.1");
        let mut kind = of(named(2));
        kind.header.etype = 9;
        for bad in [of(vec![reserved]), of(vec![unnamed]), kind] {
            let refused = registry.carry_out(1, Some(PEER), RegistrationTask::Update, bad);
            assert_eq!(refused, Err(Status::INVALID_DISCOVERY_INFORMATION));
        }
        assert_eq!(log(&registry).len(), 1);
    }

    #[test]
    fn entries_are_bounded_and_those_of_an_update_count_once() {
        let registry = Registry::default();
        let register =
            |cntlid, n| registry.carry_out(cntlid, Some(PEER), RegistrationTask::Register, of(named(n)));
        assert_eq!(register(1, REGISTRATION_ENTRIES_MAX + 1), Err(Status::INSUFFICIENT_DISCOVERY_RESOURCES));
        let full = u16::try_from(ENTRIES_MAX / REGISTRATION_ENTRIES_MAX).expect("few");
        for cntlid in 1..=full {
            assert_eq!(register(cntlid, REGISTRATION_ENTRIES_MAX), Ok(true));
        }
        assert_eq!(register(99, REGISTRATION_ENTRIES_MAX), Err(Status::INSUFFICIENT_DISCOVERY_RESOURCES));
        assert_eq!(register(1, REGISTRATION_ENTRIES_MAX), Ok(false));
        assert!(registry.forget(1));
        assert_eq!(register(99, REGISTRATION_ENTRIES_MAX), Ok(true));
    }
}
