//! Volumes as devices: `volume:POOL/NAME`.

use crate::error::Error;
use crate::known::KnownPool;
use crate::name::check_name;
use crate::pool::{Pool, each};
use crate::record::{VolumeRecord, VolumeState};
use crate::remote::Targets;
use crate::shape::VolumeLayout;
use crate::spaces::shown;
use crate::wire::uri_of;
use longhaul_block::BlockDevice;
use longhaul_device::arrays::{
    ArrayClient, ArrayRecord, ArrayRequest, ArraySettings, ArrayWatch, Registry, RunningArray, grow,
};
use longhaul_device::{Device, ErrorKind, Opener, Scheme, SingleVolume};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// What names of volumes begin with.
pub const SCHEME: &str = "volume:";

/// `POOL/NAME`, with or without `volume:` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName {
    /// Name of the pool.
    pub pool: String,
    /// Name of the volume.
    pub name: String,
}

impl FromStr for VolumeName {
    type Err = String;

    fn from_str(text: &str) -> Result<VolumeName, String> {
        let (pool, name) = text
            .strip_prefix(SCHEME)
            .unwrap_or(text)
            .split_once('/')
            .ok_or_else(|| format!("'{text}' is no volume: the form is POOL/NAME"))?;
        check_name("pool", pool).and_then(|()| check_name("volume", name)).map_err(|e| e.to_string())?;
        Ok(VolumeName { pool: pool.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.name)
    }
}

/// Opens the volumes of the pools that this host knows. The host has to be one of those that the volume
/// is for, and no administrator of the targets.
#[derive(Clone, Copy, Debug)]
pub struct Volumes;

impl Volumes {
    /// What identifies the volume `POOL/NAME`, whatever its name.
    ///
    /// # Errors
    /// The pool is not known here, its catalog cannot be read, or it has no such volume.
    pub fn uuid_of(self, name: &str, opener: &Opener) -> longhaul_device::Result<Uuid> {
        let invalid = |why| longhaul_device::Error::new(ErrorKind::Invalid, why);
        let name: VolumeName = name.parse().map_err(invalid)?;
        let pool = KnownPool::find(&name.pool)?.open(opener.options())?;
        Ok(pool.volume(&name.name)?.uuid)
    }

    /// Opens the members of the volume `POOL/NAME` to stand by for it, whether or not another host uses
    /// it.
    ///
    /// # Errors
    /// The volume does not exist, or is being made; this host is not one of its hosts; it is no array,
    /// or none of its members can be opened.
    pub fn watch(self, name: &str, opener: &Opener) -> longhaul_device::Result<ArrayWatch> {
        let invalid = |why| longhaul_device::Error::new(ErrorKind::Invalid, why);
        let name: VolumeName = name.parse().map_err(invalid)?;
        let pool = KnownPool::find(&name.pool)?.open(opener.options())?;
        let volume = pool.usable_volume(&name.name, opener)?;
        let Some(array) = pool.array_record(&volume)? else {
            let why =
                format!("volume {name} is one namespace, which any of its hosts may use: no host stands by");
            return Err(longhaul_device::Error::new(ErrorKind::Refused, why));
        };
        ArrayWatch::open(&array, opener)
    }

    /// Records that this host has opened the volume `POOL/NAME`.
    ///
    /// # Errors
    /// The pool is not known here, or its catalog cannot be changed.
    pub fn record_user(self, name: &str, opener: &Opener) -> longhaul_device::Result<()> {
        let invalid = |why| longhaul_device::Error::new(ErrorKind::Invalid, why);
        let name: VolumeName = name.parse().map_err(invalid)?;
        let pool = KnownPool::find(&name.pool)?.open(opener.options())?;
        Ok(pool.record_user(&name.name, &opener.options().hostnqn)?)
    }

    /// The host that opened the volume `POOL/NAME` last; `None` if none has.
    ///
    /// # Errors
    /// The pool is not known here, its catalog cannot be read, or it has no such volume.
    pub fn user_of(
        self,
        name: &str,
        opener: &Opener,
    ) -> longhaul_device::Result<Option<crate::user::VolumeUser>> {
        let invalid = |why| longhaul_device::Error::new(ErrorKind::Invalid, why);
        let name: VolumeName = name.parse().map_err(invalid)?;
        let pool = KnownPool::find(&name.pool)?.open(opener.options())?;
        Ok(pool.user_of(pool.volume(&name.name)?.uuid)?)
    }
}

impl Scheme for Volumes {
    fn prefix(&self) -> &'static str {
        SCHEME
    }

    fn form(&self) -> &'static str {
        "volume:POOL/NAME"
    }

    fn open(&self, name: &str, opener: &Opener) -> longhaul_device::Result<Device> {
        let invalid = |why| longhaul_device::Error::new(ErrorKind::Invalid, why);
        let name: VolumeName = name.parse().map_err(invalid)?;
        let pool = KnownPool::find(&name.pool)?.open(opener.options())?;
        pool.open_volume(&name.name, opener)
    }
}

