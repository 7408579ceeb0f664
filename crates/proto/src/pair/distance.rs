//! A table of throughput against round trip and loss, so that a change that
//! hurts distance fails in seconds, without a network.
//!
//! Time is virtual and seeds are fixed, so the table is compared exactly.
//! After a change that is meant to move it: `UPDATE=1 cargo test -p
//! longhaul-proto distance`, and look at the difference.

use super::*;
use longhaul_wire::completion::Status;
use std::fmt::Write;
use std::path::Path;

/// The link: 100 Mbit/s, so that a round trip of 100 ms holds ten commands.
const RATE: u64 = 100_000_000 / 8;
/// The least queue of the bottleneck; otherwise it is a round trip's worth.
const QUEUE_MIN: u64 = 128 << 10;
/// Bytes of a command.
const BLOCK_SIZE: usize = 128 << 10;
/// Not measured: slow start.
const RAMP: Duration = Duration::from_secs(3);
/// Virtual time that counts, after the ramp.
const WINDOW: Duration = Duration::from_secs(4);
/// Commands outstanding: less than the bandwidth-delay product of the longest
/// path, and more than twice of it.
const DEPTHS: [usize; 2] = [4, 32];

/// How data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataMovement {
    Read,
    InCapsule,
    R2t,
}

const KINDS: [DataMovement; 3] = [DataMovement::Read, DataMovement::InCapsule, DataMovement::R2t];

fn connected(kind: DataMovement, rtt: Duration, loss_ppm: u32) -> Pair {
    let queue = ((RATE as f64 * rtt.as_secs_f64()) as u64).max(QUEUE_MIN);
    let mut config = PairConfig { delay: rtt / 2, seed: 7, ..PairConfig::default() };
    config.tcp = Some(TcpLink { rate: RATE, loss_ppm, queue });
    if kind == DataMovement::R2t {
        config.host.in_capsule = 0;
    }
    Pair::connected(config)
}

fn submit(pair: &mut Pair, kind: DataMovement, n: usize) {
    let lba = (n * BLOCK_SIZE % (2 << 20) / BLOCK) as u32;
    let submitted = match kind {
        DataMovement::Read => pair.host.read(lba, BLOCK_SIZE),
        DataMovement::InCapsule | DataMovement::R2t => pair.host.write(lba, vec![n as u8; BLOCK_SIZE]),
    };
    submitted.expect("room");
}

/// Mbit/s of payload.
fn throughput(kind: DataMovement, rtt: Duration, loss_ppm: u32, depth: usize) -> f64 {
    let mut pair = connected(kind, rtt, loss_ppm);
    let (mut submitted, mut bytes) = (0, 0);
    let begin = pair.now() + RAMP;
    loop {
        let now = pair.now();
        for done in std::mem::take(&mut pair.host.done) {
            assert_eq!(done.cqe.status(), Status::SUCCESS);
            if now >= begin {
                bytes += done.memory.len();
            }
        }
        while pair.host.queue.outstanding() < depth {
            submit(&mut pair, kind, submitted);
            submitted += 1;
        }
        assert!(pair.step(), "commands are under way");
        if pair.now() >= begin + WINDOW {
            assert!(bytes > 0 || loss_ppm > 0);
            return bytes as f64 * 8.0 / 1e6 / WINDOW.as_secs_f64();
        }
    }
}

/// Round trips of one command on a path without limits.
fn round_trips(kind: DataMovement, len: usize) -> u32 {
    let mut config = PairConfig::default();
    if kind == DataMovement::R2t {
        config.host.in_capsule = 0;
    }
    let mut pair = Pair::connected(config);
    match kind {
        DataMovement::Read => pair.host.read(0, len),
        DataMovement::InCapsule | DataMovement::R2t => pair.host.write(0, vec![1; len]),
    }
    .expect("room");
    let trips = pair.run();
    assert_eq!(pair.host.done.len(), 1);
    trips
}

fn table() -> String {
    let mut out = String::from("Round trips of one command\n\n  size    read  in-capsule  R2T\n");
    for len in [4 << 10, 128 << 10, 1 << 20] {
        let [read, capsule, r2t] = KINDS.map(|kind| round_trips(kind, len));
        let _ = writeln!(out, "{:5} KiB  {read:4} {capsule:11} {r2t:4}", len >> 10);
    }
    out.push_str("\nMbit/s of 128 KiB commands over 100 Mbit/s, by commands outstanding\n\n");
    out.push_str("     RTT   loss  ");
    for kind in ["read", "in-capsule", "R2T"] {
        for depth in DEPTHS {
            let _ = write!(out, "{:>15}", format!("{kind}/{depth}"));
        }
    }
    out.push('\n');
    for rtt_us in [150, 15_000, 45_000, 100_000] {
        for loss_ppm in [0, 1000, 10_000] {
            let rtt = Duration::from_micros(rtt_us);
            let _ = write!(out, "{:7.2} ms {:4.1} % ", rtt_us as f64 / 1e3, f64::from(loss_ppm) / 1e4);
            for kind in KINDS {
                for depth in DEPTHS {
                    let _ = write!(out, "{:15.1}", throughput(kind, rtt, loss_ppm, depth));
                }
            }
            out.push('\n');
        }
    }
    out
}

#[test]
fn throughput_over_distance_and_loss_is_as_before() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pair/distance.txt");
    let now = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &now).expect("written");
    }
    let before = std::fs::read_to_string(&path).expect("the committed table");
    let differ = before.lines().zip(now.lines()).filter(|(a, b)| a != b);
    let differ: String = differ.map(|(a, b)| format!("-{a}\n+{b}\n")).collect();
    assert!(before == now, "throughput has changed; UPDATE=1 takes the new table\n{differ}");
}
