//! Constructed faults, as measurements: each must be named, with the remedy and its gain.

use longhaul_lab::cause::{
    Cause, Change, ConcurrencyRun, Congestion, CopyMeasurements, End, Finding, HostSeen, Pair, Remedy,
    Sockets, Sweep, diagnose,
};
use longhaul_lab::model::{Copy, Fit, Noise, fit};

/// A stage that takes so much a file, and carries so many bytes a second.
fn stage(t0: f64, rate: f64) -> Fit {
    let copies = [(1.0, 1e9), (100.0, 1e9), (1000.0, 1e9), (100.0, 4e9)].map(|(files, bytes)| Copy {
        files,
        bytes,
        seconds: files * t0 + bytes / rate,
    });
    fit(&copies, Noise::Proportional).expect("four copies")
}

/// 1000 files and 1 GB, on 1 GB/s everywhere, that overlaps all stages.
fn healthy() -> CopyMeasurements {
    CopyMeasurements {
        files: 1000.0,
        bytes: 1e9,
        whole: stage(0.0001, 1e9),
        stages: [Some(stage(0.0001, 2e9)), Some(stage(0.00001, 1e9)), Some(stage(0.0002, 2e9))],
        threads: sweep(4, &[(1, 1.3), (4, 1.1), (16, 1.09)]),
        alone: [None; 2],
        streams: sweep(4, &[(1, 1.15), (4, 1.1), (16, 1.1)]),
        checksum: Some(Pair { with: 1.1, without: 1.08 }),
        encryption: None,
        congestion: Some(others("bbr", 1.1, &[("cubic", 1.12)])),
        sockets: Some(Sockets { retransmitted: 0.0002, peer_window: 0.02, ..Sockets::default() }),
        hosts: [HostSeen { busiest: 0.3, wanted: 0.8, lost: 0.05, ..HostSeen::default() }; 2],
        agent_writes: false,
    }
}

fn sweep(now: u32, tried: &[(u32, f64)]) -> Sweep {
    let tried =
        tried.iter().map(|&(value, seconds)| ConcurrencyRun { value, seconds, slowest: seconds }).collect();
    Sweep { now, tried }
}

fn others(now: &str, seconds: f64, others: &[(&str, f64)]) -> Congestion {
    let others = others.iter().map(|&(name, seconds)| (name.to_owned(), seconds)).collect();
    Congestion { now: now.into(), seconds, others }
}

/// One stage is slow, and the whole with it.
fn slow(seen: &mut CopyMeasurements, index: usize, fit: Fit) {
    seen.stages[index] = Some(fit);
    seen.whole = fit;
}

/// The network is slow, for a reason that sockets know.
fn path(seen: &mut CopyMeasurements, sockets: Sockets) {
    slow(seen, 1, stage(0.0, 1e8));
    seen.sockets = Some(sockets);
    seen.streams = sweep(1, &[(1, 10.0), (4, 4.0), (16, 2.5)]);
}

/// The same, with another congestion control that is faster.
fn control(seen: &mut CopyMeasurements, sockets: Sockets) {
    path(seen, sockets);
    seen.streams = sweep(4, &[(1, 14.0), (4, 10.0), (16, 9.5)]);
    seen.congestion = Some(others("reno", 10.0, &[("cubic", 8.0), ("bbr", 2.0)]));
}

/// The expected diagnosis of a fault.
struct Expected {
    cause: Cause,
    remedy: Remedy,
    /// The gain; nothing where it cannot be predicted.
    gain: Option<f64>,
}

fn people(cause: Cause, gain: f64) -> Expected {
    Expected { cause, remedy: Remedy::People, gain: Some(gain) }
}

fn change(cause: Cause, change: Change, gain: f64) -> Expected {
    Expected { cause, remedy: Remedy::Copy(change), gain: Some(gain) }
}

fn tune(cause: Cause, end: End, gain: Option<f64>) -> Expected {
    Expected { cause, remedy: Remedy::Tune(end), gain }
}

