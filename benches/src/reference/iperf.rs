//! `iperf3`, where it is installed. It sends the same block again and again,
//! out of the processor's cache, and receives to one buffer.

use crate::machine::first_line;
use crate::process::Guard;
use crate::program::finish;
use crate::setup::Setup;
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use std::io;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// iperf3 3.12 now and then does not end where segments are lost: it is ended
/// so much after its time, and run again, so often at most. Each retry starts a new
/// server, since the one before may not serve any more.
const PATIENCE: Duration = Duration::from_secs(15);
const ATTEMPTS: u32 = 4;
/// What a number of bytes may take, whatever the link.
const LONG: Duration = Duration::from_secs(120);

/// A client, and the server that it has.
#[derive(Debug)]
pub(crate) struct Iperf {
    server: Mutex<Server>,
    version: String,
}

#[derive(Debug)]
struct Server {
    port: String,
    _process: Guard,
}

impl Iperf {
    /// Starts a server on the target's processor; nothing if there is no
    /// iperf3.
    pub(crate) fn start(setup: &Setup) -> Result<Option<Iperf>> {
        let Some(version) = first_line(Command::new("iperf3").arg("--version")) else {
            return Ok(None);
        };
        let version = version.split(' ').take(2).collect::<Vec<_>>().join(" ");
        Ok(Some(Iperf { server: Mutex::new(Server::start(setup)?), version }))
    }

    /// A server behind each of some links, where iperf3 is the reference.
    pub(crate) fn start_all<'s>(setups: impl IntoIterator<Item = &'s Setup>) -> Result<Vec<Iperf>> {
        let start =
            |setup| Iperf::start(setup)?.context("iperf3 is the reference here, and is not installed");
        setups.into_iter().map(start).collect()
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Bytes per second to (`write`) or from the server. iperf3 counts whole
    /// seconds only.
    pub(crate) fn run(&self, setup: &Setup, write: bool, bs: u64) -> Result<f64> {
        self.parallel(setup, write, bs, 1)
    }

    /// The same of several streams together.
    pub(crate) fn parallel(&self, setup: &Setup, write: bool, bs: u64, streams: u16) -> Result<f64> {
        let seconds = |time: Duration| time.as_secs_f64().ceil().max(1.0).to_string();
        let window = ["--time", &seconds(setup.runtime), "--omit", &seconds(setup.ramp)].map(str::to_owned);
        let more = [&window[..], &["--parallel".to_owned(), streams.to_string()]].concat();
        self.attempts(setup, write, bs, setup.runtime + setup.ramp, &more)
    }

    /// Bytes per second of a new connection that moves so many, from its
    /// beginning on.
    pub(crate) fn bytes(&self, setup: &Setup, write: bool, bytes: u64) -> Result<f64> {
        self.attempts(setup, write, 128 << 10, LONG, &["--bytes".to_owned(), bytes.to_string()])
    }

    fn attempts(
        &self,
        setup: &Setup,
        write: bool,
        bs: u64,
        length: Duration,
        more: &[String],
    ) -> Result<f64> {
        for _ in 1..ATTEMPTS {
            match self.attempt(setup, write, bs, length, more) {
                Err(error) => {
                    eprintln!("  iperf3 did not end well within {:?}; again: {error:#}", length + PATIENCE);
                    *self.server() = Server::start(setup)?;
                }
                result => return result,
            }
        }
        self.attempt(setup, write, bs, length, more)
    }

    fn attempt(&self, setup: &Setup, write: bool, bs: u64, length: Duration, more: &[String]) -> Result<f64> {
        let patience = (length + PATIENCE).as_secs().to_string();
        let mut command = setup.load.command("timeout");
        command.args([&patience, "iperf3"]);
        let host = setup.target.address.to_string();
        command
            .args(["--client", &host, "--port", &self.server().port, "--json", "--no-delay"])
            .args(["--congestion", &setup.congestion, "--length", &bs.to_string()])
            .args(more)
            .args((!write).then_some("--reverse"));
        let result: Value = serde_json::from_str(&finish(&mut command, setup)?).context("iperf3's result")?;
        let bits = result["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(bits.context("iperf3 without a result")? / 8.0)
    }
}

impl Server {
    fn start(setup: &Setup) -> Result<Server> {
        // It cannot say which free port it took, so we look for one.
        let host = setup.target.address;
        let port = setup.target.run(|| Ok(TcpListener::bind((host, 0))?.local_addr()?.port()))?;
        let port = port.map_err(|e: io::Error| anyhow!(e))?.to_string();
        let mut command = setup.target.command("iperf3");
        command.args(["--server", "--bind", &host.to_string(), "--port", &port, "--forceflush"]);
        // It reports on stderr that we end it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Guard(setup.target.start(&mut command)?);
        let mut line = process.line()?;
        while !line.contains("listening") {
            ensure!(!line.is_empty(), "iperf3 does not listen on port {port}");
            line = process.line()?;
        }
        Ok(Server { port, _process: process })
    }
}
