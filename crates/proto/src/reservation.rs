//! Reservations of one namespace: the registered hosts, and the holder (NVMe Base 2.1,
//! "Reservations").
//!
//! Pure: commands in, new state and notices to other hosts out. The caller sends the notices,
//! aborts the commands of preempted hosts, and makes the state durable before it completes a
//! command, where [`Reservations::persists`] says so.
//!
//! Invariants, asserted after every change:
//! - a host has one registration at most;
//! - the holder of a reservation is registered;
//! - a reservation that all registrants hold ends with the last of them.

use longhaul_wire::completion::Status;
use longhaul_wire::reservation::{
    AcquireAction, AcquireFields, PersistChange, RegisterAction, RegisterFields, ReleaseAction,
    ReleaseFields, ReservationType,
};

/// A host identifier, as Connect brings it.
pub type HostId = [u8; 16];

/// Hosts that one namespace registers at most.
pub const REGISTRANTS_MAX: usize = 1024;

/// A registered host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The host that the registration belongs to.
    pub host: HostId,
    /// Its key; 0 is a key like others.
    pub key: u64,
}

/// The reservation of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldReservation {
    kind: ReservationType,
    /// The holder; of types that all registrants hold, the host that acquired it.
    by: HostId,
}

pub use longhaul_wire::log::ReservationNoticeKind as Notice;

/// What a command has done, for the caller to carry out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Hosts to notify.
    pub notices: Vec<(HostId, Notice)>,
    /// Hosts whose commands are to be aborted.
    pub abort: Vec<HostId>,
    /// The state has changed.
    pub changed: bool,
}

/// What a command needs of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads data or metadata of the namespace.
    Read,
    /// It changes data, or makes it durable.
    Write,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<HeldReservation>,
    persists: bool,
}

type Outcome = Result<Effects, Status>;

impl Reservations {
    /// Changes of registrations and preemptions so far; wraps.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Type of the reservation, if there is one.
    pub fn kind(&self) -> Option<ReservationType> {
        self.held.map(|held| held.kind)
    }

    /// The registered hosts, in the order of their registration.
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// Whether the state persists through a loss of power (PTPL).
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// Whether the host holds the reservation.
    pub fn holds(&self, host: &HostId) -> bool {
        self.held.is_some_and(|held| held.by == *host || (held.kind.is_all() && self.is_registered(host)))
    }

    /// Whether a command of the host may have this access.
    #[inline]
    pub fn allows(&self, host: &HostId, access: Access) -> bool {
        // Almost no namespace is reserved.
        let Some(held) = self.held else { return true };
        //= NVMe Base 2.1, Command Behavior in the Presence of a Reservation: types differ in what registrants and other hosts may do
        held.by == *host
            || (access == Access::Read && held.kind.lets_others_read())
            || (held.kind.has_registrants() && self.is_registered(host))
    }

