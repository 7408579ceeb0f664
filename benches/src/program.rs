//! The program under test: `longhaul target` and `longhaul bench` as a user
//! starts them.

use crate::process::{self, Guard};
use crate::setup::Setup;
use anyhow::{Context, Result, bail, ensure};
use longhaul_results::schema::Output;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Parts of the measured window in which processor time is not looked at:
/// before the load is under way for certain, and when it ends.
const EDGE: f64 = 0.1;

/// Builds the program in release; returns its path.
pub(crate) fn build() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--package=longhaul", "--message-format=json-render-diagnostics"])
        .current_dir(workspace)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo build")?;
    ensure!(output.status.success(), "the program does not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = built
        .filter(|m| m["target"]["name"] == "longhaul")
        .find_map(|m| m["executable"].as_str().map(PathBuf::from));
    program.context("cargo built no program named longhaul")
}

/// A running `longhaul target`.
#[derive(Debug)]
pub(crate) struct Target {
    /// Where its first export is.
    pub(crate) uri: String,
    /// Where all of them are.
    pub(crate) uris: Vec<String>,
    /// The addresses that it listens on.
    listen: Vec<String>,
    /// Where it serves metrics, if it does.
    metrics: Option<String>,
    process: Guard,
    /// Its state directory, so that its media are not recorded among those of this host.
    _state: TempDir,
}

impl Target {
    /// Starts a target that exports `backend`, and waits until it is ready.
    pub(crate) fn start(setup: &Setup, engine: &str, backend: &str, extra: &[&str]) -> Result<Target> {
        let export = format!("bench={backend}");
        Target::export(setup, engine, &[export], extra)
    }

    /// The same with several exports of `backend`.
    pub(crate) fn start_many(
        setup: &Setup,
        engine: &str,
        backend: &str,
        count: usize,
        extra: &[&str],
    ) -> Result<Target> {
        let exports: Vec<String> = (1..=count).map(|n| format!("bench{n}={backend}")).collect();
        Target::export(setup, engine, &exports, extra)
    }

    fn export(setup: &Setup, engine: &str, exports: &[String], extra: &[&str]) -> Result<Target> {
        let state = TempDir::new()?;
        let mut command = setup.target.command(&setup.program);
        command
            .env("XDG_STATE_HOME", state.path())
            .args(["target", "--json", "--insecure", "--listen", &format!("{}:0", setup.target.address)])
            .args(["--discovery", "none"])
            .args(["--congestion", &setup.congestion, "--engine", engine, "--threads", "1"])
            .args(exports.iter().flat_map(|export| ["--export", export]))
            .args(extra)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Guard(setup.target.start(&mut command)?);
        let event = process.ready().context("the target did not start")?;
        let exports = event["exports"].as_array().context("the target is ready without exports")?;
        let uris: Vec<String> = exports.iter().filter_map(|e| e["uri"].as_str()).map(str::to_owned).collect();
        let uri = uris.first().context("the target is ready without an export")?.clone();
        let listen = event["listen"].as_array().into_iter().flatten();
        let listen = listen.filter_map(|address| address.as_str()).map(str::to_owned).collect();
        let metrics = event["metrics"].as_str().map(str::to_owned);
        Ok(Target { uri, uris, listen, metrics, process, _state: state })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it serves metrics, if it does.
    pub(crate) fn metrics(&self) -> Option<&str> {
        self.metrics.as_deref()
    }

    /// The first address that it listens on.
    pub(crate) fn address(&self) -> Option<&str> {
        self.listen.first().map(String::as_str)
    }

    /// The URI of the first export at a further address, which is the second one that it listens on, too.
    pub(crate) fn with_address(&self, address: &str) -> Result<String> {
        let port = self.listen.get(1).and_then(|listen| listen.rsplit(':').next());
        let further = format!(",{address}:{}", port.context("the target listens on one address")?);
        let (authority, rest) = self.uri.rsplit_once('/').context("a URI without a path")?;
        Ok(format!("{authority}{further}/{rest}"))
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.0.kill().context("cannot kill a target")
    }

    /// Writes all of the device once, so that no read finds a hole.
    pub(crate) fn fill(&self, setup: &Setup, engine: &str) -> Result<()> {
        fill(setup, engine, &self.uri)
    }
}

/// Writes all of a device once: no read finds a hole, and memory that stands for
/// it is there.
pub(crate) fn fill(setup: &Setup, engine: &str, device: &str) -> Result<()> {
    let mut command = bench(setup, engine, device);
    command.args(["--rw", "write", "--bs", "1MiB", "--iodepth", "16"]);
    finish(&mut command, setup).map(|_| ())
}

/// A load of one job or more on one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// fio's name of the pattern.
    pub(crate) rw: &'static str,
    /// Bytes of one I/O.
    pub(crate) bs: u64,
    /// I/Os under way; measured by the program itself if `None`.
    pub(crate) iodepth: Option<u32>,
    pub(crate) numjobs: u32,
}

