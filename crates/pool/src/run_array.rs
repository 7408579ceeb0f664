//! The arrays of volumes, as the host that this is reaches them.

use crate::error::Error;
use crate::moving::{ArrayChange, ArrayView, Arrays, MemberAt, MoveProgress, Role, RunArray};
use crate::pool::{Pool, each};
use crate::record::VolumeRecord;
use crate::remote::Targets;
use crate::wire::uri_of;
use longhaul_device::arrays::{ArrayAccess, ArrayRecord, ArrayRequest};
use longhaul_device::{Error as DeviceError, ErrorKind, Opener, Result};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which progress is asked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Arrays that a process of this host runs, or that are run for a while: the host attaches their members to
/// itself then, if the volume is not for it.
pub struct HostArrays {
    targets: Arc<Targets>,
    opener: Opener,
}

impl HostArrays {
    /// Arrays whose members are opened by `opener`, and attached at `targets`.
    pub fn new(targets: &Arc<Targets>, opener: Opener) -> HostArrays {
        HostArrays { targets: Arc::clone(targets), opener: opener.for_threads(1) }
    }
}

impl Targets {
    /// Attaches the namespaces of a volume to this host, as far as their targets can be reached.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn attach_all(&self, pool: &Pool, volume: &VolumeRecord) -> Result<Vec<MemberAt>> {
        let attached: Vec<MemberAt> = pool.member_places(volume)?.into_iter().flatten().collect();
        for ((address, _), done) in
            attached.iter().zip(each(&attached, |(address, namespace)| self.attach(address, *namespace)))
        {
            if let Err(e) = done {
                tracing::info!("target {address}: {e}");
            }
        }
        Ok(attached)
    }

    /// Ends what [`attach_all`](Self::attach_all) has begun.
    pub fn detach_all(&self, places: &[MemberAt]) {
        for ((address, _), detached) in
            places.iter().zip(each(places, |(address, namespace)| self.detach(address, *namespace)))
        {
            if let Err(e) = detached {
                tracing::info!("target {address}: a namespace is still attached to this host: {e}");
            }
        }
    }
}

impl Arrays for HostArrays {
    fn open<'a>(&'a self, pool: &Pool, volume: &VolumeRecord) -> Result<Box<dyn RunArray + 'a>> {
        let Some(record) = pool.array_record(volume)? else {
            let why = format!("volume {} has no array", volume.name);
            return Err(DeviceError::new(ErrorKind::Invalid, why));
        };
        let mut attached = Vec::new();
        let is_here = pool.running_status(volume)?.is_some();
        if !is_here && !volume.hosts.contains(&self.opener.options().hostnqn) {
            attached = self.targets.attach_all(pool, volume)?;
        }
        match ArrayAccess::open(&record, || self.opener.clone()) {
            Ok(access) => Ok(Box::new(Run { host: self, record, access, attached })),
            Err(e) => {
                self.targets.detach_all(&attached);
                Err(pool.with_user(volume, &self.opener.options().hostnqn, e))
            }
        }
    }
}

struct Run<'a> {
    host: &'a HostArrays,
    record: ArrayRecord,
    access: ArrayAccess,
    /// Namespaces that were attached to this host for this.
    attached: Vec<MemberAt>,
}

/// The name that the array knows a namespace by.
fn device(place: &MemberAt) -> Result<String> {
    let source = |source| Error::Space { attempted: "name a namespace", address: place.0.clone(), source };
    Ok(uri_of(&place.0, Some(place.1.nsid)).map_err(source)?.to_string())
}