/// A fault: its name, its effect on a healthy copy, and the expected diagnosis.
type Fault = (&'static str, fn(&mut CopyMeasurements), fn() -> Expected);

const STORAGE: &[Fault] = &[
    ("slow source open", |s| slow(s, 0, stage(0.03, 2e9)), || people(Cause::SlowOpen, 30.5 / 1.01)),
    (
        "slow source open that more readers hide",
        |s| {
            slow(s, 0, stage(0.03, 2e9));
            s.threads = sweep(4, &[(1, 120.0), (4, 30.5), (16, 8.0)]);
            s.alone = [Some(8.1), Some(30.0)];
        },
        || change(Cause::SlowOpen, Change::Readers(16), 30.5 / 8.1),
    ),
    ("saturated source disk", |s| slow(s, 0, stage(0.0001, 2e8)), || people(Cause::SlowRead, 5.1 / 1.01)),
    ("slow destination create", |s| slow(s, 2, stage(0.03, 2e9)), || people(Cause::SlowCreate, 30.5 / 1.01)),
    (
        "saturated destination disk",
        |s| slow(s, 2, stage(0.0001, 2e8)),
        || people(Cause::SlowWrite, 5.1 / 1.01),
    ),
    (
        "slow metadata server of the source",
        |s| {
            slow(s, 0, stage(0.02, 2e9));
            s.hosts[0].lookup = Some(0.02);
        },
        || people(Cause::SlowMetadata(End::Source), 20.5 / 1.01),
    ),
    (
        "slow metadata server of the destination",
        |s| {
            slow(s, 2, stage(0.2, 5e8));
            s.hosts[1].lookup = Some(0.1);
        },
        || people(Cause::SlowMetadata(End::Destination), 202.0 / 1.01),
    ),
];

const NETWORK: &[Fault] = &[
    ("rate cap", |s| slow(s, 1, stage(0.0, 1e8)), || people(Cause::LinkFull, 1.0)),
    (
        "rate cap whose queue loses some",
        |s| {
            slow(s, 1, stage(0.0, 1e8));
            let sockets = Sockets { retransmitted: 0.01, at_half_rate: Some(0.0), ..Sockets::default() };
            s.sockets = Some(sockets);
        },
        || people(Cause::LinkFull, 1.0),
    ),
    (
        "a round trip for each file",
        |s| slow(s, 1, stage(0.045, 1e9)),
        || people(Cause::NetworkPerFile, 46.0 / 0.7),
    ),
    (
        "loss",
        |s| {
            control(s, Sockets { retransmitted: 0.01, at_half_rate: Some(0.012), ..Sockets::default() });
        },
        || change(Cause::Loss, Change::Congestion("bbr".into()), 5.0),
    ),
    (
        "loss where there is but one congestion control",
        |s| {
            path(s, Sockets { retransmitted: 0.01, at_half_rate: Some(0.01), ..Sockets::default() });
            s.congestion = None;
        },
        || change(Cause::Loss, Change::Streams(16), 4.0),
    ),
    (
        "tiny queue",
        |s| control(s, Sockets { retransmitted: 0.01, at_half_rate: Some(0.0), ..Sockets::default() }),
        || change(Cause::SmallQueue, Change::Congestion("bbr".into()), 5.0),
    ),
    (
        "reordering",
        |s| {
            let sockets = Sockets {
                retransmitted: 0.02,
                needless: 0.9,
                at_half_rate: Some(0.02),
                ..Sockets::default()
            };
            control(s, sockets);
        },
        || change(Cause::Reordering, Change::Congestion("bbr".into()), 5.0),
    ),
    (
        "long path with the wrong congestion control",
        |s| control(s, Sockets::default()),
        || change(Cause::Congestion, Change::Congestion("bbr".into()), 5.0),
    ),
    (
        "small receive buffer",
        |s| path(s, Sockets { peer_window: 0.9, ..Sockets::default() }),
        || tune(Cause::ReceiveBuffer, End::Destination, Some(4.0)),
    ),
    (
        "small send buffer",
        |s| path(s, Sockets { send_buffer: 0.8, ..Sockets::default() }),
        || tune(Cause::SendBuffer, End::Source, Some(4.0)),
    ),
    (
        "MTU black hole",
        |s| path(s, Sockets { black_hole: true, ..Sockets::default() }),
        || tune(Cause::BlackHole, End::Source, None),
    ),
];

const HOSTS: &[Fault] = &[
    (
        "strong checksum",
        |s| s.checksum = Some(Pair { with: 5.0, without: 2.0 }),
        || change(Cause::Checksum, Change::QuickChecksum, 2.5),
    ),
    (
        "encryption",
        |s| s.encryption = Some(Pair { with: 3.0, without: 1.2 }),
        || people(Cause::Encryption, 2.5),
    ),
    ("processor hog at the source", |s| s.hosts[0].lost = 0.6, || people(Cause::Others(End::Source), 2.5)),
    (
        "processor hog at the destination",
        |s| {
            s.hosts[1].lost = 0.75;
            s.hosts[1].busiest = 0.25;
        },
        || people(Cause::Others(End::Destination), 4.0),
    ),
    (
        "a processor at its limit",
        |s| s.hosts[1].busiest = 0.98,
        || Expected { cause: Cause::Processor(End::Destination), remedy: Remedy::People, gain: None },
    ),
    (
        "power saving",
        |s| s.hosts[0] = HostSeen { busiest: 0.97, saves_power: true, ..HostSeen::default() },
        || tune(Cause::PowerSaving(End::Source), End::Source, None),
    ),
    (
        "interrupts on one processor",
        |s| {
            s.hosts[1].interrupts = true;
            s.hosts[1].busiest = 0.95;
        },
        || Expected { cause: Cause::Interrupts(End::Destination), remedy: Remedy::People, gain: None },
    ),
];

const NUMBERS: &[Fault] = &[
    (
        "too few readers",
        |s| {
            s.threads = sweep(1, &[(1, 10.0), (4, 3.0), (16, 2.0)]);
            s.alone = [Some(2.1), Some(9.8)];
        },
        || change(Cause::TooFewReaders, Change::Readers(16), 10.0 / 2.1),
    ),
    (
        "too few writers, each file taking some time",
        |s| {
            slow(s, 2, stage(0.004, 2e9));
            s.threads = sweep(1, &[(1, 4.5), (4, 1.5), (16, 1.1)]);
            s.alone = [Some(4.4), Some(1.15)];
        },
        || change(Cause::TooFewWriters, Change::Writers(16), 4.5 / 1.15),
    ),
    (
        "too few writers, and then too few readers",
        |s| {
            s.threads = sweep(1, &[(1, 14.2), (4, 3.3), (16, 1.95)]);
            s.alone = [Some(15.5), Some(4.04)];
        },
        || change(Cause::TooFewWriters, Change::Writers(16), 14.2 / 4.04),
    ),
    (
        "too few of both",
        |s| {
            s.threads = sweep(1, &[(1, 10.0), (4, 3.0), (8, 2.1), (16, 2.05)]);
            s.alone = [Some(6.0), Some(6.0)];
        },
        || change(Cause::TooFewFiles, Change::Threads(8), 10.0 / 2.1),
    ),
    (
        "too many files at once",
        |s| s.threads = sweep(64, &[(4, 3.0), (16, 2.0), (64, 4.0)]),
        || change(Cause::TooManyFiles, Change::Threads(16), 2.0),
    ),
    (
        "too many files at once, each in the way of the others",
        |s| {
            slow(s, 0, stage(0.03, 2e9));
            s.threads = sweep(32, &[(1, 1.5), (4, 4.0), (16, 15.0), (32, 30.5)]);
        },
        || change(Cause::TooManyFiles, Change::Threads(1), 30.5 / 1.5),
    ),
    (
        "too many files at once, and still some time for each alone",
        |s| {
            slow(s, 0, stage(0.03, 2e9));
            s.threads = sweep(32, &[(1, 3.0), (4, 6.0), (16, 15.0), (32, 30.5)]);
        },
        || change(Cause::TooManyFiles, Change::Threads(1), 30.5 / 3.0),
    ),
    (
        "too few connections",
        |s| s.streams = sweep(1, &[(1, 6.0), (4, 2.0), (16, 1.97)]),
        || change(Cause::TooFewStreams, Change::Streams(4), 3.0),
    ),
    (
        "too many connections",
        |s| s.streams = sweep(64, &[(1, 2.0), (4, 2.0), (64, 3.0)]),
        || change(Cause::TooManyStreams, Change::Streams(1), 1.5),
    ),
];

/// The first finding.
fn first(seen: &CopyMeasurements) -> Finding {
    diagnose(seen).remove(0)
}

fn named(seen: &CopyMeasurements) -> (Cause, Option<f64>) {
    let first = first(seen);
    (first.cause, first.gain)
}

#[test]
fn every_fault_has_its_name_its_remedy_and_its_gain() {
    let all: Vec<&Fault> = [STORAGE, NETWORK, HOSTS, NUMBERS].into_iter().flatten().collect();
    assert!(all.len() >= 20, "{} faults", all.len());
    for (name, spoil, expected) in all {
        let mut seen = healthy();
        spoil(&mut seen);
        let (found, expected) = (first(&seen), expected());
        let why = || format!("{name}: {:#?}", diagnose(&seen));
        assert_eq!(found.cause, expected.cause, "{}", why());
        assert_eq!(found.remedy, expected.remedy, "{}", why());
        match (found.gain, expected.gain) {
            (Some(found), Some(expected)) => {
                assert!((found / expected - 1.0).abs() < 0.02, "{found}, not {expected}; {}", why());
            }
            (found, expected) => assert_eq!(found, expected, "{}", why()),
        }
    }
}

#[test]
fn every_cause_has_a_word_of_its_own() {
    let mut words: Vec<&str> = Vec::new();
    for (_, _, expected) in [STORAGE, NETWORK, HOSTS, NUMBERS].into_iter().flatten() {
        let (cause, word) = (expected().cause, expected().cause.code());
        assert!(!cause.to_string().is_empty() && !cause.advice().is_empty());
        words.push(word);
    }
    words.sort_unstable();
    words.dedup();
    assert!(words.len() >= 20 && words.iter().all(|word| !word.contains(' ')), "{words:?}");
}

#[test]
fn a_healthy_copy_is_bounded_by_its_network() {
    assert_eq!(named(&healthy()), (Cause::LinkFull, Some(1.0)));
}

#[test]
fn gains_are_what_the_model_says() {
    // 30 ms a file and 0.5 s for the bytes; without it the network's 1.01 s.
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.03, 2e9));
    // Where nothing overlaps, the rest stays.
    seen.whole = stage(0.0303, 4e8);
    let gain = named(&seen).1.expect("a gain");
    assert!((gain - 32.8 / (32.8 - 30.5 + 1.01)).abs() < 0.5, "{gain}");
}

