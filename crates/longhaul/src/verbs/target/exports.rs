//! The devices of exports, from before they are opened until they are served.

use super::listen::At;
use super::standby::Standby;
use crate::events::ExportFields;
use crate::exit::Failure;
use crate::export::Export;
use crate::hosts::HostNames;
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_device::{Device, Opener};
use longhaul_target::{HostLists, MediumSpec, PreparedExport, ServedMedium, Target, TargetState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Finds out the identity of volumes that are alone in their subsystem. `names` are those of all exports.
pub(super) fn identify(exports: &mut [Export], names: &[String], opener: &Opener) -> Result<(), Failure> {
    let alone = |name: &str| names.iter().filter(|other| *other == name).count() == 1;
    exports.iter_mut().filter(|export| alone(&export.name)).try_for_each(|export| export.identify(opener))
}

/// Where the device of an export is.
pub(super) enum ExportSource {
    /// It is open in this process.
    Here(Device),
    /// It is an array that another host may run.
    Elsewhere(Box<Standby>),
}

impl ExportSource {
    fn info(&self) -> DeviceInfo {
        match self {
            ExportSource::Here(device) => device.block().info(),
            ExportSource::Elsewhere(standby) => standby.device.info.clone(),
        }
    }
}

/// An export whose device is open, or watched.
pub(super) struct OpenExport {
    pub(super) export: Arc<Export>,
    pub(super) nqn: String,
    pub(super) uuid: Uuid,
    pub(super) source: ExportSource,
    /// Of a local device, the back end without filters.
    pub(super) bare: Option<Arc<dyn BlockDevice>>,
    /// The medium, for a file or block device.
    pub(super) place: Option<ServedMedium>,
    /// Its content outlives the target, and so do reservations that hosts make persistent.
    persistent: bool,
}

/// What other exports have already: the identifiers of a subsystem, and the media.
#[derive(Default)]
pub(super) struct Taken<'a> {
    pub(super) nsids: BTreeMap<String, BTreeSet<u32>>,
    /// Name, UUID and medium of exports that are served.
    pub(super) served: Vec<(&'a str, Uuid, Option<&'a ServedMedium>)>,
}

impl Taken<'_> {
    /// The identifier that the next namespace of a subsystem gets.
    fn next(&mut self, nqn: &str) -> u32 {
        let taken = self.nsids.entry(nqn.to_owned()).or_default();
        let nsid = (1..).find(|nsid| !taken.contains(nsid)).unwrap_or_default();
        taken.insert(nsid);
        nsid
    }
}

/// Opens the devices of exports and determines their UUIDs. All exports are checked before
/// any medium is created or changed.
pub(super) fn open(
    exports: Vec<Export>,
    opener: &Opener,
    state: &TargetState,
    mut taken: Taken<'_>,
) -> Result<Vec<OpenExport>, Failure> {
    let mut checked = Vec::new();
    for export in exports {
        let nqn = export.nqn(state);
        // Namespaces of a subsystem are numbered in the order of its exports.
        let nsid = taken.next(&nqn);
        let medium = export.path().map(|path| MediumSpec {
            name: &export.name,
            nqn: &nqn,
            nsid,
            path,
            uuid: export.uuid,
            create: export.create,
            read_only: export.is_read_only(),
        });
        // Memory has no medium on this host, and superblocks identify an array.
        let place = medium.map(|medium| state.check_medium(&medium)).transpose()?;
        checked.push((export, nqn, place));
    }
    let mut opened: Vec<OpenExport> = Vec::new();
    for (export, nqn, mut place) in checked {
        let (source, bare) = if export.standby {
            (ExportSource::Elsewhere(Box::new(Standby::open(&export, opener)?)), None)
        } else {
            let (device, bare) = export.open(opener)?;
            (ExportSource::Here(device), bare)
        };
        let uuid = match (&mut place, &source) {
            (Some(place), ExportSource::Here(device)) => place.identify(&*device.block())?,
            // Memory gets a new UUID in each run, since its content does not survive.
            _ => export.uuid.or(source.info().uuid).unwrap_or_else(Uuid::new_v4),
        };
        let persistent = place.is_some() || source.info().uuid.is_some();
        let is_same = |other: Option<&ServedMedium>| {
            place.as_ref().zip(other).is_some_and(|(one, two)| one.is_same(two))
        };
        let others = opened.iter().map(|other| (&*other.export.name, other.uuid, other.place.as_ref()));
        let mut others = others.chain(taken.served.iter().copied());
        if let Some((name, ..)) = others.find(|(_, other, place)| *other == uuid && !is_same(*place)) {
            return Err(Failure::usage(format!(
                "exports {name} and {} have the same UUID {uuid} but different media, which hosts would take for \
                 two paths to one disk: give one of them another uuid=, or leave it out",
                export.name
            )));
        }
        opened.push(OpenExport { export: Arc::new(export), nqn, uuid, source, bare, place, persistent });
    }
    Ok(opened)
}

