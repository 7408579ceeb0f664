//! Staging: a volume is attached and mounted on this node, once for all its containers.

use crate::driver::{Driver, failed, required};
use crate::mounts;
use crate::names::{Id, Kind};
use crate::node::{DEVICE, Here, absolute, place};
use crate::program::{Failed, VolumeInfo};
use crate::request::{Access, Capability};
use crate::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tonic::Status;

impl Driver {
    pub(crate) fn stage(
        self: &Arc<Self>,
        request: &NodeStageVolumeRequest,
    ) -> Result<NodeStageVolumeResponse, Status> {
        required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        let capability = Capability::new(request.volume_capability.as_ref())?;
        let node = self.node()?;
        let Here { id, _busy } = self.here(&request.volume_id)?;
        if let Some(why) = capability.refusal(id.kind) {
            return Err(Status::invalid_argument(why));
        }
        let staging = absolute(&request.staging_target_path)?;
        let at = place(&staging, &capability);
        let read_only = capability.is_read_only();
        if let Some(attached) = self.attached_at(&at)? {
            if !attached.served {
                // Its process was killed, or this node has started again.
                self.release(&at)?;
            } else if attached.devices != [id.to_string()] {
                let why = format!("{} is staged at {} already", attached.devices.join(" "), at.display());
                return Err(Status::failed_precondition(why));
            } else if attached.read_only != read_only {
                let why = format!("{id} is staged already, and differs in whether it may be written to");
                return Err(Status::already_exists(why));
            } else {
                return Ok(NodeStageVolumeResponse {});
            }
        }
        let (id, info) = self.found(Some(node), id)?;
        if !info.hosts.iter().any(|host| host == node) {
            let why = format!("{id} is not published to this node, {node}");
            return Err(Status::failed_precondition(why));
        }
        fs::create_dir_all(&staging).map_err(failed(format!("make {}", staging.display())))?;
        match &capability.access {
            Access::Block => self.attach_at(&id, &at, read_only)?,
            Access::Mount { fs, flags } => self.mount_at(&id, &info, &at, read_only, fs.as_deref(), flags)?,
        }
        Ok(NodeStageVolumeResponse {})
    }

    fn attach_at(&self, id: &Id, at: &Path, read_only: bool) -> Result<(), Status> {
        let node = self.node()?;
        self.program.attach(node, &id.to_string(), &at.to_string_lossy(), read_only).map_err(busy_or)?;
        Ok(())
    }

    fn mount_at(
        &self,
        id: &Id,
        info: &VolumeInfo,
        at: &Path,
        read_only: bool,
        fs: Option<&str>,
        flags: &[String],
    ) -> Result<(), Status> {
        let (node, name, path) = (self.node()?, id.to_string(), at.to_string_lossy());
        let mut args = vec![&*name, &path];
        args.extend(read_only.then_some("--read-only"));
        let mut options = flags.to_vec();
        match id.kind {
            // Containers run as other users.
            Kind::FileSystem => args.push("--allow-other"),
            // A copy has the identity of its source, which may be mounted here as well.
            Kind::Volume if info.snapshot_of.is_some() && fs.unwrap_or("xfs") == "xfs" && !read_only => {
                options.push("nouuid".to_owned());
            }
            Kind::Volume => {}
        }
        let options = options.join(",");
        if !options.is_empty() {
            args.extend(["--options", &*options]);
        }
        let mounted = match self.program.mount(node, &args) {
            Err(failed) if failed.is("empty") && !read_only => {
                self.program.mkfs(node, fs.unwrap_or("xfs"), &name).map_err(busy_or)?;
                self.program.mount(node, &args)
            }
            mounted => mounted,
        };
        let mounted = mounted.map_err(busy_or)?;
        match (fs, &mounted.fs) {
            (Some(wanted), Some(is)) if wanted != is => {
                self.program.release("umount", &path)?;
                Err(Status::invalid_argument(format!("{id} has a file system of kind {is}, not {wanted}")))
            }
            _ => Ok(()),
        }
    }

    /// Ends what is attached or mounted at a path.
    fn release(&self, at: &Path) -> Result<(), Status> {
        let path = at.to_string_lossy();
        if at.file_name().is_none_or(|name| name != DEVICE) {
            return Ok(self.program.release("umount", &path)?);
        }
        for device in mounts::loops_of(at).map_err(failed("list loop devices"))? {
            let device = device.to_string_lossy();
            mounts::run("losetup", &["--detach", &device]).map_err(failed(format!("detach {device}")))?;
        }
        Ok(self.program.release("detach", &path)?)
    }

    pub(crate) fn unstage(
        self: &Arc<Self>,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        required("staging_target_path", &request.staging_target_path)?;
        let Here { id, _busy } = self.here(&request.volume_id)?;
        let staging = absolute(&request.staging_target_path)?;
        let device = staging.join(DEVICE);
        let attached = self.program.attached()?;
        for at in [&device, &staging] {
            let Some(attached) = attached.iter().find(|attached| Path::new(&attached.path) == at) else {
                continue;
            };
            if attached.devices != [id.to_string()] {
                let why = format!("{} is staged at {}, not {id}", attached.devices.join(" "), at.display());
                return Err(Status::failed_precondition(why));
            }
            let published = if attached.served { self.published(at)? } else { Vec::new() };
            if let Some(elsewhere) = published.first() {
                let why = format!("{id} is still published at {}", elsewhere.display());
                return Err(Status::failed_precondition(why));
            }
            self.release(at)?;
        }
        // Of a mount whose record is lost: any unmount ends it.
        mounts::unmount_all(&staging).map_err(failed(format!("unmount {}", staging.display())))?;
        Ok(NodeUnstageVolumeResponse {})
    }
}

/// A refusal of a volume that an earlier call, whose driver was killed, is still staging: to be tried again.
fn busy_or(failed: Failed) -> Status {
    if failed.is("in-use") { Status::aborted(failed.message) } else { failed.into() }
}
