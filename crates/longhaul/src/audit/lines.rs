//! Lines of the audit log: JSON of bounded length, in ASCII.
//!
//! Invariants:
//! - what peers say is escaped: no byte of a line that came from a peer ends the line, its string, or is
//!   anything but printable ASCII;
//! - a name has [`NAME`] bytes at most, and a list [`LIST`]; what is cut says so.

use super::meter::Sum;
use crate::events::{
    AuditHostEnded, AuditNotReloaded, AuditReloaded, AuditReopened, AuditStarted, AuditStopped,
    ExportAudited, HostConnected, HostDisconnected, HostRefused, NamespaceChanged, ReservationChanged,
};
use longhaul_engine::UtcTime;
use longhaul_target::{
    AuditEvent, AuditHost, Recorded, RefusalReason, ReservationAction, SpaceAction, SpaceEvent,
};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use uuid::Uuid;

/// Bytes of a name, before it is escaped.
const NAME: usize = 256;
/// Bytes of the names in a list, before they are escaped: more than the label of a namespace has.
const LIST: usize = 4096;
/// Stands for what was cut.
const CUT: &str = "...";

/// What is recorded.
#[derive(Debug)]
pub(crate) enum AuditRecord {
    Started(AuditStarted),
    Stopped(AuditStopped),
    Reopened,
    Export(ExportAudited),
    Reloaded(AuditReloaded),
    NotReloaded(AuditNotReloaded),
    HostEnded(AuditHostEnded),
    Event(AuditEvent),
    /// Events that were not written one by one.
    Sum(Sum),
}

/// A line that waits to be written.
#[derive(Debug)]
pub(super) struct AuditEntry {
    /// Since 1970.
    pub(super) time: Duration,
    pub(super) record: AuditRecord,
    /// Events just before it that found no room.
    pub(super) dropped: u64,
    /// A command waits for it.
    pub(super) recorded: Option<Recorded>,
}

#[derive(Serialize)]
struct AuditLine<'a, T> {
    time: String,
    #[serde(flatten)]
    event: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    summed_hosts: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u64>,
}

/// A line with its end; `dropped` events before it are missing.
pub(super) fn encode(time: Duration, record: &AuditRecord, dropped: u64) -> String {
    let frame = Frame { time, sum: None, dropped };
    match record {
        AuditRecord::Started(event) => frame.line(event),
        AuditRecord::Stopped(event) => frame.line(event),
        AuditRecord::Reopened => frame.line(AuditReopened {}),
        AuditRecord::Export(event) => {
            let (hosts, read_only_hosts) = (names(&event.hosts), names(&event.read_only_hosts));
            frame.line(ExportAudited { hosts, read_only_hosts, ..event.clone() })
        }
        AuditRecord::Reloaded(event) => {
            let [hosts, read_only_hosts, lost] =
                [&event.hosts, &event.read_only_hosts, &event.lost].map(|list| names(list));
            frame.line(AuditReloaded { hosts, read_only_hosts, lost, ..event.clone() })
        }
        AuditRecord::NotReloaded(event) => {
            frame.line(AuditNotReloaded { error: beginning(&event.error, LIST) })
        }
        AuditRecord::HostEnded(event) => {
            frame.line(AuditHostEnded { host: beginning(&event.host, NAME), ..event.clone() })
        }
        AuditRecord::Event(event) => frame.event(event),
        AuditRecord::Sum(sum) => Frame { sum: Some(sum), ..frame }.event(&sum.event),
    }
}

/// The fields of any line.
struct Frame<'a> {
    time: Duration,
    sum: Option<&'a Sum>,
    dropped: u64,
}

