//! The controller service: volumes are made, given to nodes, grown, copied and removed.
//!
//! What is true at any time, so that the driver may be killed at any time:
//! - A volume has its name only once it is whole, with its file system: it is made under another name, and renamed.
//! - The hosts of a volume, in its record and at its targets, are the nodes that it is published to. It is made for
//!   none, and removed only when it has none.

use crate::driver::{Driver, required};
use crate::names::{self, Id, Kind};
use crate::program::{VolumeInfo, kind_of};
use crate::request::{Capability, Parameters, Range, page};
use crate::v1::controller_server::Controller;
use crate::v1::controller_service_capability::rpc::Type as Rpc;
use crate::v1::controller_service_capability::{Rpc as RpcCapability, Type};
use crate::v1::list_volumes_response::Entry;
use crate::v1::validate_volume_capabilities_response::Confirmed;
use crate::v1::*;
use std::sync::Arc;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

/// Calls that the controller answers.
const CAPABILITIES: [Rpc; 9] = [
    Rpc::CreateDeleteVolume,
    Rpc::PublishUnpublishVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::ExpandVolume,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::SingleNodeMultiWriter,
];

/// The controller service.
#[derive(Clone, Debug)]
pub(crate) struct ControllerService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        self.0.call("CreateVolume", |driver| driver.create(&request.into_inner())).await
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        self.0.call("DeleteVolume", |driver| driver.delete(&request.into_inner().volume_id)).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        self.0.call("ControllerPublishVolume", |driver| driver.publish(&request.into_inner())).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        self.0.call("ControllerUnpublishVolume", |driver| driver.unpublish(&request.into_inner())).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        self.0.call("ValidateVolumeCapabilities", |driver| driver.validate(request.into_inner())).await
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        self.0.call("ListVolumes", |driver| driver.list_volumes(&request.into_inner())).await
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        self.0.call("GetCapacity", |driver| driver.capacity(&request.into_inner())).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let capability = |rpc: Rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(RpcCapability { r#type: rpc as i32 })),
        };
        let capabilities = CAPABILITIES.into_iter().map(capability).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        self.0.call("CreateSnapshot", |driver| driver.create_snapshot(&request.into_inner())).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        self.0
            .call("DeleteSnapshot", |driver| driver.delete_snapshot(&request.into_inner().snapshot_id))
            .await
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        self.0.call("ListSnapshots", |driver| driver.list_snapshots(&request.into_inner())).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        self.0.call("ControllerExpandVolume", |driver| driver.expand(&request.into_inner())).await
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        Err(Status::unimplemented("ControllerGetVolume is no capability of this driver"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        Err(Status::unimplemented(
            "a volume has no parameters that change: ControllerModifyVolume is no capability",
        ))
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<ControllerListVolumeHealthRequest>,
    ) -> Answer<ControllerListVolumeHealthResponse> {
        Err(Status::unimplemented("ControllerListVolumeHealth is no capability of this driver"))
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<ControllerGetVolumeHealthRequest>,
    ) -> Answer<ControllerGetVolumeHealthResponse> {
        Err(Status::unimplemented("ControllerGetVolumeHealth is no capability of this driver"))
    }

    async fn get_snapshot(&self, _: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        Err(Status::unimplemented("GetSnapshot is no capability of this driver"))
    }
}

impl Driver {
    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    fn delete(self: &Arc<Self>, text: &str) -> Result<DeleteVolumeResponse, Status> {
        let Some(id) = Id::volume(required("volume_id", text)?) else { return Ok(DeleteVolumeResponse {}) };
        let _busy = self.take(&format!("volume {}", id.name))?;
        self.remove(&id)?;
        self.remove_unfinished(&id.pool, &id.name)?;
        Ok(DeleteVolumeResponse {})
    }

    /// Removes a volume or a snapshot that no node uses; one that is not there counts as removed.
    pub(crate) fn remove(&self, id: &Id) -> Result<(), Status> {
        let Some(info) = self.look_up(self.manager(), id)? else { return Ok(()) };
        if info.creating {
            return Err(Status::aborted(format!("{id} is being made: try again later")));
        }
        if !info.hosts.is_empty() {
            let why = format!("{id} is in use: it is published to {}", info.hosts.join(", "));
            return Err(Status::failed_precondition(why));
        }
        match self.program.remove(self.manager(), id) {
            Err(failed) if failed.is("not-found") => Ok(()),
            done => Ok(done?),
        }
    }

    fn publish(
        self: &Arc<Self>,
        request: &ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        required("volume_id", &request.volume_id)?;
        let node = required("node_id", &request.node_id)?;
        let capability = Capability::new(request.volume_capability.as_ref())?;
        let (id, _) = self.volume(self.manager(), &request.volume_id)?;
        if !names::is_nqn(node) {
            return Err(Status::not_found(format!(
                "there is no node {node}: nodes are called by their host NQN"
            )));
        }
        if let Some(why) = capability.refusal(id.kind) {
            return Err(Status::invalid_argument(why));
        }
        let _busy = self.take(&format!("volume {}", id.name))?;
        let (id, info) = self.found(self.manager(), id)?;
        let others: Vec<&str> = info.hosts.iter().map(String::as_str).filter(|host| *host != node).collect();
        if id.kind == Kind::Volume && !others.is_empty() {
            let why =
                format!("{id} is published to {}, and one node uses a volume at a time", others.join(", "));
            return Err(Status::failed_precondition(why));
        }
        // Also if the node is one of its hosts: targets may not know of it yet.
        self.program.open(self.manager(), &id.path(), node)?;
        Ok(ControllerPublishVolumeResponse::default())
    }

    fn unpublish(
        self: &Arc<Self>,
        request: &ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        let done = Ok(ControllerUnpublishVolumeResponse {});
        let Some(id) = Id::volume(required("volume_id", &request.volume_id)?) else { return done };
        let _busy = self.take(&format!("volume {}", id.name))?;
        let Some(info) = self.look_up(self.manager(), &id)? else { return done };
        let nodes = match request.node_id.as_str() {
            "" => info.hosts,
            node => vec![node.to_owned()],
        };
        if !nodes.is_empty() {
            self.program.close(self.manager(), &id.path(), &nodes)?;
        }
        done
    }

    fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        required("volume_id", &request.volume_id)?;
        let wanted = Capability::all(&request.volume_capabilities)?;
        let (id, info) = self.volume(self.manager(), &request.volume_id)?;
        let mut why = wanted.iter().find_map(|wanted| wanted.refusal(id.kind));
        if why.is_none() && !request.parameters.is_empty() {
            let parameters = Parameters::new(&request.parameters)?;
            why = differs(&id, &info, &parameters);
        }
        if let Some(message) = why {
            return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }

    fn list_volumes(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let token = request.starting_token.as_str();
        let listed = self.program.list(self.manager(), &self.pools)?;
        let volumes = listed.into_iter().filter(|listed| names::is_volume(&listed.name) && !listed.creating);
        let volumes = volumes.map(|listed| Volume {
            volume_id: Id::new(kind_of(&listed.layout), &listed.pool, &listed.name).to_string(),
            capacity_bytes: bytes(listed.size),
            ..Volume::default()
        });
        let key = |volume: &Volume| volume.volume_id.clone();
        let is_key = |token: &str| Id::volume(token).is_some();
        let page = page(volumes.collect(), key, is_key, (token, request.max_entries))?;
        let entries = page.entries.into_iter().map(|volume| Entry { volume: Some(volume), status: None });
        Ok(ListVolumesResponse { entries: entries.collect(), next_token: page.next })
    }

    fn expand(
        self: &Arc<Self>,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        required("volume_id", &request.volume_id)?;
        let range = match &request.capacity_range {
            Some(range) => Range::new(Some(range))?,
            None => return Err(Status::invalid_argument("the request has no capacity range")),
        };
        let (id, _) = self.volume(self.manager(), &request.volume_id)?;
        let _busy = self.take(&format!("volume {}", id.name))?;
        let (id, info) = self.found(self.manager(), id)?;
        if info.size > range.most {
            let why = format!("{id} has {} bytes, more than the limit, and does not shrink", info.size);
            return Err(Status::out_of_range(why));
        }
        let size = info.size.max(range.least);
        if size > info.size {
            self.program.resize(self.manager(), &id, size)?;
        }
        // The array grows where it runs, and the file system where it is mounted.
        let node_expansion_required = id.kind == Kind::Volume;
        Ok(ControllerExpandVolumeResponse { capacity_bytes: bytes(size), node_expansion_required })
    }
}

/// Bytes as the protocol counts them.
pub(crate) fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// In what a volume differs from parameters.
pub(crate) fn differs(id: &Id, info: &VolumeInfo, parameters: &Parameters) -> Option<String> {
    if parameters.pool.as_ref().is_some_and(|pool| *pool != id.pool) {
        return Some(format!("it is in pool {}", id.pool));
    }
    if info.kind() != parameters.kind {
        return Some("it is of the other kind".to_owned());
    }
    if info.layout() != parameters.layout {
        return Some(format!("it has layout {}", info.layout()));
    }
    parameters.width.filter(|width| *width != info.width).map(|_| format!("it has {} members", info.width))
}
