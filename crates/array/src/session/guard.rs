//! Reservations: they keep other hosts from writing to the members, whatever those believe.
//!
//! The session that runs an array registers with each member that has reservations, by a key made of
//! its UUID, and holds the reservation until it stops. (Write Exclusive: the holder alone writes. A
//! type that lets registrants write as well would let in a host that only wants to take over, and
//! one whose registration arrives late.) A host that takes the array over names the key that it
//! takes it from.
//!
//! Invariants:
//! - a member that has reservations is written only after this session has its reservation, and the
//!   content that decides on the recovery is read after that;
//! - a reservation is taken only from a key that was seen, and whose session has ended since:
//!   another host that was faster has another key, and the one that was slower gives back what it
//!   has;
//! - once a member refuses a change for the reservation of another host, the array halts for good.

use crate::assembly::assemble::Assembly;
use crate::assembly::candidate::Candidate;
use crate::core::{Core, HaltReason};
use crate::error::ArrayError;
use crate::member::Member;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult, ReservationState, Reservations};
use longhaul_engine::{spawn, timeout};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use uuid::Uuid;

/// The first 16 bits of each key of an array, "LH": keys of other users of reservations differ.
const MARK: u64 = 0x4C48 << 48;
/// The bits of the session's UUID in its key.
const SESSION: u64 = (1 << 48) - 1;
/// Commands that take a reservation at most: others may be faster each time.
const STEPS: u32 = 8;

/// The key of a session.
pub(crate) fn key_of(session: Uuid) -> u64 {
    MARK | (session.as_u128() as u64 & SESSION)
}

/// Whether the key is that of a session of an array.
fn is_of_a_session(key: u64) -> bool {
    key & !SESSION == MARK
}

/// What keeps other hosts from writing to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The member refuses their writes.
    Reservation,
    /// They see the heartbeat, and do not write.
    Heartbeat,
}

/// The reservations that a session has, by the UUID of the member or spare.
pub(crate) struct HeldReservations {
    key: u64,
    held: RefCell<BTreeMap<Uuid, Rc<dyn Reservations>>>,
}

impl HeldReservations {
    pub(crate) fn new(session: Uuid) -> HeldReservations {
        HeldReservations { key: key_of(session), held: RefCell::default() }
    }

    /// Whether the session has any.
    pub(crate) fn any(&self) -> bool {
        !self.held.borrow().is_empty()
    }

    pub(crate) fn has(&self, uuid: Uuid) -> bool {
        self.held.borrow().contains_key(&uuid)
    }

    fn add(&self, uuid: Uuid, reservations: &Rc<dyn Reservations>) {
        self.held.borrow_mut().insert(uuid, Rc::clone(reservations));
    }

    fn take(&self, uuid: Uuid) -> Option<Rc<dyn Reservations>> {
        self.held.borrow_mut().remove(&uuid)
    }
}

/// A device of an array that has reservations.
pub(crate) struct Reservable {
    uuid: Uuid,
    name: String,
    reservations: Rc<dyn Reservations>,
    /// The array is not started without its reservation.
    needed: bool,
}

/// The devices of an array that have reservations: members in their order, then the others.
pub(crate) fn reservable(assembly: &Assembly) -> Vec<Reservable> {
    let needed = assembly.members.values().chain(&assembly.witness).map(|candidate| (candidate, true));
    let stale = assembly.stale.iter().map(|(_, candidate, _)| candidate);
    let others = stale.chain(&assembly.spares).map(|candidate| (candidate, false));
    let device = |(candidate, needed): (&Candidate, bool)| {
        let (uuid, reservations) = (candidate.superblock.as_ref()?.member, candidate.io.reservations()?);
        Some(Reservable { uuid, name: candidate.name(), reservations, needed })
    };
    needed.chain(others).filter_map(device).collect()
}

/// Why a reservation was not taken.
enum NotTaken {
    /// The host with this key holds it.
    HeldBy(u64),
    Failed(IoError),
}

impl NotTaken {
    fn of_device(self, device: String) -> ArrayError {
        match self {
            NotTaken::HeldBy(key) if is_of_a_session(key) => ArrayError::Reserved { device, key },
            NotTaken::HeldBy(key) => ArrayError::ReservedByOther { device, key },
            NotTaken::Failed(source) => ArrayError::Device { device, source },
        }
    }
}

/// Reserves a device for `key`, and takes the reservation over from keys that have `ended`. False
/// if the device does not take the registration: it has no room, or cannot keep it.
async fn take(device: &dyn Reservations, key: u64, ended: impl Fn(u64) -> bool) -> Result<bool, NotTaken> {
    let (registered, mut state) = futures_util::join!(device.register(key), device.report());
    match registered {
        Err(IoError::Refused(_) | IoError::Unsupported(_)) => return Ok(false),
        result => result.map_err(NotTaken::Failed)?,
    }
    for _ in 0..STEPS {
        let found = state.map_err(NotTaken::Failed)?;
        let step = match found.holder {
            Some(holder) if holder == key => {
                // Hosts that have ended without a reservation.
                for other in found.registered.into_iter().filter(|other| *other != key && ended(*other)) {
                    // It may have been removed by now.
                    let _ = device.preempt(key, other).await;
                }
                return Ok(true);
            }
            Some(holder) if ended(holder) => device.preempt(key, holder).await,
            Some(holder) => {
                // Nothing depends on it: a registration gives no right to write.
                let _ = device.unregister(key).await;
                return Err(NotTaken::HeldBy(holder));
            }
            None => device.acquire(key).await,
        };
        match step {
            // Another host was faster, or the answer to an earlier attempt was lost: the report tells.
            Ok(()) | Err(IoError::Reserved) => state = device.report().await,
            Err(e) => return Err(NotTaken::Failed(e)),
        }
    }
    Err(NotTaken::Failed(IoError::Reserved))
}

