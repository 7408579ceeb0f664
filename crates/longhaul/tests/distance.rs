//! Round trips of connection setup, over a relay that delays loopback and over emulated
//! links. Tests that need root are skipped with a message elsewhere.

mod common;

use common::{PROGRAM, Target, emulated, finish, longhaul};
use longhaul_wan::relay::{Link, Relay};
use longhaul_wan::{Conditions, Plan, Wan};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// Upper bound of connection setup in round trips.
const FLOOR: u32 = 6;

/// Starts a target with `command`, which runs the program in its namespace.
fn serve(mut command: Command, listen: IpAddr, export: &str) -> Target {
    let listen = format!("{}", SocketAddr::new(listen, 0));
    command.args(["target", "--json", "--listen", &listen, "--export", export]);
    command.env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null()).stdout(Stdio::piped());
    Target::spawn(command)
}

/// Address that the target listens on.
fn address(target: &Target) -> SocketAddr {
    target.addr().parse().expect("an address")
}

/// `info` of a path with 64 connections: its summary.
fn sixty_four(mut command: Command, uri: &str) -> Value {
    command.args(["info", uri, "--path", "--connections", "64", "--json"]);
    command.env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.events().pop().expect("a summary")
}

/// The best of several runs, since the machine may be busy, has 64 queues ready within six
/// round trips, and reports that many connections.
fn ready_in_time(rtt: Duration, mut run: impl FnMut() -> Value) {
    const RUNS: usize = 10;
    let mut seen = Vec::new();
    for _ in 0..RUNS {
        let summary = run();
        let setup = &summary["setup"];
        assert_eq!(setup["queues"], 64, "{summary}");
        let counted = setup["round_trips"].as_u64().expect("a number") as u32;
        assert!(counted <= FLOOR, "{summary}");
        let took = Duration::from_micros(setup["setup_us"].as_u64().expect("a number"));
        assert!(took >= rtt * counted, "it counts more round trips than there were: {summary}");
        if took <= rtt * FLOOR {
            return;
        }
        seen.push(took);
    }
    panic!("64 queues took {seen:?} at {rtt:?}");
}

#[test]
fn sixty_four_queues_are_ready_within_six_round_trips_of_a_relay() {
    const RTT: Duration = Duration::from_millis(100);
    let target = serve(Command::new(PROGRAM), Ipv4Addr::LOCALHOST.into(), "disk=mem:64MiB");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let relay = Relay::start(loopback, address(&target), Link::round_trip(RTT)).expect("relay");
    let uri = target.uri(0).replace(&address(&target).to_string(), &relay.local_addr().to_string());
    ready_in_time(RTT, || sixty_four(Command::new(PROGRAM), &uri));
    // No connections besides those 65 were opened in any run.
    assert_eq!(relay.stats().connections % 65, 0);
}

/// An emulated link of `rate` bit/s; `None`, with the reason on standard error, where it cannot be made.
fn link(rtt: Duration, rate: u64) -> Option<Wan> {
    emulated(Plan::new(Plan::unique_name("d"), Conditions::new(rtt, Some(rate))))
}

fn serve_behind(wan: &Wan, export: &str) -> Target {
    serve(wan.server(1).bound_command(PROGRAM), wan.server_address(1).into(), export)
}

#[test]
fn sixty_four_queues_are_ready_within_six_round_trips_of_a_link() {
    let rtt = 100 * MS;
    let Some(wan) = link(rtt, 300_000_000) else { return };
    let target = serve_behind(&wan, "disk=mem:64MiB");
    ready_in_time(rtt, || sixty_four(wan.client().bound_command(PROGRAM), &target.uri(0)));
    // The whole program, from start to exit.
    let begun = Instant::now();
    let mut command = wan.client().bound_command(PROGRAM);
    command.args(["info", &target.uri(0), "--json"]).env("XDG_CONFIG_HOME", "/nonexistent");
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    eprintln!("info took {:?}, from start to end", begun.elapsed());
    assert_eq!(ran.events()[0]["setup"]["round_trips"], 4, "{ran:?}");
}

#[test]
fn the_connection_setup_is_printed_without_json_too() {
    let target = serve(Command::new(PROGRAM), Ipv4Addr::LOCALHOST.into(), "disk=mem:1MiB");
    let ran = longhaul(&["info", &target.uri(0)]);
    assert!(ran.stdout.contains("ms, 4 round trips"), "{ran:?}");
}

/// A load of a thousand jobs is written and verified with any number of threads.
fn a_thousand_jobs(command: impl Fn() -> Command, uri: &str) {
    const JOBS: usize = 1000;
    const SIZE: u64 = 32 << 10;
    for engine in ["async", "sync"] {
        for rw in ["write", "read"] {
            let (jobs, size) = (JOBS.to_string(), SIZE.to_string());
            let mut command = command();
            command.args(["bench", uri, "--rw", rw, "--bs", "16k", "--numjobs", &jobs, "--ioengine", engine]);
            command.args(["--offset_increment", &size, "--verify", "crc32c", "--json"]);
            command.env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
            let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"));
            assert_eq!(ran.code, Some(0), "{engine} {rw}: {}", ran.stderr);
            assert!(!ran.stderr.contains("connect"), "nothing was lost: {engine} {rw}: {}", ran.stderr);
            let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("layout");
            assert_eq!(result.jobs.len(), JOBS);
            for job in &result.jobs {
                let verify = job.verify.as_ref().expect("asked for");
                assert_eq!((job.read.io_bytes + job.write.io_bytes, job.error), (SIZE, 0));
                assert_eq!((verify.checked_blocks, verify.first.len()), (SIZE >> 14, 0));
            }
        }
    }
}

#[test]
fn a_thousand_jobs_on_loopback() {
    let target = serve(Command::new(PROGRAM), Ipv4Addr::LOCALHOST.into(), "disk=mem:64MiB");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let relay = Relay::start(loopback, address(&target), Link::round_trip(MS)).expect("relay");
    let uri = target.uri(0).replace(&address(&target).to_string(), &relay.local_addr().to_string());
    a_thousand_jobs(|| Command::new(PROGRAM), &uri);
    // Each of four runs has an admin queue and at most sixteen I/O queues for each thread,
    // with a thread per processor: far fewer than one per job.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(64);
    let most = 4 * (1 + 16 * threads);
    assert!(relay.stats().connections <= most as u64, "{:?}", relay.stats());
}

#[test]
fn a_thousand_jobs_on_a_long_link() {
    let Some(wan) = link(15 * MS, 300_000_000) else { return };
    let target = serve_behind(&wan, "disk=mem:64MiB");
    a_thousand_jobs(|| wan.client().bound_command(PROGRAM), &target.uri(0));
}
