//! Get Features and Set Features.

use super::Controller;
use super::action::{Action, Reply};
use super::event::{EventKind, Events};
use super::log::{TEMPERATURE, TEMPERATURE_WARNING};
use super::subsystem::{NamespaceView, SubsystemView};
use super::{Env, log};
use longhaul_wire::command::{Features, NSID_ALL, Select, Sqe};
use longhaul_wire::completion::Status;
use longhaul_wire::feature::{NumberOfQueues, capability, fid};
use std::collections::BTreeMap;

/// Error Recovery: the Deallocated or Unwritten Logical Block error.
const DULBE: u32 = 1 << 16;

/// Bits of Reservation Notification Mask that mean something.
const RESERVATION_NOTICES: u32 = 0b1110;

/// The features of an I/O controller. None can be saved.
pub(super) const IO_FEATURES: [u8; 13] = [
    fid::ARBITRATION,
    fid::POWER_MANAGEMENT,
    fid::TEMPERATURE_THRESHOLD,
    fid::ERROR_RECOVERY,
    fid::VOLATILE_WRITE_CACHE,
    fid::NUMBER_OF_QUEUES,
    fid::WRITE_ATOMICITY,
    fid::ASYNC_EVENT_CONFIG,
    fid::KEEP_ALIVE,
    fid::COMMAND_SET_PROFILE,
    fid::HOST_IDENTIFIER,
    fid::RESERVATION_NOTICE_MASK,
    fid::RESERVATION_PERSISTENCE,
];

/// The features of a discovery controller.
const DISCOVERY_FEATURES: [u8; 3] = [fid::ASYNC_EVENT_CONFIG, fid::KEEP_ALIVE, fid::HOST_IDENTIFIER];

/// Values that the host has set, back to their defaults with each reset.
#[derive(Debug)]
pub(super) struct FeatureValues {
    arbitration: u32,
    power: u32,
    write_cache: bool,
    write_atomicity: u32,
    queues: u16,
    /// In kelvin: the composite temperature is warned of at or above `over`,
    /// and at or below `under`.
    over: u16,
    under: u16,
    /// By namespace, as far as it is not the default of 0; bounded by the
    /// number of namespaces.
    error_recovery: BTreeMap<u32, u32>,
}

impl FeatureValues {
    pub(super) fn new(max_queues: u16) -> FeatureValues {
        FeatureValues {
            arbitration: 0,
            power: 0,
            write_cache: true,
            write_atomicity: 0,
            queues: max_queues,
            over: TEMPERATURE_WARNING,
            under: 0,
            error_recovery: BTreeMap::new(),
        }
    }

    /// I/O queues that the host may connect.
    pub(super) fn granted_queues(&self) -> u16 {
        self.queues
    }

    pub(super) fn write_cache(&self) -> bool {
        self.write_cache
    }

    /// Whether the composite temperature is past a threshold.
    pub(super) fn temperature_warning(&self) -> bool {
        TEMPERATURE >= self.over || TEMPERATURE <= self.under
    }
}

/// Which temperature threshold dword 11 speaks of.
enum Threshold {
    Over,
    Under,
}

impl Threshold {
    fn of(cdw11: u32, set: bool) -> Result<Threshold, Status> {
        //= NVMe Base 2.1, Temperature Threshold feature: there is only the composite temperature; Fh sets all
        let sensor = cdw11 >> 16 & 0xF;
        if sensor != 0 && !(set && sensor == 0xF) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match cdw11 >> 20 & 0b11 {
            0 => Ok(Threshold::Over),
            1 => Ok(Threshold::Under),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }
}

/// The active namespace that a command names.
fn active_namespace<'a>(sqe: &Sqe, subsystem: &'a SubsystemView) -> Result<&'a NamespaceView, Status> {
    //= NVMe Base 2.1, Get Features command: a feature with namespace scope needs an active namespace
    let found = subsystem.nvm().and_then(|nvm| nvm.namespace(sqe.nsid()));
    found.ok_or(Status::INVALID_NAMESPACE.dnr())
}

fn can_persist(ns: &NamespaceView) -> Result<(), Status> {
    //= NVMe Base 2.1, Reservation Persistence feature: where RESCAP has no persistence it is an invalid field
    if ns.persistent_reservations { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }
}

/// The namespaces whose persistence of reservations a Set Features command changes.
fn persistent_namespaces(sqe: &Sqe, subsystem: &SubsystemView) -> Result<Vec<u32>, Status> {
    if sqe.nsid() != NSID_ALL {
        can_persist(active_namespace(sqe, subsystem)?)?;
        return Ok(vec![sqe.nsid()]);
    }
    //= NVMe Base 2.1, Reservation Persistence feature: NSID FFFFFFFFh means all namespaces that have it
    let nvm = subsystem.nvm().ok_or(Status::INVALID_NAMESPACE.dnr())?;
    Ok(nvm.namespaces.iter().filter(|ns| ns.persistent_reservations).map(|ns| ns.nsid).collect())
}

