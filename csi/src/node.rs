//! The node service: volumes are attached and mounted on this node, and shown to containers.
//!
//! What is true at any time, so that the driver may be killed at any time:
//! - It remembers nothing: what is staged is what `longhaul attach --list` has, and what is published what the kernel
//!   has mounted.
//! - What serves a volume is a process of its own, which does not end with the driver.
//! - The staging path of a directory is the mount itself; that of a block device is a directory with `device`, a file,
//!   or a link to a block device.

use crate::driver::{Busy, Driver, failed, no_volume, required};
use crate::mounts::{self, Mount};
use crate::names::{Id, Kind};
use crate::program::Attached;
use crate::request::{Access, Capability};
use crate::v1::node_server::Node;
use crate::v1::node_service_capability::rpc::Type as Rpc;
use crate::v1::node_service_capability::{Rpc as RpcCapability, Type};
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_health::VolumeHealthEntry;
use crate::v1::volume_usage::Unit;
use crate::v1::*;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

/// Calls that the node answers.
const CAPABILITIES: [Rpc; 5] = [
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::ExpandVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetVolumeHealth,
];
/// The block device of a volume in its staging path.
pub(crate) const DEVICE: &str = "device";
/// How long a device that is attached may take to show its new size, and how often it is looked at.
const GROWTH: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(100);

/// The node service.
#[derive(Clone, Debug)]
pub(crate) struct NodeService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        self.0.call("NodeStageVolume", |driver| driver.stage(&request.into_inner())).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        self.0.call("NodeUnstageVolume", |driver| driver.unstage(&request.into_inner())).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        self.0.call("NodePublishVolume", |driver| driver.publish_here(&request.into_inner())).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        self.0.call("NodeUnpublishVolume", |driver| driver.unpublish_here(&request.into_inner())).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        self.0.call("NodeGetVolumeStats", |driver| driver.stats(&request.into_inner())).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        self.0.call("NodeExpandVolume", |driver| driver.expand_here(&request.into_inner())).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let capability = |rpc: Rpc| NodeServiceCapability {
            r#type: Some(Type::Rpc(RpcCapability { r#type: rpc as i32 })),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: CAPABILITIES.into_iter().map(capability).collect(),
        }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.0.node()?.to_owned(),
            ..NodeGetInfoResponse::default()
        }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Answer<NodeGetVolumeHealthResponse> {
        self.0.call("NodeGetVolumeHealth", |driver| driver.health(&request.into_inner())).await
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Answer<NodeGetStorageHealthResponse> {
        Err(Status::unimplemented("NodeGetStorageHealth is no capability of this driver"))
    }
}

/// What a request names: a volume on this node, which no other call works on meanwhile.
pub(crate) struct Here {
    pub(crate) id: Id,
    pub(crate) _busy: Busy,
}

impl Driver {
    /// # Errors
    /// This is no driver of a node.
    pub(crate) fn node(&self) -> Result<&str, Status> {
        self.node.as_deref().ok_or_else(|| Status::unimplemented("this driver was started without --node-id"))
    }

    /// Takes a volume on this node.
    pub(crate) fn here(self: &Arc<Self>, text: &str) -> Result<Here, Status> {
        let id = Id::volume(required("volume_id", text)?).ok_or_else(|| no_volume(text))?;
        let busy = self.take(&format!("{id} on this node"))?;
        Ok(Here { id, _busy: busy })
    }

    /// What is attached or mounted at a path by `longhaul`.
    pub(crate) fn attached_at(&self, path: &Path) -> Result<Option<Attached>, Status> {
        Ok(self.program.attached()?.into_iter().find(|attached| Path::new(&attached.path) == path))
    }

