//! Reads the configuration of a target again, and applies it while the target runs.
//!
//! Invariants:
//! - a configuration is applied as a whole or not at all: what can fail comes before the change of the
//!   target, which is one;
//! - a configuration that is not applied changes nothing, also not what the next one is compared with;
//! - a setting that needs a restart keeps no other one from being applied.

use super::changes::{ExportChanges, HOST_LISTS, KeptExport, SettingChanges};
use super::exports::{self, OpenExport, Taken, host_lists};
use super::serving::Serving;
use crate::audit::{AuditLog, AuditRecord};
use crate::cli::Verb;
use crate::config::{self, VerbValues};
use crate::events::{
    AuditNotReloaded, AuditReloaded, ExportAudited, ExportChanged, ExportFields, ExportInUse, ExportRemoved,
    NotReloaded, Reloaded,
};
use crate::exit::{Exit, Failure};
use crate::export::Export;
use crate::hosts::{HostNames, host_rates};
use crate::output::Output;
use crate::rpc::{RpcError, RpcResult};
use longhaul_target::{Applied, ChangeError, Error, InUse, TargetChanges, TargetState};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};

/// The settings of a target that runs, for the next reload.
pub(super) struct Reloader<'scope, 'env> {
    pub(super) serving: Serving<'scope, 'env>,
    /// The settings in force.
    pub(super) values: VerbValues,
    pub(super) hosts: HostNames,
    pub(super) state: &'env TargetState,
    pub(super) audit: Option<AuditLog>,
    pub(super) output: Output,
}

/// Why a configuration is not applied.
struct Refusal {
    failure: Failure,
    in_use: Vec<ExportInUse>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal { failure, in_use: Vec::new() }
    }
}

/// The exports that are added, and those that stay with their new options.
type OpenedExports = (Vec<OpenExport>, Vec<(KeptExport, Export)>);

/// A file that is to be longer.
struct GrowingFile {
    file: File,
    /// Its length in bytes now.
    before: u64,
    size: u64,
    /// Export and path, for messages.
    what: String,
}

/// A configuration that was applied.
struct Done {
    added: Vec<(ExportFields, HostNames)>,
    removed: Vec<ExportRemoved>,
    changed: Vec<(ExportChanged, HostNames)>,
    settings: SettingChanges,
    applied: Applied,
}

impl Reloader<'_, '_> {
    /// Reads the configuration again, applies it, and reports what has changed, or why nothing has. With
    /// `force`, hosts may lose what they use. The result is what the control socket answers.
    pub(super) fn reload(&mut self, force: bool) -> RpcResult {
        match self.apply(force) {
            Ok(done) => Ok(self.report(done, force)),
            Err(refusal) => Err(self.report_refusal(refusal)),
        }
    }

    fn apply(&mut self, force: bool) -> Result<Done, Refusal> {
        let (cli, values) = config::read_again()?;
        let Verb::Target(args) = cli.verb else {
            return Err(Failure::failed("the command line is not that of a target").into());
        };
        let target = self.serving.target;
        let (hosts, host_rates) = (args.hosts()?, host_rates(&args.host_rate).map_err(Failure::usage)?);
        let settings = SettingChanges::between(&self.values, &values);
        let served: Vec<_> =
            self.serving.exports.iter().map(|served| (&*served.export, served.uuid)).collect();
        let changes = ExportChanges::between(&served, &args.export).map_err(Failure::usage)?;
        let (opened, kept) = self.open(args.export, &changes)?;
        let added = opened.iter().map(|open| open.prepare(target, self.state)).collect::<Result<_, _>>()?;
        let growing = kept.iter().map(|(kept, export)| self.growing(kept, export));
        let growing = growing.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        let gone = changes.removed.iter().map(|&place| &self.serving.exports[place]);
        let replaced = kept.iter().filter(|(kept, _)| kept.filters).filter_map(|(kept, export)| {
            let served = &self.serving.exports[kept.served];
            let device = export.filtered(served.bare.clone()?);
            Some((served.nqn.clone(), served.nsid, device))
        });
        let stays = kept.iter().map(|(kept, export)| (export, &*self.serving.exports[kept.served].nqn));
        let comes = opened.iter().map(|open| (&*open.export, &*open.nqn));
        let live = |key: &str| settings.live.iter().any(|live| live == key);
        let applied = target.change(TargetChanges {
            removed: gone.map(|served| (served.nqn.clone(), served.nsid)).collect(),
            replaced: replaced.collect(),
            added,
            hosts: Some(host_lists(&hosts, stays.chain(comes))?),
            host_rates: Some(host_rates),
            max_connections: live("max-connections").then_some(args.max_connections as usize),
            last_step: Some(Box::new(|| grow(growing))),
            force,
        });
        let applied = applied.map_err(|e| self.refusal(e))?;
        self.values = settings.applied(&self.values, &values);
        self.hosts = hosts;
        Ok(self.take_over(changes, kept, opened, settings, applied))
    }

