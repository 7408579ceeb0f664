//! Counters of the machines and their sockets during a copy.

use crate::cause::{HostSeen, Sockets};
use longhaul_engine::procfs::{Process, net_counter, seconds};
use longhaul_transfer::host;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Share of a processor's time spent in interrupts from which on they limit.
const INTERRUPTS: f64 = 0.6;
/// Upper bound of the other processors' share, relative to that one.
const IDLE: f64 = 0.3;

/// The governor that keeps a processor at its lowest clock rate.
const SAVES_POWER: &str = "powersave";

/// Share of retransmitted segments where full-size packets are dropped: TCP sends its initial
/// window of ten, and then retransmits one.
const VANISH: f64 = 0.15;

/// Counters and settings of a machine by name, at a moment or as a difference over a time.
#[derive(Clone, Debug, Default)]
pub(super) struct HostCounters(BTreeMap<String, String>);

impl HostCounters {
    /// Those of this machine.
    pub(super) fn here() -> HostCounters {
        HostCounters::parse(&host::look())
    }

    pub(super) fn parse(text: &str) -> HostCounters {
        HostCounters(host::parse(text))
    }

    /// The difference of counters to an earlier sample, with the current settings.
    pub(super) fn since(&self, before: &HostCounters) -> HostCounters {
        let past = |(name, value): (&String, &String)| {
            let (now, then) = (value.parse::<f64>().ok(), before.number(name));
            let passed =
                if name.ends_with("_s") { now.zip(then).map(|(now, then)| now - then) } else { None };
            (name.clone(), passed.map_or(value.clone(), |passed| passed.max(0.0).to_string()))
        };
        // A counter that the earlier sample lacks began at zero.
        HostCounters(self.0.iter().map(past).collect())
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.parse().ok()
    }

    fn numbers(&self, begins: &str, ends: &str) -> Vec<f64> {
        let named = self.0.iter().filter(|(name, _)| name.starts_with(begins) && name.ends_with(ends));
        named.filter_map(|(_, value)| value.parse().ok()).collect()
    }

    /// Whether one of the processors that the copy may use saves power.
    fn saves_power(&self) -> bool {
        let is_governor = |name: &str| name.starts_with("processor.") && name.ends_with(".governor");
        self.0.iter().any(|(name, value)| is_governor(name) && value == SAVES_POWER)
    }

    /// Whether two samples are of the same machine, and have processors in common.
    fn shares_processors(&self, other: &HostCounters) -> bool {
        let busy = |name: &&String| name.starts_with("processor.") && name.ends_with(".busy_s");
        self.0.get("machine") == other.0.get("machine")
            && self.0.keys().filter(busy).any(|name| other.0.contains_key(name))
    }

    /// Whether one processor is busy with interrupts, while the others serve few.
    fn interrupts(&self) -> bool {
        let Some(time) = self.number("up_s").filter(|time| *time > 0.0) else { return false };
        let mut shares: Vec<f64> =
            self.numbers("processor.", ".interrupts_s").into_iter().map(|seconds| seconds / time).collect();
        shares.sort_by(|a, b| b.total_cmp(a));
        matches!(*shares, [most, next, ..] if most >= INTERRUPTS && next <= most * IDLE)
    }
}

/// Use of a machine during a copy, as shares of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostUse {
    pub(super) busiest: f64,
    pub(super) wanted: f64,
    pub(super) lost: f64,
    pub(super) interrupts: bool,
    pub(super) saves_power: bool,
    pub(super) device: Option<f64>,
}

impl HostUse {
    pub(super) fn seen(&self) -> HostSeen {
        HostSeen {
            busiest: self.busiest,
            wanted: self.wanted,
            lost: self.lost,
            interrupts: self.interrupts,
            saves_power: self.saves_power,
            device: self.device,
            lookup: None,
        }
    }
}

/// Processor time of the copy's threads on a machine.
#[derive(Clone, Copy, Debug)]
struct ThreadTimes {
    /// Share of the time in which the busiest thread ran.
    busiest: f64,
    /// Seconds in which all threads together ran.
    ran: f64,
    /// Seconds in which they waited for a processor.
    waited: f64,
}

