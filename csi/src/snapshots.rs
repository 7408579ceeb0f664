//! Snapshots: volumes of their pools with names of their own.

use crate::controller::bytes;
use crate::driver::{Driver, required};
use crate::names::{self, Id, Kind};
use crate::program::VolumeInfo;
use crate::request::page;
use crate::v1::list_snapshots_response::Entry as SnapshotEntry;
use crate::v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, Snapshot,
};
use std::sync::Arc;
use tonic::Status;

impl Driver {
    pub(crate) fn create_snapshot(
        self: &Arc<Self>,
        request: &CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        let asked = required("name", &request.name)?;
        required("source_volume_id", &request.source_volume_id)?;
        if !names::is_askable(asked) {
            return Err(Status::invalid_argument("the name has control characters, or more than 128 bytes"));
        }
        if let Some(key) = request.parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
            return Err(Status::invalid_argument(format!("a snapshot has no parameter {key}")));
        }
        let name = names::of_snapshot(asked);
        let _busy = self.take(&format!("snapshot {name}"))?;
        let (source, info) = self.volume(self.manager(), &request.source_volume_id)?;
        let made = match self.of_name(&name)? {
            Some((id, made)) => {
                let of = made.snapshot_of.as_ref();
                if id.pool != source.pool || of.is_none_or(|of| of.uuid != info.uuid) {
                    let of = of.map_or("another volume", |of| of.name.as_str());
                    return Err(Status::already_exists(format!("snapshot {asked} is of {of}")));
                }
                made
            }
            None => {
                self.program.snapshot(self.manager(), &source.path(), &name)?;
                self.found(self.manager(), Id::new(Kind::Volume, &source.pool, &name))?.1
            }
        };
        if made.creating {
            return Err(Status::aborted(format!("snapshot {asked} is being made: try again later")));
        }
        Ok(CreateSnapshotResponse { snapshot: Some(snapshot(&source.pool, &name, &made)) })
    }

    pub(crate) fn delete_snapshot(self: &Arc<Self>, text: &str) -> Result<DeleteSnapshotResponse, Status> {
        let Some(id) = Id::snapshot(required("snapshot_id", text)?) else {
            return Ok(DeleteSnapshotResponse {});
        };
        let _busy = self.take(&format!("snapshot {}", id.name))?;
        self.remove(&id)?;
        Ok(DeleteSnapshotResponse {})
    }

    pub(crate) fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let listed = self.program.list(self.manager(), &self.pools)?;
        let id = |pool: &str, name: &str| Id::new(Kind::Volume, pool, name).to_string();
        let is_wanted = |wanted: &str, id: String| wanted.is_empty() || wanted == id;
        let found = listed.into_iter().filter(|listed| {
            names::is_snapshot(&listed.name)
                && !listed.creating
                && is_wanted(&request.snapshot_id, id(&listed.pool, &listed.name))
                && is_wanted(
                    &request.source_volume_id,
                    id(&listed.pool, listed.snapshot_of.as_deref().unwrap_or_default()),
                )
        });
        let key = |listed: &crate::program::Listed| id(&listed.pool, &listed.name);
        let is_key = |token: &str| Id::snapshot(token).is_some();
        let page = page(found.collect(), key, is_key, (&request.starting_token, request.max_entries))?;
        let mut entries = Vec::new();
        for listed in page.entries {
            // It may have been removed since.
            let path = format!("{}/{}", listed.pool, listed.name);
            if let Some(info) = self.program.info(self.manager(), &path)? {
                entries.push(SnapshotEntry { snapshot: Some(snapshot(&listed.pool, &listed.name, &info)) });
            }
        }
        Ok(ListSnapshotsResponse { entries, next_token: page.next })
    }
}

/// A snapshot as the Container Orchestrator sees it.
fn snapshot(pool: &str, name: &str, info: &VolumeInfo) -> Snapshot {
    let source = info.snapshot_of.as_ref().map(|of| Id::new(Kind::Volume, pool, &of.name).to_string());
    let seconds = i64::try_from(info.made_at).unwrap_or(i64::MAX);
    Snapshot {
        size_bytes: bytes(info.size),
        snapshot_id: Id::new(Kind::Volume, pool, name).to_string(),
        source_volume_id: source.unwrap_or_default(),
        creation_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        ready_to_use: true,
        ..Snapshot::default()
    }
}
