//! Watches the machine during a run: processor time, TCP retransmissions, and steps of
//! the clock.

use longhaul_engine::net::TcpInfo;
use longhaul_engine::procfs::{self, ProcessorTicks, net_counter, seconds};
use longhaul_results::record::{
    Code, Cpu, LATE_MAX, RETRANSMITTED_MAX, ROUND_TRIPS_MIN, Run, TcpSample, Validity, WINDOW_MIN,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The most that the real-time clock may deviate from the monotonic one in a run: more
/// than a slew of minutes, less than a misleading time stamp.
const JUMP: Duration = Duration::from_millis(500);
/// Lateness of an emulated link that does not count: timers and a turn of the
/// scheduler take as long.
const LATE_MIN: Duration = Duration::from_micros(250);
/// Share of the processors that a hypervisor may take away.
const STOLEN_MAX: f64 = 0.05;

/// A running measurement.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    start: Instant,
    wall: SystemTime,
    own: (Duration, Duration),
    machine: Option<ProcessorTicks>,
    segments: Option<TcpSegments>,
}

/// What a run used of the machine, and what disturbed it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Watched {
    /// Beginning of the run, in milliseconds since 1970.
    pub started_ms: u64,
    /// Duration of the run.
    pub time: Duration,
    /// Processor time of this process.
    pub cpu: Cpu,
    /// Share of the TCP segments of this machine that were retransmissions.
    pub retransmitted: Option<f64>,
    /// Step of the real-time clock against the monotonic one, in seconds.
    pub jump_s: f64,
    /// Share of the processors that a hypervisor took away.
    pub stolen: f64,
}

/// An emulated link, after a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emulated {
    /// Configured round trip.
    pub round_trip: Duration,
    /// 99th percentile of the lateness of packets.
    pub late: Duration,
    /// Packets that the emulator itself lost in the run.
    pub lost: u64,
}

/// Conditions that a valid run meets.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Length of the window.
    pub window: Duration,
    /// Round trip of the path, if there is one.
    pub round_trip: Option<Duration>,
    /// The most retransmissions, as a share of all segments: the default, or more where
    /// loss is studied.
    pub retransmitted: f64,
    /// The emulated link of the path, if any.
    pub link: Option<Emulated>,
}

impl Default for Expect {
    fn default() -> Expect {
        Expect { window: WINDOW_MIN, round_trip: None, retransmitted: RETRANSMITTED_MAX, link: None }
    }
}

/// TCP segments of this machine (of this network namespace).
#[derive(Clone, Copy, Debug, PartialEq)]
struct TcpSegments {
    sent: u64,
    again: u64,
}

impl TcpSegments {
    /// Parses the text of `/proc/net/snmp`; `None` if TCP's line is missing.
    fn parse(text: &str) -> Option<TcpSegments> {
        let value = |name: &str| net_counter(text, "Tcp", name);
        Some(TcpSegments { sent: value("OutSegs")?, again: value("RetransSegs")? })
    }
}

/// Ticks of all processors together, from `/proc/stat`.
fn all_processors(text: &str) -> Option<ProcessorTicks> {
    procfs::processors(text).into_iter().find(|ticks| ticks.number.is_none())
}

fn read(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path)).ok()
}

/// What the kernel reports of a connection, `at` so long after the start of the run.
pub fn tcp_sample(at: Duration, stream: impl Into<String>, info: &TcpInfo) -> TcpSample {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let whole = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    TcpSample {
        at_s: at.as_secs_f64(),
        stream: stream.into(),
        bytes: None,
        rtt_us: micros(info.rtt),
        min_rtt_us: info.min_rtt.map(micros),
        cwnd: info.cwnd,
        in_flight: info.in_flight,
        retransmissions: info.retransmissions.into(),
        delivery_rate: info.delivery_rate,
        not_sent: info.not_sent.map(u64::from),
        send_window: info.send_window.map(u64::from),
        busy_us: info.busy.map(whole),
        peer_window_limited_us: info.peer_window_limited.map(whole),
        send_buffer_limited_us: info.send_buffer_limited.map(whole),
    }
}

/// Processor time of this process so far: in the program, in the kernel.
fn process_time() -> (Duration, Duration) {
    // SAFETY: plain numbers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: fills the structure; zeroes stay if it cannot.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    (time(usage.ru_utime), time(usage.ru_stime))
}

impl Watch {
    /// Reads the counters of the machine and of this process, and the clocks.
    pub fn start() -> Watch {
        Watch::below(Path::new("/"))
    }

