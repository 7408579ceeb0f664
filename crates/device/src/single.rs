//! A namespace that is a volume by itself: no array, and with a control socket all the same, by which programs
//! see the path to it.

use crate::shown::{Shown, ShownSocket};
use longhaul_block::BlockDevice;
use longhaul_initiator::{Outage, PathStatus, RemoteDevice};
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

/// The layout that its status has.
const LAYOUT: &str = "single";

/// See the module.
pub struct SingleVolume {
    seen: Arc<SeenVolume>,
    _socket: ShownSocket,
}

impl SingleVolume {
    /// The namespace `device`, which is the volume `name` (`POOL/NAME`) with this identity. Without a
    /// control socket it is used all the same.
    pub fn new(device: Arc<RemoteDevice>, name: &str, volume: Uuid) -> SingleVolume {
        let seen = Arc::new(SeenVolume { device, name: name.to_owned(), volume });
        let socket = ShownSocket::new(&seen, &format!("volume {name}"));
        SingleVolume { seen, _socket: socket }
    }

    /// The namespace.
    pub fn device(&self) -> &Arc<RemoteDevice> {
        &self.seen.device
    }
}

/// What requests are about.
struct SeenVolume {
    device: Arc<RemoteDevice>,
    name: String,
    volume: Uuid,
}

impl Shown for SeenVolume {
    fn status(&self) -> Value {
        let info = self.device.info();
        let (health, detail) = match self.device.outage() {
            None => ("healthy", String::new()),
            Some(Outage { why, .. }) => ("unreachable", why),
        };
        json!({
            "volume": self.volume.to_string(), "kind": "volume", "name": self.name, "layout": LAYOUT,
            "size": info.size, "health": health, "detail": detail,
            "members": [{ "index": 0, "device": info.name }],
        })
    }

    fn paths(&self) -> Vec<(String, PathStatus)> {
        vec![(self.device.info().name, self.device.path_status())]
    }
}