/// Use of both machines by a copy of `seconds`. `own` is its processor time here in seconds,
/// `threads` the object of that name in its summary.
pub(super) fn both(
    here: &HostCounters,
    own: f64,
    threads: &Value,
    there: Option<&HostCounters>,
    seconds: f64,
) -> [HostUse; 2] {
    // Both ends may share processors: the time of either end is the copy's then.
    let same = there.is_some_and(|there| here.shares_processors(there));
    let far_own = there.and_then(|there| there.number("own_s")).unwrap_or_default();
    let said = |name: &str| threads[name].as_f64().unwrap_or_default();
    let of_copy = if same { own + far_own } else { own };
    let all = ThreadTimes { busiest: said("busiest"), ran: said("ran_s"), waited: said("waited_s") };
    let near = used(here, of_copy, all, seconds);
    let Some(there) = there else { return [near, HostUse::default()] };
    // Threads that still run, and those that have ended.
    let sum = |begins: &str, ends: &str| there.numbers(begins, ends).into_iter().sum::<f64>();
    let [ran, waited] = [".ran_s", ".waited_s"].map(|name| sum("thread.", name) + sum("ended", name));
    let most = there.numbers("thread.", ".ran_s").into_iter().fold(0.0, f64::max);
    let all = ThreadTimes { busiest: (most / seconds.max(1e-9)).min(1.0), ran, waited };
    let of_copy = if same { of_copy } else { far_own };
    [near, used(there, of_copy, all, seconds)]
}

/// Use of one machine. `own` is the processor time of the copy there in seconds.
fn used(look: &HostCounters, own: f64, threads: ThreadTimes, seconds: f64) -> HostUse {
    let busy = look.numbers("processor.", ".busy_s");
    let others = (busy.iter().sum::<f64>() - own).max(0.0);
    // A thread of the copy waits for other processes or for other threads of the copy, by their shares.
    let of_others = others / (others + own).max(1e-9);
    let seconds = seconds.max(1e-9);
    // The samples are further apart than the copy took, and other processes ran all the while.
    let time = look.number("up_s").unwrap_or_default().max(seconds);
    // Many threads of the copy wait for the same processors: the time lost is at most the
    // share of each processor that other processes had.
    let had = others / busy.len().max(1) as f64 / time;
    HostUse {
        busiest: threads.busiest,
        wanted: (threads.ran + threads.waited) / seconds,
        lost: had.min(threads.waited * of_others / seconds).min(1.0),
        interrupts: look.interrupts(),
        saves_power: look.saves_power(),
        device: None,
    }
}

/// Busy time of the block device of a directory in milliseconds; `None` where the file system
/// has none, or several.
pub(super) fn device_busy(dir: &Path) -> Option<f64> {
    let number = dir.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    io_ticks(&fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
}

/// `io_ticks`, the tenth field of a block device's `stat` (Documentation/block/stat.rst).
fn io_ticks(stat: &str) -> Option<f64> {
    stat.split_whitespace().nth(9)?.parse().ok()
}

/// TCP segment counters of this network namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segments {
    sent: f64,
    again: f64,
    /// Spurious retransmissions: segments that the receiver reported as duplicates (DSACK, RFC 2883).
    needless: f64,
}

impl Segments {
    /// `None` where the counters cannot be read.
    pub(super) fn look() -> Option<Segments> {
        Segments::below(Path::new("/")).ok()
    }

    fn below(root: &Path) -> Result<Segments, String> {
        let read =
            |path: &str| fs::read_to_string(root.join(path)).map_err(|e| format!("cannot read /{path}: {e}"));
        let counter = |path: &str, table: &str, name: &str| {
            let found = net_counter(&read(path)?, table, name);
            found.map(|count| count as f64).ok_or_else(|| format!("/{path} has no {name}"))
        };
        Ok(Segments {
            sent: counter("proc/net/snmp", "Tcp", "OutSegs")?,
            again: counter("proc/net/snmp", "Tcp", "RetransSegs")?,
            needless: counter("proc/net/netstat", "TcpExt", "TCPDSACKRecv")?,
        })
    }

