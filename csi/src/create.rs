//! Making volumes: once for each name, whole or not at all.

use crate::controller::{bytes, differs};
use crate::driver::{Driver, required};
use crate::names::{self, Id, Kind};
use crate::program::{VolumeInfo, kind_of};
use crate::request::{Capability, Parameters, Range, file_system_of};
use crate::v1::volume_content_source::Type as SourceType;
use crate::v1::{CreateVolumeRequest, CreateVolumeResponse, Volume};
use std::sync::Arc;
use tonic::Status;

/// What a volume is made of.
struct Content {
    /// A volume or snapshot of the same pool.
    id: Id,
    info: VolumeInfo,
}

impl Driver {
    /// The pool of a request.
    pub(crate) fn pool_of(&self, parameters: &Parameters) -> Result<String, Status> {
        let pools = self.pools.join(", ");
        match (&parameters.pool, &self.pools[..]) {
            (Some(pool), all) if all.contains(pool) => Ok(pool.clone()),
            (Some(pool), _) => {
                Err(Status::invalid_argument(format!("there is no pool {pool}: there are {pools}")))
            }
            (None, [pool]) => Ok(pool.clone()),
            (None, _) => Err(Status::invalid_argument(format!("parameter pool is missing: one of {pools}"))),
        }
    }