    fn below(root: &Path) -> Watch {
        Watch {
            root: root.to_owned(),
            machine: read(root, "proc/stat").and_then(|text| all_processors(&text)),
            segments: read(root, "proc/net/snmp").and_then(|text| TcpSegments::parse(&text)),
            own: process_time(),
            wall: SystemTime::now(),
            start: Instant::now(),
        }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends watching, and returns the observations.
    pub fn end(&self) -> Watched {
        self.ended(self.start.elapsed(), SystemTime::now())
    }

    fn ended(&self, time: Duration, wall: SystemTime) -> Watched {
        let (user, system) = process_time();
        let own = (user.saturating_sub(self.own.0), system.saturating_sub(self.own.1));
        let machine = read(&self.root, "proc/stat").and_then(|text| all_processors(&text)).zip(self.machine);
        let others = |(now, before): (ProcessorTicks, ProcessorTicks)| {
            let all = seconds(now.busy.saturating_sub(before.busy));
            (all - (own.0 + own.1).as_secs_f64()).max(0.0)
        };
        let stolen = machine.map(|(now, before)| now.stolen.saturating_sub(before.stolen));
        let all = |ticks: &ProcessorTicks| ticks.busy + ticks.idle + ticks.stolen;
        let all = machine.map_or(0, |(now, before)| all(&now).saturating_sub(all(&before)));
        let segments = read(&self.root, "proc/net/snmp").and_then(|text| TcpSegments::parse(&text));
        let retransmitted = segments.zip(self.segments).and_then(|(now, before)| {
            let sent = now.sent.saturating_sub(before.sent);
            (sent > 0).then(|| now.again.saturating_sub(before.again) as f64 / sent as f64)
        });
        let epoch = self.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let passed = match wall.duration_since(self.wall) {
            Ok(passed) => passed.as_secs_f64(),
            Err(back) => -back.duration().as_secs_f64(),
        };
        Watched {
            started_ms: u64::try_from(epoch.as_millis()).unwrap_or(u64::MAX),
            time,
            cpu: Cpu {
                user_s: own.0.as_secs_f64(),
                system_s: own.1.as_secs_f64(),
                others_s: machine.map(others),
                stolen_s: stolen.map(seconds),
            },
            retransmitted,
            jump_s: passed - time.as_secs_f64(),
            stolen: stolen.unwrap_or_default() as f64 / all.max(1) as f64,
        }
    }
}

impl Watched {
    /// Reasons that make the run invalid.
    pub fn judge(&self, expect: &Expect) -> Validity {
        let mut validity = Validity::default();
        let (window, ms) = (expect.window, |time: Duration| time.as_secs_f64() * 1e3);
        if window < WINDOW_MIN {
            let detail = format!("the window had {:.0} ms, less than {:.0} ms", ms(window), ms(WINDOW_MIN));
            validity.mark(Code::TooShort, detail);
        } else if let Some(rtt) = expect.round_trip.filter(|rtt| window < *rtt * ROUND_TRIPS_MIN) {
            let detail = format!(
                "the window had {:.0} ms, less than {ROUND_TRIPS_MIN} round trips of {:.1} ms",
                ms(window),
                ms(rtt)
            );
            validity.mark(Code::TooShort, detail);
        }
        if let Some(share) = self.retransmitted.filter(|share| *share > expect.retransmitted) {
            let (is, most) = (share * 100.0, expect.retransmitted * 100.0);
            let detail =
                format!("{is:.2} % of this machine's TCP segments were retransmitted, more than {most} %");
            validity.mark(Code::Retransmitting, detail);
        }
        if let Some(link) = expect.link {
            late(&link, &mut validity);
        }
        if self.jump_s.abs() > JUMP.as_secs_f64() {
            validity.mark(Code::ClockJumped, format!("the clock was set by {:+.1} s meanwhile", self.jump_s));
        }
        if self.stolen > STOLEN_MAX {
            let detail = format!("a hypervisor took {:.0} % of the processor time", self.stolen * 100.0);
            validity.mark(Code::Stolen, detail);
        }
        validity
    }

