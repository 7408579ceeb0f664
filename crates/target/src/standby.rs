//! Namespaces that one of several targets serves at a time: the others *stand by*, and report them as
//! inaccessible (NVMe Base 2.1, "Asymmetric Namespace Access Reporting").
//!
//! To hosts the targets are controllers of one subsystem: NQN, NSID, UUID and serial number are the same,
//! and controller identifiers differ, since each target begins at one that is chosen at random. A host
//! with multipath keeps what it cannot send to a target that died, and sends it to the one that becomes
//! optimized.
//!
//! Invariants:
//! - a namespace has a device that does I/O exactly while its state is optimized;
//! - hosts are told of each change of the state, after commands are executed by it;
//! - that controllers of another target have ended is confirmed only while all namespaces are served
//!   here: what that target had begun can have no effect any more then;
//! - reservations of hosts end with each change: the targets do not know each other's.

use crate::exports::PreparedExport;
use crate::subsystem::{Namespace, Subsystem};
use crate::target::{Error, Target};
use longhaul_block::{BlockDevice, DeviceInfo, IoError, Open, TellsLosses};
use longhaul_wire::log::AnaState;
use std::sync::Arc;
use uuid::Uuid;

/// A device that another target serves: its properties, without I/O.
#[derive(Clone, Debug)]
pub struct StandbyDevice {
    /// Properties of the device.
    pub info: DeviceInfo,
    /// As [`BlockDevice::granularity`], in bytes.
    pub granularity: u32,
}

impl BlockDevice for StandbyDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn granularity(&self) -> u32 {
        self.granularity
    }

    fn open(&self) -> Open<'_> {
        let why = format!("{} is not served here: another target has it", self.info.name);
        Box::pin(std::future::ready(Err(IoError::Offline(why))))
    }
}

fn standing_by(device: StandbyDevice, uuid: Uuid) -> Namespace {
    Namespace::new(Arc::new(device), uuid, Arc::default(), None).with_state(AnaState::Inaccessible)
}

impl Target {
    /// Exports a device that another target may serve as the next namespace of the subsystem `nqn`, as
    /// [`export`](Self::export) does; it is inaccessible until [`serve`](Self::serve). Returns the
    /// namespace identifier.
    ///
    /// # Errors
    /// As for `export`.
    pub fn export_standby(
        &self,
        nqn: &str,
        name: &str,
        device: StandbyDevice,
        uuid: Uuid,
    ) -> Result<u32, Error> {
        self.add(self.prepare_standby(nqn, name, device, uuid)?)
    }

    /// What [`export_standby`](Self::export_standby) adds, ready to be added.
    ///
    /// # Errors
    /// As of [`prepare`](Self::prepare).
    pub fn prepare_standby(
        &self,
        nqn: &str,
        name: &str,
        device: StandbyDevice,
        uuid: Uuid,
    ) -> Result<PreparedExport, Error> {
        self.check_nqn(nqn)?;
        Ok(PreparedExport::new(nqn, name, standing_by(device, uuid)).shared())
    }

    /// Serves a namespace that [`export_standby`](Self::export_standby) has added by `device`: it
    /// becomes optimized. False if there is no such namespace, or not with this UUID any more.
    pub fn serve(&self, nqn: &str, (nsid, uuid): (u32, Uuid), device: Arc<dyn BlockDevice>) -> bool {
        // A host sends nothing again: it has to see an error where something may be lost.
        let device: Arc<dyn BlockDevice> = Arc::new(TellsLosses::new(device));
        self.replace(nqn, (nsid, uuid), Namespace::new(device, uuid, Arc::default(), None))
    }

    /// Stops to serve a namespace, which another target serves now: it becomes inaccessible. Commands
    /// under way end as its device ends them. False if there is no such namespace, or not with this UUID
    /// any more.
    pub fn stand_by(&self, nqn: &str, (nsid, uuid): (u32, Uuid), device: StandbyDevice) -> bool {
        self.replace(nqn, (nsid, uuid), standing_by(device, uuid))
    }

    fn replace(&self, nqn: &str, (nsid, uuid): (u32, Uuid), by: Namespace) -> bool {
        let Some(subsystem) = self.shared.subsystem(nqn).filter(|found| found.managed.is_none()) else {
            return false;
        };
        let resized = {
            let mut namespaces = subsystem.namespaces();
            // A reload may have removed it, and given its identifier to another one.
            let Some(namespace) = namespaces.get_mut(&nsid).filter(|found| found.uuid == uuid) else {
                return false;
            };
            let before = namespace.device.info().size;
            // What was counted of it stays.
            *namespace = Namespace { counters: Arc::clone(&namespace.counters), ..by };
            namespace.device.info().size != before
        };
        subsystem.access_changed(nsid, resized);
        true
    }
}

impl Subsystem {
    /// Tells hosts that the ANA state of a namespace has changed, and perhaps its size.
    fn access_changed(&self, nsid: u32, resized: bool) {
        //= NVMe Base 2.1, Asymmetric Namespace Access: a change of a group's state is counted, and hosts are notified of it
        self.count_access_change();
        self.changed(if resized { std::slice::from_ref(&nsid) } else { &[] });
        for link in self.links() {
            link.tell_access();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use futures_util::FutureExt;
    use longhaul_block::MemDevice;
    use longhaul_proto::controller::OtherReset;
    use longhaul_wire::command::CrossControllerReset;

    //= test: NVMe Base 2.1, Asymmetric Namespace Access
    #[test]
    fn a_namespace_is_accessible_while_it_is_served() {
        let config = Config { listen: vec!["127.0.0.1:0".parse().expect("an address")], ..Config::default() };
        let target = Target::start(config).expect("started");
        let disk = Arc::new(MemDevice::new(1 << 20, 4096).expect("mapped"));
        let away = StandbyDevice { info: disk.info(), granularity: 0 };
        let (nqn, uuid) = ("nqn.2014-08.org.example:x", Uuid::from_u128(7));
        let nsid = target.export_standby(nqn, "x", away.clone(), uuid).expect("exported");
        let state = || {
            let view = target.shared.subsystem(nqn).expect("a subsystem").view();
            let nvm = view.nvm().expect("namespaces").clone();
            let namespace = nvm.namespace(nsid).expect("a namespace").clone();
            (namespace.ana_state, namespace.ana_group, namespace.uuid, nvm.ana)
        };
        // A controller of another target: it may have an effect until this one serves the namespace.
        let other = CrossControllerReset { icid: 1, ciu: 1, cirn: 1 };
        let reset = || {
            let subsystem = target.shared.subsystem(nqn).expect("a subsystem");
            let host = (String::new(), Uuid::nil());
            subsystem.reset_other(other, host).now_or_never().expect("nothing to wait for")
        };
        assert_eq!(state(), (AnaState::Inaccessible, nsid, Some(uuid), Some(0)));
        assert_eq!(reset(), OtherReset::Unknown);
        assert!(target.serve(nqn, (nsid, uuid), disk));
        assert_eq!(state(), (AnaState::Optimized, nsid, Some(uuid), Some(1)));
        assert_eq!(reset(), OtherReset::Done);
        assert!(target.stand_by(nqn, (nsid, uuid), away));
        assert_eq!(state(), (AnaState::Inaccessible, nsid, Some(uuid), Some(2)));
        assert_eq!(reset(), OtherReset::Unknown);
        assert!(target.stop(), "an inaccessible namespace has nothing to flush");
    }
}
