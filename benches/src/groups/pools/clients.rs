//! Large files of many clients at the same time, in a file system over targets behind a link each: how much of the links
//! all of them have together, and whether each has its share.

use super::ADMIN;
use super::large_file::{Bench, PLAIN};
use crate::link::{self, Link};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;
use longhaul_wan::Conditions;
use std::time::Duration;

const CLIENTS: usize = 8;
const TARGETS: usize = 6;
/// What a machine of two processors emulates beside all programs, in bits per second.
const RATE: u64 = 100_000_000;
const ROUND_TRIPS: [Duration; 2] = [Duration::from_micros(150), Duration::from_millis(15)];
/// Bytes that each link carries when all files are written.
const EACH: u64 = 256 << 20;
/// The least that all have together, as a share of the plain streams; and the least and the most of one, as a share of
/// what each has on average.
const FLOOR: f64 = 0.9;
const SHARES: [f64; 2] = [0.7, 1.3];

#[derive(Clone, Copy, Debug)]
enum Subject {
    /// iperf3, one stream a link.
    Plain,
    /// `longhaul cp` of each client.
    Copies,
}

/// Bytes per second of all, and the least and the most of one of its fair share.
type Measured = (f64, [f64; 2]);

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "links",
        "copies",
        "iperf3, Mb/s",
        "all on the links, Mb/s",
        "of iperf3",
        "≥ 0.9",
        "least share",
        "≥ 0.7",
        "largest share",
        "≤ 1.3",
    ];
    let mut section = Section::new("clients", &header);
    let mut late = 0;
    for &rate in setup.rates(&[RATE]) {
        for &rtt in setup.round_trips(&ROUND_TRIPS) {
            late += measure(setup, (rate, rtt), &mut section)?;
        }
    }
    notes(&mut section, late);
    Ok(section)
}

/// What clients have that have taken so many seconds for `bytes` each, of `carried` bytes on the links of each.
fn shares(seconds: &[f64], carried: u64) -> Measured {
    let longest = seconds.iter().copied().fold(0.0, f64::max);
    let rates: Vec<f64> = seconds.iter().map(|seconds| seconds.recip()).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    (carried as f64 * seconds.len() as f64 / longest, [least / mean, most / mean])
}

/// Copies all files once a round; measurements that count though the emulator was late.
fn measure(setup: &Setup, (rate, rtt): (u64, Duration), section: &mut Section) -> Result<u32> {
    // A queue of such a link has room for few large packets, which makes shares a matter of chance.
    let link = Link::ethernet(Conditions::new(rtt, Some(rate)), Some(TARGETS))?;
    let bench = Bench::start(setup, link, TARGETS, (EACH, CLIENTS as u64))?;
    let name = format!("{TARGETS} of {}, {}", link::rate(rate), link::round_trip(rtt));
    let mut late = 0;
    let measured = setup.interleave(&[Subject::Plain, Subject::Copies], |subject| {
        let (both, is_late): ([Measured; 2], bool) = bench.site.link.mostly_on_time(|| match subject {
            Subject::Plain => Ok([(bench.plain(true)?, SHARES), (bench.plain(false)?, SHARES)]),
            Subject::Copies => {
                let [written, read] = bench.copies(CLIENTS)?;
                Ok([shares(&written, bench.carried), shares(&read, bench.bytes)])
            }
        })?;
        late += u32::from(is_late);
        for (rate, [least, most]) in both {
            eprintln!("  {name}, {subject:?}: {:.0} Mb/s, shares {least:.2} to {most:.2}", 8e-6 * rate);
        }
        Ok(both)
    })?;
    for (direction, way) in ["to the pool", "from it"].into_iter().enumerate() {
        let by = |subject: usize| Samples::of(&measured[subject], |both| both[direction].0);
        let share = |end: usize| Samples::of(&measured[1], |both| both[direction].1[end]);
        let (plain, ours, least, most) = (by(0), by(1), share(0), share(1));
        let case = format!("{name}, {way}");
        section.keep(&case, "iperf3", "bytes/s", &plain);
        section.keep(&case, "longhaul cp", "bytes/s", &ours);
        section.keep(&case, "least share", "of the mean", &least);
        section.keep(&case, "largest share", "of the mean", &most);
        let ratio = ours.ratio(&plain);
        let mut row = vec![name.clone(), format!("{CLIENTS} {way}")];
        row.extend([plain.show(125_000.0, 0), ours.show(125_000.0, 0)]);
        row.extend([ratio.show_ratio(), ratio.at_least(FLOOR).into()]);
        row.extend([least.show_ratio(), least.at_least(SHARES[0]).into()]);
        row.extend([most.show_ratio(), most.at_most(SHARES[1]).into()]);
        section.row(row);
    }
    Ok(late)
}

fn notes(section: &mut Section, late: u32) {
    section.notes.push(format!(
        "{CLIENTS} processes of `longhaul cp` begin at the same time, each with a session and a file of its own, in one \
         namespace; layout parity over {TARGETS} targets, with the catalog in an etcd at the first one. Each link \
         carries {} MiB when the files are written, content and parity; what is read is content alone",
        EACH >> 20
    ));
    section.notes.push(format!(
        "All on the links: the bytes of all clients over the time of the slowest one, by its summary. iperf3: {} MiB \
         over each link at the same time, one stream each. A share: the rate of a client over the mean of all",
        PLAIN >> 20
    ));
    section.notes.push(format!("{late} measurements count though the emulator was late twice in a row"));
    section.commands = vec![
        format!("longhaul wan --rtt 15ms --rate 100Mbit --star {TARGETS} --name link &"),
        format!(
            "ip netns exec link-server1 longhaul target --insecure --listen 10.77.1.2:4420 \
             --space fast=dir:/srv/1,size=8GiB --admin {ADMIN}  # and so on; etcd at the first one"
        ),
        format!(
            "longhaul pool create bench --target 10.77.1.2 … --catalog etcd:10.77.1.2:2379 --hostnqn {ADMIN}"
        ),
        format!("longhaul fs create bench/files --size 3GiB --layout parity --width {TARGETS}"),
        "for i in 1 2 3 4 5 6 7 8; do longhaul cp --congestion cubic large fs:bench/files/large$i & done; wait".to_owned(),
        "for i in 1 2 3 4 5 6 7 8; do longhaul cp fs:bench/files/large$i back$i & done; wait".to_owned(),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_client_counts_for_all_and_shares_are_of_the_mean() {
        let (all, [least, most]) = shares(&[1.0, 2.0], 100);
        assert!((all - 100.0).abs() < 1e-9);
        assert!((least - 2.0 / 3.0).abs() < 1e-9 && (most - 4.0 / 3.0).abs() < 1e-9);
    }
}
