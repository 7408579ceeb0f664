//! The control socket of a target: what `longhaul ctl` and other programs of its user ask of it.
//!
//! Invariants:
//! - requests that change the target are done one after another, by the thread that takes signals;
//! - a target whose socket cannot be made serves all the same.

use crate::events::{ControlledExport, ControlledHost, TargetStatus};
use crate::exit::Exit;
use crate::rpc::{RpcError, RpcResult, RpcServer};
use longhaul_device::runtime;
use longhaul_target::{ControllerStatus, Observer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// What names of sockets begin and end with; between them stands the number of the process.
const PREFIX: &str = "target-";
const SUFFIX: &str = ".sock";

/// Where targets of this user on this host have their sockets, and the number of the process of each. Some may have
/// ended.
pub(crate) fn sockets() -> Vec<(u32, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(runtime::directory()) else { return Vec::new() };
    let mut found: Vec<_> =
        entries.flatten().filter_map(|entry| Some((pid_of(&entry.path())?, entry.path()))).collect();
    found.sort();
    found
}

fn pid_of(socket: &Path) -> Option<u32> {
    socket.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// What the thread that takes signals does next.
pub(super) enum Order {
    Signal(i32),
    /// From the control socket; the sender takes the result.
    Reload {
        force: bool,
        reply: Sender<RpcResult>,
    },
    Stop,
    Disconnect {
        hostnqn: String,
        reply: Sender<RpcResult>,
    },
}

/// Takes requests until it is dropped.
pub(super) struct Control {
    _server: Option<RpcServer>,
}

impl Control {
    /// Opens the socket of this process.
    pub(super) fn start(observer: Observer, listen: Vec<String>, orders: Sender<Order>) -> Control {
        let began = Instant::now();
        let orders = Mutex::new(orders);
        let answer = move |method: &str, params: &Value| match method {
            "status" => status(&observer, &listen, began.elapsed()),
            _ => order(method, params, &orders),
        };
        let path = runtime::directory().join(format!("{PREFIX}{}{SUFFIX}", std::process::id()));
        let made = runtime::make().map_err(|e| e.to_string());
        let started = made.and_then(|()| RpcServer::start(path.clone(), answer).map_err(|e| e.to_string()));
        let server = started.inspect_err(|e| {
            tracing::info!("{}: 'longhaul ctl' does not reach this target: {e}", path.display());
        });
        remove_left();
        Control { _server: server.ok() }
    }
}

/// Removes sockets that killed processes have left.
fn remove_left() {
    for (pid, path) in sockets() {
        let is_there = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
        if !is_there {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Has the thread that takes signals do what is asked, and waits for its result.
fn order(method: &str, params: &Value, orders: &Mutex<Sender<Order>>) -> RpcResult {
    let (reply, result): (_, Receiver<RpcResult>) = channel();
    let order = match method {
        "reload" => Order::Reload { force: params["force"].as_bool().unwrap_or(false), reply },
        "disconnect" => {
            let host = params["host"].as_str().filter(|host| !host.is_empty());
            let hostnqn =
                host.ok_or_else(|| RpcError::invalid_params("\"host\" is the NQN of a host"))?.to_owned();
            Order::Disconnect { hostnqn, reply }
        }
        // Answered before it is done: the process ends.
        "stop" => Order::Stop,
        _ => return Err(RpcError::unknown_method(method)),
    };
    let ends = matches!(order, Order::Stop);
    let sent = orders.lock().is_ok_and(|orders| orders.send(order).is_ok());
    if ends && sent {
        return Ok(json!({}));
    }
    result.recv().unwrap_or_else(|_| Err(stopping()))
}

fn status(observer: &Observer, listen: &[String], up: Duration) -> RpcResult {
    let statistics = observer.statistics().ok_or_else(stopping)?;
    let controllers = observer.controllers();
    let of = |nqn: &str| controllers.iter().filter(|one| one.nqn == nqn).count();
    let exports = statistics.namespaces.iter().map(|namespace| ControlledExport {
        name: namespace.name.clone(),
        nqn: namespace.nqn.clone(),
        nsid: namespace.nsid,
        uuid: namespace.uuid.to_string(),
        size: namespace.size,
        access: if namespace.is_accessible { "optimized" } else { "inaccessible" },
        controllers: of(&namespace.nqn),
    });
    let hosts = controllers.iter().map(|one: &ControllerStatus| ControlledHost {
        host: one.hostnqn.clone(),
        subsystem: one.nqn.clone(),
        controller: one.cntlid,
        read_only: one.reader,
        bytes_read: one.bytes_read,
        bytes_written: one.bytes_written,
    });
    let status = TargetStatus {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        seconds: up.as_secs_f64(),
        listen: listen.to_vec(),
        exports: exports.collect(),
        hosts: hosts.collect(),
        connections: statistics.connections,
        connections_max: statistics.connections_max,
        memory_used: statistics.memory_used as u64,
        memory_max: statistics.memory_max as u64,
    };
    // Structures of text and numbers can always be written as JSON.
    Ok(serde_json::to_value(status).unwrap_or_default())
}

fn stopping() -> RpcError {
    let message = "the target is stopping".to_owned();
    RpcError { code: Exit::Failed as i64, message, data: Value::Null }
}