impl Load {
    pub(crate) fn new(rw: &'static str, bs: u64, iodepth: u32) -> Load {
        Load { rw, bs, iodepth: Some(iodepth), numjobs: 1 }
    }

    /// A load that is left to the program's own tuning.
    pub(crate) fn tuned(rw: &'static str, bs: u64) -> Load {
        Load { rw, bs, iodepth: None, numjobs: 1 }
    }

    /// The options that `longhaul bench` and fio share, without dashes.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = vec![
            ("rw", self.rw.to_owned()),
            ("bs", self.bs.to_string()),
            ("numjobs", self.numjobs.to_string()),
        ];
        options.extend(self.iodepth.map(|depth| ("iodepth", depth.to_string())));
        options
    }
}

/// The numbers of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Bytes per second.
    pub(crate) rate: f64,
    pub(crate) iops: f64,
    /// Mean time of one I/O, in seconds.
    pub(crate) latency: f64,
    /// Processor seconds of both sides per I/O.
    pub(crate) cpu: f64,
    /// Connections to the target, where the program chose their number.
    pub(crate) connections: u16,
}

impl Measured {
    /// Reads what fio or `longhaul bench` printed about one group of jobs.
    pub(crate) fn from_json(text: &str, load: &Load) -> Result<Measured> {
        // fio may print a note before the JSON.
        let json = &text[text.find('{').context("no result")?..];
        let output: Output = serde_json::from_str(json).context("not a result in fio's layout")?;
        let job = output.jobs.first().context("a result without jobs")?;
        ensure!(job.error == 0, "the load ended with error {}", job.error);
        let direction = if load.rw.contains("write") { &job.write } else { &job.read };
        ensure!(direction.total_ios > 0, "no I/O completed");
        Ok(Measured {
            rate: direction.bw_bytes as f64,
            iops: direction.iops,
            latency: direction.lat_ns.mean / 1e9,
            cpu: 0.0,
            connections: output.paths.first().map_or(1, |path| path.connections),
        })
    }
}

pub(crate) fn bench(setup: &Setup, engine: &str, device: &str) -> Command {
    let mut command = setup.load.command(&setup.program);
    command.args(["bench", device, "--json", "--group-reporting"]).args([
        "--congestion",
        &setup.congestion,
        "--engine",
        engine,
    ]);
    command
}

/// Runs `longhaul bench` on `device`. With a target, the processor time of
/// both is measured while the load runs.
pub(crate) fn load(
    setup: &Setup,
    engine: &str,
    device: &str,
    load: &Load,
    target: Option<&Target>,
    extra: &[&str],
) -> Result<Measured> {
    let mut command = bench(setup, engine, device);
    for (name, value) in load.options() {
        command.arg(format!("--{name}")).arg(value);
    }
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    command.args(["--runtime", &ms(setup.runtime), "--ramp", &ms(setup.ramp)]).args(extra);
    let child = Guard(setup.load.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?);
    let pids: Vec<u32> = std::iter::once(child.pid()).chain(target.map(Target::pid)).collect();
    let share = processor_share(setup, &pids);
    let result = output(child).and_then(|text| Measured::from_json(&text, load));
    let mut measured = result.with_context(|| format!("bench --engine {engine}, {load:?}"))?;
    // A load that ended early has said why; it has no processor time now.
    measured.cpu = share? / measured.iops;
    Ok(measured)
}

/// How many processors `pids` keep busy in the middle of the measured window.
fn processor_share(setup: &Setup, pids: &[u32]) -> Result<f64> {
    let all = || pids.iter().map(|&pid| process::cpu_time(pid)).sum::<Result<Duration>>();
    std::thread::sleep(setup.ramp + setup.runtime.mul_f64(EDGE));
    let (began, before) = (Instant::now(), all()?);
    std::thread::sleep(setup.runtime.mul_f64(1.0 - 2.0 * EDGE));
    let (used, time) = (all()? - before, began.elapsed());
    Ok(used.as_secs_f64() / time.as_secs_f64())
}

/// Runs a program on the load's processor to its end.
pub(crate) fn finish(command: &mut Command, setup: &Setup) -> Result<String> {
    output(Guard(setup.load.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?))
}

/// All that a child prints until it ends well.
pub(crate) fn output(mut child: Guard) -> Result<String> {
    let stdout = child.0.stdout.take().context("no pipe")?;
    let text = std::io::read_to_string(stdout).context("a child's output")?;
    let status = child.0.wait()?;
    if !status.success() {
        bail!("a load ended with {status}: {}", text.lines().last().unwrap_or("it printed nothing"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_in_fios_layout_is_read() {
        let text = r#"note
{"jobs":[{"error":0,"read":{"bw_bytes":4096000,"iops":1000.0,"total_ios":10,"lat_ns":{"mean":2000000.0}}}]}"#;
        let read = Measured::from_json(text, &Load::new("randread", 4096, 1)).expect("a result");
        assert_eq!((read.rate, read.iops, read.latency), (4_096_000.0, 1000.0, 0.002));
        assert!(Measured::from_json(text, &Load::new("write", 4096, 1)).is_err(), "nothing was written");
    }
}
