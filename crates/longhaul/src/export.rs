//! Exports, as given on the command line.

use crate::exit::Failure;
use crate::hosts::HostNames;
use longhaul_block::{Backend, BackendSpec, BlockDevice, FilterSpec};
use longhaul_device::arrays::{ArrayRecord, ArrayWatch};
use longhaul_device::{Device, Opener, arrays};
use longhaul_initiator::SCHEME;
use longhaul_pool::Volumes;
use longhaul_target::{TargetState, check_name, nqn_made_of};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use uuid::Uuid;

/// The device of an export.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// A local back end: a file, a block device, memory.
    Backend(BackendSpec),
    /// An array (`array:NAME`), a volume (`volume:POOL/NAME`), or a namespace of another target, by URI.
    Named(String),
}

/// `NAME=BACKEND[,option…]`: a namespace to export.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    /// Name of the subsystem.
    pub(crate) name: String,
    pub(crate) source: Source,
    /// NQN of the subsystem, where it is not derived from the name.
    nqn: Option<String>,
    /// UUID of a volume, which has the same NQN wherever it is served; see [`Self::identify`].
    volume: Option<Uuid>,
    /// UUID of the namespace, where the user sets it.
    pub(crate) uuid: Option<Uuid>,
    /// Serve the medium as a new disk, even if another namespace was served from it before.
    pub(crate) create: bool,
    /// Another host may serve the device: this one takes it once that has ended, and reports it as
    /// inaccessible until then.
    pub(crate) standby: bool,
    /// Hosts that may connect to the subsystem; empty: those of the target.
    pub(crate) hosts: HostNames,
}

impl FromStr for Export {
    type Err = String;

    fn from_str(s: &str) -> Result<Export, String> {
        let (name, rest) =
            s.split_once('=').ok_or("the form is NAME=BACKEND, such as scratch=file:/srv/scratch")?;
        check_name(name)?;
        // Options of the export itself; all others belong to the back end.
        let (mut nqn, mut uuid, mut create, mut standby) = (None, None, false, false);
        let mut hosts = HostNames::default();
        let mut backend = Vec::new();
        for part in rest.split(',') {
            if let Some(value) = part.strip_prefix("nqn=") {
                nqn = Some(value.to_owned());
            } else if let Some(value) = part.strip_prefix("uuid=") {
                uuid = Some(value.parse().map_err(|_| format!("uuid={value} is not a UUID"))?);
            } else if let Some(value) = part.strip_prefix("allow-host=") {
                hosts.writers.push(value.to_owned());
            } else if let Some(value) = part.strip_prefix("read-only-host=") {
                hosts.readers.push(value.to_owned());
            } else if part == "create" {
                create = true;
            } else if part == "standby" {
                standby = true;
            } else {
                backend.push(part);
            }
        }
        let backend = backend.join(",");
        let named =
            [arrays::SCHEME, longhaul_pool::SCHEME, SCHEME].iter().any(|scheme| backend.starts_with(scheme));
        let source = match named {
            true if backend.contains(',') => {
                let taken = "uuid=, nqn=, allow-host=, read-only-host=, standby and create";
                return Err(format!(
                    "an array, a volume or a remote namespace takes no options here but {taken}"
                ));
            }
            true => Source::Named(backend),
            false => Source::Backend(BackendSpec::parse(&backend).map_err(|e| e.to_string())?),
        };
        let export =
            Export { name: name.to_owned(), source, nqn, volume: None, uuid, create, standby, hosts };
        if standby && !export.may_move() {
            return Err("only an array or a volume can be taken over: standby is for array:NAME and \
                        volume:POOL/NAME"
                .to_owned());
        }
        Ok(export)
    }
}

impl Export {
    /// Opens the device of the export: it, and the back end without its filters.
    pub(crate) fn open(&self, opener: &Opener) -> Result<(Device, Option<Arc<dyn BlockDevice>>), Failure> {
        let named = |e: &dyn std::fmt::Display| format!("{}: {e}", self.name);
        match &self.source {
            Source::Backend(spec) => {
                let bare = BackendSpec { filters: Vec::new(), ..spec.clone() }.open();
                let bare = bare.map_err(|e| Failure::failed(named(&e)))?;
                Ok((Device::Local(self.filtered(Arc::clone(&bare))), Some(bare)))
            }
            Source::Named(device) => opener.open_blocking(device).map(|device| (device, None)).map_err(|e| {
                let message = named(&e);
                Failure { message, ..e.into() }
            }),
        }
    }

    /// A back end with the filters of the export around it.
    pub(crate) fn filtered(&self, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        self.filters().iter().fold(device, |device, filter| filter.wrap(device))
    }

    /// From the inside out.
    pub(crate) fn filters(&self) -> &[FilterSpec] {
        match &self.source {
            Source::Backend(spec) => &spec.filters,
            Source::Named(_) => &[],
        }
    }

    /// The size in bytes that a file is made or grown to.
    pub(crate) fn file_size(&self) -> Option<u64> {
        match &self.source {
            Source::Backend(BackendSpec { backend: Backend::File { size, .. }, .. }) => *size,
            _ => None,
        }
    }