/// Reserves a device that is to become a member of a new array, or of a running one, before it is
/// written. Its heartbeat is known to stand still. With `force` it may be taken from a session that
/// is not known. `None` if it has no reservations.
pub(crate) async fn reserve_new(
    candidate: &Candidate,
    key: u64,
    force: bool,
    ended: impl Fn(u64) -> bool,
) -> Result<Option<Rc<dyn Reservations>>, ArrayError> {
    let Some(reservations) = candidate.io.reservations() else { return Ok(None) };
    let last = candidate.beat.map(|beat| key_of(beat.session));
    let may = |holder| is_of_a_session(holder) && (force || Some(holder) == last || ended(holder));
    match take(&*reservations, key, may).await {
        Ok(taken) => Ok(taken.then_some(reservations)),
        Err(e) => Err(e.of_device(candidate.name())),
    }
}

impl Core {
    /// Whether members are to be reserved.
    fn reserves(&self) -> bool {
        !self.lacks(Mechanism::Reservations)
    }

    /// Whether each member in use, and the witness, is among `devices`, which have reservations.
    pub(crate) fn all_refuse_others(&self, devices: &[Reservable]) -> bool {
        let mut usable = self.members_and_witness().filter(|member| member.is_usable());
        self.reserves() && usable.all(|member| devices.iter().any(|device| device.uuid == member.uuid()))
    }

    /// What keeps other hosts from writing to a member.
    pub(crate) fn guard_of(&self, uuid: Uuid) -> Guard {
        if self.session.held.has(uuid) { Guard::Reservation } else { Guard::Heartbeat }
    }

    /// Keys of other sessions that are registered with the devices, if one of them holds a
    /// reservation and is not known to have ended; else none.
    ///
    /// # Errors
    /// A device that is needed is reserved by a host that runs no array, or cannot be asked.
    pub(crate) async fn other_keys(&self, devices: &[Reservable]) -> Result<Vec<u64>, ArrayError> {
        if !self.reserves() {
            return Ok(Vec::new());
        }
        let reports = devices.iter().map(|device| self.in_time(device.reservations.report()));
        let (mut keys, mut lives) = (Vec::new(), false);
        for (report, device) in join_all(reports).await.into_iter().zip(devices) {
            let ReservationState { holder, registered, .. } = match report {
                Ok(state) => state,
                Err(source) if device.needed => {
                    return Err(ArrayError::Device { device: device.name.clone(), source });
                }
                Err(_) => continue,
            };
            let others = |key: &u64| *key != self.session.held.key;
            if let Some(key) = holder.filter(others) {
                if !is_of_a_session(key) && device.needed {
                    return Err(NotTaken::HeldBy(key).of_device(device.name.clone()));
                }
                lives |= !self.session.ended.has_key(key);
            }
            keys.extend(registered.into_iter().filter(others).filter(|key| is_of_a_session(*key)));
        }
        Ok(if lives { keys } else { Vec::new() })
    }

    /// The key of another session that holds the reservation of a member and is not known to have
    /// ended.
    pub(crate) async fn other_key(&self, member: &Member) -> IoResult<Option<u64>> {
        let Some(reservations) = member.reservations().filter(|_| self.reserves()) else { return Ok(None) };
        let holder = self.in_time(reservations.report()).await?.holder;
        let is_other = |key: &u64| *key != self.session.held.key && is_of_a_session(*key);
        Ok(holder.filter(is_other).filter(|key| !self.session.ended.has_key(*key)))
    }