    pub(super) fn since(&self, before: &Segments) -> Segments {
        Segments {
            sent: self.sent - before.sent,
            again: self.again - before.again,
            needless: self.needless - before.needless,
        }
    }

    /// Whether so many segments were retransmitted that hardly any can have arrived.
    pub(super) fn vanish(&self) -> bool {
        self.again >= VANISH * self.sent.max(1.0)
    }

    /// Combined with the copy's own statistics of its connections.
    pub(super) fn sockets(&self, said: &Value) -> Sockets {
        let share = |part: f64, whole: f64| if whole > 0.0 { (part / whole).min(1.0) } else { 0.0 };
        let busy = said["busy"].as_f64().unwrap_or_default();
        let held = |name: &str| share(said[name].as_f64().unwrap_or_default(), busy);
        Sockets {
            retransmitted: share(self.again, self.sent),
            needless: share(self.needless, self.again),
            peer_window: held("peer_window_limited"),
            send_buffer: held("send_buffer_limited"),
            ..Sockets::default()
        }
    }
}

/// Which counters of this machine cannot be read, and what is not seen without them; `None` if all
/// can be read.
pub fn unread_counters() -> Option<String> {
    let why = Segments::below(Path::new("/")).err()?;
    Some(format!("{why}: losses on the path will not be seen"))
}

