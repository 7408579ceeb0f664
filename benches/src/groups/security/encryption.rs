//! TLS beside plain connections: over loopback, and over emulated links.

use super::super::memory_backend;
use super::MB;
use crate::link::{self, Link};
use crate::process::Guard;
use crate::program::{self, Load, Measured, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_wan::Conditions;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The least share of plain connections over a link.
const FLOOR: f64 = 0.98;

const RATE: u64 = 1_000_000_000;
const ROUND_TRIPS: [Duration; 4] = [
    Duration::from_micros(150),
    Duration::from_millis(15),
    Duration::from_millis(45),
    Duration::from_millis(100),
];

const HOST: &str = "nqn.2014-08.org.example:bench";
const BS: u64 = 128 << 10;
/// Bytes of a record of TLS at most.
const RECORD: u64 = 16 << 10;
/// Bytes of the unit of processor time.
const GIGA: f64 = 1e9;

#[derive(Clone, Copy, PartialEq)]
enum Subject {
    Plain,
    Tls,
    /// `openssl speed`, on one processor.
    OpenSsl,
}

/// A target without TLS, and one with it and a key for one host.
struct Targets {
    plain: Target,
    tls: Target,
    keys: TempDir,
}

impl Targets {
    fn start(setup: &Setup, engine: &str) -> Result<Targets> {
        let keys = TempDir::new()?;
        let dir = keys.path().to_str().context("a path in UTF-8")?.to_owned();
        let mut make = Command::new(&setup.program);
        make.args(["key", "make", HOST, "--tls", "--keys", &dir]).stdout(Stdio::null());
        ensure!(make.status()?.success(), "no key is made");
        let backend = memory_backend(setup);
        let tls = Target::start(setup, engine, &backend, &["--keys", &dir, "--tls", "required"]).context(
            "the program has no TLS: cargo build --release --features longhaul/tls --target-dir target/tls, and \
             --program target/tls/release/longhaul",
        )?;
        Ok(Targets { plain: Target::start(setup, engine, &backend, &[])?, tls, keys })
    }

    fn measure(&self, setup: &Setup, engine: &str, rw: &'static str, subject: Subject) -> Result<Measured> {
        let keys = self.keys.path().to_str().context("a path in UTF-8")?;
        let load = Load::tuned(rw, BS);
        match subject {
            Subject::Plain => program::load(setup, engine, &self.plain.uri, &load, Some(&self.plain), &[]),
            Subject::Tls => {
                let extra = ["--hostnqn", HOST, "--keys", keys, "--tls"];
                program::load(setup, engine, &self.tls.uri, &load, Some(&self.tls), &extra)
            }
            Subject::OpenSsl => openssl(setup),
        }
    }
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "encryption",
        &[
            "link",
            "load",
            "plain, Mb/s",
            "TLS, Mb/s",
            "of plain",
            "≥ 0.98",
            "CPU s a GB, plain",
            "CPU s a GB, TLS",
            "OpenSSL, CPU s a GB there and back",
        ],
    );
    rows(setup, "loopback", None, &mut section)?;
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
        let here = Setup {
            ramp: Duration::from_millis(700) + 30 * link.rtt(),
            runtime: Duration::from_secs(2) + 10 * link.rtt(),
            ..link.setup(setup, 1)
        };
        let name = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
        rows(&here, &name, Some(&link), &mut section)?;
    }
    section.notes.push(format!(
        "Reads and writes of {} KiB at the depth that the program finds, 1 MiB in a capsule, TLS 1.3 with a \
         pre-shared key and AES-256-GCM in user space. CPU: user and kernel time of both sides for 10^9 bytes. \
         OpenSSL: `openssl speed -evp aes-256-gcm` with records of {} KiB on one processor, counted twice, since \
         one side encrypts and the other one decrypts",
        BS >> 10,
        RECORD >> 10
    ));
    section.commands = vec![
        format!("longhaul key make {HOST} --tls --keys keys"),
        "longhaul wan --rtt 45ms --rate 1Gbit --name link &".to_owned(),
        format!(
            "ip netns exec link-server longhaul target --listen 10.77.1.2:4420 --export bench={} --threads 1 --keys keys \
             --tls required &",
            memory_backend(setup)
        ),
        format!(
            "ip netns exec link-client longhaul bench URI --rw read --bs 128KiB --hostnqn {HOST} --keys keys --tls"
        ),
        format!("openssl speed -seconds 1 -bytes {RECORD} -evp aes-256-gcm"),
    ];
    Ok(section)
}

fn rows(setup: &Setup, name: &str, link: Option<&Link>, section: &mut Section) -> Result<()> {
    let engine = setup.engines.first().context("no engine to measure with")?;
    let targets = Targets::start(setup, engine)?;
    // Writes first: reads find content then.
    for rw in ["write", "read"] {
        let subjects = [Subject::Plain, Subject::Tls, Subject::OpenSsl];
        let measured = setup.interleave(&subjects, |&subject| match link {
            Some(link) if subject != Subject::OpenSsl => {
                link.on_time(|| targets.measure(setup, engine, rw, subject))
            }
            _ => targets.measure(setup, engine, rw, subject),
        })?;
        let [plain, tls, openssl] = &measured[..] else { unreachable!("three subjects") };
        let [plain_rate, tls_rate] = [plain, tls].map(|m| Samples::of(m, |m| m.rate));
        let per_giga = |m: &Measured| m.cpu / BS as f64 * GIGA;
        let [plain_cpu, tls_cpu] = [plain, tls].map(|m| Samples::of(m, per_giga));
        let both = Samples::of(openssl, |m| 2.0 * GIGA / m.rate);
        let ratio = tls_rate.ratio(&plain_rate);
        let case = format!("{name}, {rw}");
        eprintln!("  {case}: {} of plain", ratio.show_ratio());
        section.keep(&case, "plain", "bytes/s", &plain_rate);
        section.keep(&case, "TLS", "bytes/s", &tls_rate);
        section.row(vec![
            name.to_owned(),
            rw.to_owned(),
            plain_rate.show(MB, 0),
            tls_rate.show(MB, 0),
            ratio.show_ratio(),
            // Over loopback processors are the limit, which TLS needs more of.
            if link.is_some() { ratio.at_least(FLOOR) } else { "–" }.to_owned(),
            plain_cpu.show(1.0, 2),
            tls_cpu.show(1.0, 2),
            both.show(1.0, 2),
        ]);
    }
    Ok(())
}

/// Bytes per second that OpenSSL encrypts on one processor.
fn openssl(setup: &Setup) -> Result<Measured> {
    let mut command = setup.load.command("openssl");
    let bytes = RECORD.to_string();
    command.args(["speed", "-mr", "-seconds", "1", "-bytes", &bytes, "-evp", "aes-256-gcm"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let text = program::output(Guard(setup.load.start(&mut command).context("openssl is the reference")?))?;
    let rate = speed(&text).with_context(|| format!("openssl speed printed '{text}'"))?;
    Ok(Measured { rate, ..Measured::default() })
}

/// Of its lines for machines: `+F:NUMBER:NAME:BYTES A SECOND`.
fn speed(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("+F:"))?;
    line.rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_of_openssl_is_read() {
        assert_eq!(speed("+H:16384\n+F:25:AES-256-GCM:4220910933.33\n"), Some(4_220_910_933.33));
        assert_eq!(speed("+H:16384\n"), None);
    }
}
