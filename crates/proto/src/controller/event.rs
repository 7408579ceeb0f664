//! Asynchronous events: outstanding requests, and the events that complete them.

use super::action::Reply;
use longhaul_wire::completion::Status;
use longhaul_wire::feature::{AEC_SMART_MASK, AsyncEvent, AsyncEventType, notice};
use longhaul_wire::identify::oaes;
use longhaul_wire::log::{CHANGED_NAMESPACES_MAX, ReservationNotice, ReservationNoticeKind, lid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Asynchronous Event Requests held open at a time; AERL says one less. Hosts
/// keep one to four of them.
pub const AER_LIMIT: usize = 4;

/// Critical warning bit of the temperature, and the bit of Asynchronous Event
/// Configuration that enables its event.
pub(super) const WARN_TEMPERATURE: u8 = 1 << 1;

/// The events that a controller has to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    NamespaceAttribute,
    AnaChange,
    DiscoveryLog,
    Temperature,
    Reservation,
}

impl EventKind {
    const ALL: [EventKind; 5] = [
        EventKind::NamespaceAttribute,
        EventKind::AnaChange,
        EventKind::DiscoveryLog,
        EventKind::Temperature,
        EventKind::Reservation,
    ];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Its bit in Asynchronous Event Configuration; none if that does not enable it.
    fn config(self) -> Option<u32> {
        match self {
            EventKind::NamespaceAttribute => Some(oaes::NAMESPACE_ATTRIBUTE),
            EventKind::AnaChange => Some(oaes::ANA_CHANGE),
            EventKind::DiscoveryLog => Some(oaes::DISCOVERY_LOG_CHANGE),
            EventKind::Temperature => Some(WARN_TEMPERATURE.into()),
            // Reservation Notification Mask has a bit for each kind instead.
            EventKind::Reservation => None,
        }
    }