/// Processor seconds of child processes that have ended.
pub(super) fn children() -> f64 {
    Process::own().ticks().map_or(0.0, |ticks| seconds(ticks.children))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const BEFORE: &str = "machine a\nup_s 10\nown_s 1\nprocessor.0.busy_s 5\nprocessor.1.busy_s 5\n\
        processor.0.interrupts_s 1\nprocessor.1.interrupts_s 1\nthread.7.ran_s 1\nthread.7.waited_s 0\n";
    const AFTER: &str = "machine a\nup_s 20\nown_s 2\nprocessor.0.busy_s 15\nprocessor.1.busy_s 7\n\
        processor.0.interrupts_s 8\nprocessor.1.interrupts_s 1.5\nthread.7.ran_s 1.5\nthread.7.waited_s 8\n\
        thread.9.ran_s 0.2\nthread.9.waited_s 0.1\n";

    /// The counters with some replaced.
    fn changed(look: &HostCounters, lines: &[(&str, &str)]) -> HostCounters {
        let lines = lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        HostCounters(look.0.clone().into_iter().chain(lines).collect())
    }

    #[test]
    fn lost_is_what_others_had_while_the_copy_waited() {
        let look = HostCounters::parse(AFTER).since(&HostCounters::parse(BEFORE));
        let threads = json!({ "busiest": 0.3, "ran_s": 3.0, "waited_s": 4.0 });
        // 12 s in all, of which the copy took 3: three quarters are of other processes.
        let [near, far] = both(&look, 3.0, &threads, None, 10.0);
        assert!((near.lost - 0.3).abs() < 1e-9 && (near.busiest - 0.3).abs() < 1e-9, "{near:?}");
        assert!((near.wanted - 0.7).abs() < 1e-9, "{near:?}");
        assert!(near.interrupts && far.lost == 0.0, "{far:?}");
        // Ten threads wait at once: other processes had 9 s of two processors.
        let many = json!({ "busiest": 0.1, "ran_s": 3.0, "waited_s": 60.0 });
        let [near, _] = both(&look, 3.0, &many, None, 10.0);
        assert!((near.lost - 0.45).abs() < 1e-9, "{near:?}");
        // Another machine, with an agent that took 1 s of the 12 and waited for 8.1.
        let there = changed(&look, &[("machine", "b")]);
        let [_, far] = both(&look, 3.0, &threads, Some(&there), 20.0);
        assert!((far.lost - 11.0 / 2.0 / 20.0).abs() < 1e-9, "{far:?}");
        // Threads of it that have ended count as well.
        let there = changed(&there, &[("ended.ran_s", "2"), ("ended.waited_s", "3")]);
        let [_, far] = both(&look, 3.0, &threads, Some(&there), 10.0);
        assert!((far.wanted - (0.5 + 0.2 + 8.1 + 5.0) / 10.0).abs() < 1e-9, "{far:?}");
        // The same machine: time that the ends take from each other is the copy's.
        let [near, far] = both(&look, 11.0, &threads, Some(&look), 10.0);
        assert!(near.lost == 0.0 && far.lost == 0.0, "{near:?} {far:?}");
        // The same machine, each end on a processor of its own: 10 s of one, of which
        // the copy took 1, and 2 s of the other.
        let one = |keep: &str| {
            let others = |name: &String| !name.starts_with("processor.") || name.contains(keep);
            HostCounters(look.0.clone().into_iter().filter(|(name, _)| others(name)).collect())
        };
        let [_, far] = both(&one(".1."), 2.0, &threads, Some(&one(".0.")), 10.0);
        assert!((far.lost - 8.1 / 10.0 * 0.9).abs() < 1e-9, "{far:?}");
    }

    #[test]
    fn any_processor_may_save_power_or_serve_all_interrupts() {
        let seen = |lines: &[(&str, &str)]| {
            let look = changed(&HostCounters::parse(AFTER).since(&HostCounters::parse(BEFORE)), lines);
            let [near, _] = both(&look, 0.0, &Value::Null, None, 10.0);
            (near.saves_power, near.interrupts)
        };
        assert_eq!(seen(&[("processor.0.governor", "performance")]), (false, true));
        assert_eq!(seen(&[("processor.1.governor", "powersave")]), (true, true));
        // A processor outside the copy's affinity mask.
        assert_eq!(
            seen(&[("processor.0.interrupts_s", "1"), ("processor.9.interrupts_s", "8")]),
            (false, true)
        );
        assert_eq!(seen(&[("processor.9.interrupts_s", "7")]), (false, false), "two serve them");
    }

    #[test]
    fn a_device_says_for_how_long_it_was_busy() {
        assert_eq!(io_ticks("  1 2 3 4 5 6 7 8 9 120 11 12 13\n"), Some(120.0));
        assert_eq!(io_ticks("1 2 3"), None);
        assert_eq!(device_busy(Path::new("/proc")), None, "it is on no device");
    }

    #[test]
    fn what_began_meanwhile_counts_from_zero() {
        let look = HostCounters::parse(AFTER).since(&HostCounters::parse(BEFORE));
        assert_eq!(look.number("thread.9.ran_s"), Some(0.2));
        assert_eq!(look.number("up_s"), Some(10.0));
        assert_eq!(look.0["machine"], "a");
    }

    #[test]
    fn counters_are_shares_of_what_was_sent() {
        let all = Segments { sent: 1000.0, again: 10.0, needless: 5.0 };
        let said = json!({ "busy": 2.0, "peer_window_limited": 1.5, "send_buffer_limited": Value::Null });
        let sockets = all.sockets(&said);
        assert_eq!((sockets.retransmitted, sockets.needless), (0.01, 0.5));
        assert_eq!((sockets.peer_window, sockets.send_buffer), (0.75, 0.0));
    }

    #[test]
    fn counters_that_cannot_be_read_are_not_zero() {
        let dir = tempfile::tempdir().expect("directory");
        let net = dir.path().join("proc/net");
        fs::create_dir_all(&net).expect("made");
        let why = || Segments::below(dir.path()).err().unwrap_or_default();
        assert!(why().starts_with("cannot read /proc/net/snmp: "), "{}", why());
        fs::write(net.join("snmp"), "Tcp: OutSegs RetransSegs\nTcp: 9 2\n").expect("written");
        fs::write(net.join("netstat"), "TcpExt: X\nTcpExt: 1\n").expect("written");
        assert_eq!(why(), "/proc/net/netstat has no TCPDSACKRecv");
        fs::write(net.join("netstat"), "TcpExt: TCPDSACKRecv\nTcpExt: 1\n").expect("written");
        let found = Segments::below(dir.path()).expect("read");
        assert_eq!((found.sent, found.again, found.needless), (9.0, 2.0, 1.0));
    }
}