#[test]
fn what_was_tried_is_what_is_promised() {
    let mut seen = healthy();
    seen.threads = sweep(1, &[(1, 10.0), (8, 4.0)]);
    assert_eq!(named(&seen), (Cause::TooFewFiles, Some(2.5)));
    // No more than noise, or not tried as it is now: nothing is promised.
    for quiet in [sweep(1, &[(1, 10.0), (8, 9.5)]), sweep(2, &[(1, 10.0), (8, 4.0)]), Sweep::default()] {
        seen.threads = quiet;
        assert_eq!(named(&seen).0, Cause::LinkFull);
    }
}

#[test]
fn occasional_waits_do_not_count_as_slowness() {
    let mut seen = healthy();
    seen.hosts[0] = HostSeen { wanted: 0.5, lost: 0.4, ..HostSeen::default() };
    assert_eq!(named(&seen).0, Cause::LinkFull);
    // Of a pipeline no single thread need want one all the time.
    seen.hosts[0].wanted = 0.9;
    assert_eq!(named(&seen), (Cause::Others(End::Source), Some(1.0 / 0.6)));
    seen.hosts[0].lost = 0.15;
    assert_eq!(named(&seen).0, Cause::LinkFull);
}

#[test]
fn what_more_threads_hide_is_not_want_of_processors() {
    // Many threads that wait for storage wait for processors now and then, all
    // together as long as the copy takes.
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.03, 2e9));
    seen.threads = sweep(4, &[(4, 30.5), (16, 6.0)]);
    seen.hosts[0] = HostSeen { wanted: 1.2, lost: 0.99, ..HostSeen::default() };
    let found = diagnose(&seen);
    assert!(found.len() == 1 && found[0].cause == Cause::SlowOpen, "{found:?}");
    // More threads gain a larger share of a busy processor, but the processor remains the cause.
    seen.threads = sweep(4, &[(4, 30.5), (16, 24.0)]);
    assert_eq!(named(&seen).0, Cause::Others(End::Source));
}