impl OpenExport {
    /// The namespace that is to be added.
    pub(super) fn prepare(&self, target: &Target, state: &TargetState) -> Result<PreparedExport, Failure> {
        let (nqn, name) = (&self.nqn, &self.export.name);
        let prepared = match &self.source {
            ExportSource::Here(device) => {
                let store = self.persistent.then(|| Arc::new(state.reservations_of(self.uuid)) as _);
                target.prepare(nqn, name, device.block(), self.uuid, store)?
            }
            ExportSource::Elsewhere(standby) => {
                target.prepare_standby(nqn, name, standby.device.clone(), self.uuid)?
            }
        };
        Ok(if self.export.may_move() { prepared.shared() } else { prepared })
    }

    /// Its fields in events; `alone`: it is the only namespace of its subsystem.
    pub(super) fn fields(&self, target: &Target, nsid: u32, alone: bool) -> ExportFields {
        let OpenExport { export, nqn, uuid, source, .. } = self;
        let info = source.info();
        let at = At::of(target);
        ExportFields {
            name: export.name.clone(),
            nqn: nqn.clone(),
            nsid,
            uri: at.uri(nqn, Some(nsid)),
            short: at.short(&export.name, nqn, (nsid, alone)),
            uuid: uuid.to_string(),
            size: info.size,
            block_size: info.block_size,
            access: match source {
                ExportSource::Here(_) => "optimized",
                ExportSource::Elsewhere(_) => "inaccessible",
            },
        }
    }
}

/// What hosts may do: those of the target, and of exports with lists of their own.
///
/// # Errors
/// A host is in a list of hosts that may write, and in one of hosts that may not.
pub(super) fn host_lists<'a>(
    all: &HostNames,
    exports: impl Iterator<Item = (&'a Export, &'a str)>,
) -> Result<HostLists, Failure> {
    let mut of: BTreeMap<&str, HostNames> = BTreeMap::new();
    for (Export { hosts, .. }, nqn) in exports.filter(|(export, _)| !export.hosts.is_empty()) {
        let names = of.entry(nqn).or_default();
        names.writers.extend(hosts.writers.iter().cloned());
        names.readers.extend(hosts.readers.iter().cloned());
    }
    let of = of.into_iter().map(|(nqn, names)| {
        let rights = names.rights().map_err(|why| Failure::usage(format!("exports of {nqn}: {why}")))?;
        Ok((nqn.to_owned(), rights))
    });
    let all = all.rights().map_err(Failure::usage)?;
    Ok(HostLists { all, of: of.collect::<Result<_, Failure>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_target::{HostAccess, HostRights};

    #[test]
    fn lists_of_the_exports_of_a_subsystem_are_one() {
        let export = |text: &str| text.parse::<Export>().expect(text);
        let exports =
            [export("a=mem:1MiB,allow-host=x"), export("b=mem:1MiB"), export("a=mem:1MiB,allow-host=y")];
        let named = exports.iter().map(|export| (export, &*export.name));
        let only = |hosts: &[&str]| {
            HostRights::from(HostAccess::Only(hosts.iter().map(|host| (*host).to_owned()).collect()))
        };
        let of = [("a".to_owned(), only(&["x", "y"]))].into();
        let expected = HostLists { of, ..HostLists::default() };
        let lists = |all: &HostNames| host_lists(all, named.clone()).map_err(|e| e.message);
        assert_eq!(lists(&HostNames::default()), Ok(expected.clone()));
        let z = HostNames { writers: vec!["z".to_owned()], readers: Vec::new() };
        assert_eq!(lists(&z), Ok(HostLists { all: only(&["z"]), ..expected }));
    }

    #[test]
    fn a_host_has_one_right_to_a_subsystem() {
        let export = |text: &str| text.parse::<Export>().expect(text);
        let one = export("a=mem:1MiB,allow-host=x,read-only-host=y");
        let (same, other) = (export("a=mem:1MiB,read-only-host=y"), export("a=mem:1MiB,allow-host=y"));
        let lists = |exports: [&Export; 2]| {
            let named = exports.into_iter().map(|export| (export, "nqn"));
            host_lists(&HostNames::default(), named).map_err(|e| e.message)
        };
        let rights = lists([&one, &same]).expect("y may read").of("nqn").clone();
        assert!(rights.may_write("x") && rights.may_read("y") && !rights.may_write("y"), "{rights:?}");
        let e = lists([&one, &other]).expect_err("y may write to one of them");
        assert!(e.contains("exports of nqn: host y is named by allow-host"), "{e}");
    }
}