    /// Whether `after` is this export, which is served with this UUID, with other options at most that can
    /// be changed while it is served.
    pub(crate) fn is_still(&self, uuid: Uuid, after: &Export) -> bool {
        let fixed = |source: &Source| match source {
            Source::Named(_) => source.clone(),
            Source::Backend(spec) => {
                let mut spec = BackendSpec { filters: Vec::new(), ..spec.clone() };
                if let Backend::File { size, .. } = &mut spec.backend {
                    *size = None;
                }
                Source::Backend(spec)
            }
        };
        // `create`, and the UUID of a medium that has it, are given for one start.
        self.name == after.name
            && self.nqn == after.nqn
            && self.standby == after.standby
            && after.uuid.is_none_or(|after| after == uuid)
            && fixed(&self.source) == fixed(&after.source)
    }

    /// Whether both have one medium, which cannot be opened twice.
    pub(crate) fn has_medium_of(&self, other: &Export) -> bool {
        let absolute = |export: &Export| std::path::absolute(export.path()?).ok();
        match (&self.source, &other.source) {
            (Source::Named(one), Source::Named(two)) => one == two,
            _ => absolute(self).zip(absolute(other)).is_some_and(|(one, two)| one == two),
        }
    }

    /// The same, with what was found out about the one that is served.
    pub(crate) fn identified_as(self, served: &Export) -> Export {
        Export { volume: served.volume, ..self }
    }

    /// Whether the NQN of its subsystem is made of a volume.
    pub(crate) fn is_of_volume(&self) -> bool {
        self.nqn.is_none() && self.volume.is_some()
    }

    /// Opens the members of the export's array, which another host may run.
    pub(crate) fn watch(&self, opener: &Opener) -> Result<ArrayWatch, Failure> {
        let Source::Named(device) = &self.source else {
            return Err(Failure::usage(format!("{}: a local device is not taken over", self.name)));
        };
        let watch = match device.strip_prefix(longhaul_pool::SCHEME) {
            Some(volume) => Volumes.watch(volume, opener),
            None => ArrayRecord::find(device.trim_start_matches(arrays::SCHEME))
                .and_then(|record| ArrayWatch::open(&record, opener)),
        };
        watch.map_err(|e| {
            let message = format!("{}: {e}", self.name);
            Failure { message, ..e.into() }
        })
    }

    /// Records that this host has opened the volume of the export, if it is one. The volume is served
    /// also while its catalog is gone.
    pub(crate) fn record_user(&self, opener: &Opener) {
        if let Source::Named(device) = &self.source
            && let Some(volume) = device.strip_prefix(longhaul_pool::SCHEME)
            && let Err(e) = Volumes.record_user(volume, opener)
        {
            tracing::info!("{}: it is not recorded that this host serves it: {e}", self.name);
        }
    }

    /// The host that has opened the volume of the export last, in words, if it is one and that is known.
    pub(crate) fn user(&self, opener: &Opener) -> Option<String> {
        let Source::Named(device) = &self.source else { return None };
        let volume = device.strip_prefix(longhaul_pool::SCHEME)?;
        Volumes.user_of(volume, opener).ok().flatten().map(|user| user.to_string())
    }

    /// The device of the export, as it was named.
    pub(crate) fn device(&self) -> Option<&str> {
        match &self.source {
            Source::Named(device) => Some(device),
            _ => None,
        }
    }

    /// Whether another host may serve the device too, at another time.
    pub(crate) fn may_move(&self) -> bool {
        matches!(&self.source, Source::Named(device) if !device.starts_with(SCHEME))
    }

    /// Finds out what the NQN of a volume's subsystem is made of.
    pub(crate) fn identify(&mut self, opener: &Opener) -> Result<(), Failure> {
        if let Source::Named(device) = &self.source
            && let Some(volume) = device.strip_prefix(longhaul_pool::SCHEME)
        {
            let found = Volumes.uuid_of(volume, opener).map_err(|e| {
                let message = format!("{}: {e}", self.name);
                Failure { message, ..e.into() }
            });
            self.volume = Some(found?);
        }
        Ok(())
    }

    /// What tells its subsystem from those of other exports before anything is opened.
    pub(crate) fn subsystem(&self) -> &str {
        self.nqn.as_deref().unwrap_or(&self.name)
    }

    /// The subsystem's NQN.
    pub(crate) fn nqn(&self, state: &TargetState) -> String {
        let made = || match self.volume {
            Some(volume) => nqn_made_of(volume, &self.name),
            None => state.nqn_of(&self.name),
        };
        self.nqn.clone().unwrap_or_else(made)
    }

    /// Path of the medium, if it is a local file or block device.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Backend(spec) => match &spec.backend {
                Backend::File { path, .. } | Backend::Block { path } => Some(path),
                Backend::Mem { .. } | Backend::Null { .. } => None,
            },
            Source::Named(_) => None,
        }
    }

    /// Whether the export is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(&self.source, Source::Backend(spec) if spec.read_only)
    }
}
