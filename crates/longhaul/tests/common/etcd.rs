//! An etcd on loopback, which can be killed and started again.

use super::{PATIENCE, Running};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct Etcd {
    child: Option<Running>,
    command: Vec<String>,
    client: u16,
}

impl Etcd {
    /// One with its data in this directory; `None`, with the reason on standard error, where etcd is not
    /// installed.
    pub fn start(directory: &Path) -> Option<Etcd> {
        if let Err(e) = Command::new("etcd").arg("--version").output() {
            longhaul_skip::skip!("etcd: {e}");
            return None;
        }
        let free = || TcpListener::bind(super::LISTEN).expect("a port").local_addr().expect("bound").port();
        let (client, peer) = (free(), free());
        let (at, peers) = (format!("http://127.0.0.2:{client}"), format!("http://127.0.0.2:{peer}"));
        let data = directory.join("etcd");
        let command = ["--name", "m", "--data-dir", super::text(&data), "--unsafe-no-fsync"];
        let urls = ["--listen-client-urls", &at, "--advertise-client-urls", &at];
        let peers = ["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers];
        let cluster = format!("m={}", peers[1]);
        let all = [&command[..], &urls, &peers, &["--initial-cluster", &cluster]].concat();
        let mut etcd = Etcd { child: None, command: all.into_iter().map(str::to_owned).collect(), client };
        etcd.run();
        Some(etcd)
    }

    /// Starts it, also after it was killed.
    pub fn run(&mut self) {
        let mut command = Command::new("etcd");
        command.args(&self.command).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(Running(command.spawn().expect("started")));
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.2", self.client)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "etcd does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn kill(&mut self) {
        self.child = None;
    }

    /// The name of the catalog in it.
    pub fn catalog(&self) -> String {
        format!("etcd:127.0.0.2:{}", self.client)
    }
}
