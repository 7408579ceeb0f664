//! Networks as a user measures them, compared with iperf3 where it is installed.

mod common;

use common::{PROGRAM, Running, Target, command, emulated, finish, longhaul, text, within};
use longhaul_wan::{Conditions, Wan, WanPlan};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// A server for netbench, and where it listens.
fn serve(command: Command) -> (Target, String) {
    let server = Target::spawn(command);
    let address = server.ready["listen"].as_str().expect("an address").to_owned();
    (server, address)
}

#[test]
fn a_network_is_measured_both_ways() {
    let (_server, address) = serve(command(&["netbench", "--listen", "127.0.0.1:0", "--json"]));
    let dir = tempfile::tempdir().expect("directory");
    let (file, page) = (dir.path().join("net.json"), dir.path().join("net.html"));
    let args =
        ["netbench", &address, "--direction", "both", "--streams", "2", "--time", "1s", "--ramp", "200ms"];
    let more = ["--interval", "100ms", "--runs", "2", "--output", text(&file)];
    let ran = longhaul(&[&args[..], &more].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("to the server") && ran.stdout.contains("from the server"), "{ran:?}");
    let result: Value = serde_json::from_str(&fs::read_to_string(&file).expect("written")).expect("JSON");
    let record = &result["longhaul"];
    assert_eq!(record["kind"], "netbench");
    assert_eq!(record["hosts"].as_array().map(Vec::len), Some(2));
    let run = &record["runs"][1];
    assert_eq!(run["tcp"].as_array().map(Vec::len), Some(4 * 12), "looks at four streams");
    assert!(run["tcp"][5]["cwnd"].as_u64().is_some_and(|cwnd| cwnd > 0), "{}", run["tcp"][5]);
    let ran = longhaul(&["report", text(&file), "--output", text(&page)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(fs::read_to_string(&page).expect("a page").contains("Throughput of net"));
}

#[test]
fn networks_that_cannot_be_measured() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("address");
    let fails = |args: &[&str], code, needle: &str| {
        let ran = longhaul(&[&["netbench"], args].concat());
        assert!(ran.code == Some(code) && ran.stderr.contains(needle), "{args:?}: {ran:?}");
    };
    fails(&[&free.to_string()], 5, "start 'longhaul netbench --listen ADDR:PORT' there");
    fails(&["host.invalid"], 5, "cannot resolve 'host.invalid'");
    fails(&[], 2, "<HOST>");
    fails(&["127.0.0.1", "--direction", "up"], 2, "neither send nor receive nor both");
    fails(&["127.0.0.1", "--length", "1"], 2, "length=1");
    fails(&["127.0.0.1", "--time", "0s"], 2, "a time is not between");
    fails(&["--listen", "192.0.2.1:1"], 1, "cannot listen on 192.0.2.1:1");
}

/// Bits per second that arrived, by iperf3.
fn iperf3(wan: &Wan, streams: &str, direction: &str) -> f64 {
    let address = wan.server_address(1).to_string();
    let serving = ["-s", "-1", "--bind", &address, "--forceflush"];
    let mut child = within(wan.server(1), "iperf3", &serving).spawn().expect("started");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let _server = Running(child);
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        assert!(
            std::io::BufRead::read_line(&mut stdout, &mut line).expect("read") > 0,
            "iperf3 does not listen"
        );
    }
    let args = ["-c", &address, "--json", "-t", "2", "-O", "1", "-P", streams];
    let (way, sums): (Option<&str>, &[&str]) = match direction {
        "receive" => (Some("--reverse"), &["sum_received"]),
        "both" => (Some("--bidir"), &["sum_received", "sum_received_bidir_reverse"]),
        _ => (None, &["sum_received"]),
    };
    let mut client = within(wan.client(), "iperf3", &args);
    let ran = finish(client.args(way).spawn().expect("started"));
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let rate = |sum: &&str| result["end"][sum]["bits_per_second"].as_f64();
    sums.iter().map(|sum| rate(sum).unwrap_or_else(|| panic!("{sum}: {result}"))).sum()
}

/// Compares `netbench` with iperf3 over a link, in rounds of one after the other.
fn as_iperf3_measures(streams: &str, direction: &str, ways: f64) {
    if Command::new("iperf3").arg("--version").output().is_err() {
        longhaul_skip::skip!("iperf3 is not installed");
        return;
    }
    const RATE: u64 = 100_000_000;
    const ROUNDS: usize = 3;
    let conditions = Conditions::new(Duration::from_millis(5), Some(RATE));
    let Some(wan) = emulated(WanPlan::new(WanPlan::unique_name("m"), conditions)) else { return };
    let listen = format!("{}:7411", wan.server_address(1));
    let (_server, address) =
        serve(within(wan.server(1), PROGRAM, &["netbench", "--listen", &listen, "--json"]));
    let args =
        ["netbench", &address, "--json", "-P", streams, "--direction", direction, "-t", "2s", "-O", "1s"];
    let mut ratios = Vec::new();
    for _ in 0..3 * ROUNDS {
        let ran = finish(within(wan.client(), PROGRAM, &args).spawn().expect("started"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let job = &result["jobs"][0];
        let ours = job["read"]["bw_bytes"].as_f64().unwrap_or_default()
            + job["write"]["bw_bytes"].as_f64().unwrap_or_default();
        let theirs = iperf3(&wan, streams, direction);
        // Else it is not the link that limits, but what else this machine does.
        if theirs >= 0.9 * ways * RATE as f64 {
            ratios.push(8.0 * ours / theirs);
        }
        if ratios.len() == ROUNDS {
            break;
        }
    }
    if ratios.len() < ROUNDS {
        longhaul_skip::skip_part!(
            "{direction} on {streams}: this machine is too busy for the link: {ratios:?}"
        );
        return;
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ROUNDS / 2];
    assert!((0.95..=1.05).contains(&median), "{direction} on {streams}: {ratios:?} of iperf3");
}

#[test]
fn iperf3_measures_the_same_on_the_same_link_there() {
    as_iperf3_measures("1", "send", 1.0);
}

#[test]
fn iperf3_measures_the_same_on_the_same_link_back() {
    as_iperf3_measures("4", "receive", 1.0);
}

#[test]
fn iperf3_measures_the_same_on_the_same_link_both_ways() {
    as_iperf3_measures("2", "both", 2.0);
}
