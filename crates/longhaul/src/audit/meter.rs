//! Bounds what peers can have written: events of one kind and one address are lines for a while, and then
//! one line an interval that sums them.
//!
//! Invariants:
//! - of each kind the first event of an address is a line at once;
//! - nothing is left out without being counted in a later line;
//! - the memory for it is bounded: [`SOURCES`] addresses and kinds are summed apart, and the others together;
//! - however many addresses strangers have, the lines of hosts that were authenticated stay as they are.

use longhaul_target::{AuditEvent, AuditHost, RefusalReason, ReservationAction};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How often a sum is written.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);
/// Lines of connects, of disconnects, and of each change of reservations that an address has in an interval.
pub(super) const LINES: u64 = 120;
/// Lines of all addresses in an interval, of strangers and of authenticated hosts each. Beyond that an address
/// has one line of a kind, so that what comes at once finds room in the queue of lines.
pub(super) const TOTAL: u64 = 2048;
/// Addresses and kinds that are summed apart, of strangers and of authenticated hosts each.
pub(super) const SOURCES: usize = 1024;
/// Names of hosts in a sum.
const NAMES: usize = 8;

/// Events that are summed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MeteredKind {
    Connected,
    Refused(RefusalReason),
    Disconnected,
    Reservation(ReservationAction),
}

/// An IPv4 address, or a /64 network of IPv6, which a single host may own (RFC 4291, section 2.5.1); none for
/// the addresses beyond [`SOURCES`].
type MeterSource = Option<IpAddr>;

/// Events that were left out, as the last one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) event: AuditEvent,
    pub(crate) count: u64,
    /// The hosts that they name, the first ones.
    pub(crate) hosts: Vec<String>,
}

#[derive(Debug)]
struct MeterEntry {
    since: Instant,
    lines: u64,
    left_out: Option<Sum>,
}

/// What has been written of late, by address and kind.
#[derive(Debug, Default)]
struct Table {
    entries: HashMap<(MeterSource, MeteredKind), MeterEntry>,
    /// Lines since the interval began.
    lines: u64,
    since: Option<Instant>,
}

/// What has been written of late, of strangers and of authenticated hosts.
#[derive(Debug, Default)]
pub(super) struct Meter([Table; 2]);

fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

/// The host of an event, its kind, and the lines of that kind that an address has in an interval; nothing for
/// what administrators do, which is never summed.
fn parts(event: &AuditEvent) -> Option<(&AuditHost, MeteredKind, u64)> {
    match event {
        AuditEvent::Connected { host, .. } => Some((host, MeteredKind::Connected, LINES)),
        AuditEvent::Refused { host, why } => Some((host, MeteredKind::Refused(*why), 1)),
        AuditEvent::Disconnected { host, .. } => Some((host, MeteredKind::Disconnected, LINES)),
        AuditEvent::Reservation { by, action, .. } => Some((by, MeteredKind::Reservation(*action), LINES)),
        AuditEvent::Space { .. } => None,
    }
}

impl Meter {
    /// Whether an event is a line now. Otherwise it is in a sum later.
    pub(super) fn passes(&mut self, now: Instant, event: &AuditEvent) -> bool {
        let Some((host, kind, most)) = parts(event) else { return true };
        let table = &mut self.0[usize::from(host.is_authenticated)];
        if table.since.is_none_or(|since| now.saturating_duration_since(since) >= INTERVAL) {
            (table.since, table.lines) = (Some(now), 0);
        }
        // Hosts that no IP address reaches are one source: they are on this machine.
        let source = host.address.ip().map_or(IpAddr::from([0, 0, 0, 0]), source_of);
        let mut key = (Some(source), kind);
        if table.entries.len() >= SOURCES && !table.entries.contains_key(&key) {
            key.0 = None;
        }
        let entry = table.entries.entry(key).or_insert(MeterEntry { since: now, lines: 0, left_out: None });
        if entry.lines < if table.lines < TOTAL { most } else { 1 } {
            entry.lines += 1;
            table.lines += 1;
            return true;
        }
        let hosts = entry.left_out.take().map(|sum| (sum.count, sum.hosts));
        let (count, mut hosts) = hosts.unwrap_or_default();
        if hosts.len() < NAMES && !host.hostnqn.is_empty() && !hosts.contains(&host.hostnqn) {
            hosts.push(host.hostnqn.clone());
        }
        entry.left_out = Some(Sum { event: event.clone(), count: count + 1, hosts });
        false
    }