    /// What containers are shown of what is staged at a path: a mount, or a block device.
    fn shown(&self, at: &Path) -> Result<Shown, Status> {
        let looked = failed(format!("look at {}", at.display()));
        if at.file_name().is_some_and(|name| name == DEVICE) {
            let is_device = mounts::block_device(at).map_err(looked)?.is_some();
            let found = if is_device { vec![at.to_owned()] } else { loops(at)? };
            return Ok(Shown::Devices(found));
        }
        mounts::at(at).map_err(looked)?.map(Shown::Mount).ok_or_else(|| {
            Status::failed_precondition(format!(
                "nothing is mounted at {}: stage the volume again",
                at.display()
            ))
        })
    }

    /// Where else on this node that is mounted which is staged at a path.
    pub(crate) fn published(&self, at: &Path) -> Result<Vec<PathBuf>, Status> {
        let all = mounts::all().map_err(failed("list mounts"))?;
        let is_it: Box<dyn Fn(&Mount) -> bool> = match self.shown(at)? {
            Shown::Mount(own) => Box::new(move |mount| mount.device == own.device),
            Shown::Devices(devices) => {
                let numbers: Vec<u64> =
                    devices.iter().filter_map(|device| mounts::block_device(device).ok()?).collect();
                Box::new(move |mount| {
                    mounts::block_device(&mount.at)
                        .is_ok_and(|number| number.is_some_and(|n| numbers.contains(&n)))
                })
            }
        };
        Ok(all.into_iter().filter(|mount| is_it(mount) && mount.at != at).map(|mount| mount.at).collect())
    }

