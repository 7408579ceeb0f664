//! Changes of a volume: its name, its hosts.

use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::name::check_name;
use crate::pool::{Pool, TRIES, each};
use crate::record::{Member, TargetRecord, VolumeRecord, encode_volume};
use crate::spaces::{NamespaceId, shown};
use longhaul_catalog::{Expect, Txn};

impl Pool {
    /// Gives a volume another name.
    ///
    /// # Errors
    /// The name is taken.
    pub fn rename_volume(&self, name: &str, to: &str) -> Result<VolumeRecord> {
        check_name("volume", to)?;
        let (volume, at) = self.find(name)?;
        self.check_ready(&volume)?;
        let renamed = VolumeRecord { name: to.to_owned(), renames: volume.renames + 1, ..volume.clone() };
        let (old, new) = (keys::volume(self.uuid(), name), keys::volume(self.uuid(), to));
        let txn = Txn::new().expect(&new, Expect::Absent).expect(&old, Expect::Modified(at));
        let txn = txn.delete(&old).put(&new, &encode_volume(&renamed));
        let is_made = || Ok(self.look_up(to)?.is_some_and(|(found, _)| found.uuid == volume.uuid));
        if !self.host.commit(&txn, is_made)? {
            return Err(match self.look_up(to)? {
                Some(_) => Error::Exists { what: "volume", name: to.to_owned() },
                None => Error::Contended(self.record.name.clone()),
            });
        }
        // Where the old name stays, an import takes the newer one of another label.
        for why in self.relabel(&renamed)? {
            tracing::warn!("volume {to} still has its old name in a label: {why}");
        }
        Ok(renamed)
    }

    /// Sets the hosts that may use a volume, and returns the targets that do not know of it yet, with
    /// the reasons: there the former hosts stay.
    ///
    /// # Errors
    /// The volume is being made, another catalog has taken the pool over ([`Error::Superseded`]), or the
    /// catalog cannot be changed.
    pub fn set_hosts(&self, name: &str, hosts: &[String]) -> Result<(VolumeRecord, Vec<String>)> {
        self.change_hosts(name, |now| *now = hosts.to_vec())
    }

    /// The same for a change of the hosts that there are at that moment, which other hosts may change as well.
    ///
    /// # Errors
    /// As for [`Self::set_hosts`].
    pub fn change_hosts(
        &self,
        name: &str,
        change: impl Fn(&mut Vec<String>),
    ) -> Result<(VolumeRecord, Vec<String>)> {
        for _ in 0..TRIES {
            let (volume, at) = self.find(name)?;
            self.check_ready(&volume)?;
            self.check_managed_volume(&volume)?;
            let mut hosts = volume.hosts.clone();
            change(&mut hosts);
            let changed = VolumeRecord { hosts, ..volume };
            let key = keys::volume(self.uuid(), name);
            let txn = Txn::new().expect(&key, Expect::Modified(at)).put(&key, &encode_volume(&changed));
            let is_made = || Ok(self.look_up(name)?.is_some_and(|(found, _)| found == changed));
            if self.host.commit(&txn, is_made)? {
                let waiting = self.relabel(&changed)?;
                return Ok((changed, waiting));
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// Writes the labels of a volume's namespaces anew, and returns why that failed at targets.
    fn relabel(&self, volume: &VolumeRecord) -> Result<Vec<String>> {
        let targets = self.targets()?;
        let place = |index: usize, member: &Member, joining: bool| {
            Some((index, member.namespace?, &targets.get(&member.target)?.0, joining))
        };
        let moving = volume.moving.iter().filter_map(|moving| place(moving.index, &moving.to, true));
        let members = volume.members.iter().enumerate();
        let members = members.filter_map(|(index, member)| place(index, member, false));
        let members: Vec<(usize, NamespaceId, &TargetRecord, bool)> = members.chain(moving).collect();
        let relabelled = each(&members, |(index, namespace, target, joining)| {
            let label = Label::of(volume, &self.record, &target.domain, *index);
            let label = Label { joining: *joining, ..label };
            self.host.spaces.relabel(&target.address, *namespace, &label)
        });
        let failed = members.iter().zip(relabelled).filter_map(|((_, _, target, _), result)| {
            Some(format!("target {}: {}", shown(&target.address), result.err()?))
        });
        Ok(failed.collect())
    }
}