impl Controller {
    fn capability(&self, id: u8) -> Option<u32> {
        let known = if self.discovery { &DISCOVERY_FEATURES[..] } else { &IO_FEATURES[..] };
        if !known.contains(&id) {
            return None;
        }
        Some(match id {
            fid::ERROR_RECOVERY | fid::RESERVATION_NOTICE_MASK | fid::RESERVATION_PERSISTENCE => {
                capability::CHANGEABLE | capability::NAMESPACE
            }
            fid::HOST_IDENTIFIER => 0,
            _ => capability::CHANGEABLE,
        })
    }

    pub(super) fn get_features(&self, sqe: &Sqe, subsystem: &SubsystemView) -> Action {
        let feature = Features::of(sqe);
        //= NVMe Base 2.1, Get Features command: an unknown feature is an invalid field
        let Some(capability) = self.capability(feature.fid) else {
            return Status::INVALID_FIELD.dnr().into();
        };
        let fresh = FeatureValues::new(self.max_queues);
        let result = match feature.select {
            Select::Current => self.feature_value(&self.features, false, sqe, subsystem),
            //= NVMe Base 2.1, Get Features command: what cannot be saved has its default as its saved value
            Select::Default | Select::Saved => self.feature_value(&fresh, true, sqe, subsystem),
            Select::Supported => return Action::Complete(Reply::ok(capability.into())),
            Select::Reserved => Err(Status::INVALID_FIELD.dnr()),
        };
        match result {
            Ok(_) if feature.fid == fid::RESERVATION_PERSISTENCE && feature.select == Select::Current => {
                Action::ReservationPersistence { nsid: sqe.nsid() }
            }
            Ok(_) if feature.fid == fid::HOST_IDENTIFIER => {
                log::data(sqe, self.host.hostid.as_bytes().to_vec())
            }
            Ok(value) => Action::Complete(Reply::ok(value.into())),
            Err(status) => status.into(),
        }
    }

    fn feature_value(
        &self,
        values: &FeatureValues,
        default: bool,
        sqe: &Sqe,
        subsystem: &SubsystemView,
    ) -> Result<u32, Status> {
        Ok(match Features::of(sqe).fid {
            fid::ARBITRATION => values.arbitration,
            fid::POWER_MANAGEMENT => values.power,
            fid::TEMPERATURE_THRESHOLD => match Threshold::of(sqe.cdw11(), false)? {
                Threshold::Over => values.over.into(),
                Threshold::Under => values.under.into(),
            },
            fid::ERROR_RECOVERY => {
                active_namespace(sqe, subsystem)?;
                values.error_recovery.get(&sqe.nsid()).copied().unwrap_or(0)
            }
            fid::RESERVATION_NOTICE_MASK => {
                active_namespace(sqe, subsystem)?;
                if default { 0 } else { self.events.reservation_mask(sqe.nsid()) }
            }
            fid::RESERVATION_PERSISTENCE => {
                can_persist(active_namespace(sqe, subsystem)?)?;
                0
            }
            fid::VOLATILE_WRITE_CACHE => values.write_cache.into(),
            fid::NUMBER_OF_QUEUES => {
                let count = values.queues.into();
                NumberOfQueues { submission: count, completion: count }.to_dword()
            }
            fid::WRITE_ATOMICITY => values.write_atomicity,
            fid::ASYNC_EVENT_CONFIG if default => 0,
            fid::ASYNC_EVENT_CONFIG => self.events.config(),
            fid::KEEP_ALIVE if default => 0,
            fid::KEEP_ALIVE => self.keep_alive.kato_ms(),
            fid::COMMAND_SET_PROFILE => 0,
            //= NVMe Base 2.1, Host Identifier feature: over fabrics it has 128 bits, so EXHID is set
            fid::HOST_IDENTIFIER if sqe.cdw11() & 1 == 0 => return Err(Status::INVALID_FIELD.dnr()),
            fid::HOST_IDENTIFIER => 0,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        })
    }

    pub(super) fn set_features(&mut self, sqe: &Sqe, env: Env<'_>) -> Action {
        let feature = Features::of(sqe);
        if let Err(status) = self.check_set(feature, sqe) {
            return status.into();
        }
        match self.set_feature(feature.fid, sqe, env) {
            Ok(action) => action,
            Err(status) => status.into(),
        }
    }