    fn info(self) -> AsyncEvent {
        let notice = |info, lid| AsyncEvent { kind: AsyncEventType::Notice, info, lid };
        match self {
            EventKind::NamespaceAttribute => notice(notice::NAMESPACE_ATTRIBUTE, lid::CHANGED_NAMESPACES),
            EventKind::AnaChange => notice(notice::ANA_CHANGE, lid::ANA),
            EventKind::DiscoveryLog => notice(notice::DISCOVERY_LOG_CHANGE, lid::DISCOVERY),
            // SMART / health status 01h: temperature threshold.
            EventKind::Temperature => AsyncEvent { kind: AsyncEventType::Health, info: 1, lid: lid::HEALTH },
            // Reservation Log Page Available.
            EventKind::Reservation => {
                AsyncEvent { kind: AsyncEventType::IoCommand, info: 0, lid: lid::RESERVATION_NOTICE }
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    /// Requests held open, oldest first.
    held: VecDeque<u16>,
    /// Answers that the driver has not fetched.
    ready: VecDeque<(u16, Reply)>,
    /// Events to report, a bit each.
    pending: u8,
    /// Events reported whose log page the host has not read yet.
    reported: u8,
    /// Asynchronous Event Configuration.
    config: u32,
    changed: BTreeSet<u32>,
    /// More namespaces changed than the list has room for.
    overflow: bool,
    /// Notices of reservations that the host has not read, oldest first; at most [`NOTICES_MAX`].
    notices: VecDeque<(u32, ReservationNoticeKind)>,
    /// Notices that were read or dropped.
    notices_read: u64,
    /// Reservation Notification Mask, by namespace.
    masks: BTreeMap<u32, u32>,
}

/// Notices of reservations that are kept for the host. Beyond that the oldest are dropped, as the
/// log page's count shows.
const NOTICES_MAX: usize = 256;

impl Events {
    /// Which bits of Asynchronous Event Configuration may be set.
    pub(super) fn supported(discovery: bool, ana: bool) -> u32 {
        match (discovery, ana) {
            (true, _) => oaes::DISCOVERY_LOG_CHANGE,
            (false, true) => AEC_SMART_MASK | oaes::NAMESPACE_ATTRIBUTE | oaes::ANA_CHANGE,
            (false, false) => AEC_SMART_MASK | oaes::NAMESPACE_ATTRIBUTE,
        }
    }

    pub(super) fn config(&self) -> u32 {
        self.config
    }

    pub(super) fn set_config(&mut self, config: u32) {
        self.config = config;
    }

    /// Holds a request; false if there are too many.
    pub(super) fn hold(&mut self, cid: u16) -> bool {
        if self.held.len() == AER_LIMIT {
            return false;
        }
        self.held.push_back(cid);
        self.report();
        true
    }

    /// Aborts a held Asynchronous Event Request; false if `cid` is not held.
    pub(super) fn abort(&mut self, cid: u16) -> bool {
        let Some(at) = self.held.iter().position(|&held| held == cid) else { return false };
        self.held.remove(at);
        self.ready.push_back((cid, Status::ABORT_REQUESTED.into()));
        true
    }

    /// Forgets a request that the host has forgotten.
    pub(super) fn forget(&mut self, cid: u16) {
        self.held.retain(|held| *held != cid);
        self.ready.retain(|(ready, _)| *ready != cid);
    }

    pub(super) fn poll(&mut self) -> Option<(u16, Reply)> {
        self.ready.pop_front()
    }

    pub(super) fn raise(&mut self, event: EventKind) {
        //= NVMe Base 2.1, Asynchronous Event Configuration feature: only enabled events are reported
        //= NVMe Base 2.1, Asynchronous Event Request command: an event is masked once it was reported, until its log page is read
        let enabled = event.config().is_none_or(|bit| self.config & bit != 0);
        if !enabled || self.reported & event.bit() != 0 {
            return;
        }
        self.pending |= event.bit();
        self.report();
    }

    pub(super) fn namespace_changed(&mut self, nsid: u32) {
        if self.changed.len() < CHANGED_NAMESPACES_MAX {
            self.changed.insert(nsid);
        } else if !self.changed.contains(&nsid) {
            self.overflow = true;
        }
        self.raise(EventKind::NamespaceAttribute);
    }

    /// Something has happened to a reservation of the namespace.
    pub(super) fn reservation(&mut self, nsid: u32, kind: ReservationNoticeKind) {
        //= NVMe Base 2.1, Reservation Notification Mask feature: a kind that is masked is neither logged nor reported
        if self.masks.get(&nsid).is_some_and(|mask| mask & kind.mask_bit() != 0) {
            return;
        }
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
            self.notices_read += 1;
        }
        self.notices.push_back((nsid, kind));
        self.raise(EventKind::Reservation);
    }

    pub(super) fn reservation_mask(&self, nsid: u32) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or(0)
    }

    pub(super) fn set_reservation_mask(&mut self, nsid: u32, mask: u32) {
        if mask == 0 {
            self.masks.remove(&nsid);
        } else {
            self.masks.insert(nsid, mask);
        }
    }

    /// The Reservation Notification page: the oldest notice.
    pub(super) fn reservation_log(&self) -> Vec<u8> {
        let more = self.notices.len().saturating_sub(1).min(255) as u8;
        let notice = self.notices.front().map(|&(nsid, kind)| ReservationNotice {
            count: self.notices_read + 1,
            kind,
            more,
            nsid,
        });
        ReservationNotice::page(notice).to_vec()
    }

    /// The Changed Attached Namespace List.
    pub(super) fn changed_log(&self) -> Vec<u8> {
        if self.overflow {
            return longhaul_wire::identify::encode_nsid_list([u32::MAX]);
        }
        longhaul_wire::log::encode_changed_namespaces(self.changed.iter().copied())
    }

    /// A log page was read with RAE cleared.
    pub(super) fn log_read(&mut self, lid: u8) {
        for event in EventKind::ALL {
            //= NVMe Base 2.1, Get Log Page command: reading the page with RAE cleared clears and re-arms its event
            if event.info().lid == lid {
                self.pending &= !event.bit();
                self.reported &= !event.bit();
            }
        }
        //= NVMe Base 2.1, Reservation Notification log page: reading it removes the notice, and a further one is reported
        if lid == longhaul_wire::log::lid::RESERVATION_NOTICE {
            self.notices_read += u64::from(self.notices.pop_front().is_some());
            if !self.notices.is_empty() {
                self.raise(EventKind::Reservation);
            }
        }
        //= NVMe Base 2.1, Changed Attached Namespace List log page: reading it clears it
        if lid == longhaul_wire::log::lid::CHANGED_NAMESPACES {
            self.changed.clear();
            self.overflow = false;
        }
    }

    fn report(&mut self) {
        for event in EventKind::ALL {
            if self.pending & event.bit() == 0 {
                continue;
            }
            let Some(cid) = self.held.pop_front() else { return };
            self.pending &= !event.bit();
            self.reported |= event.bit();
            self.ready.push_back((cid, Reply::ok(event.info().to_dw0().into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: u64 = 0x0004_0002;
    const ANA: u64 = 0x000C_0302;

    fn enabled() -> Events {
        let mut events = Events::default();
        events.set_config(Events::supported(false, true));
        events
    }

    #[test]
    fn an_event_waits_for_a_request_and_a_request_for_an_event() {
        let mut events = enabled();
        events.namespace_changed(7);
        assert_eq!(events.poll(), None);
        assert!(events.hold(1));
        assert_eq!(events.poll(), Some((1, Reply::ok(NS))));
        assert!(events.hold(2));
        events.raise(EventKind::AnaChange);
        assert_eq!(events.poll(), Some((2, Reply::ok(ANA))));
        assert_eq!(events.poll(), None);
    }

    //= test: NVMe Base 2.1, Asynchronous Event Request command
    //= test: NVMe Base 2.1, Get Log Page command
    //= test: NVMe Base 2.1, Changed Attached Namespace List log page
    #[test]
    fn one_notice_until_the_page_is_read() {
        let mut events = enabled();
        (1..=3).for_each(|cid| assert!(events.hold(cid)));
        events.namespace_changed(7);
        events.namespace_changed(8);
        assert_eq!(events.poll(), Some((1, Reply::ok(NS))));
        assert_eq!(events.poll(), None, "masked");
        assert_eq!(events.changed_log()[..12], [7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        events.log_read(lid::ANA);
        events.namespace_changed(9);
        assert_eq!(events.poll(), None, "another page does not unmask it");
        events.log_read(lid::CHANGED_NAMESPACES);
        assert_eq!(events.changed_log()[..4], [0; 4]);
        assert_eq!(events.poll(), None, "an event that was read is not reported again");
        events.namespace_changed(7);
        assert_eq!(events.poll(), Some((2, Reply::ok(NS))));
    }

    //= test: NVMe Base 2.1, Asynchronous Event Configuration feature
    #[test]
    fn disabled_events_are_listed_but_not_reported() {
        let mut events = Events::default();
        assert!(events.hold(1));
        events.namespace_changed(7);
        events.raise(EventKind::Temperature);
        events.set_config(u32::MAX);
        assert_eq!(events.poll(), None);
        assert_eq!(events.changed_log()[0], 7);
    }

    //= test: NVMe Base 2.1, Reservation Notification log page
    //= test: NVMe Base 2.1, Reservation Notification Mask feature
    #[test]
    fn notices_of_reservations_are_read_one_by_one() {
        use ReservationNoticeKind::*;
        let mut events = Events::default();
        (1..=3).for_each(|cid| assert!(events.hold(cid)));
        events.set_reservation_mask(2, ReservationReleased.mask_bit());
        events.reservation(2, ReservationReleased);
        assert_eq!((events.poll(), events.reservation_mask(2)), (None, 1 << 2), "masked");
        events.reservation(1, RegistrationPreempted);
        events.reservation(2, ReservationPreempted);
        // Type 6, information 0, log page 80h.
        assert_eq!(events.poll(), Some((1, Reply::ok(0x0080_0006))));
        assert_eq!(events.poll(), None, "one until the page is read");
        let read = |events: &mut Events| {
            let page = events.reservation_log();
            events.log_read(lid::RESERVATION_NOTICE);
            ReservationNotice::decode(&page.try_into().expect("64 bytes"))
        };
        let first = ReservationNotice { count: 1, kind: RegistrationPreempted, more: 1, nsid: 1 };
        assert_eq!(read(&mut events), Some(first));
        assert_eq!(events.poll(), Some((2, Reply::ok(0x0080_0006))), "a further one waits");
        let second = ReservationNotice { count: 2, kind: ReservationPreempted, more: 0, nsid: 2 };
        assert_eq!(read(&mut events), Some(second));
        assert_eq!((read(&mut events), events.poll()), (None, None));
        for _ in 0..NOTICES_MAX + 5 {
            events.reservation(1, ReservationReleased);
        }
        assert_eq!(events.notices.len(), NOTICES_MAX);
        assert_eq!(read(&mut events).map(|notice| (notice.count, notice.more)), Some((8, 255)));
    }

    #[test]
    fn requests_are_limited_and_aborted() {
        let mut events = enabled();
        (0..AER_LIMIT as u16).for_each(|cid| assert!(events.hold(cid)));
        assert!(!events.hold(9));
        assert!(!events.abort(9));
        assert!(events.abort(2));
        assert_eq!(events.poll(), Some((2, Status::ABORT_REQUESTED.into())));
        assert!(events.hold(9));
    }

    #[test]
    fn a_request_that_is_forgotten_is_not_answered() {
        let mut events = enabled();
        (1..=3).for_each(|cid| assert!(events.hold(cid)));
        events.forget(1);
        events.namespace_changed(7);
        events.forget(2);
        assert_eq!(events.poll(), None, "neither held nor answered");
        events.raise(EventKind::AnaChange);
        assert_eq!(events.poll(), Some((3, Reply::ok(ANA))));
    }

    #[test]
    fn too_many_changes_are_told_as_such() {
        let mut events = enabled();
        (1..=1024).for_each(|nsid| events.namespace_changed(nsid));
        assert_eq!(events.changed_log()[4092..], 1024u32.to_le_bytes());
        events.namespace_changed(1);
        assert_eq!(events.changed_log()[..4], [1, 0, 0, 0]);
        events.namespace_changed(1025);
        assert_eq!(events.changed_log()[..8], [255, 255, 255, 255, 0, 0, 0, 0]);
    }
}
