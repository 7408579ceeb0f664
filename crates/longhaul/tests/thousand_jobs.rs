//! Loads of a thousand jobs, over a relay that delays loopback and over an emulated link. The
//! test that needs root is skipped with a message elsewhere.

mod common;

use common::far::{address, link, serve, serve_behind};
use common::{PROGRAM, finish};
use longhaul_wan::relay::{Link, Relay};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

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
