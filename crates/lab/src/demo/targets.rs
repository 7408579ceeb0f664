//! Targets behind relays, and the devices reached through those.

use super::{DemoOptions, LOOPBACK, TARGETS};
use crate::Error;
use longhaul_block::{BlockDevice, MemDevice};
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_target::{Config, Target};
use longhaul_wan::Relay;
use std::sync::Arc;
use uuid::Uuid;

/// Block size of their namespaces in bytes.
const BLOCK: u32 = 4096;

/// The targets, the relays in front of them, and the devices reached through those.
pub(super) struct RelayedTargets {
    pub(super) devices: Vec<Arc<dyn BlockDevice>>,
    _relays: Vec<Relay>,
    _targets: Vec<Target>,
}

impl RelayedTargets {
    /// Starts targets with `size` bytes each, and connects to them through relays.
    pub(super) fn start(options: &DemoOptions, size: u64) -> Result<RelayedTargets, Error> {
        let mut testbed = RelayedTargets { devices: Vec::new(), _relays: Vec::new(), _targets: Vec::new() };
        for i in 1..=TARGETS {
            let config = Config {
                listen: vec![LOOPBACK],
                threads: 1,
                engine: options.engine.clone(),
                ..Config::default()
            };
            let target = Target::start(config)?;
            let uuid = Uuid::new_v4();
            let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
            let device = Arc::new(MemDevice::new(size, BLOCK).map_err(Error::failed)?);
            target.export(&nqn, &format!("demo-{i}"), device, uuid)?;
            let relay = Relay::start_with(&options.engine, LOOPBACK, target.addresses()[0], options.link())
                .map_err(|e| Error::failed(format!("cannot start a relay: {e}")))?;
            let uri = format!("nvme+tcp://{}/{nqn}", relay.local_addr());
            let uri = uri.parse().map_err(longhaul_initiator::Error::Uri)?;
            let connection = Options { engine: options.engine.clone(), ..Options::default() };
            testbed.devices.push(RemoteDevice::connect_blocking(&uri, connection)?);
            testbed._relays.push(relay);
            testbed._targets.push(target);
        }
        Ok(testbed)
    }
}