    /// Opens the devices of the exports that are added; returns them, and those that stay with their new
    /// options.
    fn open(&self, after: Vec<Export>, changes: &ExportChanges) -> Result<OpenedExports, Failure> {
        let names: Vec<String> = after.iter().map(|export| export.name.clone()).collect();
        let mut after: BTreeMap<usize, Export> = after.into_iter().enumerate().collect();
        let mut added: Vec<Export> = changes.added.iter().filter_map(|place| after.remove(place)).collect();
        let kept = changes.kept.iter().filter_map(|kept| {
            let served = &self.serving.exports[kept.served];
            Some((kept.clone(), after.remove(&kept.after)?.identified_as(&served.export)))
        });
        let kept: Vec<(KeptExport, Export)> = kept.collect();
        exports::identify(&mut added, &names, self.serving.opener)?;
        let mut taken = Taken::default();
        for (kept, _) in &kept {
            let served = &self.serving.exports[kept.served];
            taken.nsids.entry(served.nqn.clone()).or_default().insert(served.nsid);
            taken.served.push((&served.export.name, served.uuid, served.place.as_ref()));
        }
        Ok((exports::open(added, self.serving.opener, self.state, taken)?, kept))
    }

    /// Opens the file of an export that is to be longer, if it is to be.
    fn growing(&self, kept: &KeptExport, export: &Export) -> Result<Option<GrowingFile>, Failure> {
        let served = &self.serving.exports[kept.served];
        let (Some(size), Some(path), Some(place)) = (kept.size, export.path(), &served.place) else {
            return Ok(None);
        };
        let what = format!("export {}: {}", export.name, path.display());
        let failed = |why: &dyn std::fmt::Display| Failure::failed(not_grown(&what, size, why));
        if export.is_read_only() {
            return Err(failed(&"the export is read-only (ro): leave out size="));
        }
        if !place.is_there()? {
            return Err(failed(&"another file is there now: put the one that is served back"));
        }
        let file = OpenOptions::new().write(true).open(path).map_err(|e| failed(&e))?;
        let before = file.metadata().map_err(|e| failed(&e))?.len();
        Ok((before < size).then_some(GrowingFile { file, before, size, what }))
    }

    /// The exports are now those of the configuration.
    fn take_over(
        &mut self,
        changes: ExportChanges,
        kept: Vec<(KeptExport, Export)>,
        opened: Vec<OpenExport>,
        settings: SettingChanges,
        applied: Applied,
    ) -> Done {
        let mut changed = Vec::new();
        for (kept, export) in kept {
            let served = &mut self.serving.exports[kept.served];
            if !kept.options.is_empty() {
                let options = kept.options.iter().map(|option| (*option).to_owned()).collect();
                let event = ExportChanged {
                    name: export.name.clone(),
                    nqn: served.nqn.clone(),
                    nsid: served.nsid,
                    uuid: served.uuid.to_string(),
                    options,
                };
                changed.push((event, export.hosts.clone()));
            }
            served.export = export.into();
        }
        let mut removed = Vec::new();
        for place in changes.removed.into_iter().rev() {
            let served = self.serving.exports.remove(place);
            removed.push(ExportRemoved {
                name: served.export.name.clone(),
                nqn: served.nqn.clone(),
                nsid: served.nsid,
                uuid: served.uuid.to_string(),
            });
            served.end().close();
        }
        removed.reverse();
        let mut added = Vec::new();
        for (open, &nsid) in opened.into_iter().zip(&applied.nsids) {
            let alone = self.serving.target.nsids(&open.nqn).len() == 1;
            let fields = open.fields(self.serving.target, nsid, alone);
            added.push((fields, open.export.hosts.clone()));
            self.serving.add(open, nsid);
        }
        Done { added, removed, changed, settings, applied }
    }