    fn publish_here(
        self: &Arc<Self>,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        required("volume_id", &request.volume_id)?;
        required("target_path", &request.target_path)?;
        let capability = Capability::new(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("the request has no staging_target_path"));
        }
        let Here { id, _busy } = self.here(&request.volume_id)?;
        let target = absolute(&request.target_path)?;
        let at = place(&absolute(&request.staging_target_path)?, &capability);
        let staged = self.attached_at(&at)?.filter(|attached| attached.devices == [id.to_string()]);
        let staged = staged.ok_or_else(|| {
            Status::failed_precondition(format!("{id} is not staged at {}", request.staging_target_path))
        })?;
        if !staged.served {
            let why =
                format!("the process that serves {id} has ended: unstage the volume, and stage it again");
            return Err(Status::failed_precondition(why));
        }
        if capability.mode == Mode::SingleNodeSingleWriter
            && let Some(other) = self.published(&at)?.into_iter().find(|other| *other != target)
        {
            let why = format!("{id} is published at {} already, and is for one place", other.display());
            return Err(Status::failed_precondition(why));
        }
        match self.shown(&at)? {
            Shown::Mount(own) => {
                let bound = failed(format!("bind {} at {}", at.display(), target.display()));
                match mounts::at(&target).map_err(failed("list mounts"))? {
                    Some(mount) if mount.device == own.device && mount.root == own.root => {}
                    Some(_) => return Err(taken(&target)),
                    None => {
                        fs::create_dir_all(&target).map_err(failed(format!("make {}", target.display())))?;
                        mounts::bind(&at, &target).map_err(bound)?;
                    }
                }
            }
            Shown::Devices(found) => {
                let device = match found.into_iter().next() {
                    Some(found) => found,
                    None => mounts::loop_of(&at, staged.read_only).map_err(failed("make a loop device"))?,
                };
                let number =
                    |path: &Path| mounts::block_device(path).map_err(failed("look at a block device"));
                match mounts::at(&target).map_err(failed("list mounts"))? {
                    Some(_) if number(&target)? == number(&device)? => {}
                    Some(_) => return Err(taken(&target)),
                    None => {
                        mounts::make_file(&target).map_err(failed(format!("make {}", target.display())))?;
                        let bound = failed(format!("bind {} at {}", device.display(), target.display()));
                        mounts::bind(&fs::canonicalize(&device).map_err(failed("follow a link"))?, &target)
                            .map_err(bound)?;
                    }
                }
            }
        }
        // Also of a mount that a driver made which was killed before it came here.
        if request.readonly {
            mounts::make_read_only(&target)
                .map_err(failed(format!("make {} read-only", target.display())))?;
        }
        Ok(NodePublishVolumeResponse {})
    }

    fn unpublish_here(
        self: &Arc<Self>,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        required("target_path", &request.target_path)?;
        let _here = self.here(&request.volume_id)?;
        let target = absolute(&request.target_path)?;
        mounts::unmount_all(&target).map_err(failed(format!("unmount {}", target.display())))?;
        mounts::remove_point(&target).map_err(failed(format!("remove {}", target.display())))?;
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// The mount at a path by which a volume is used on this node.
    ///
    /// # Errors
    /// `NOT_FOUND` if the volume is not staged here, or is not there.
    fn used_at(&self, id: &Id, path: &str) -> Result<(Mount, Attached), Status> {
        let missing = || Status::not_found(format!("{id} is not at {path}"));
        let attached =
            self.program.attached()?.into_iter().find(|attached| attached.devices == [id.to_string()]);
        let attached = attached.ok_or_else(missing)?;
        let path = absolute(path).map_err(|_| missing())?;
        let at = PathBuf::from(&attached.path);
        let is_it = path == at || self.published(&at)?.contains(&path);
        let mount = mounts::at(&path).map_err(failed("list mounts"))?;
        mount.filter(|_| is_it).map(|mount| (mount, attached)).ok_or_else(missing)
    }

    fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Status> {
        let path = required("volume_path", &request.volume_path)?;
        let text = required("volume_id", &request.volume_id)?;
        let id = Id::volume(text).ok_or_else(|| no_volume(text))?;
        let (mount, _) = self.used_at(&id, path)?;
        let looked = || failed(format!("look at {path}"));
        let usage = |unit: Unit, total: u64, available: u64, used: u64| {
            let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            VolumeUsage {
                unit: unit as i32,
                total: count(total),
                available: count(available),
                used: count(used),
            }
        };
        let usage = match mounts::block_device(&mount.at).map_err(looked())? {
            Some(number) => {
                let size = mounts::device_size(number).map_err(looked())?;
                vec![usage(Unit::Bytes, size, 0, 0)]
            }
            None => {
                let found = rustix::fs::statvfs(&mount.at).map_err(std::io::Error::from).map_err(looked())?;
                let block = found.f_frsize;
                let used = found.f_blocks.saturating_sub(found.f_bfree);
                let inodes = found.f_files.saturating_sub(found.f_ffree);
                vec![
                    usage(Unit::Bytes, found.f_blocks * block, found.f_bavail * block, used * block),
                    usage(Unit::Inodes, found.f_files, found.f_favail, inodes),
                ]
            }
        };
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    fn health(&self, request: &NodeGetVolumeHealthRequest) -> Result<NodeGetVolumeHealthResponse, Status> {
        let text = required("volume_id", &request.volume_id)?;
        let id = Id::volume(text).ok_or_else(|| no_volume(text))?;
        let attached =
            self.program.attached()?.into_iter().find(|attached| attached.devices == [id.to_string()]);
        let attached =
            attached.ok_or_else(|| Status::not_found(format!("{id} is not staged on this node")))?;
        let entry = |status: VolumeHealthErrorType, reason: &str| VolumeHealthEntry {
            status: status as i32,
            reason: reason.to_owned(),
            message: attached.trouble.clone().unwrap_or_default(),
        };
        let health_statuses = match attached.health.as_str() {
            "healthy" => Vec::new(),
            "lost" => vec![entry(VolumeHealthErrorType::Inaccessible, "ProcessEnded")],
            "degraded" => vec![entry(VolumeHealthErrorType::Degraded, "Degraded")],
            _ => vec![entry(VolumeHealthErrorType::Inaccessible, "Trouble")],
        };
        let volume_health = Some(VolumeHealth { volume_id: id.to_string(), health_statuses });
        Ok(NodeGetVolumeHealthResponse { volume_health })
    }

    fn expand_here(
        self: &Arc<Self>,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let path = required("volume_path", &request.volume_path)?;
        let node = self.node()?;
        let Here { id, _busy } = self.here(&request.volume_id)?;
        let (mount, attached) = self.used_at(&id, path)?;
        let (_, info) = self.found(Some(node), id.clone())?;
        let capacity_bytes = i64::try_from(info.size).unwrap_or(i64::MAX);
        if id.kind == Kind::FileSystem {
            return Ok(NodeExpandVolumeResponse { capacity_bytes });
        }
        // The controller has grown its namespaces; its array grows here, where it runs.
        self.program.resize(Some(node), &id, info.size)?;
        let looked = || failed(format!("look at {path}"));
        match mounts::block_device(&mount.at).map_err(looked())? {
            Some(number) => {
                let file = PathBuf::from(&attached.path);
                let is_file = fs::metadata(&file).map_err(looked())?.is_file();
                if is_file {
                    grown(info.size, || Ok(fs::metadata(&file)?.len()))?;
                    for device in loops(&file)? {
                        let device = device.to_string_lossy();
                        mounts::run("losetup", &["--set-capacity", &device])
                            .map_err(failed("grow a loop device"))?;
                    }
                }
                grown(info.size, || mounts::device_size(number))?;
            }
            None => {
                let number = mounts::block_device(&mount.source).map_err(looked())?.ok_or_else(|| {
                    Status::internal(format!("{} is no block device", mount.source.display()))
                })?;
                grown(info.size, || mounts::device_size(number))?;
                let (at, source) = (mount.at.to_string_lossy(), mount.source.to_string_lossy());
                let grow = match mount.fs.as_str() {
                    "xfs" => mounts::run("xfs_growfs", &[&at]),
                    _ => mounts::run("resize2fs", &[&source]),
                };
                grow.map_err(failed(format!("grow the file system of {id}")))?;
            }
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes })
    }
}

