//! Members of file systems move as those of arrays do: what the pool asks of an array, a session does.

use crate::fill::FillProgress;
use crate::manage::{is_fs, open_for_moves};
use crate::session::FsSession;
use crate::workers::PoolFs;
use longhaul_device::{Error, ErrorKind, Opener, Result};
use longhaul_fs::Errno;
use longhaul_pool::{
    ArrayChange, ArrayView, Arrays, HostArrays, MemberAt, MoveProgress, Pool, Role, RunArray, Targets,
    VolumeRecord,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

/// The arrays and the file systems of a pool, as the host that this is reaches them.
pub struct HostMembers {
    arrays: HostArrays,
    targets: Arc<Targets>,
    opener: Opener,
}

impl HostMembers {
    /// Arrays and file systems whose members are opened by `opener`, and attached at `targets`.
    pub fn new(targets: &Arc<Targets>, opener: Opener) -> HostMembers {
        HostMembers {
            arrays: HostArrays::new(targets, opener.clone()),
            targets: Arc::clone(targets),
            opener: opener.for_threads(1),
        }
    }
}

impl Arrays for HostMembers {
    fn open<'a>(&'a self, pool: &Pool, volume: &VolumeRecord) -> Result<Box<dyn RunArray + 'a>> {
        if !is_fs(volume) {
            return self.arrays.open(pool, volume);
        }
        let is_guest = !volume.hosts.contains(&self.opener.options().hostnqn);
        let attached = if is_guest { self.targets.attach_all(pool, volume)? } else { Vec::new() };
        match open_for_moves(pool, volume, &self.opener) {
            Ok(fs) => {
                let (attached, limit) = (RefCell::new(attached), Cell::new(None));
                Ok(Box::new(FsRun { host: self, fs, volume: volume.clone(), attached, is_guest, limit }))
            }
            Err(e) => {
                self.targets.detach_all(&attached);
                Err(e)
            }
        }
    }
}

struct FsRun<'a> {
    host: &'a HostMembers,
    fs: PoolFs,
    volume: VolumeRecord,
    /// Namespaces that were attached to this host for this.
    attached: RefCell<Vec<MemberAt>>,
    /// This host is no user of the file system.
    is_guest: bool,
    limit: Cell<Option<u64>>,
}

fn failed(attempted: &str, e: Errno) -> Error {
    Error::new(ErrorKind::Failed, format!("cannot {attempted}: {e}; the log says why"))
}

impl FsRun<'_> {
    fn session(&self) -> &FsSession {
        self.fs.session()
    }

    fn fill(&self, member: usize, show: &mut dyn FnMut(&MoveProgress)) -> Result<()> {
        let total = self.volume.shape.member_size;
        let begun = longhaul_engine::now();
        let mut tell = |progress: &FillProgress| {
            let (done, all) = progress.segments;
            let took = longhaul_engine::since(begun).as_secs_f64().max(f64::EPSILON);
            let done = total * u64::from(done) / u64::from(all.max(1));
            show(&MoveProgress { done, total, rate: progress.bytes as f64 / took, left: None });
        };
        let filled = self.session().fill(member, self.limit.get(), &mut tell);
        let filled = filled.map_err(|e| failed(&format!("fill member {member}"), e))?;
        match filled.lost {
            0 => Ok(()),
            lost => {
                let why = format!(
                    "{lost} units of member {member} cannot be made from the others: 'longhaul fs scrub' names the files"
                );
                Err(Error::new(ErrorKind::Failed, why))
            }
        }
    }
}

impl RunArray for FsRun<'_> {
    fn look(&self, places: &[Option<MemberAt>]) -> Result<ArrayView> {
        let session = self.session();
        session.follow().map_err(|e| failed("read the settings", e))?;
        let status = session.members.status();
        let mut members = Vec::new();
        for (member, state) in status.iter().enumerate() {
            let place = session.place(member).map_err(|e| failed("read the settings", e))?;
            let made_on = self.volume.members.get(member).and_then(|member| member.namespace);
            let namespace = place.namespace.or(made_on.map(|id| id.uuid));
            let role = match (&state.down, place.fills) {
                (_, true) => Role::Rebuilding(member),
                (Some(_), false) => Role::Missing(member),
                (None, false) => Role::Active(member),
            };
            members.push((namespace, role));
        }
        let role = |place: &Option<MemberAt>| {
            let Some((_, id)) = place else { return Role::None };
            let found = members.iter().find(|(namespace, _)| *namespace == Some(id.uuid));
            found.map_or(Role::None, |(_, role)| *role)
        };
        let asked: Vec<_> = places.iter().flatten().map(|(_, id)| Some(id.uuid)).collect();
        let is_missing = |(index, (namespace, role)): (usize, &(_, Role))| {
            (matches!(role, Role::Missing(_)) && !asked.contains(namespace)).then_some(index)
        };
        let missing = members.iter().enumerate().filter_map(is_missing).collect();
        Ok(ArrayView { roles: places.iter().map(role).collect(), missing })
    }

    fn limit(&self, rate: Option<u64>) -> Result<()> {
        self.limit.set(rate);
        Ok(())
    }

    fn change(&self, change: &ArrayChange, show: &mut dyn FnMut(&MoveProgress)) -> Result<()> {
        let (member, place, moves) = match change {
            ArrayChange::Move(member, place) => (*member, Some(place), true),
            ArrayChange::Replace(member, place) => (*member, Some(place), false),
            ArrayChange::Rebuilt(member) => (*member, None, false),
            ArrayChange::AddSpare(_) | ArrayChange::RemoveSpare(_) => {
                return Err(Error::new(ErrorKind::Invalid, "a file system has no spares"));
            }
        };
        if let Some((address, id)) = place {
            if self.is_guest {
                let attached = self.host.targets.attach(address, *id);
                attached.map_err(|e| Error::new(ErrorKind::Failed, format!("target {address}: {e}")))?;
                self.attached.borrow_mut().push((address.clone(), *id));
            }
            let placed = self.session().place_member(member, id.uuid, moves);
            placed.map_err(|e| failed(&format!("place member {member}"), e))?;
        }
        self.fill(member, show)
    }

    fn cancel(&self, place: &MemberAt) -> Result<bool> {
        let view = self.look(&[Some(place.clone())])?;
        Ok(view.roles.first().is_some_and(|role| *role != Role::None))
    }

    fn pause(&self, _: Duration) -> Result<u64> {
        Err(Error::new(ErrorKind::Refused, "the data of a file system is not paused"))
    }

    fn resume(&self, _: u64) -> Result<bool> {
        Err(Error::new(ErrorKind::Refused, "the data of a file system is not paused"))
    }

    fn end(self: Box<Self>) -> Result<()> {
        let FsRun { host, fs, attached, .. } = *self;
        drop(fs);
        host.targets.detach_all(&attached.into_inner());
        Ok(())
    }
}