    pub(crate) fn create(
        self: &Arc<Self>,
        request: &CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        let asked = required("name", &request.name)?;
        if !names::is_askable(asked) {
            return Err(Status::invalid_argument("the name has control characters, or more than 128 bytes"));
        }
        let parameters = Parameters::new(&request.parameters)?;
        if !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("a volume has no parameters that change"));
        }
        let wanted = Capability::all(&request.volume_capabilities)?;
        if let Some(why) = wanted.iter().find_map(|wanted| wanted.refusal(parameters.kind)) {
            return Err(Status::invalid_argument(why));
        }
        let fs = match parameters.kind {
            Kind::Volume => file_system_of(&wanted, &parameters)?,
            Kind::FileSystem => None,
        };
        let range = Range::new(request.capacity_range.as_ref())?;
        let pool = self.pool_of(&parameters)?;
        let id = Id::new(parameters.kind, &pool, &names::of_volume(asked));
        let _busy = self.take(&format!("volume {}", id.name))?;
        let content = self.content_of(request, &pool)?;
        let size = match self.of_name(&id.name)? {
            Some((found, info)) => {
                check_same(&found, &info, &id, &parameters, range, content.as_ref())?;
                self.finish(&id, info, range, content.as_ref())?
            }
            None => match &content {
                Some(content) => {
                    if content.info.kind() != parameters.kind {
                        return Err(Status::invalid_argument("a file system in a pool has no copies"));
                    }
                    if content.info.size > range.most {
                        let why =
                            format!("{} has {} bytes: more than the limit", content.id, content.info.size);
                        return Err(Status::out_of_range(why));
                    }
                    self.program.snapshot(self.manager(), &content.id.path(), &id.name)?;
                    let (_, info) = self.found(self.manager(), id.clone())?;
                    self.finish(&id, info, range, Some(content))?
                }
                None => {
                    let size = range.size(fs.as_deref())?;
                    self.make(&id, &parameters, size, fs.as_deref())?;
                    size
                }
            },
        };
        let volume = Volume {
            volume_id: id.to_string(),
            capacity_bytes: bytes(size),
            content_source: request.volume_content_source.clone(),
            ..Volume::default()
        };
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    /// The volume that has this name in any of the pools: names are those of the whole driver.
    pub(crate) fn of_name(&self, name: &str) -> Result<Option<(Id, VolumeInfo)>, Status> {
        for pool in &self.pools {
            let path = format!("{pool}/{name}");
            if let Some(info) = self.program.info(self.manager(), &path)? {
                return Ok(Some((Id::new(info.kind(), pool, name), info)));
            }
        }
        Ok(None)
    }

    /// The volume or snapshot that a request copies.
    fn content_of(&self, request: &CreateVolumeRequest, pool: &str) -> Result<Option<Content>, Status> {
        let source = request.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
        let (text, id) = match source {
            None => return Ok(None),
            Some(SourceType::Snapshot(source)) => (&source.snapshot_id, Id::snapshot(&source.snapshot_id)),
            Some(SourceType::Volume(source)) => (&source.volume_id, Id::volume(&source.volume_id)),
        };
        let id = id.ok_or_else(|| Status::not_found(format!("there is no {text} to be copied")))?;
        let (id, info) = self.found(self.manager(), id)?;
        if id.pool != pool {
            return Err(Status::invalid_argument(format!(
                "{id} is not in pool {pool}: copies stay in their pool"
            )));
        }
        Ok(Some(Content { id, info }))
    }

    /// Gives a volume that is there the size that was asked for: a copy begins with that of its source. Its size.
    fn finish(
        &self,
        id: &Id,
        info: VolumeInfo,
        range: Range,
        content: Option<&Content>,
    ) -> Result<u64, Status> {
        if info.creating {
            return Err(Status::aborted(format!("{id} is being made: try again later")));
        }
        if content.is_none() || info.size >= range.least {
            return Ok(info.size);
        }
        self.program.resize(self.manager(), id, range.least)?;
        Ok(range.least)
    }

    /// Makes a volume under another name, and gives it its own name when it is whole. What an earlier attempt was
    /// killed at is removed.
    fn make(&self, id: &Id, parameters: &Parameters, size: u64, fs: Option<&str>) -> Result<(), Status> {
        self.remove_unfinished(&id.pool, &id.name)?;
        let mut args =
            vec!["--size".to_owned(), size.to_string(), "--layout".to_owned(), parameters.layout.clone()];
        args.extend(parameters.flags.iter().cloned());
        if let Some(width) = parameters.width {
            args.extend(["--width".to_owned(), width.to_string()]);
        }
        if let Some(fs) = fs {
            args.extend(["--fs".to_owned(), fs.to_owned()]);
        }
        let unfinished = names::new_unfinished(&id.name).map_err(|e| Status::internal(e.to_string()))?;
        let unfinished = Id { name: unfinished, ..id.clone() };
        self.program.create(self.manager(), &unfinished, &args)?;
        let renamed = self.program.rename(self.manager(), &unfinished.path(), &id.name);
        if let Err(failed) = renamed {
            if let Err(left) = self.program.remove(self.manager(), &unfinished) {
                eprintln!("longhaul-csi: {unfinished} is left: {}", left.message);
            }
            return Err(failed.into());
        }
        Ok(())
    }

    /// Removes what attempts to make a volume have left.
    pub(crate) fn remove_unfinished(&self, pool: &str, name: &str) -> Result<(), Status> {
        let begins = names::unfinished(name);
        for left in self.program.list(self.manager(), &[pool.to_owned()])? {
            if !left.name.starts_with(&begins) {
                continue;
            }
            // The program of that attempt, or the pool within 30 s, removes it.
            if left.creating {
                return Err(Status::aborted(format!(
                    "an earlier attempt to make {name} is not over: try again later"
                )));
            }
            self.program.remove(self.manager(), &Id::new(kind_of(&left.layout), pool, &left.name))?;
        }
        Ok(())
    }
}

/// Refuses a volume that has the name of a request, and is not what it asks for.
fn check_same(
    found: &Id,
    info: &VolumeInfo,
    wanted: &Id,
    parameters: &Parameters,
    range: Range,
    content: Option<&Content>,
) -> Result<(), Status> {
    let other = |why: String| Err(Status::already_exists(format!("there is another volume {found}: {why}")));
    if found != wanted {
        return other(format!("{wanted} is asked for"));
    }
    let (is_of, wanted_of) = (info.snapshot_of.as_ref(), content.map(|content| &content.info.uuid));
    if is_of.map(|of| &of.uuid) != wanted_of {
        return other("its content is of another source".to_owned());
    }
    // A copy has the shape of its source, and begins with its size.
    let is_short_copy =
        content.is_some_and(|content| info.size >= content.info.size && info.size < range.least);
    if !range.has(info.size) && !is_short_copy {
        return other(format!("it has {} bytes", info.size));
    }
    match differs(found, info, parameters).filter(|_| content.is_none()) {
        Some(why) => other(why),
        None => Ok(()),
    }
}