/// What containers are shown of a staged volume.
enum Shown {
    /// A directory.
    Mount(Mount),
    /// A block device; none of a file that has no loop device yet.
    Devices(Vec<PathBuf>),
}

/// Where a volume is attached or mounted.
pub(crate) fn place(staging: &Path, capability: &Capability) -> PathBuf {
    match capability.access {
        Access::Block => staging.join(DEVICE),
        Access::Mount { .. } => staging.to_owned(),
    }
}

/// A path without links above its last part. That part is not looked at: it may be a mount whose process is gone.
pub(crate) fn absolute(path: &str) -> Result<PathBuf, Status> {
    let given = Path::new(path);
    let (Some(parent), Some(name), true) = (given.parent(), given.file_name(), given.is_absolute()) else {
        return Err(Status::invalid_argument(format!("'{path}' is no absolute path")));
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(parent.join(name)),
        // Nothing can be mounted there.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(given.to_owned()),
        Err(e) => Err(failed(format!("look at {path}"))(e)),
    }
}

fn taken(target: &Path) -> Status {
    Status::failed_precondition(format!("something else is mounted at {}", target.display()))
}

fn loops(file: &Path) -> Result<Vec<PathBuf>, Status> {
    mounts::loops_of(file).map_err(failed("list loop devices"))
}

/// Waits until something has this size.
fn grown(size: u64, now: impl Fn() -> std::io::Result<u64>) -> Result<(), Status> {
    let end = Instant::now() + GROWTH;
    loop {
        let is = now().map_err(failed("read the size of a device"))?;
        if is >= size {
            return Ok(());
        }
        if Instant::now() > end {
            let why = format!("the device shows {is} bytes after {} s, not {size} yet", GROWTH.as_secs());
            return Err(Status::unavailable(why));
        }
        std::thread::sleep(LOOK);
    }
}