    /// Nothing is to be summed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|table| table.entries.is_empty())
    }

    /// The sums that are due; with `all` also those that are not.
    pub(super) fn due(&mut self, now: Instant, all: bool) -> Vec<Sum> {
        let mut sums = Vec::new();
        let mut look = |(_, kind): &(MeterSource, MeteredKind), entry: &mut MeterEntry| {
            if !all && now.saturating_duration_since(entry.since) < INTERVAL {
                return true;
            }
            let Some(sum) = entry.left_out.take() else { return false };
            sums.push(sum);
            // The sum is the one line of a refusal in the interval that begins.
            let lines = u64::from(matches!(kind, MeteredKind::Refused(_)));
            *entry = MeterEntry { since: now, lines, left_out: None };
            true
        };
        for table in &mut self.0 {
            table.entries.retain(&mut look);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(ip: u32, hostnqn: &str) -> AuditEvent {
        let host = AuditHost {
            address: std::net::SocketAddr::from((std::net::Ipv4Addr::from_bits(ip), 4420)).into(),
            hostnqn: hostnqn.to_owned(),
            hostid: None,
            subsystem: String::new(),
            is_authenticated: false,
        };
        AuditEvent::Refused { host, why: RefusalReason::NoKey }
    }

    fn connected(ip: u32, is_authenticated: bool) -> AuditEvent {
        let AuditEvent::Refused { host, .. } = refused(ip, "host") else { unreachable!("made above") };
        let host = AuditHost { is_authenticated, ..host };
        AuditEvent::Connected { host, controller: 1, generation: None, tls: false, reader: false }
    }

    #[test]
    fn refusals_are_a_line_at_once_and_then_one_an_interval() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let passed = (0..1000).filter(|i| meter.passes(start, &refused(1, &format!("host {i}")))).count();
        assert_eq!(passed, 1);
        assert!(meter.passes(start, &refused(2, "other")), "another address has lines of its own");
        assert_eq!(meter.due(start, false), []);
        let sums = meter.due(start + INTERVAL, false);
        assert_eq!((sums.len(), sums[0].count, sums[0].hosts.len()), (1, 999, NAMES));
        assert!(!meter.passes(start + INTERVAL, &refused(1, "again")), "the sum was the line");
        assert_eq!(meter.due(start + 2 * INTERVAL, false)[0].count, 1);
        assert_eq!(meter.due(start + 3 * INTERVAL, false), []);
        assert!(meter.is_empty());
        assert!(meter.passes(start + 3 * INTERVAL, &refused(1, "again")));
    }

    #[test]
    fn addresses_without_end_are_few_lines() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let events = 10 * SOURCES as u32;
        let passed = (0..events).filter(|ip| meter.passes(start, &refused(*ip, ""))).count();
        let sums = meter.due(start, true);
        assert_eq!((passed, sums.len()), (SOURCES + 1, 1));
        assert_eq!(passed as u64 + sums[0].count, u64::from(events));
    }

    #[test]
    fn strangers_of_many_addresses_who_connect_are_bounded_and_hide_no_authenticated_host() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let strangers = 10 * SOURCES as u32;
        let mut told = 0;
        for _ in 0..10 {
            told += (0..strangers).filter(|ip| meter.passes(start, &connected(*ip, false))).count() as u64;
        }
        assert!(told <= TOTAL + SOURCES as u64 + 1, "{told}");
        let host = (0..LINES).filter(|_| meter.passes(start, &connected(u32::MAX, true))).count() as u64;
        assert_eq!(host, LINES, "each connect of a host that was authenticated is a line");
        let summed: u64 = meter.due(start, true).iter().map(|sum| sum.count).sum();
        assert_eq!(told + summed, 10 * u64::from(strangers));
        assert!(meter.passes(start + INTERVAL, &connected(1, false)));
    }
}
