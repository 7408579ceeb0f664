//! Two paths to one target, of which one is cut under load: errors, and the longest time of a request.

use crate::link::Link;
use crate::process::Guard;
use crate::program::{self, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_results::schema::Output;
use longhaul_wan::{Change, Conditions};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

const MS: f64 = 1e-3;
/// Rates in bits a second, and round trips of the two links.
const LINKS: [(u64, Duration); 2] =
    [(300_000_000, Duration::from_millis(5)), (700_000_000, Duration::from_millis(40))];
/// The second address of the target, behind the second link, and of what forwards there.
const SECOND: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
const RUNTIME: &str = "5s";
/// Load before the cut.
const BEFORE: Duration = Duration::from_millis(1500);
/// A path counts as lost after this, and is looked at so often.
const TIME_OUT: Duration = Duration::from_millis(1250);
/// Bytes under way: 64 KiB at depth 64.
const UNDER_WAY: u64 = 4 << 20;

/// The longest that a request may take whose path is cut: the time-out, two round trips of the other path, and what
/// was under way on both, over that one.
fn ceiling(cut: usize) -> f64 {
    let (rate, rtt) = LINKS[1 - cut];
    TIME_OUT.as_secs_f64() + 2.0 * rtt.as_secs_f64() + 8.0 * UNDER_WAY as f64 / rate as f64
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = ["load", "cut", "cuts", "errors", "slowest request, ms", "allowed, ms", "met"];
    let mut section = Section::new("cut-path", &header);
    let engine = setup.engines.first().context("no engine to measure with")?;
    let link = Link::start(Conditions::new(LINKS[0].1, Some(LINKS[0].0)), Some(2))?;
    for (index, (rate, rtt)) in (1..).zip(LINKS) {
        link.set_one(index, &Change { rate: Some(rate), rtt: Some(rtt), ..Change::default() })?;
    }
    second_address(&link)?;
    let here = link.setup(setup, 1);
    let backend = super::super::memory_backend(setup);
    let target = Target::start(&here, engine, &backend, &["--listen", &format!("{}:0", SECOND[0])])?;
    let uri = target.with_address(SECOND[0])?;
    program::fill(&here, engine, &target.uri)?;
    let cases = [("read", 0), ("write", 0), ("read", 1), ("write", 1)];
    let found = setup.interleave(&cases, |&(rw, cut)| one(&here, &link, engine, &uri, (rw, cut)))?;
    for ((rw, cut), found) in cases.into_iter().zip(&found) {
        let errors: i32 = found.iter().map(|(errors, _)| *errors).sum();
        let slowest = Samples::of(found, |(_, seconds)| *seconds);
        let name = format!("{} Mb/s, {} ms", LINKS[cut].0 / 1_000_000, LINKS[cut].1.as_millis());
        section.keep(&format!("{rw}, {name} cut"), "slowest request", "s", &slowest);
        let is_met = errors == 0 && slowest.most() <= ceiling(cut);
        section.row(vec![
            format!("{rw}, 64 KiB, depth 64"),
            name,
            found.len().to_string(),
            errors.to_string(),
            slowest.show(MS, 0),
            format!("{:.0}", ceiling(cut) / MS),
            (if is_met { "yes" } else { "**no**" }).into(),
        ]);
    }
    section.notes.push(format!(
        "One target at two addresses, each behind a link. The link is cut after {BEFORE:?} of load, and not restored before \
         the load ends. Allowed: a time-out of 1 s that is looked at every 250 ms, two round trips of the other path, and \
         the time that it takes to carry the {} MiB that were under way on both. Met: by the slowest of all cuts, without an \
         error",
        UNDER_WAY >> 20
    ));
    section.commands = vec![
        "longhaul wan --star 2 --rtt 5ms --rate 300Mbit --name link &".to_owned(),
        "longhaul wan set link --link 2 --rtt 40ms --rate 700Mbit".to_owned(),
        "# the second address of the target: a veth pair between link-server1 and link-server2, and routes"
            .to_owned(),
        format!(
            "ip netns exec link-client longhaul bench nvme+tcp://10.77.1.2,{}/bench --rw read --bs 64k --iodepth 64 \
             --runtime {RUNTIME} &",
            SECOND[0]
        ),
        "sleep 1.5; longhaul wan set link --link 1 --cut".to_owned(),
    ];
    Ok(section)
}

/// Gives the target behind the first link an address behind the second one, which forwards to it without delay.
fn second_address(link: &Link) -> Result<()> {
    let [first, second] = [1, 2].map(|index| link.server(index).name().to_owned());
    let (client, via) = (link.client_address(2).to_string(), link.server_address(2).to_string());
    let ip = |namespace: &str, args: &str| -> Result<()> {
        let args: Vec<&str> = args.split(' ').collect();
        let ran = std::process::Command::new("ip").args(["-n", namespace]).args(&args).output()?;
        let why = String::from_utf8_lossy(&ran.stderr).into_owned();
        ensure!(ran.status.success(), "ip -n {namespace} {}: {why}", args.join(" "));
        Ok(())
    };
    ip(&first, &format!("link add there type veth peer name here netns {second}"))?;
    ip(&first, &format!("address add {}/30 dev there", SECOND[0]))?;
    ip(&first, "link set there up")?;
    ip(&second, &format!("address add {}/30 dev here", SECOND[1]))?;
    ip(&second, "link set here up")?;
    ip(&first, &format!("route add {client}/32 via {}", SECOND[1]))?;
    ip(link.client().name(), &format!("route add {}/32 via {via}", SECOND[0]))?;
    link.server(2).run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    Ok(())
}

/// The error of a load during which a link is cut, and the time of its slowest request.
fn one(setup: &Setup, link: &Link, engine: &str, uri: &str, (rw, cut): (&str, usize)) -> Result<(i32, f64)> {
    let mut command = program::bench(setup, engine, uri);
    command.args(["--rw", rw, "--bs", "64k", "--iodepth", "64", "--runtime", RUNTIME]);
    let child = Guard(setup.load.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?);
    sleep(BEFORE);
    link.set_one(cut + 1, &Change::cut())?;
    let output = program::output(child);
    link.set_one(cut + 1, &Change::restore())?;
    let output: Output = serde_json::from_str(&output?).context("the load's result")?;
    let job = output.jobs.first().context("a result without jobs")?;
    let direction = if rw == "write" { &job.write } else { &job.read };
    Ok((job.error, direction.lat_ns.max as f64 / 1e9))
}