    /// The names of the exports of some namespaces; of all of a subsystem without any.
    fn names(&self, nqn: &str, nsids: &[u32]) -> String {
        let of = self.serving.exports.iter().filter(|served| served.nqn == nqn);
        let of = of.filter(|served| nsids.is_empty() || nsids.contains(&served.nsid));
        let names: BTreeSet<&str> = of.map(|served| &*served.export.name).collect();
        if names.is_empty() { nqn.to_owned() } else { names.into_iter().collect::<Vec<_>>().join(", ") }
    }

    fn refusal(&self, e: ChangeError) -> Refusal {
        let in_use = match e {
            ChangeError::InUse(in_use) => in_use,
            ChangeError::Export(e) => return Failure::from(e).into(),
        };
        let sentence = |InUse { nqn, nsids, hosts }: &InUse| {
            let names = self.names(nqn, nsids);
            let hosts = hosts.iter().map(|host| if host.is_empty() { "a host without a name" } else { host });
            let hosts = hosts.collect::<Vec<_>>().join(", ");
            match nsids.is_empty() {
                true => format!("{hosts} would not be allowed to use {names} as now, and is connected"),
                false => format!("{names} would be removed, and is in use by {hosts}"),
            }
        };
        let sentences: Vec<String> = in_use.iter().map(sentence).collect();
        let message = format!(
            "{}. Disconnect these hosts and reload, or send SIGUSR1 to have them lose it (systemctl kill \
             --signal=SIGUSR1 longhaul-target)",
            sentences.join("; ")
        );
        let events = in_use.into_iter().map(|InUse { nqn, nsids, hosts }| ExportInUse {
            name: self.names(&nqn, &nsids),
            nqn,
            hosts,
            removed: !nsids.is_empty(),
        });
        Refusal { failure: Failure::new(Exit::Refused, message), in_use: events.collect() }
    }

    fn report(&self, done: Done, forced: bool) -> Value {
        let Done { added, removed, changed, settings, applied } = done;
        let SettingChanges { live, restart } = settings;
        for fault in &applied.faults {
            tracing::error!("{fault}");
        }
        let mut said = Vec::new();
        let list = |names: Vec<&str>| names.join(", ");
        let mut say = |what: &str, names: Vec<&str>| {
            if !names.is_empty() {
                said.push(format!("{what} {}", list(names)));
            }
        };
        say("added", added.iter().map(|(export, _)| &*export.short).collect());
        say("removed", removed.iter().map(|export| &*export.name).collect());
        let options = |export: &ExportChanged| format!("{} ({})", export.name, export.options.join(", "));
        let texts: Vec<String> = changed.iter().map(|(export, _)| options(export)).collect();
        say("changed", texts.iter().map(String::as_str).collect());
        say("set", live.iter().map(String::as_str).collect());
        let lost: BTreeSet<&str> = applied.lost.values().flatten().map(String::as_str).collect();
        say("ended what was in use by", lost.iter().copied().collect());
        let said = if said.is_empty() { "nothing has changed".to_owned() } else { said.join("; ") };
        self.output.note(format_args!("longhaul: configuration read again: {said}"));
        for key in &restart {
            self.output.note(format_args!("longhaul: {key} has changed: restart the target to apply it"));
        }
        let hosts: Vec<String> = lost.into_iter().map(str::to_owned).collect();
        if let Some(audit) = &self.audit {
            for (export, hosts) in &added {
                let at = (&*export.name, &*export.nqn, export.nsid, &*export.uuid);
                audit.record(audited("add", at, &[], hosts));
            }
            for export in &removed {
                let at = (&*export.name, &*export.nqn, export.nsid, &*export.uuid);
                audit.record(audited("remove", at, &[], &HostNames::default()));
            }
            for (export, hosts) in &changed {
                let at = (&*export.name, &*export.nqn, export.nsid, &*export.uuid);
                audit.record(audited("change", at, &export.options, hosts));
            }
            let is_live = live.iter().any(|key| HOST_LISTS.contains(&key.as_str()));
            let lists = if is_live { self.hosts.clone() } else { HostNames::default() };
            audit.record(AuditRecord::Reloaded(AuditReloaded {
                forced,
                settings: live.clone(),
                hosts: lists.writers,
                read_only_hosts: lists.readers,
                lost: hosts.clone(),
            }));
        }
        let event = Reloaded {
            forced,
            added: added.into_iter().map(|(export, _)| export).collect(),
            removed,
            changed: changed.into_iter().map(|(export, _)| export).collect(),
            settings: live,
            restart,
            lost: hosts,
        };
        self.output.event(&event);
        let mut answer = serde_json::to_value(event).unwrap_or_default();
        answer["text"] = said.into();
        answer
    }

