//! What `longhaul top` shows of a file system that this process has open.

use crate::manage::SCHEME;
use crate::session::FsSession;
use longhaul_device::{Opener, Shown, ShownSocket};
use longhaul_initiator::PathStatus;
use longhaul_pool::VolumeRecord;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};

/// A file system that is shown as long as this is there.
pub(crate) struct Showing {
    _shown: Arc<ShownFs>,
    _socket: ShownSocket,
}

struct ShownFs {
    /// The session ends though a program looks at it.
    session: Weak<FsSession>,
    /// `POOL/NAME`, or `POOL/NAME@SNAPSHOT`.
    name: String,
    volume: VolumeRecord,
    /// What has opened its members.
    connections: Opener,
}

impl Showing {
    /// Shows the session of `volume`, which is called `name` and whose members `connections` has opened.
    pub(crate) fn new(
        session: &Arc<FsSession>,
        name: String,
        volume: VolumeRecord,
        connections: Opener,
    ) -> Showing {
        let what = format!("{SCHEME}{name}");
        let shown = Arc::new(ShownFs { session: Arc::downgrade(session), name, volume, connections });
        let socket = ShownSocket::new(&shown, &what);
        Showing { _shown: shown, _socket: socket }
    }
}

impl Shown for ShownFs {
    fn status(&self) -> Value {
        let session = self.session.upgrade();
        let trouble = match &session {
            Some(session) => session.trouble(),
            None => Some("failed: its session has ended".to_owned()),
        };
        let (health, detail) = match trouble.as_deref().and_then(|trouble| trouble.split_once(": ")) {
            Some((health, detail)) => (health, detail),
            None => ("healthy", ""),
        };
        let devices = session.as_ref().map_or_else(Vec::new, |session| session.members.devices());
        let members = devices.iter().enumerate();
        let members: Vec<Value> =
            members.map(|(index, device)| json!({ "index": index, "device": device })).collect();
        let filling = session.and_then(|session| {
            let (member, done) = session.members.filled_to()?;
            // As large as it is now: it may have grown.
            let size = u64::from(session.segments.count()) * session.settings.segment;
            Some(json!({ "member": member, "done_bytes": done.min(size), "total_bytes": size }))
        });
        json!({
            "volume": self.volume.uuid.to_string(), "kind": "fs", "name": self.name,
            "layout": self.volume.shape.layout.redundancy(), "size": self.volume.shape.size, "health": health,
            "detail": detail, "members": members, "filling": filling,
        })
    }

    fn paths(&self) -> Vec<(String, PathStatus)> {
        self.connections.paths()
    }
}