impl Frame<'_> {
    fn line(&self, event: impl Serialize) -> String {
        let summed_hosts = names(self.sum.map(|sum| &sum.hosts[..]).unwrap_or_default());
        let line = AuditLine {
            time: rfc3339(self.time),
            event,
            count: self.sum.map(|sum| sum.count),
            summed_hosts: &summed_hosts,
            dropped: (self.dropped > 0).then_some(self.dropped),
        };
        // Structures of text and numbers can always be written as JSON.
        let json = serde_json::to_string(&line).unwrap_or_default();
        ascii(&json) + "\n"
    }

    fn event(&self, event: &AuditEvent) -> String {
        match event {
            AuditEvent::Connected { host, controller, generation, tls, reader } => {
                let Host { host, hostid, address, subsystem } = Host::of(host);
                let (controller, generation, tls, read_only) = (*controller, *generation, *tls, *reader);
                self.line(HostConnected {
                    host,
                    hostid,
                    address,
                    subsystem,
                    controller,
                    generation,
                    tls,
                    read_only,
                })
            }
            AuditEvent::Refused { host, why } => {
                let Host { host, hostid, address, subsystem } = Host::of(host);
                let (why, generation) = reason(*why);
                self.line(HostRefused { host, hostid, address, subsystem, why, generation })
            }
            AuditEvent::Disconnected { host, controller, time, bytes_read, bytes_written } => {
                let Host { host, hostid, address, subsystem } = Host::of(host);
                self.line(HostDisconnected {
                    host,
                    hostid,
                    address,
                    subsystem,
                    controller: *controller,
                    seconds: time.as_secs_f64(),
                    bytes_read: *bytes_read,
                    bytes_written: *bytes_written,
                })
            }
            AuditEvent::Space { by, event } => self.line(changed(by, event)),
            AuditEvent::Reservation { by, action, nsid, uuid, preempted } => {
                let Host { host, hostid, address, subsystem } = Host::of(by);
                self.line(ReservationChanged {
                    action: reservation(*action),
                    host,
                    hostid,
                    address,
                    subsystem,
                    nsid: *nsid,
                    uuid: uuid.map(|uuid| uuid.to_string()),
                    preempted: listed(preempted.iter().map(Uuid::to_string)),
                })
            }
        }
    }
}

/// A host in words.
struct Host {
    host: String,
    hostid: Option<String>,
    address: String,
    subsystem: String,
}

impl Host {
    fn of(host: &AuditHost) -> Host {
        Host {
            host: bounded(&host.hostnqn),
            hostid: host.hostid.map(|hostid| hostid.to_string()),
            address: host.address.to_string(),
            subsystem: bounded(&host.subsystem),
        }
    }
}

fn changed(by: &AuditHost, event: &SpaceEvent) -> NamespaceChanged {
    let Host { host, hostid, address, subsystem } = Host::of(by);
    NamespaceChanged {
        action: match event.action {
            SpaceAction::Create => "create",
            SpaceAction::Clone => "clone",
            SpaceAction::Delete => "delete",
            SpaceAction::Attach => "attach",
            SpaceAction::Detach => "detach",
            SpaceAction::Grow => "grow",
            SpaceAction::Label => "label",
        },
        by: host,
        hostid,
        address,
        space: bounded(&event.space),
        subsystem,
        nsid: event.nsid,
        uuid: event.uuid.map(|uuid| uuid.to_string()),
        name: bounded(&event.name),
        size: event.size,
        hosts: names(&event.hosts),
        error: event.result.err().map(|status| status.to_string()),
    }
}

fn reason(why: RefusalReason) -> (&'static str, Option<u32>) {
    let why = match why {
        RefusalReason::Rate => "rate",
        RefusalReason::Connections => "connections",
        RefusalReason::UnknownSubsystem => "unknown_subsystem",
        RefusalReason::NotAllowed => "not_allowed",
        RefusalReason::NoKey => "no_key",
        RefusalReason::KeyUnreadable => "key_unreadable",
        RefusalReason::WrongSecret => "wrong_secret",
        RefusalReason::RetiredSecret(generation) => return ("retired_secret", Some(generation)),
        RefusalReason::NotProvedInTime => "not_proved_in_time",
        RefusalReason::Authentication => "authentication",
        RefusalReason::TargetNotBelieved => "target_not_believed",
        RefusalReason::OtherHost => "other_host",
        RefusalReason::OtherKey => "other_key",
        RefusalReason::NoTls => "no_tls",
        RefusalReason::Tls => "tls",
        RefusalReason::Connect => "connect",
        RefusalReason::NotAdministrator => "not_administrator",
        RefusalReason::NotRegistrar => "not_registrar",
    };
    (why, None)
}

fn reservation(action: ReservationAction) -> &'static str {
    match action {
        ReservationAction::Register => "register",
        ReservationAction::Unregister => "unregister",
        ReservationAction::Acquire => "acquire",
        ReservationAction::Preempt => "preempt",
        ReservationAction::Release => "release",
        ReservationAction::Clear => "clear",
    }
}