    /// Reserves the devices of an array that is being assembled. The first one decides between hosts
    /// that do so at the same moment. True if all members and the witness are reserved then.
    ///
    /// # Errors
    /// Another host has a device that is needed, or it cannot be asked. No reservation is left.
    pub(crate) async fn reserve_all(&self, devices: &[Reservable]) -> Result<bool, ArrayError> {
        if !self.reserves() {
            return Ok(false);
        }
        let reserve = async |device: &Reservable| {
            let taken = self.reserve(device.uuid, &device.reservations).await;
            match taken.map_err(|e| e.of_device(device.name.clone())) {
                Err(e) if device.needed => Err(e),
                Err(e) => {
                    tracing::warn!("array {}: {e}", self.name);
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        };
        let all = async {
            let Some((first, others)) = devices.split_first() else { return Ok(()) };
            reserve(first).await?;
            join_all(others.iter().map(reserve)).await.into_iter().collect()
        };
        if let Err(e) = all.await {
            self.give_back_all().await;
            return Err(e);
        }
        let mut usable = self.members_and_witness().filter(|member| member.is_usable());
        Ok(usable.all(|member| self.session.held.has(member.uuid())))
    }

    /// Reserves a device of the array, and takes it over from sessions that have ended.
    async fn reserve(&self, uuid: Uuid, reservations: &Rc<dyn Reservations>) -> Result<(), NotTaken> {
        let (key, ended) = (self.session.held.key, |key| self.session.ended.has_key(key));
        let taken = timeout(self.options.member_timeout, take(&**reservations, key, ended)).await;
        if taken.map_err(|_| NotTaken::Failed(self.too_late()))?? {
            self.session.held.add(uuid, reservations);
        } else {
            tracing::warn!(
                "array {}: member {uuid} takes no reservation: its heartbeat guards it",
                self.name
            );
        }
        Ok(())
    }

    /// Reserves a member that joins or returns; false if another host has it.
    pub(crate) async fn reserve_member(&self, member: &Member) -> IoResult<bool> {
        match member.reservations() {
            Some(reservations) => self.reserve_joining(member.uuid(), &reservations).await,
            None => self.until_owned_to_claim().await.map(|()| true),
        }
    }

    /// The same for a device that becomes a member.
    pub(crate) async fn reserve_joining(
        &self,
        uuid: Uuid,
        reservations: &Rc<dyn Reservations>,
    ) -> IoResult<bool> {
        self.until_owned_to_claim().await?;
        if !self.reserves() {
            return Ok(true);
        }
        match self.reserve(uuid, reservations).await {
            Ok(()) => Ok(true),
            Err(NotTaken::HeldBy(_)) => Ok(false),
            Err(NotTaken::Failed(e)) => Err(e),
        }
    }

    /// Reserves a device that an operator gives to the running array.
    pub(crate) async fn reserve_given(
        &self,
        uuid: Uuid,
        candidate: &Candidate,
        force: bool,
    ) -> Result<(), ArrayError> {
        let claim = self.until_owned_to_claim().await;
        claim.map_err(|source| ArrayError::Device { device: candidate.name(), source })?;
        if !self.reserves() {
            return Ok(());
        }
        let ended = |key| self.session.ended.has_key(key);
        let reserve = reserve_new(candidate, self.session.held.key, force, ended);
        let reserved = timeout(self.options.member_timeout, reserve).await.unwrap_or_else(|_| {
            Err(ArrayError::Device { device: candidate.name(), source: self.too_late() })
        });
        reserved?.iter().for_each(|reservations| self.session.held.add(uuid, reservations));
        Ok(())
    }

    /// Ends the reservation of a device that leaves the array, without waiting: it may not answer.
    /// If the device stays, as another member, so does its reservation.
    pub(crate) fn give_back(&self, uuid: Uuid, stays: bool) {
        let Some(reservations) = self.session.held.take(uuid).filter(|_| !stays) else { return };
        let (key, limit) = (self.session.held.key, self.options.member_timeout);
        spawn(async move { drop(timeout(limit, reservations.unregister(key)).await) }).detach();
    }

    /// Ends all reservations of the session, on devices that answer.
    pub(crate) async fn give_back_all(&self) {
        let held = std::mem::take(&mut *self.session.held.held.borrow_mut());
        let is_away = |uuid: Uuid| {
            let mut members = self.members_and_witness();
            members.any(|member| {
                member.uuid() == uuid && !(member.is_usable() && member.disconnected().is_none())
            })
        };
        let ends = held.iter().filter(|(uuid, _)| !is_away(**uuid)).map(async |(uuid, reservations)| {
            if let Err(e) = self.in_time(reservations.unregister(self.session.held.key)).await {
                tracing::warn!("array {}: the reservation of {uuid} has not ended: {e}", self.name);
            }
        });
        join_all(ends).await;
    }

    /// A member has refused an operation since another host has reserved it.
    pub(crate) fn note_conflict(&self, member: &Member) {
        if self.session.held.has(member.uuid()) {
            let name = member.name().unwrap_or_default();
            let index = member.index;
            let why =
                format!("another host has taken it over: member {index} ({name}) is reserved by that host");
            self.halt(HaltReason::TakenOver, &why);
        }
    }

    async fn in_time<T>(&self, command: impl Future<Output = IoResult<T>>) -> IoResult<T> {
        timeout(self.options.member_timeout, command).await.unwrap_or_else(|_| Err(self.too_late()))
    }

    fn too_late(&self) -> IoError {
        let seconds = self.options.member_timeout.as_secs_f64();
        IoError::Unreachable(format!("a reservation command was not answered in {seconds:.0} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_a_session() {
        let session = Uuid::from_u128(0x0123_4567_89AB_4DEF_8123_4567_89AB_CDEF);
        assert_eq!(key_of(session), 0x4C48_4567_89AB_CDEF, "the key that other hosts know");
        assert!(is_of_a_session(key_of(Uuid::from_u128(0))));
        assert!(!is_of_a_session(0) && !is_of_a_session(1) && !is_of_a_session(u64::MAX));
    }
}