fn role(status: &Value, device: &str) -> Role {
    for member in status["members"].as_array().into_iter().flatten() {
        if member["device"] == device {
            let index = member["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
            return match member["condition"].as_str() {
                Some("active") => Role::Active(index),
                Some("rebuilding" | "catching-up") => Role::Rebuilding(index),
                _ => Role::Missing(index),
            };
        }
    }
    let is_spare =
        status["spares"].as_array().is_some_and(|spares| spares.iter().any(|spare| spare == device));
    if is_spare { Role::Spare } else { Role::None }
}

fn progress(status: &Value) -> Option<MoveProgress> {
    let now = &status["filling"];
    Some(MoveProgress {
        done: now["done_bytes"].as_u64()?,
        total: now["total_bytes"].as_u64()?,
        rate: now["bytes_per_second"].as_f64().unwrap_or(0.0),
        left: now["remaining_seconds"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok()),
    })
}

impl RunArray for Run<'_> {
    fn look(&self, places: &[Option<MemberAt>]) -> Result<ArrayView> {
        let status = self.access.ask(ArrayRequest::Status)?;
        let names: Vec<Option<String>> =
            places.iter().map(|place| place.as_ref().map(device).transpose()).collect::<Result<_>>()?;
        let roles = names.iter().map(|name| name.as_ref().map_or(Role::None, |name| role(&status, name)));
        let missing = status["members"].as_array().into_iter().flatten().filter_map(|member| {
            let is_missing = matches!(member["condition"].as_str(), Some("absent" | "failed"));
            let is_known = names.iter().flatten().any(|name| member["device"] == name.as_str());
            let index = usize::try_from(member["index"].as_u64()?).ok()?;
            (is_missing && !is_known).then_some(index)
        });
        Ok(ArrayView { roles: roles.collect(), missing: missing.collect() })
    }

    fn limit(&self, rate: Option<u64>) -> Result<()> {
        self.access.ask(ArrayRequest::Rate { rate }).map(drop)
    }

    fn change(&self, change: &ArrayChange, show: &mut dyn FnMut(&MoveProgress)) -> Result<()> {
        let mut record = self.record.clone();
        let mut add = |name: &str| {
            // A member that is lost for a while is looked for by the names in the record.
            record.add(name);
            record.save()
        };
        let mut follow = |request| {
            let show = |status: &Value| {
                if let Some(progress) = progress(status) {
                    show(&progress);
                }
            };
            self.access.follow(request, INTERVAL, show).map(drop)
        };
        match change {
            ArrayChange::Move(index, place) => {
                let device = device(place)?;
                add(&device)?;
                follow(ArrayRequest::Move { index: *index, device, force: false })
            }
            ArrayChange::Replace(index, place) => {
                let device = device(place)?;
                add(&device)?;
                self.access.ask(ArrayRequest::Replace { index: *index, device, force: false })?;
                follow(ArrayRequest::Rebuilt { index: *index })
            }
            ArrayChange::Rebuilt(index) => follow(ArrayRequest::Rebuilt { index: *index }),
            ArrayChange::AddSpare(place) => {
                let device = device(place)?;
                add(&device)?;
                self.access.ask(ArrayRequest::AddSpare { device, force: false }).map(drop)
            }
            ArrayChange::RemoveSpare(place) => {
                self.access.ask(ArrayRequest::RemoveSpare { device: device(place)? }).map(drop)
            }
        }
    }

    fn cancel(&self, place: &MemberAt) -> Result<bool> {
        let reply = self.access.ask(ArrayRequest::CancelMove { device: device(place)? })?;
        Ok(reply["member"] == true)
    }

    fn pause(&self, limit: Duration) -> Result<u64> {
        let reply = self.access.ask(ArrayRequest::Pause { limit }).map_err(|e| match e.kind() {
            // It does not know the request.
            ErrorKind::Invalid => {
                let why = "the process of this host that runs its array is of an older version: end it, and try again";
                DeviceError::new(ErrorKind::Refused, why)
            }
            _ => e,
        })?;
        reply["pause"]
            .as_u64()
            .ok_or_else(|| DeviceError::new(ErrorKind::Failed, "the reply has no number of a pause"))
    }

    fn resume(&self, pause: u64) -> Result<bool> {
        Ok(self.access.ask(ArrayRequest::Resume { pause })?["held"] == true)
    }

    fn end(self: Box<Self>) -> Result<()> {
        let Run { host, access, attached, .. } = *self;
        let ended = access.end();
        host.targets.detach_all(&attached);
        ended
    }
}
