//! Engines of the catalog that are servers, for tests: etcd, and ours.

#![allow(dead_code, reason = "not every test uses all of it")]

use longhaul_catalog::server::{CatalogServer, Limits, Observer, ServerOptions};
use longhaul_catalog::{Access, Denial, EtcdCatalog, FileOptions, Peer, RemoteCatalog};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a server has told of its connections.
#[derive(Debug, Default)]
pub(crate) struct Seen(pub(crate) Mutex<Vec<String>>);

impl Observer for Seen {
    fn connected(&self, _: SocketAddr, peer: &Peer) {
        self.0.lock().expect("locked").push(format!("connected {}", peer.host));
    }

    fn refused(&self, _: SocketAddr, host: &str, why: Denial, text: &str) {
        self.0.lock().expect("locked").push(format!("refused '{host}' {why:?}: {text}"));
    }

    fn disconnected(&self, _: SocketAddr, peer: &Peer, _: Duration, _: (u64, u64)) {
        self.0.lock().expect("locked").push(format!("disconnected {}", peer.host));
    }
}

/// A catalog server within this process, which can be stopped and started again at its address.
pub(crate) struct Server {
    server: Option<CatalogServer>,
    path: PathBuf,
    options: FileOptions,
    limits: Limits,
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
}

impl Server {
    pub(crate) fn start(path: &Path) -> Server {
        Server::start_with(path, FileOptions::default(), Limits::default())
    }

    pub(crate) fn start_with(path: &Path, options: FileOptions, limits: Limits) -> Server {
        let address = SocketAddr::from(([127, 0, 0, 2], 0));
        let path = path.to_owned();
        let mut server = Server { server: None, path, options, limits, address, seen: Arc::default() };
        server.restart();
        server
    }

    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        let listener = TcpListener::bind(self.address).expect("bound");
        self.address = listener.local_addr().expect("bound");
        let options = ServerOptions {
            listeners: vec![listener],
            acceptor: None,
            observer: self.seen.clone(),
            limits: self.limits.clone(),
            file: self.options.clone(),
        };
        self.server = Some(CatalogServer::start(&self.path, options).expect("started"));
    }

    pub(crate) fn running(&self) -> &CatalogServer {
        self.server.as_ref().expect("it runs")
    }

    pub(crate) fn catalog(&self) -> RemoteCatalog {
        let access = Access { host: "test".into(), connector: None };
        RemoteCatalog::new(&[self.address.to_string()], access).expect("an address")
    }
}

/// Members of an etcd on loopback, which end with it.
pub(crate) struct Etcd {
    members: Vec<Option<Child>>,
    pub(crate) endpoints: Vec<String>,
    _dir: tempfile::TempDir,
}

/// Where members listen.
const HOST: &str = "127.0.0.2";

/// Times that members are started, each time on other ports: other processes take ports, too.
const TRIES: usize = 5;

impl Etcd {
    /// Starts `count` members; `None` where etcd is not installed.
    pub(crate) fn start(count: usize) -> Option<Etcd> {
        let installed = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        installed.ok().filter(std::process::ExitStatus::success)?;
        let etcd = (0..TRIES).find_map(|_| Etcd::try_start(count));
        Some(etcd.expect("etcd starts"))
    }

    fn try_start(count: usize) -> Option<Etcd> {
        let dir = tempfile::tempdir().expect("a directory");
        let ports = free_ports(count * 2);
        let url = |port: u16| format!("http://{HOST}:{port}");
        let (clients, peers) = ports.split_at(count);
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(i, port)| format!("m{i}={}", url(*port))).collect();
        let member = |i: usize| {
            let (client, peer) = (url(clients[i]), url(peers[i]));
            let log = std::fs::File::create(log(dir.path(), i)).expect("created");
            Command::new("etcd")
                .args(["--name", &format!("m{i}"), "--initial-cluster", &cluster.join(",")])
                .arg("--data-dir")
                .arg(dir.path().join(format!("m{i}")))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                // A slow machine, with many tests at once, is not a member that is gone.
                .args(["--heartbeat-interval", "200", "--election-timeout", "2000", "--unsafe-no-fsync"])
                .env_remove("ETCD_UNSUPPORTED_ARCH")
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("etcd runs")
        };
        let members = (0..count).map(|i| Some(member(i))).collect();
        let endpoints = clients.iter().map(|port| format!("{HOST}:{port}")).collect();
        let mut etcd = Etcd { members, endpoints, _dir: dir };
        etcd.is_up().then_some(etcd)
    }

    /// Waits until etcd serves, or a member has ended because its port was taken.
    fn is_up(&mut self) -> bool {
        use longhaul_catalog::Catalog;
        loop {
            let ended = |member: &mut Child| member.try_wait().expect("waited").is_some();
            if self.members.iter_mut().flatten().any(ended) {
                return false;
            }
            if self.catalog("").get(b"up").is_ok() {
                return true;
            }
        }
    }

    pub(crate) fn catalog(&self, prefix: &str) -> EtcdCatalog {
        EtcdCatalog::new(&self.endpoints, prefix).expect("addresses")
    }

    /// Sends a request of its own to a member.
    pub(crate) fn ask(
        &self,
        member: usize,
        path: &str,
        request: &serde_json::Value,
    ) -> Option<serde_json::Value> {
        let url = format!("http://{}/v3/{path}", self.endpoints[member]);
        let mut reply = ureq::post(&url).send(request.to_string()).ok()?;
        serde_json::from_str(&reply.body_mut().read_to_string().ok()?).ok()
    }

    /// Kills the member that leads, as a crash does, and returns its number.
    pub(crate) fn kill_leader(&mut self) -> usize {
        loop {
            for i in 0..self.members.len() {
                let Some(reply) = self.ask(i, "maintenance/status", &serde_json::json!({})) else { continue };
                let leads = reply["leader"].is_string() && reply["leader"] == reply["header"]["member_id"];
                if leads && let Some(mut member) = self.members[i].take() {
                    member.kill().expect("killed");
                    member.wait().expect("waited");
                    return i;
                }
            }
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn log(dir: &Path, member: usize) -> PathBuf {
    dir.join(format!("m{member}.log"))
}

/// Connections of this machine begin at 127.0.0.1, so that none is given one of these ports while a member is
/// down.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind((HOST, 0)).expect("a port")).collect();
    held.iter().map(|listener| listener.local_addr().expect("bound").port()).collect()
}