    /// The run, as part of a record.
    pub fn run(&self, validity: Validity) -> Run {
        let seconds = self.time.as_secs_f64();
        Run { started_ms: self.started_ms, seconds, cpu: self.cpu, validity, ..Run::default() }
    }
}

/// Marks measurements over an emulated link that broke its promises.
fn late(link: &Emulated, validity: &mut Validity) {
    let (most, ms) = (link.round_trip.mul_f64(LATE_MAX), |time: Duration| time.as_secs_f64() * 1e3);
    if link.lost > 0 {
        validity
            .mark(Code::LateLink, format!("the emulator of the link lost {} packets by itself", link.lost));
    }
    // Timers are not finer than this, whatever the round trip.
    if link.late > most.max(LATE_MIN) {
        let detail = format!(
            "the emulated link of {:.1} ms was late: 99 % of its packets by up to {:.2} ms",
            ms(link.round_trip),
            ms(link.late)
        );
        validity.mark(Code::LateLink, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 0 50 800 10 5 5 30 0 0\ncpu0 1 2 3\n";
    const SNMP: &str = "Ip: Forwarding\nIp: 1\nTcp: RtoMin InSegs OutSegs RetransSegs\nTcp: 200 5 1000 3\n";

    #[test]
    fn the_kernels_tables_are_read() {
        let ticks = all_processors(STAT).expect("a line");
        assert_eq!((ticks.busy, ticks.idle, ticks.stolen), (160, 810, 30));
        assert_eq!(TcpSegments::parse(SNMP), Some(TcpSegments { sent: 1000, again: 3 }));
        for cut in 0..STAT.len() {
            // Never a wrong number for half a table: none, or the whole.
            let found = all_processors(&STAT[..cut]);
            assert!(found.is_none_or(|ticks| ticks.busy == 160), "{cut}: {found:?}");
        }
        assert_eq!(TcpSegments::parse("Tcp: OutSegs\n"), None);
    }

    #[test]
    fn disturbances_during_a_run_void_it() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::create_dir_all(dir.path().join("proc/net")).expect("made");
        let write = |path: &str, text: &str| std::fs::write(dir.path().join(path), text).expect("written");
        write("proc/stat", STAT);
        write("proc/net/snmp", SNMP);
        let watch = Watch::below(dir.path());
        write("proc/stat", "cpu  200 0 50 1600 10 5 5 130 0 0\n");
        write("proc/net/snmp", &SNMP.replace("1000 3", "2000 13"));
        let hour = Duration::from_secs(3600);
        let seen = watch.ended(Duration::from_secs(10), watch.wall + hour);
        assert_eq!(seen.retransmitted, Some(0.01));
        assert_eq!((seen.jump_s, seen.cpu.stolen_s), (3590.0, Some(1.0)));
        assert!((seen.stolen - 0.1).abs() < 1e-9);
        let expect = Expect {
            window: Duration::from_secs(1),
            round_trip: Some(Duration::from_millis(100)),
            ..Expect::default()
        };
        let codes = |validity: Validity| validity.reasons.iter().map(|r| r.code).collect::<Vec<_>>();
        let all = [Code::TooShort, Code::Retransmitting, Code::ClockJumped, Code::Stolen];
        assert_eq!(codes(seen.judge(&expect)), all);
        assert_eq!(
            codes(Watched::default().judge(&Expect { window: Duration::ZERO, ..Expect::default() })),
            [Code::TooShort]
        );
        let back = watch.ended(Duration::from_secs(10), watch.wall - hour);
        assert_eq!(back.jump_s, -3610.0);
    }

    #[test]
    fn an_emulated_link_has_to_be_on_time() {
        let ms = Duration::from_millis;
        let codes = |late, lost| {
            let link = Some(Emulated { round_trip: ms(10), late, lost });
            let validity = Watched::default().judge(&Expect { link, ..Expect::default() });
            validity.reasons.iter().map(|reason| reason.code).collect::<Vec<_>>()
        };
        assert!(codes(Duration::from_micros(500), 0).is_empty());
        assert_eq!(codes(Duration::from_micros(501), 0), [Code::LateLink]);
        assert_eq!(codes(ms(2), 7), [Code::LateLink, Code::LateLink]);
    }

    #[test]
    fn missing_counters_of_a_machine_void_no_run() {
        let dir = tempfile::tempdir().expect("directory");
        let seen = Watch::below(dir.path()).end();
        assert_eq!((seen.retransmitted, seen.cpu.others_s, seen.cpu.stolen_s), (None, None, None));
        assert!(seen.judge(&Expect::default()).valid);
    }

    #[test]
    fn own_time_is_counted() {
        let watch = Watch::start();
        let mut sum = 0u64;
        while watch.elapsed() < Duration::from_millis(50) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let Cpu { user_s, system_s, .. } = watch.end().cpu;
        assert!(user_s + system_s > 0.0, "{user_s} {system_s}");
    }
}
