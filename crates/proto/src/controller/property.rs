//! Property Get and Property Set: capabilities, enable, reset and shutdown.

use super::action::{Action, Change, Reply};
use super::subsystem::SubsystemView;
use super::{Controller, Events};
use crate::controller::feature::FeatureValues;
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::{Cap, Cc, Crto, Csts, Property, Shutdown, ShutdownStatus, Version, offset};
use std::time::Instant;

/// The version of the NVM Express Base Specification that is spoken.
pub(super) const VERSION: Version = Version::V2_1;

/// CAP.TO and CRTO: the longest time to become ready or not ready, in units
/// of 500 ms. Reset waits for I/O under way, so it is generous.
const READY_TIMEOUT: u16 = 30;

impl Controller {
    pub(super) fn property_get(&self, sqe: &Sqe, subsystem: &SubsystemView) -> Action {
        let property = Property::of(sqe);
        let (value, size_code) = match property.offset {
            offset::CAP => (self.capabilities(subsystem).0, 1),
            offset::VS => (VERSION.0.into(), 0),
            offset::CC => (self.cc.0.into(), 0),
            offset::CSTS => (self.csts.0.into(), 0),
            offset::CRTO => (Crto::default().with_crwmt(READY_TIMEOUT.into()).0.into(), 0),
            //= NVMe Base 2.1, Property Get command: a property that does not exist is an invalid field
            _ => return Status::INVALID_FIELD.dnr().into(),
        };
        //= NVMe Base 2.1, Property Get command: a size other than the property's is an invalid field
        if property.size_code != size_code {
            return Status::INVALID_FIELD.dnr().into();
        }
        Action::Complete(Reply::ok(value))
    }

    pub(super) fn property_set(&mut self, sqe: &Sqe, now: Instant) -> Action {
        let property = Property::of(sqe);
        //= NVMe Base 2.1, Property Set command: only CC can be written, with its own size
        if property.offset != offset::CC || property.size_code != 0 {
            return Status::INVALID_FIELD.dnr().into();
        }
        self.configure(Cc(property.value as u32), now)
    }

    fn capabilities(&self, subsystem: &SubsystemView) -> Cap {
        let sets = if self.discovery { Cap::CSS_NVM } else { Cap::CSS_NVM | Cap::CSS_IO_SETS };
        Cap::default()
            .with_mqes(subsystem.max_queue_size.saturating_sub(1).into())
            .with_cqr(1)
            .with_timeout(READY_TIMEOUT.into())
            .with_css(sets)
            .with_crms(Cap::CRMS_WITH_MEDIA)
    }

    fn configure(&mut self, cc: Cc, now: Instant) -> Action {
        let old = std::mem::replace(&mut self.cc, cc);
        if old.en() == 0 && cc.en() == 1 {
            return self.enable(now);
        }
        if old.en() == 1 && cc.en() == 0 {
            //= NVMe Base 2.1, CC.EN: clearing it resets the controller, which keeps CSTS.RDY until it is done
            self.resetting = true;
            self.events = Events::default();
            self.features = FeatureValues::new(self.max_queues);
            return Action::Change(Change::Disabling);
        }
        match cc.shutdown() {
            //= NVMe Base 2.1, CC.SHN: a shutdown is begun once, and CSTS.SHST tells its progress
            Some(shutdown) if self.csts.shst() == ShutdownStatus::Normal as u32 => {
                self.csts = self.csts.with_shst(ShutdownStatus::Occurring as u32);
                Action::Change(Change::ShuttingDown { abrupt: shutdown == Shutdown::Abrupt })
            }
            _ => Action::ok(),
        }
    }

    fn enable(&mut self, now: Instant) -> Action {
        let css = [Cc::CSS_NVM, Cc::CSS_ALL, Cc::CSS_ADMIN];
        //= NVMe Base 2.1, CC: a page size, arbitration or command set that CAP does not offer is fatal
        if self.cc.mps() != 0 || self.cc.ams() != 0 || !css.contains(&self.cc.css()) {
            self.csts = self.csts.with_cfs(1);
            return Action::ok();
        }
        // A host that enables before the reset is done gets its RDY then.
        if !self.resetting {
            self.csts = Csts::default().with_rdy(1);
        }
        self.keep_alive.restart(now);
        self.renew_instance();
        Action::Change(Change::Enabled)
    }

    /// Reports that a shutdown has failed: a write that was acknowledged to the host
    /// is not durable.
    pub fn shutdown_failed(&mut self) {
        if self.csts.shst() == ShutdownStatus::Occurring as u32 {
            //= NVMe Base 2.1, CSTS.SHST: shutdown processing is complete only when what was cached is durable
            //= NVMe Base 2.1, CSTS.CFS: an error that no completion can tell of is a fatal status
            self.csts = self.csts.with_cfs(1);
        }
    }

    /// Notes that a change is done: CSTS shows it to the host.
    pub fn change_done(&mut self, change: Change) {
        match change {
            Change::Enabled => {}
            Change::Disabling => {
                self.resetting = false;
                self.csts = Csts::default().with_rdy(self.cc.en());
            }
            Change::ShuttingDown { .. } => {
                if self.csts.shst() == ShutdownStatus::Occurring as u32 {
                    self.csts = self.csts.with_shst(ShutdownStatus::Complete as u32);
                }
            }
        }
    }
}
