//! What a study is measured on: servers behind emulated links, with a target
//! each, or devices that were named. Loads are runs of this same program.

use crate::again::{program, reason};
use crate::exit::Failure;
use longhaul_bench::record::Cell;
use longhaul_bench::schema;
use longhaul_wan::control::Control;
use longhaul_wan::{Conditions, Plan, Wan};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Memory that each server has to be read from.
const MEMORY: &str = "disk=mem:256MiB";

/// Links and servers, until it is dropped.
pub(super) struct Rig {
    rate: Option<u64>,
    uris: Vec<String>,
    // In this order: the servers end before their links do.
    _servers: Vec<Server>,
    _control: Option<Control>,
    wan: Option<Arc<Wan>>,
}

/// A target that is ended when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to lose: its disk is memory.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rig {
    /// So many servers, behind a link each.
    pub(super) fn emulated(servers: usize, rate: u64, rtt: Duration) -> Result<Rig, Failure> {
        let conditions = Conditions::new(rtt, Some(rate));
        let plan = Plan { star: Some(servers), ..Plan::new(Plan::unique_name("study"), conditions) };
        let wan = Arc::new(Wan::start(plan)?);
        // Loads ask it whether their link was on time.
        let control = Control::start(&wan)?;
        let mut started = Vec::new();
        let mut uris = Vec::new();
        for link in 1..=servers {
            let (server, uri) = serve(&wan, link)?;
            started.push(server);
            uris.push(uri);
        }
        Ok(Rig { rate: Some(rate), uris, _servers: started, _control: Some(control), wan: Some(wan) })
    }

    /// On devices that are there.
    pub(super) fn named(uris: &[String]) -> Rig {
        Rig { rate: None, uris: uris.to_vec(), _servers: Vec::new(), _control: None, wan: None }
    }

    /// Of each link.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    pub(super) fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Runs this program with `args`, and takes a number of its result.
    pub(super) fn bench(&self, args: &[&str], number: &str, into: &mut Cell) -> Result<(), Failure> {
        let program = program()?;
        let mut command = match &self.wan {
            Some(wan) => wan.client().bound_command(program),
            None => Command::new(program),
        };
        command.args(args).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = command.output().map_err(Failure::failed)?;
        let wrong = |what: &str| Failure::failed(format!("{what}: {}", reason(&ran.stderr)));
        let result: schema::Output =
            serde_json::from_slice(&ran.stdout).map_err(|_| wrong("the load failed"))?;
        let record = result.longhaul.unwrap_or_default();
        let found = record.cells.into_iter().find(|cell| cell.name == number);
        let found = found.ok_or_else(|| wrong("the load has no result"))?;
        into.samples = found.samples;
        into.left_out = found.left_out;
        into.validity = found.validity;
        Ok(())
    }
}

/// Starts a target behind a link, and waits until it serves.
fn serve(wan: &Wan, link: usize) -> Result<(Server, String), Failure> {
    let listen = format!("{}:4420", wan.server_address(link));
    let mut command = wan.server(link).bound_command(program()?);
    command.args(["target", "--json", "--discovery", "none", "--listen", &listen, "--export", MEMORY]);
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = started.map_err(Failure::failed)?;
    let stdout = child.stdout.take();
    let server = Server(child);
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut line).map_err(Failure::failed)?;
    }
    let ready: Value = serde_json::from_str(&line).unwrap_or_default();
    match ready["exports"][0]["uri"].as_str() {
        Some(uri) => Ok((server, uri.to_owned())),
        None => Err(Failure::failed(format!("no target could be started on {listen}"))),
    }
}