#[test]
fn noise_of_the_fits_makes_no_promise() {
    // The whole takes less than its longest stage exceeds the next one.
    let mut seen = healthy();
    slow(&mut seen, 2, stage(0.03, 2e9));
    seen.whole = stage(0.0285, 2e9);
    let (cause, gain) = named(&seen);
    assert_eq!(cause, Cause::SlowCreate);
    assert!((gain.expect("a gain") - 29.0 / 1.01).abs() < 0.1, "{gain:?}");
    // Or hardly more: it still takes what the next one takes.
    seen.whole = stage(0.0291, 2e9);
    let gain = named(&seen).1.expect("a gain");
    assert!((gain - 29.6 / 1.01).abs() < 0.1, "{gain}");
    // Where no other stage has a time of its own, nothing can be promised.
    seen.stages = [None, None, seen.stages[2]];
    assert_eq!(named(&seen), (Cause::SlowCreate, None));
}

#[test]
fn losses_that_the_congestion_control_makes_itself_are_its_own() {
    let lost = Sockets { retransmitted: 0.005, at_half_rate: Some(0.0), ..Sockets::default() };
    let mut seen = healthy();
    control(&mut seen, lost);
    seen.congestion = Some(others("reno", 10.0, &[("cubic", 5.0), ("bbr", 4.0)]));
    let bbr = Remedy::Copy(Change::Congestion("bbr".into()));
    let found = first(&seen);
    assert_eq!((found.cause, found.remedy, found.gain), (Cause::Congestion, bbr, Some(2.5)));
    // One that helps little beside the best: the queue it is.
    seen.congestion = Some(others("reno", 10.0, &[("cubic", 8.0), ("bbr", 4.0)]));
    assert_eq!(named(&seen).0, Cause::SmallQueue);
    // Reno is no better than cubic at growing back: that it was quicker is chance.
    seen.congestion = Some(others("cubic", 10.0, &[("reno", 7.0), ("bbr", 6.5)]));
    assert_eq!(named(&seen).0, Cause::SmallQueue);
}