    /// Reservation Register.
    ///
    /// # Errors
    /// Reservation Conflict for a wrong key, Invalid Field for no room for one more host.
    pub fn register(&mut self, host: HostId, fields: RegisterFields, current: u64, new: u64) -> Outcome {
        let at = self.registrations.iter().position(|one| one.host == host);
        let mut effects = Effects { changed: true, ..Effects::default() };
        match fields.action {
            RegisterAction::Register => match at {
                //= NVMe Base 2.1, Reservation Register: a registrant that registers with its own key again changes nothing
                Some(at) if self.registrations[at].key == new => effects.changed = false,
                //= NVMe Base 2.1, Reservation Register: with another key it gets Reservation Conflict
                Some(_) => return Err(Status::RESERVATION_CONFLICT.dnr()),
                None if self.registrations.len() >= REGISTRANTS_MAX => {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                None => self.registrations.push(Registration { host, key: new }),
            },
            RegisterAction::Unregister => {
                let at = at.ok_or(Status::RESERVATION_CONFLICT.dnr())?;
                if !fields.ignore_key && self.registrations[at].key != current {
                    return Err(Status::RESERVATION_CONFLICT.dnr());
                }
                self.unregister(at, &mut effects);
            }
            RegisterAction::Replace => match at {
                Some(at) if fields.ignore_key || self.registrations[at].key == current => {
                    self.registrations[at].key = new;
                }
                //= NVMe Base 2.1, Reservation Register: Replace with IEKEY by a host that is not registered registers it
                None if fields.ignore_key && self.registrations.len() < REGISTRANTS_MAX => {
                    self.registrations.push(Registration { host, key: new });
                }
                _ => return Err(Status::RESERVATION_CONFLICT.dnr()),
            },
        }
        if effects.changed {
            self.generation = self.generation.wrapping_add(1);
        }
        let persists = match fields.persist {
            PersistChange::None => self.persists,
            PersistChange::Clear => false,
            PersistChange::Set => true,
        };
        effects.changed |= persists != std::mem::replace(&mut self.persists, persists);
        self.check();
        Ok(effects)
    }

    /// Reservation Acquire.
    ///
    /// # Errors
    /// Reservation Conflict for a host that is not registered, a wrong key, another holder, or a
    /// key to preempt that no host has; Invalid Field for IEKEY, and for a key of 0 to preempt
    /// where one host holds the reservation.
    pub fn acquire(&mut self, host: HostId, fields: AcquireFields, current: u64, preempt: u64) -> Outcome {
        self.check_key(&host, fields.ignore_key, current)?;
        let held = HeldReservation { kind: fields.kind, by: host };
        let mut effects = Effects::default();
        match (fields.action, self.held) {
            (AcquireAction::Acquire, None) => {
                self.held = Some(held);
                effects.changed = true;
            }
            //= NVMe Base 2.1, Reservation Acquire: the holder that acquires the same type again changes nothing
            (AcquireAction::Acquire, Some(now)) if now.kind == fields.kind && self.holds(&host) => {}
            (AcquireAction::Acquire, Some(_)) => return Err(Status::RESERVATION_CONFLICT.dnr()),
            (action, now) => {
                self.preempt(host, held, now, preempt, &mut effects)?;
                if action == AcquireAction::PreemptAndAbort {
                    effects.abort = effects
                        .notices
                        .iter()
                        .filter(|(_, notice)| *notice == Notice::RegistrationPreempted)
                        .map(|(host, _)| *host)
                        .collect();
                }
            }
        }
        self.check();
        Ok(effects)
    }

    fn preempt(
        &mut self,
        host: HostId,
        new: HeldReservation,
        now: Option<HeldReservation>,
        key: u64,
        effects: &mut Effects,
    ) -> Result<(), Status> {
        let conflict = Err(Status::RESERVATION_CONFLICT.dnr());
        let has_key = self.registrations.iter().any(|one| one.key == key);
        let key_of =
            |host: &HostId| self.registrations.iter().find(|one| one.host == *host).map(|one| one.key);
        let takes = match now {
            //= NVMe Base 2.1, Preempting: without a reservation the registrations of the key end
            None if has_key => false,
            None => return conflict,
            //= NVMe Base 2.1, Preempting: of a reservation of all registrants, key 0 takes it and ends all others
            Some(held) if held.kind.is_all() && key == 0 => true,
            Some(held) if held.kind.is_all() => {
                if !has_key {
                    return conflict;
                }
                false
            }
            Some(_) if key == 0 => return Err(Status::INVALID_FIELD.dnr()),
            Some(held) if key_of(&held.by) == Some(key) => true,
            Some(_) if has_key => false,
            Some(_) => return conflict,
        };
        let all = takes && now.is_some_and(|held| held.kind.is_all());
        let goes = |one: &Registration| one.host != host && (all || one.key == key);
        let gone: Vec<HostId> =
            self.registrations.iter().filter(|one| goes(one)).map(|one| one.host).collect();
        self.registrations.retain(|one| !goes(one));
        effects.notices.extend(gone.into_iter().map(|host| (host, Notice::RegistrationPreempted)));
        if takes {
            //= NVMe Base 2.1, Reservation notifications: a change of type is a release to the registrants that stay
            if now.is_some_and(|held| held.kind != new.kind) {
                let stay = self.registrations.iter().filter(|one| one.host != host);
                effects.notices.extend(stay.map(|one| (one.host, Notice::ReservationReleased)));
            }
            if let Some(held) = now.filter(|held| held.by != host && !held.kind.is_all()) {
                effects.notices.push((held.by, Notice::ReservationPreempted));
            }
            self.held = Some(new);
        }
        self.keep_holder();
        self.generation = self.generation.wrapping_add(1);
        effects.changed = true;
        Ok(())
    }

    /// Reservation Release.
    ///
    /// # Errors
    /// Reservation Conflict for a host that is not registered and for a wrong key; Invalid Field
    /// for IEKEY and for another type than that of the reservation.
    pub fn release(&mut self, host: HostId, fields: ReleaseFields, current: u64) -> Outcome {
        self.check_key(&host, fields.ignore_key, current)?;
        let mut effects = Effects::default();
        match fields.action {
            ReleaseAction::Release => {
                //= NVMe Base 2.1, Releasing: a host that does not hold the reservation changes nothing
                let Some(held) = self.held.filter(|_| self.holds(&host)) else { return Ok(effects) };
                if fields.kind != Some(held.kind) {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.held = None;
                effects.changed = true;
                self.notify_release(held.kind, &host, &mut effects);
            }
            ReleaseAction::Clear => {
                let others = self.registrations.iter().filter(|one| one.host != host);
                effects.notices.extend(others.map(|one| (one.host, Notice::ReservationPreempted)));
                (self.held, effects.changed) = (None, true);
                self.registrations.clear();
                self.generation = self.generation.wrapping_add(1);
            }
        }
        self.check();
        Ok(effects)
    }

    /// Whether persistence is on, from Set Features.
    pub fn set_persists(&mut self, persists: bool) -> bool {
        persists != std::mem::replace(&mut self.persists, persists)
    }

    /// What remains after a loss of power: all, or the generation counter's start.
    pub fn restarted(self) -> Reservations {
        if self.persists { self } else { Reservations::default() }
    }

    fn is_registered(&self, host: &HostId) -> bool {
        self.registrations.iter().any(|one| one.host == *host)
    }

    fn check_key(&self, host: &HostId, ignore_key: bool, current: u64) -> Result<(), Status> {
        //= NVMe Base 2.1, Reservation Acquire: IEKEY set to 1 gets Invalid Field in Command
        if ignore_key {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let own = self.registrations.iter().find(|one| one.host == *host);
        if own.is_some_and(|one| one.key == current) {
            Ok(())
        } else {
            Err(Status::RESERVATION_CONFLICT.dnr())
        }
    }

    fn unregister(&mut self, at: usize, effects: &mut Effects) {
        let Registration { host, .. } = self.registrations.remove(at);
        let Some(held) = self.held else { return };
        let ends = if held.kind.is_all() { self.registrations.is_empty() } else { held.by == host };
        if ends {
            self.held = None;
            self.notify_release(held.kind, &host, effects);
        }
        self.keep_holder();
    }

    /// What all registrants hold stays in the name of one that is left.
    fn keep_holder(&mut self) {
        if let Some(held) = self.held.filter(|held| held.kind.is_all() && !self.is_registered(&held.by)) {
            self.held = self.registrations.first().map(|one| HeldReservation { by: one.host, ..held });
        }
    }

    /// Registrants that had the holder's access are notified that the reservation was released.
    fn notify_release(&self, kind: ReservationType, by: &HostId, effects: &mut Effects) {
        if kind.has_registrants() {
            let others = self.registrations.iter().filter(|one| one.host != *by);
            effects.notices.extend(others.map(|one| (one.host, Notice::ReservationReleased)));
        }
    }

    fn check(&self) {
        let twice =
            |(i, one): (usize, &Registration)| self.registrations[..i].iter().any(|o| o.host == one.host);
        debug_assert!(
            !self.registrations.iter().enumerate().any(twice),
            "a host is registered twice: {self:?}"
        );
        assert!(
            self.held.is_none_or(|held| self.is_registered(&held.by)),
            "the holder is not registered: {self:?}"
        );
    }
}

/// The part of [`Reservations`] that survives a loss of power.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRecord {
    /// Layout of the record.
    pub version: u32,
    /// See [`Reservations::generation`].
    pub generation: u32,
    /// The registered hosts.
    pub registrations: Vec<Registration>,
    /// Code of the type, and the holder.
    pub held: Option<(u8, HostId)>,
}

/// The version of [`ReservationRecord`] that is written.
pub const RECORD_VERSION: u32 = 1;

impl Reservations {
    /// The state to save; `None` if nothing persists.
    pub fn record(&self) -> Option<ReservationRecord> {
        self.persists.then(|| ReservationRecord {
            version: RECORD_VERSION,
            generation: self.generation,
            registrations: self.registrations.clone(),
            held: self.held.map(|held| (held.kind.code(), held.by)),
        })
    }

    /// The state from a saved record; `None` if the record contradicts itself or is of a newer
    /// version.
    pub fn from_record(record: ReservationRecord) -> Option<Reservations> {
        let ReservationRecord { version, generation, registrations, held } = record;
        let held = match held {
            None => None,
            Some((code, by)) => Some(HeldReservation { kind: ReservationType::from_code(code)?, by }),
        };
        let mut hosts: Vec<&HostId> = registrations.iter().map(|one| &one.host).collect();
        hosts.sort_unstable();
        let twice = hosts.windows(2).any(|pair| pair[0] == pair[1]);
        let known = held.is_none_or(|held| registrations.iter().any(|one| one.host == held.by));
        let good = version == RECORD_VERSION && !twice && known && registrations.len() <= REGISTRANTS_MAX;
        good.then_some(Reservations { generation, registrations, held, persists: true })
    }
}

#[cfg(test)]
mod tests;
