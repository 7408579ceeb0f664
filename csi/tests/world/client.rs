//! A client of the driver: what Kubernetes and its sidecars call.

use super::v1::controller_client::ControllerClient;
use super::v1::node_client::NodeClient;
use super::v1::volume_capability::access_mode::Mode;
use super::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use super::v1::volume_content_source::{SnapshotSource, Type as SourceType};
use super::v1::volume_usage::Unit;
use super::v1::*;
use std::path::Path;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// What a call returns.
pub type Outcome<T> = Result<T, Status>;
/// A parameter of a storage class.
pub type Param = (&'static str, &'static str);

/// How a volume is used.
#[derive(Clone, Copy, Debug)]
pub struct Cap {
    /// None of a block device.
    fs: Option<&'static str>,
    mode: Mode,
}

pub const EXT4: Cap = Cap { fs: Some("ext4"), mode: Mode::SingleNodeWriter };
pub const XFS: Cap = Cap { fs: Some("xfs"), mode: Mode::SingleNodeWriter };
pub const BLOCK: Cap = Cap { fs: None, mode: Mode::SingleNodeWriter };
/// A directory that many nodes write to.
pub const SHARED: Cap = Cap { fs: Some(""), mode: Mode::MultiNodeMultiWriter };

pub fn with_mode(capability: Cap, mode: Mode) -> Cap {
    Cap { mode, ..capability }
}

impl From<Cap> for VolumeCapability {
    fn from(cap: Cap) -> VolumeCapability {
        let access = match cap.fs {
            None => AccessType::Block(BlockVolume {}),
            Some(fs) => AccessType::Mount(MountVolume { fs_type: fs.to_owned(), ..MountVolume::default() }),
        };
        let access_mode = Some(AccessMode { mode: cap.mode as i32 });
        VolumeCapability { access_mode, access_type: Some(access) }
    }
}

/// A connection to a driver.
pub struct Client {
    runtime: Runtime,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Client {
    pub fn new(socket: &Path) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("an endpoint");
        let channel = runtime.block_on(endpoint.connect()).expect("connected");
        let (controller, node) = (ControllerClient::new(channel.clone()), NodeClient::new(channel));
        Client { runtime, controller, node }
    }

    pub fn create(&mut self, name: &str, size: i64, cap: Cap, parameters: &[Param]) -> Outcome<Volume> {
        self.create_of(name, size, cap, parameters, None)
    }

    pub fn restore(&mut self, snapshot: &str, name: &str, size: i64, cap: Cap) -> Outcome<Volume> {
        let source = SourceType::Snapshot(SnapshotSource { snapshot_id: snapshot.to_owned() });
        self.create_of(name, size, cap, &[], Some(VolumeContentSource { r#type: Some(source) }))
    }

    fn create_of(
        &mut self,
        name: &str,
        size: i64,
        cap: Cap,
        parameters: &[Param],
        source: Option<VolumeContentSource>,
    ) -> Outcome<Volume> {
        let parameters =
            parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: size }),
            volume_capabilities: vec![cap.into()],
            volume_content_source: source,
            parameters,
            ..CreateVolumeRequest::default()
        };
        let made = self.runtime.block_on(self.controller.create_volume(request))?;
        Ok(made.into_inner().volume.expect("a volume"))
    }

