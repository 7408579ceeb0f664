use super::*;
use crate::model::{Copy, Noise, fit};

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
fn healthy() -> Seen {
    let usual = || stage(0.0001, 1e9);
    Seen {
        files: 1000.0,
        bytes: 1e9,
        whole: usual(),
        stages: [Some(stage(0.0001, 2e9)), Some(stage(0.00001, 1e9)), Some(stage(0.0002, 2e9))],
        files_at_once: Sweep::default(),
        streams: Sweep::default(),
        checksum: Some((1.1, 1.08)),
        encryption: None,
        sockets: Some(Sockets::default()),
        hosts: [HostSeen { busiest: 0.3, ..HostSeen::default() }; 2],
    }
}

fn sweep(now: u32, tried: &[(u32, f64)]) -> Sweep {
    Sweep {
        now,
        tried: tried.iter().map(|(value, seconds)| Tried { value: *value, seconds: *seconds }).collect(),
    }
}

/// The first cause, and what it promises.
fn named(seen: &Seen) -> (Cause, Option<f64>) {
    let found = diagnose(seen);
    (found[0].cause, found[0].gain)
}

/// A fault: its name, what it does to a healthy copy, and what is to be named.
type Fault = (&'static str, fn(&mut Seen), Cause);

const FAULTS: [Fault; 20] = [
    ("slow source open", |s| slow(s, 0, stage(0.03, 2e9)), Cause::SlowOpen),
    ("slow source disk", |s| slow(s, 0, stage(0.0001, 2e8)), Cause::SlowRead),
    ("slow destination create", |s| slow(s, 2, stage(0.03, 2e9)), Cause::SlowCreate),
    ("slow destination disk", |s| slow(s, 2, stage(0.0001, 2e8)), Cause::SlowWrite),
    ("slow metadata server", |s| slow(s, 2, stage(0.2, 5e8)), Cause::SlowCreate),
    ("rate cap", |s| slow(s, 1, stage(0.0, 1e8)), Cause::LinkFull),
    ("a round trip for each file", |s| slow(s, 1, stage(0.045, 1e9)), Cause::NetworkPerFile),
    ("loss", |s| path(s, Sockets { retransmitted: 0.01, ..Sockets::default() }), Cause::Loss),
    (
        "small receive buffer",
        |s| path(s, Sockets { peer_window: 0.9, ..Sockets::default() }),
        Cause::ReceiveBuffer,
    ),
    ("small send buffer", |s| path(s, Sockets { send_buffer: 0.8, ..Sockets::default() }), Cause::SendBuffer),
    ("MTU black hole", |s| path(s, Sockets { black_hole: true, ..Sockets::default() }), Cause::BlackHole),
    ("strong checksum", |s| s.checksum = Some((5.0, 2.0)), Cause::Checksum),
    ("encryption", |s| s.encryption = Some((3.0, 1.2)), Cause::Encryption),
    ("processor hog at the source", |s| s.hosts[0].others = 0.6, Cause::Others(End::Source)),
    ("processor hog at the destination", |s| s.hosts[1].others = 0.7, Cause::Others(End::Destination)),
    ("busy processor", |s| s.hosts[1].busiest = 0.98, Cause::Processor(End::Destination)),
    (
        "power saving",
        |s| s.hosts[0] = HostSeen { busiest: 0.97, saves_power: true, ..HostSeen::default() },
        Cause::PowerSaving(End::Source),
    ),
    ("interrupts", |s| s.hosts[1].interrupts = true, Cause::Interrupts(End::Destination)),
    (
        "too little concurrency",
        |s| s.files_at_once = sweep(1, &[(1, 10.0), (4, 3.0), (8, 2.1), (16, 2.05)]),
        Cause::TooFewFiles(8),
    ),
    (
        "too much concurrency",
        |s| s.files_at_once = sweep(64, &[(4, 3.0), (16, 2.0), (64, 4.0)]),
        Cause::TooManyFiles(16),
    ),
];

/// One stage is slow, and the whole with it.
fn slow(seen: &mut Seen, index: usize, fit: Fit) {
    seen.stages[index] = Some(fit);
    seen.whole = fit;
}

/// The network is slow, for a reason that sockets know.
fn path(seen: &mut Seen, sockets: Sockets) {
    slow(seen, 1, stage(0.0, 1e8));
    seen.sockets = Some(sockets);
    seen.streams = sweep(1, &[(1, 10.0), (4, 2.5)]);
}

#[test]
fn every_fault_has_its_name() {
    for (name, spoil, cause) in FAULTS {
        let mut seen = healthy();
        spoil(&mut seen);
        let (found, _) = named(&seen);
        assert_eq!(found, cause, "{name}: {:#?}", diagnose(&seen));
    }
}

#[test]
fn a_healthy_copy_is_bounded_by_its_network() {
    let (cause, gain) = named(&healthy());
    assert_eq!((cause, gain), (Cause::LinkFull, Some(1.0)));
}

#[test]
fn gains_are_what_the_model_says() {
    // 30 ms a file and 0.5 s for the bytes; without it the network's 1.01 s.
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.03, 2e9));
    let gain = named(&seen).1.expect("a gain");
    assert!((gain - 30.5 / 1.01).abs() < 0.5, "{gain}");
    // Where nothing overlaps, the rest stays.
    seen.whole = stage(0.0303, 4e8);
    let gain = named(&seen).1.expect("a gain");
    assert!((gain - 32.8 / (32.8 - 30.5 + 1.01)).abs() < 0.5, "{gain}");
}

#[test]
fn what_was_tried_is_what_is_promised() {
    let mut seen = healthy();
    seen.files_at_once = sweep(1, &[(1, 10.0), (8, 4.0)]);
    assert_eq!(named(&seen), (Cause::TooFewFiles(8), Some(2.5)));
    // No more than noise, or not tried as it is now: nothing is promised.
    for quiet in [sweep(1, &[(1, 10.0), (8, 9.5)]), sweep(2, &[(1, 10.0), (8, 4.0)]), Sweep::default()] {
        seen.files_at_once = quiet;
        assert_eq!(named(&seen).0, Cause::LinkFull);
    }
}

#[test]
fn a_finding_is_one_sentence() {
    let mut seen = healthy();
    slow(&mut seen, 0, stage(0.034, 2e9));
    let said = diagnose(&seen)[0].to_string();
    assert!(
        said.starts_with("the source is slow to open files (34.0 ms a file, 34.0 s of 34.5 s): read more"),
        "{said}"
    );
    assert!(said.ends_with("times as fast is to be expected"), "{said}");
    let said = diagnose(&healthy())[0].to_string();
    assert!(said.ends_with("nothing else would make it faster"), "{said}");
}