impl Pool {
    /// Opens a volume as a device: its array runs in this process then.
    ///
    /// # Errors
    /// The volume does not exist, or is being made; this host is not one of its hosts; its array runs
    /// elsewhere, or has too few members.
    pub fn open_volume(&self, name: &str, opener: &Opener) -> longhaul_device::Result<Device> {
        let volume = self.usable_volume(name, opener)?;
        if volume.shape.layout.is_files() {
            let pool = &self.record.name;
            let why =
                format!("{pool}/{name} is a file system and no device: longhaul mount fs:{pool}/{name} DIR");
            return Err(longhaul_device::Error::new(ErrorKind::Invalid, why));
        }
        match (volume.shape.layout, self.array_record(&volume)?) {
            (VolumeLayout::Array(_), Some(array)) => {
                // Only the array's own thread uses its members.
                let opener = opener.clone().for_threads(1);
                let running = RunningArray::open(&array, &opener)
                    .map_err(|e| self.with_user(&volume, &opener.options().hostnqn, e))?;
                // It was resized while its array did not run here.
                let size = volume.shape.size;
                if running.device().info().size < size
                    && let Err(e) =
                        running.wait(move |array| async move { grow(&array, Some(size)).await })?
                {
                    tracing::warn!("volume {name} has not grown to {size} bytes yet: {e}");
                }
                if let Err(e) = self.record_user(name, &opener.options().hostnqn) {
                    tracing::info!("volume {name}: it is not recorded that this host has opened it: {e}");
                }
                Ok(Device::Array(Box::new(running)))
            }
            _ => self.open_single(&volume, opener),
        }
    }

    /// A refusal, with the host that opened the volume last; `hostnqn` is that of this one.
    pub(crate) fn with_user(
        &self,
        volume: &VolumeRecord,
        hostnqn: &str,
        e: longhaul_device::Error,
    ) -> longhaul_device::Error {
        match self.user_of(volume.uuid) {
            Ok(Some(user)) if e.kind() == ErrorKind::Refused => {
                // The sockets of another user's processes are not reached.
                let hint = match user.host == self.host.name && user.hostnqn == hostnqn {
                    true => {
                        ", and is this host: give the command as the user who opened the volume, with sudo if that was \
                         root"
                    }
                    false => "",
                };
                longhaul_device::Error::new(e.kind(), format_args!("{e}; {user}{hint}"))
            }
            _ => e,
        }
    }

    /// A volume that was made, and is for this host.
    ///
    /// # Errors
    /// It does not exist, is being made, or is not for this host.
    pub fn usable_volume(&self, name: &str, opener: &Opener) -> longhaul_device::Result<VolumeRecord> {
        let volume = self.volume(name)?;
        self.check_usable(&volume, opener)?;
        Ok(volume)
    }

    /// That a volume was made, and is for this host.
    ///
    /// # Errors
    /// It is being made, or is not for this host.
    pub fn check_usable(&self, volume: &VolumeRecord, opener: &Opener) -> longhaul_device::Result<()> {
        let name = &volume.name;
        if volume.state == VolumeState::Creating {
            let what = format!("volume {name} of pool {} is being made: open it later", self.record.name);
            return Err(longhaul_device::Error::new(ErrorKind::Refused, what));
        }
        let own = &opener.options().hostnqn;
        if !volume.hosts.contains(own) {
            let pool = &self.record.name;
            let why = format!(
                "volume {pool}/{name} is not for this host, {own}: 'longhaul volume open {pool}/{name} --for \
                 {own}' allows that, on a host that administers the pool"
            );
            return Err(longhaul_device::Error::new(ErrorKind::Refused, why));
        }
        Ok(())
    }

    fn open_single(&self, volume: &VolumeRecord, opener: &Opener) -> longhaul_device::Result<Device> {
        let uris = self.member_uris(volume)?;
        let namespace = volume.members.first().and_then(|member| member.namespace);
        let ([Some(uri)], Some(namespace)) = (&uris[..], namespace) else {
            let why = format!("the namespace of volume {} is missing", volume.name);
            return Err(longhaul_device::Error::new(ErrorKind::Failed, why));
        };
        let device = opener.connect(uri)?;
        if device.info().uuid != Some(namespace.uuid) {
            let why = format!("{uri} is not the namespace of volume {} any more", volume.name);
            return Err(longhaul_device::Error::new(ErrorKind::Failed, why));
        }
        let name = format!("{}/{}", self.record.name, volume.name);
        Ok(Device::Single(Box::new(SingleVolume::new(device, &name, volume.uuid))))
    }

    /// The URIs of the members of a volume, by which its hosts reach them; none of one that is missing.
    ///
    /// # Errors
    /// The catalog cannot be read, or has something else than an address.
    pub fn member_uris(&self, volume: &VolumeRecord) -> crate::Result<Vec<Option<String>>> {
        self.uris_of(volume.members.iter())
    }