    pub fn delete(&mut self, id: &str) -> Outcome<()> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        self.runtime.block_on(self.controller.delete_volume(request)).map(drop)
    }

    pub fn publish(&mut self, id: &str, node: &str, cap: Cap) -> Outcome<()> {
        let request = ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(cap.into()),
            ..ControllerPublishVolumeRequest::default()
        };
        self.runtime.block_on(self.controller.controller_publish_volume(request)).map(drop)
    }

    pub fn unpublish(&mut self, id: &str, node: &str) -> Outcome<()> {
        let (volume_id, node_id) = (id.to_owned(), node.to_owned());
        let request = ControllerUnpublishVolumeRequest {
            volume_id,
            node_id,
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.runtime.block_on(self.controller.controller_unpublish_volume(request)).map(drop)
    }

    /// IDs of the volumes of a page, and the token of the next one.
    pub fn list(&mut self, max_entries: i32, token: &str) -> Outcome<(Vec<String>, String)> {
        let request = ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        let page = self.runtime.block_on(self.controller.list_volumes(request))?.into_inner();
        let ids = page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id);
        Ok((ids.collect(), page.next_token))
    }

    /// Size in bytes of the largest volume that there is room for.
    pub fn capacity(&mut self, parameters: &[Param]) -> Outcome<i64> {
        let parameters =
            parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = GetCapacityRequest { parameters, ..GetCapacityRequest::default() };
        let room = self.runtime.block_on(self.controller.get_capacity(request))?.into_inner();
        Ok(room.maximum_volume_size.expect("a size"))
    }

    pub fn expand(&mut self, id: &str, size: i64) -> Outcome<i64> {
        let capacity_range = Some(CapacityRange { required_bytes: size, limit_bytes: 0 });
        let volume_id = id.to_owned();
        let request = ControllerExpandVolumeRequest {
            volume_id,
            capacity_range,
            ..ControllerExpandVolumeRequest::default()
        };
        let grown = self.runtime.block_on(self.controller.controller_expand_volume(request))?.into_inner();
        assert!(grown.node_expansion_required);
        Ok(grown.capacity_bytes)
    }

    pub fn snapshot(&mut self, id: &str, name: &str) -> Outcome<Snapshot> {
        let (source_volume_id, name) = (id.to_owned(), name.to_owned());
        let request = CreateSnapshotRequest { source_volume_id, name, ..CreateSnapshotRequest::default() };
        let made = self.runtime.block_on(self.controller.create_snapshot(request))?.into_inner();
        Ok(made.snapshot.expect("a snapshot"))
    }

    pub fn delete_snapshot(&mut self, id: &str) -> Outcome<()> {
        let request =
            DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
        self.runtime.block_on(self.controller.delete_snapshot(request)).map(drop)
    }

    pub fn stage(&mut self, id: &str, stage: &Path, cap: Cap) -> Outcome<()> {
        // As kubelet does.
        std::fs::create_dir_all(stage)
            .or_else(|e| if stage.symlink_metadata().is_err() { Err(e) } else { Ok(()) })?;
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(stage),
            volume_capability: Some(cap.into()),
            ..NodeStageVolumeRequest::default()
        };
        self.runtime.block_on(self.node.node_stage_volume(request)).map(drop)
    }

    pub fn unstage(&mut self, id: &str, stage: &Path) -> Outcome<()> {
        let request = NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: text(stage) };
        self.runtime.block_on(self.node.node_unstage_volume(request)).map(drop)
    }

    pub fn publish_at(
        &mut self,
        id: &str,
        stage: &Path,
        target: &Path,
        cap: Cap,
        readonly: bool,
    ) -> Outcome<()> {
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(stage),
            target_path: text(target),
            volume_capability: Some(cap.into()),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.runtime.block_on(self.node.node_publish_volume(request)).map(drop)
    }

    pub fn unpublish_at(&mut self, id: &str, target: &Path) -> Outcome<()> {
        let request = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(target) };
        self.runtime.block_on(self.node.node_unpublish_volume(request)).map(drop)
    }

    pub fn expand_at(&mut self, id: &str, target: &Path) -> Outcome<()> {
        let (volume_id, volume_path) = (id.to_owned(), text(target));
        let request =
            NodeExpandVolumeRequest { volume_id, volume_path, ..NodeExpandVolumeRequest::default() };
        self.runtime.block_on(self.node.node_expand_volume(request)).map(drop)
    }

    /// Units, and what there is of each.
    pub fn stats(&mut self, id: &str, target: &Path) -> Outcome<Vec<(&'static str, i64)>> {
        let (volume_id, volume_path) = (id.to_owned(), text(target));
        let request =
            NodeGetVolumeStatsRequest { volume_id, volume_path, ..NodeGetVolumeStatsRequest::default() };
        let stats = self.runtime.block_on(self.node.node_get_volume_stats(request))?.into_inner();
        let unit = |usage: &VolumeUsage| if usage.unit() == Unit::Bytes { "bytes" } else { "inodes" };
        Ok(stats.usage.iter().map(|usage| (unit(usage), usage.total)).collect())
    }

    /// What is wrong with a volume on its node.
    pub fn health(&mut self, id: &str) -> Outcome<Vec<String>> {
        let request =
            NodeGetVolumeHealthRequest { volume_id: id.to_owned(), ..NodeGetVolumeHealthRequest::default() };
        let health = self.runtime.block_on(self.node.node_get_volume_health(request))?.into_inner();
        let entries = health.volume_health.expect("health").health_statuses;
        Ok(entries.into_iter().map(|entry| entry.reason).collect())
    }
}