#[test]
fn numbers_that_overlap_are_noise() {
    let mut seen = healthy();
    let tried = |value, seconds, slowest| ConcurrencyRun { value, seconds, slowest };
    seen.threads = Sweep { now: 4, tried: vec![tried(4, 2.0, 2.6), tried(16, 1.5, 2.1)] };
    assert_eq!(named(&seen).0, Cause::LinkFull);
    seen.threads.tried[1].slowest = 1.9;
    assert_eq!(named(&seen), (Cause::TooFewFiles, Some(2.0 / 1.5)));
}

#[test]
fn what_was_tried_in_vain_is_named_no_more() {
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.03, 2e9));
    seen.threads = sweep(4, &[(4, 30.5), (16, 8.0)]);
    let found = first(&seen);
    let Remedy::Copy(change) = found.remedy else { panic!("{found:?}") };
    seen.without(&change);
    // The cause is the same, and its remedy is another one.
    let found = first(&seen);
    assert_eq!((found.cause, found.remedy), (Cause::SlowOpen, Remedy::People));
    let mut seen = healthy();
    control(&mut seen, Sockets { retransmitted: 0.01, at_half_rate: Some(0.01), ..Sockets::default() });
    seen.without(&Change::Congestion("bbr".into()));
    seen.without(&Change::Congestion("cubic".into()));
    let found = first(&seen);
    assert_eq!((found.cause, found.remedy, found.gain), (Cause::Loss, Remedy::People, None));
    seen.checksum = Some(Pair { with: 5.0, without: 2.0 });
    seen.without(&Change::QuickChecksum);
    seen.streams = sweep(1, &[(1, 6.0), (4, 2.0)]);
    seen.without(&Change::Streams(4));
    assert_eq!(diagnose(&seen).len(), 1);
}

#[test]
fn threads_at_an_agent_are_its_own() {
    let mut seen = healthy();
    slow(&mut seen, 2, stage(0.03, 2e9));
    seen.agent_writes = true;
    seen.threads = sweep(4, &[(4, 30.5), (16, 20.0)]);
    let found = first(&seen);
    assert_eq!((found.cause.clone(), &found.remedy), (Cause::SlowCreate, &Remedy::AgentWriters(16)));
    assert!(found.remedy().starts_with("start the agent there with --writers 16"), "{}", found.remedy());
}

#[test]
fn a_slow_disk_is_not_taken_for_a_crowd() {
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.0001, 2e8));
    seen.threads = sweep(16, &[(1, 4.4), (4, 4.5), (16, 5.1)]);
    assert_eq!(named(&seen).0, Cause::SlowRead);
}

#[test]
fn several_causes_come_in_the_order_of_what_they_bring() {
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.03, 2e9));
    seen.checksum = Some(Pair { with: 40.0, without: 30.0 });
    seen.hosts[1].lost = 0.5;
    let found: Vec<Cause> = diagnose(&seen).into_iter().map(|finding| finding.cause).collect();
    assert_eq!(found, [Cause::SlowOpen, Cause::Others(End::Destination), Cause::Checksum]);
}

#[test]
fn a_finding_is_one_sentence() {
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.034, 2e9));
    seen.threads = sweep(4, &[(4, 34.5), (16, 9.0)]);
    let said = first(&seen).to_string();
    let begin = "the source is slow to open files (34.0 ms a file, 34.0 s of 34.5 s): use --readers 16";
    assert!(said.starts_with(begin), "{said}");
    assert!(said.ends_with("; 3.8 times as fast is to be expected"), "{said}");
    let said = first(&healthy()).to_string();
    assert!(said.ends_with("nothing else would make it faster"), "{said}");
    let mut seen = healthy();
    path(&mut seen, Sockets { peer_window: 0.9, ..Sockets::default() });
    let said = first(&seen).to_string();
    assert!(said.contains("let tcp_rmem grow at the destination: longhaul tune apply at"), "{said}");
    assert!(said.ends_with("; at least 4.0 times as fast is to be expected"), "{said}");
}