    fn report_refusal(&self, refusal: Refusal) -> RpcError {
        let Refusal { failure: Failure { message, exit, .. }, in_use } = refusal;
        self.output.note(format_args!(
            "longhaul: the configuration is not applied, and nothing has changed: {message}"
        ));
        if let Some(audit) = &self.audit {
            audit.record(AuditRecord::NotReloaded(AuditNotReloaded { error: message.clone() }));
        }
        let data =
            serde_json::to_value(&in_use).map(|in_use| json!({ "in_use": in_use })).unwrap_or_default();
        self.output.event(&NotReloaded { message: message.clone(), in_use });
        RpcError { code: exit as i64, message, data }
    }
}

/// Makes files longer: all of them, or none. Hosts see nothing of it before the devices are asked for their
/// sizes.
fn grow(files: Vec<GrowingFile>) -> Result<(), Error> {
    for (at, GrowingFile { file, size, what, .. }) in files.iter().enumerate() {
        let Err(e) = file.set_len(*size) else { continue };
        for GrowingFile { file, before, size, what } in &files[..at] {
            if let Err(e) = file.set_len(*before) {
                tracing::warn!(
                    "{what} has {size} bytes now, and cannot be made {before} bytes long again: {e}"
                );
            }
        }
        return Err(Error::Export(not_grown(what, *size, &e)));
    }
    Ok(())
}

fn not_grown(what: &str, size: u64, why: &dyn std::fmt::Display) -> String {
    format!("{what} cannot be made {size} bytes long: {why}")
}

/// The line of an export, which has a name, an NQN, an identifier and a UUID.
fn audited(
    action: &'static str,
    (name, nqn, nsid, uuid): (&str, &str, u32, &str),
    options: &[String],
    hosts: &HostNames,
) -> AuditRecord {
    AuditRecord::Export(ExportAudited {
        action,
        name: name.to_owned(),
        subsystem: nqn.to_owned(),
        nsid,
        uuid: uuid.to_owned(),
        options: options.to_vec(),
        hosts: hosts.writers.clone(),
        read_only_hosts: hosts.readers.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_made_longer_or_none() {
        let files = || [tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file")];
        let grown = |sizes: [u64; 2]| {
            let files = files();
            files.iter().for_each(|file| file.set_len(4096).expect("set"));
            let growing = files.iter().zip(sizes).map(|(file, size)| {
                let file = file.try_clone().expect("a descriptor");
                GrowingFile { file, before: 4096, size, what: format!("export of {size}") }
            });
            let grown = grow(growing.collect());
            (grown, files.map(|file| file.metadata().expect("open").len()))
        };
        let (result, lengths) = grown([8192, 16384]);
        assert!(result.is_ok() && lengths == [8192, 16384], "{result:?}");
        // No file system has a file of this size.
        let (result, lengths) = grown([8192, u64::MAX]);
        let e = result.expect_err("too long").to_string();
        assert!(e.contains("export of 18446744073709551615 cannot be made"), "{e}");
        assert_eq!(lengths, [4096, 4096]);
    }
}