    fn check_set(&self, feature: Features, sqe: &Sqe) -> Result<(), Status> {
        //= NVMe Base 2.1, Set Features command: an unknown feature is an invalid field
        let capability = self.capability(feature.fid).ok_or(Status::INVALID_FIELD.dnr())?;
        //= NVMe Base 2.1, Host Identifier feature: over fabrics Connect has set it
        if feature.fid == fid::HOST_IDENTIFIER {
            return Err(Status::SEQUENCE_ERROR.dnr());
        }
        //= NVMe Base 2.1, Set Features command: SV set for what cannot be saved is refused
        if feature.save {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        //= NVMe Base 2.1, Set Features command: a namespace given for a feature of the controller is refused
        let for_namespace = capability & capability::NAMESPACE != 0;
        if !for_namespace && sqe.nsid() != 0 && sqe.nsid() != NSID_ALL {
            return Err(Status::FEATURE_NOT_NAMESPACE.dnr());
        }
        Ok(())
    }

    fn set_feature(&mut self, id: u8, sqe: &Sqe, env: Env<'_>) -> Result<Action, Status> {
        let value = sqe.cdw11();
        match id {
            fid::ARBITRATION => self.features.arbitration = value,
            //= NVMe Base 2.1, Power Management feature: a power state that does not exist is an invalid field
            fid::POWER_MANAGEMENT if value & 0x1F != 0 => return Err(Status::INVALID_FIELD.dnr()),
            fid::POWER_MANAGEMENT => self.features.power = value & 0xFF,
            fid::TEMPERATURE_THRESHOLD => {
                match Threshold::of(value, true)? {
                    Threshold::Over => self.features.over = value as u16,
                    Threshold::Under => self.features.under = value as u16,
                }
                if self.features.temperature_warning() {
                    self.events.raise(EventKind::Temperature);
                }
            }
            fid::ERROR_RECOVERY => self.set_error_recovery(sqe, env.subsystem)?,
            fid::RESERVATION_NOTICE_MASK => self.set_reservation_mask(sqe, env.subsystem)?,
            fid::RESERVATION_PERSISTENCE => {
                let nsids = persistent_namespaces(sqe, env.subsystem)?;
                return Ok(Action::PersistReservations { nsids, persist: value & 1 != 0 });
            }
            fid::VOLATILE_WRITE_CACHE => {
                self.features.write_cache = value & 1 != 0;
                return Ok(Action::WriteCache { enabled: self.features.write_cache });
            }
            fid::NUMBER_OF_QUEUES => return self.set_queues(value),
            fid::WRITE_ATOMICITY => self.features.write_atomicity = value & 1,
            fid::ASYNC_EVENT_CONFIG => self.set_event_config(value, env.subsystem)?,
            fid::KEEP_ALIVE => self.keep_alive.set(value, env.now),
            //= NVMe Base 2.1, I/O Command Set Profile feature: only the combination at index 0 exists
            fid::COMMAND_SET_PROFILE if value & 0x1FF != 0 => return Err(Status::COMMAND_SET_REJECTED.dnr()),
            fid::COMMAND_SET_PROFILE => {}
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(Action::ok())
    }

    fn set_error_recovery(&mut self, sqe: &Sqe, subsystem: &SubsystemView) -> Result<(), Status> {
        let value = sqe.cdw11();
        //= NVM Command Set 1.1, Error Recovery feature: DULBE is refused where NSFEAT does not offer it
        if value & DULBE != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let nvm = subsystem.nvm().ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let one = nvm.namespace(sqe.nsid());
        //= NVMe Base 2.1, Set Features command: a feature with namespace scope needs an active namespace, or all
        if one.is_none() && sqe.nsid() != NSID_ALL {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        self.features.error_recovery.retain(|&nsid, _| nvm.namespace(nsid).is_some());
        for ns in nvm.namespaces.iter().filter(|ns| one.is_none_or(|one| one.nsid == ns.nsid)) {
            self.features.error_recovery.insert(ns.nsid, value & 0xFFFF);
        }
        Ok(())
    }

    fn set_reservation_mask(&mut self, sqe: &Sqe, subsystem: &SubsystemView) -> Result<(), Status> {
        let nvm = subsystem.nvm().ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let one = nvm.namespace(sqe.nsid());
        //= NVMe Base 2.1, Set Features command: a feature with namespace scope needs an active namespace, or all
        if one.is_none() && sqe.nsid() != NSID_ALL {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        for ns in nvm.namespaces.iter().filter(|ns| one.is_none_or(|one| one.nsid == ns.nsid)) {
            self.events.set_reservation_mask(ns.nsid, sqe.cdw11() & RESERVATION_NOTICES);
        }
        Ok(())
    }

    fn set_queues(&mut self, value: u32) -> Result<Action, Status> {
        let asked = NumberOfQueues::from_dword(value);
        //= NVMe Base 2.1, Number of Queues feature: a count of FFFFh is an invalid field
        if asked.submission > NumberOfQueues::MAX || asked.completion > NumberOfQueues::MAX {
            return Err(Status::INVALID_FIELD.dnr());
        }
        //= NVMe Base 2.1, Number of Queues feature: it is set before any I/O queue is made
        if !self.queues.is_empty() {
            return Err(Status::SEQUENCE_ERROR.dnr());
        }
        // Queues come in pairs over fabrics, so both get the same number.
        let granted = asked.submission.min(asked.completion).min(self.max_queues.into());
        self.features.queues = granted as u16;
        let both = NumberOfQueues { submission: granted, completion: granted };
        Ok(Action::Complete(Reply::ok(both.to_dword().into())))
    }

    fn set_event_config(&mut self, value: u32, subsystem: &SubsystemView) -> Result<(), Status> {
        let ana = subsystem.nvm().is_some_and(|nvm| nvm.ana.is_some());
        //= NVMe Base 2.1, Asynchronous Event Configuration feature: an event that OAES does not offer is an invalid field
        if value & !Events::supported(self.discovery, ana) != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.events.set_config(value);
        Ok(())
    }
}