    /// The URI of a namespace of a volume, of one that a member moves to as well; `None` if the volume is gone, or has
    /// no such namespace.
    ///
    /// # Errors
    /// As for [`member_uris`](Self::member_uris).
    pub fn namespace_uri(&self, volume: Uuid, namespace: Uuid) -> crate::Result<Option<String>> {
        let Some(volume) = self.volume_of(volume)? else { return Ok(None) };
        let is_it = |member: &&crate::record::Member| member.namespace.is_some_and(|id| id.uuid == namespace);
        Ok(self.uris_of(volume.all_members().filter(is_it))?.into_iter().next().flatten())
    }

    pub(crate) fn uris_of<'a>(
        &self,
        members: impl Iterator<Item = &'a crate::record::Member>,
    ) -> crate::Result<Vec<Option<String>>> {
        let targets = self.targets()?;
        let uri = |member: &crate::record::Member| {
            let Some(((target, _), id)) = targets.get(&member.target).zip(member.namespace) else {
                return Ok(None);
            };
            let failed = |source| Error::Space {
                attempted: "name a namespace",
                address: target.address.clone(),
                source,
            };
            Ok(Some(uri_of(&target.address, Some(id.nsid)).map_err(failed)?.to_string()))
        };
        members.map(uri).collect()
    }

    /// What the process that runs a volume's array on this host is asked by; `None` for one without.
    pub(crate) fn array_record(&self, volume: &VolumeRecord) -> crate::Result<Option<ArrayRecord>> {
        let Some(uuid) = volume.array else { return Ok(None) };
        Ok(Some(ArrayRecord {
            uuid,
            name: format!("{}/{}", self.record.name, volume.name),
            devices: self.uris_of(volume.all_members())?.into_iter().flatten().collect(),
            members: BTreeMap::new(),
            settings: ArraySettings::default(),
            registry: Registry::of_volumes(),
        }))
    }

    /// The status of a volume's array, as the process of this host that runs it says; `None` if no
    /// process here does.
    ///
    /// # Errors
    /// The process does not answer, or the catalog cannot be read.
    pub fn running_status(
        &self,
        volume: &VolumeRecord,
    ) -> longhaul_device::Result<Option<serde_json::Value>> {
        let Some(record) = self.array_record(volume)? else { return Ok(None) };
        ArrayClient::ask(&record, &ArrayRequest::Status).transpose()
    }

    /// Lets the array of a volume grow, if a process of this host runs it, to what the volume has. Its
    /// sizes before and after; `None` if no process here runs it.
    ///
    /// # Errors
    /// Those of the array, or the catalog cannot be read.
    pub fn grow_running(&self, volume: &VolumeRecord) -> longhaul_device::Result<Option<(u64, u64)>> {
        let Some(record) = self.array_record(volume)? else { return Ok(None) };
        let grow = ArrayRequest::Grow { least: Some(volume.shape.size) };
        let Some(reply) = ArrayClient::ask(&record, &grow).transpose()? else { return Ok(None) };
        let size = |field: &str| reply[field].as_u64().unwrap_or(0);
        Ok(Some((size("before"), size("after"))))
    }

    /// Whether the array of a volume was started and not stopped: a host uses it, or did so when it
    /// crashed. Members that cannot be reached are not looked at.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn is_unstopped(&self, volume: &VolumeRecord, targets: &Targets) -> crate::Result<bool> {
        if volume.array.is_none() {
            return Ok(false);
        }
        let members: Vec<_> = self
            .member_addresses(volume)?
            .into_iter()
            .zip(volume.members.iter().map(|member| member.namespace))
            .filter_map(|(address, namespace)| Some((address, namespace?)))
            .collect();
        let looked = each(&members, |(address, namespace)| targets.is_unstopped(address, *namespace));
        for ((address, _), result) in members.iter().zip(&looked) {
            if let Err(e) = result {
                tracing::info!("target {}: {e}", shown(address));
            }
        }
        Ok(looked.into_iter().any(|looked| looked == Ok(true)))
    }

    /// Removes what this host recorded of the arrays of volumes that are gone.
    pub(crate) fn forget_array(&self, volume: &VolumeRecord) {
        if let Ok(Some(record)) = self.array_record(volume)
            && let Err(e) = record.forget()
        {
            tracing::debug!("volume {}: nothing was recorded here: {e}", volume.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_pool_and_a_volume() {
        let name: VolumeName = "volume:p/Größe".parse().expect("a name");
        assert_eq!(
            (name.pool.as_str(), name.name.as_str(), name.to_string()),
            ("p", "Größe", "p/Größe".into())
        );
        assert_eq!("p/Größe".parse(), Ok(name));
        for (text, why) in [
            ("p", "'p' is no volume: the form is POOL/NAME"),
            ("p/a/b", "'a/b' cannot be the name of a volume: it has '/'"),
            ("/a", "'' cannot be the name of a pool: it is empty"),
            ("p/", "'' cannot be the name of a volume: it is empty"),
        ] {
            let error = text.parse::<VolumeName>().expect_err(text);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
