//! Every type, role and action, and random commands against the invariants.

use super::*;
use proptest::prelude::*;

const A: HostId = [1; 16];
const B: HostId = [2; 16];
const C: HostId = [3; 16];

fn register(state: &mut Reservations, host: HostId, key: u64) -> Effects {
    let fields =
        RegisterFields { action: RegisterAction::Register, ignore_key: false, persist: PersistChange::None };
    state.register(host, fields, 0, key).expect("registered")
}

fn unregister(state: &mut Reservations, host: HostId, key: u64) -> Outcome {
    let fields = RegisterFields {
        action: RegisterAction::Unregister,
        ignore_key: false,
        persist: PersistChange::None,
    };
    state.register(host, fields, key, 0)
}

fn acquire(
    state: &mut Reservations,
    host: HostId,
    action: AcquireAction,
    kind: ReservationType,
    keys: [u64; 2],
) -> Outcome {
    state.acquire(host, AcquireFields { action, ignore_key: false, kind }, keys[0], keys[1])
}

fn release(state: &mut Reservations, host: HostId, kind: ReservationType, key: u64) -> Outcome {
    let fields = ReleaseFields { action: ReleaseAction::Release, ignore_key: false, kind: Some(kind) };
    state.release(host, fields, key)
}

/// A holds, B is registered, C is not.
fn held(kind: ReservationType) -> Reservations {
    let mut state = Reservations::default();
    register(&mut state, A, 10);
    register(&mut state, B, 20);
    acquire(&mut state, A, AcquireAction::Acquire, kind, [10, 0]).expect("acquired");
    state
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();

//= test: NVMe Base 2.1, Command Behavior in the Presence of a Reservation
#[test]
fn access_is_as_the_specification_has_it() {
    use Access::{Read, Write};
    use ReservationType::*;
    // Read and write of a registrant, then of a host that is not registered.
    let table = [
        (WriteExclusive, [true, false], [true, false]),
        (ExclusiveAccess, [false, false], [false, false]),
        (WriteExclusiveRegistrants, [true, true], [true, false]),
        (ExclusiveAccessRegistrants, [true, true], [false, false]),
        (WriteExclusiveAll, [true, true], [true, false]),
        (ExclusiveAccessAll, [true, true], [false, false]),
    ];
    for (kind, registrant, other) in table {
        let state = held(kind);
        let access = |host| [Read, Write].map(|access| state.allows(&host, access));
        assert_eq!(access(A), [true, true], "{kind:?}");
        assert_eq!((access(B), access(C)), (registrant, other), "{kind:?}");
        assert_eq!(state.holds(&B), kind.is_all(), "{kind:?}");
    }
    let free = Reservations::default();
    assert!(free.allows(&C, Write) && free.kind().is_none());
}

//= test: NVMe Base 2.1, Reservation Register
#[test]
fn keys_are_looked_at() {
    let mut state = held(ReservationType::WriteExclusive);
    for (host, key) in [(A, 11), (C, 10)] {
        assert_eq!(release(&mut state, host, ReservationType::WriteExclusive, key), Err(CONFLICT));
        let again =
            acquire(&mut state, host, AcquireAction::Acquire, ReservationType::WriteExclusive, [key, 0]);
        assert_eq!(again, Err(CONFLICT));
        assert_eq!(unregister(&mut state, host, key), Err(CONFLICT));
    }
    let fields =
        RegisterFields { action: RegisterAction::Register, ignore_key: false, persist: PersistChange::None };
    assert_eq!(state.register(A, fields, 0, 99), Err(CONFLICT), "another key takes a replace");
    assert_eq!(state.register(A, fields, 0, 10), Ok(Effects::default()), "the same key changes nothing");
    let replace = RegisterFields { action: RegisterAction::Replace, ..fields };
    assert_eq!(state.register(A, replace, 9, 99), Err(CONFLICT));
    assert!(state.register(A, replace, 10, 99).is_ok());
    assert!(release(&mut state, A, ReservationType::WriteExclusive, 99).is_ok());
    let ignore = AcquireFields {
        action: AcquireAction::Acquire,
        ignore_key: true,
        kind: ReservationType::WriteExclusive,
    };
    assert_eq!(state.acquire(A, ignore, 99, 0), Err(Status::INVALID_FIELD.dnr()));
}

//= test: NVMe Base 2.1, Releasing
#[test]
fn only_the_holder_releases_and_only_its_type() {
    for kind in ReservationType::ALL {
        let mut state = held(kind);
        let other = ReservationType::ALL.into_iter().find(|one| *one != kind).expect("six types");
        assert_eq!(release(&mut state, A, other, 10), Err(Status::INVALID_FIELD.dnr()));
        let by_b = release(&mut state, B, kind, 20).expect("a registrant gets no error");
        assert_eq!((by_b.changed, state.kind().is_none()), (kind.is_all(), kind.is_all()), "{kind:?}");
        if !kind.is_all() {
            let effects = release(&mut state, A, kind, 10).expect("released");
            let notified = kind.has_registrants().then_some((B, Notice::ReservationReleased));
            assert_eq!(effects.notices, Vec::from_iter(notified), "{kind:?}");
        }
        assert_eq!(state.registrations().len(), 2);
    }
}

#[test]
fn the_registration_of_the_holder_ends_with_its_reservation() {
    for kind in ReservationType::ALL {
        let mut state = held(kind);
        let effects = unregister(&mut state, A, 10).expect("unregistered");
        assert_eq!(state.kind(), kind.is_all().then_some(kind));
        let notified = (kind.has_registrants() && !kind.is_all()).then_some((B, Notice::ReservationReleased));
        assert_eq!(effects.notices, Vec::from_iter(notified), "{kind:?}");
        unregister(&mut state, B, 20).expect("unregistered");
        assert_eq!(state.kind(), None, "{kind:?}: no registrant is left");
    }
}

//= test: NVMe Base 2.1, Reservation notifications
#[test]
fn a_preempted_holder_is_neither_registered_nor_let_in() {
    for kind in ReservationType::ALL {
        let mut state = held(kind);
        let new = ReservationType::ExclusiveAccess;
        let key = if kind.is_all() { 0 } else { 10 };
        let effects =
            acquire(&mut state, B, AcquireAction::PreemptAndAbort, new, [20, key]).expect("preempted");
        assert_eq!(effects.abort, [A], "{kind:?}");
        assert!(effects.notices.contains(&(A, Notice::RegistrationPreempted)), "{effects:?}");
        assert_eq!(effects.notices.contains(&(A, Notice::ReservationPreempted)), !kind.is_all(), "{kind:?}");
        assert_eq!((state.kind(), state.holds(&B)), (Some(new), true));
        assert!(!state.allows(&A, Access::Read) && state.registrations().len() == 1);
        assert_eq!(release(&mut state, A, kind, 10), Err(CONFLICT), "{kind:?}: a stale holder");
    }
}

//= test: NVMe Base 2.1, Preempting
#[test]
fn what_a_preempt_may_name() {
    let kind = ReservationType::WriteExclusive;
    let preempt = |state: &mut Reservations, key| acquire(state, B, AcquireAction::Preempt, kind, [20, key]);
    let mut state = held(kind);
    assert_eq!(preempt(&mut state, 0), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(preempt(&mut state, 77), Err(CONFLICT), "a key that no host has");
    // A registrant that is not the holder unregisters, and the reservation stays.
    register(&mut state, C, 30);
    let effects = preempt(&mut state, 30).expect("preempted");
    assert_eq!(effects.notices, [(C, Notice::RegistrationPreempted)]);
    assert!(state.holds(&A) && effects.abort.is_empty());
    // Without a reservation registrations go, and none is made.
    release(&mut state, A, kind, 10).expect("released");
    preempt(&mut state, 10).expect("preempted");
    assert_eq!((state.kind(), state.registrations().len()), (None, 1));
    // The own reservation, with another type.
    acquire(&mut state, B, AcquireAction::Acquire, kind, [20, 0]).expect("acquired");
    let other = ReservationType::ExclusiveAccess;
    acquire(&mut state, B, AcquireAction::Preempt, other, [20, 20]).expect("preempted");
    assert_eq!((state.kind(), state.registrations().len()), (Some(other), 1));
}

#[test]
fn a_clear_ends_all() {
    let mut state = held(ReservationType::ExclusiveAccessRegistrants);
    let fields = ReleaseFields { action: ReleaseAction::Clear, ignore_key: false, kind: None };
    let effects = state.release(B, fields, 20).expect("cleared");
    assert_eq!(effects.notices, [(A, Notice::ReservationPreempted)]);
    assert!(state.registrations().is_empty() && state.kind().is_none());
}

#[test]
fn a_loss_of_power_keeps_what_persists() {
    let mut state = held(ReservationType::ExclusiveAccess);
    assert_eq!(state.record(), None);
    assert_eq!(state.clone().restarted(), Reservations::default());
    assert!(state.set_persists(true) && !state.set_persists(true));
    let record = state.record().expect("it persists");
    assert_eq!(Reservations::from_record(record.clone()), Some(state.clone().restarted()));
    let newer = ReservationRecord { version: RECORD_VERSION + 1, ..record.clone() };
    assert_eq!(Reservations::from_record(newer), None);
    let stranger = ReservationRecord { held: Some((1, C)), ..record };
    assert_eq!(Reservations::from_record(stranger), None);
}

proptest! {
    /// Whatever hosts send: the invariants hold, no host gets access that its role has not, and a
    /// command that fails changes nothing.
    #[test]
    fn random_commands_keep_the_invariants(
        commands in prop::collection::vec((0u8..3, 0u8..8, 0usize..6, 0u64..4, 0u64..4, any::<bool>()), 1..200)
    ) {
        let mut state = Reservations::default();
        for (host, action, kind, current, other, ignore_key) in commands {
            let (host, kind) = ([A, B, C][host as usize], ReservationType::ALL[kind]);
            let before = state.clone();
            let persist = PersistChange::None;
            let register = |action| RegisterFields { action, ignore_key, persist };
            let acquire = |action| AcquireFields { action, ignore_key: false, kind };
            let done = match action {
                0 => state.register(host, register(RegisterAction::Register), current, other),
                1 => state.register(host, register(RegisterAction::Unregister), current, other),
                2 => state.register(host, register(RegisterAction::Replace), current, other),
                3 => state.acquire(host, acquire(AcquireAction::Acquire), current, other),
                4 => state.acquire(host, acquire(AcquireAction::Preempt), current, other),
                5 => state.acquire(host, acquire(AcquireAction::PreemptAndAbort), current, other),
                6 => state.release(host, ReleaseFields { action: ReleaseAction::Release, ignore_key: false, kind: Some(kind) }, current),
                _ => state.release(host, ReleaseFields { action: ReleaseAction::Clear, ignore_key: false, kind: None }, current),
            };
            match done {
                Err(_) => prop_assert_eq!(&state, &before),
                Ok(effects) => {
                    prop_assert_eq!(effects.changed, state != before);
                    for aborted in &effects.abort {
                        prop_assert!(!state.registrations().iter().any(|one| one.host == *aborted));
                    }
                    prop_assert!(effects.notices.iter().all(|(other, _)| *other != host));
                }
            }
            if let Some(kind) = state.kind() {
                for host in [A, B, C] {
                    let registered = state.registrations().iter().any(|one| one.host == host);
                    let writes = state.holds(&host) || (registered && kind.has_registrants());
                    prop_assert_eq!(state.allows(&host, Access::Write), writes);
                    prop_assert_eq!(state.allows(&host, Access::Read), writes || kind.lets_others_read());
                }
            }
        }
    }
}