/// The beginning of a name, with `...` in place of the rest.
fn bounded(name: &str) -> String {
    beginning(name, NAME)
}

/// The first `most` bytes of a text, with `...` in place of the rest.
fn beginning(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}{CUT}", &text[..end])
}

fn names(all: &[String]) -> Vec<String> {
    listed(all.iter().map(|name| bounded(name)))
}

/// The first names of a list, and `...` in place of the others.
fn listed(all: impl Iterator<Item = String>) -> Vec<String> {
    let (mut list, mut bytes) = (Vec::new(), 0);
    for name in all {
        bytes += name.len();
        if bytes > LIST {
            list.push(CUT.to_owned());
            break;
        }
        list.push(name);
    }
    list
}

/// JSON with escapes for all that is not printable ASCII: a terminal that shows a line obeys nothing in it.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        if matches!(letter, ' '..='~') {
            out.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// `2026-11-28T01:51:08.000123Z`, of a time since 1970.
fn rfc3339(time: Duration) -> String {
    let UtcTime { year, month, day, hour, minute, second, .. } = UtcTime::of_epoch_seconds(time.as_secs());
    let micros = time.subsec_micros();
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_target::NamespaceLabel;
    use serde_json::Value;
    use std::path::Path;

    fn host(hostnqn: &str) -> AuditHost {
        AuditHost {
            address: std::net::SocketAddr::from(([192, 0, 2, 7], 51_742)).into(),
            hostnqn: hostnqn.to_owned(),
            hostid: Some(Uuid::from_u128(0x8f2c_11d0)),
            subsystem: "nqn.2026-11.io.longhaul:1b2c:fast".to_owned(),
            is_authenticated: true,
        }
    }

    #[test]
    fn every_host_of_a_label_is_named_and_a_list_that_is_cut_says_so() {
        let short = |i: usize| format!("nqn.2014-08.a:{i:03}");
        let most = NamespaceLabel::default().encode().expect("an empty label").len();
        assert!(most < LIST, "{most}");
        let hosts: Vec<_> = (0..most / 32).map(short).collect();
        let label = NamespaceLabel { hosts, ..NamespaceLabel::default() };
        label.encode().expect("a label of many hosts");
        assert_eq!(names(&label.hosts), label.hosts);
        let many: Vec<String> = (0..2000).map(short).collect();
        let cut = names(&many);
        let (last, first) = cut.split_last().expect("names");
        assert_eq!((&last[..], first), (CUT, &many[..first.len()]));
        assert!(first.len() > label.hosts.len(), "{}", first.len());
        let event = AuditEvent::Reservation {
            by: host("\u{1}"),
            action: ReservationAction::Preempt,
            nsid: 1,
            uuid: None,
            preempted: vec![Uuid::nil(); 2000],
        };
        let line = encode(Duration::ZERO, &AuditRecord::Event(event), 0);
        assert!(line.len() < 16 << 10 && line.contains("\"...\"]"), "{}", line.len());
        let ugly = vec!["\u{1}".repeat(1000); 2000];
        let line = encode(Duration::ZERO, &changed_of(ugly), 0);
        assert!(line.len() < 64 << 10, "{}", line.len());
    }

    fn changed_of(hosts: Vec<String>) -> AuditRecord {
        let ugly = "\u{1}".repeat(1000);
        let event = SpaceEvent {
            space: ugly.clone(),
            action: SpaceAction::Attach,
            nsid: Some(1),
            uuid: None,
            name: ugly.clone(),
            size: None,
            hosts,
            result: Ok(()),
        };
        AuditRecord::Event(AuditEvent::Space { by: host(&ugly), event })
    }

    #[test]
    fn names_of_peers_are_escaped_and_bounded() {
        let forged = "x\"}\n{\"event\":\"connected\"}\u{7f}\u{9b}31m\u{202e}\u{1f600}";
        let long = format!("{}{forged}", "ä".repeat(1000));
        for name in [forged, &long, &"\u{1}".repeat(1000)] {
            let event = AuditEvent::Refused { host: host(name), why: RefusalReason::NoKey };
            let sum = Sum { event, count: 7, hosts: vec![name.to_owned(); 8] };
            let line = encode(Duration::ZERO, &AuditRecord::Sum(sum), 3);
            assert!(line.len() < 16 << 10, "{}", line.len());
            let text = line.strip_suffix('\n').expect("a line");
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
            let read: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(
                (&read["event"], &read["count"], &read["dropped"]),
                (&"refused".into(), &7.into(), &3.into())
            );
            let kept = read["host"].as_str().expect("text").trim_end_matches("...");
            assert!(name.starts_with(kept) && kept.len() <= NAME, "{kept}");
        }
    }

    /// One line of each event.
    fn examples() -> String {
        let (admin, user) = ("nqn.2014-08.org.example:admin", "nqn.2014-08.org.example:host");
        let uuid = Uuid::from_u128(0x5d1f_0c9e_4b7a_4c1d_9e55_0a6b_3f21_77aa);
        let events = [
            AuditRecord::Started(AuditStarted {
                version: "0.9.0".to_owned(),
                pid: 4711,
                listen: vec!["10.0.0.5:4420".to_owned()],
                keys: true,
                tls: "allowed",
            }),
            AuditRecord::Event(AuditEvent::Connected {
                host: host(user),
                controller: 17,
                generation: Some(2),
                tls: true,
                reader: false,
            }),
            AuditRecord::Event(AuditEvent::Refused {
                host: host(user),
                why: RefusalReason::RetiredSecret(1),
            }),
            AuditRecord::Sum(Sum {
                event: AuditEvent::Refused { host: host(user), why: RefusalReason::WrongSecret },
                count: 999,
                hosts: vec![user.to_owned()],
            }),
            AuditRecord::Event(AuditEvent::Space {
                by: host(admin),
                event: SpaceEvent {
                    space: "fast".to_owned(),
                    action: SpaceAction::Create,
                    nsid: Some(3),
                    uuid: Some(uuid),
                    name: "scratch/run7".to_owned(),
                    size: Some(1 << 30),
                    hosts: vec![user.to_owned()],
                    result: Ok(()),
                },
            }),
            AuditRecord::Event(AuditEvent::Reservation {
                by: host(user),
                action: ReservationAction::Preempt,
                nsid: 3,
                uuid: Some(uuid),
                preempted: vec![Uuid::from_u128(0x51ee_d00d)],
            }),
            AuditRecord::Reopened,
            AuditRecord::Export(ExportAudited {
                action: "change",
                name: "scratch".to_owned(),
                subsystem: "nqn.2026-11.io.longhaul:1b2c:scratch".to_owned(),
                nsid: 1,
                uuid: uuid.to_string(),
                options: vec!["allow-host".to_owned()],
                hosts: vec![user.to_owned()],
                read_only_hosts: Vec::new(),
            }),
            AuditRecord::Reloaded(AuditReloaded {
                forced: true,
                settings: vec!["max-connections".to_owned()],
                hosts: Vec::new(),
                read_only_hosts: Vec::new(),
                lost: vec!["nqn.2014-08.org.example:other".to_owned()],
            }),
            AuditRecord::NotReloaded(AuditNotReloaded {
                error: "/etc/longhaul/config.toml: key 'export': invalid value 'x'".to_owned(),
            }),
            AuditRecord::HostEnded(AuditHostEnded { host: user.to_owned(), controllers: 1 }),
            AuditRecord::Event(AuditEvent::Disconnected {
                host: host(user),
                controller: 17,
                time: Duration::from_millis(3_600_250),
                bytes_read: 4096,
                bytes_written: 1 << 20,
            }),
            AuditRecord::Stopped(AuditStopped { clean: true }),
        ];
        let start = Duration::new(1_795_219_202, 123_000);
        let lines = (0..).zip(&events).map(|(i, record)| {
            encode(start + Duration::from_secs(i), record, u64::from(matches!(record, AuditRecord::Reopened)))
        });
        lines.collect()
    }

    /// With `LONGHAUL_WRITE_DOCS` in the environment it writes them.
    #[test]
    fn the_page_has_an_example_of_each_event() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/audit.md");
        let page = std::fs::read_to_string(&path).expect("the page");
        let (begin, end) = ("```json\n", "```\n");
        let (before, rest) = page.split_once(begin).expect("examples");
        let (_, after) = rest.split_once(end).expect("their end");
        let expected = format!("{before}{begin}{}{end}{after}", examples());
        if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
            std::fs::write(&path, &expected).expect("written");
        }
        let page = std::fs::read_to_string(&path).expect("the page");
        assert!(page == expected, "out of date: run this test with LONGHAUL_WRITE_DOCS=1");
    }
}
