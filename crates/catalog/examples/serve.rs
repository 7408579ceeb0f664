//! Serves a catalog in a file, as `longhaul fs serve` does, to whatever connects on loopback.
//!
//! ```text
//! cargo run --release -p longhaul-catalog --example serve -- FILE 127.0.0.1:7420
//! ```

use longhaul_catalog::server::{CatalogServer, Limits, Observer, ServerOptions};
use longhaul_catalog::{Denial, FileOptions, Peer};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Prints what happens.
struct Printer;

impl Observer for Printer {
    fn connected(&self, address: SocketAddr, peer: &Peer) {
        eprintln!("{address}: '{}' is connected", peer.host.escape_debug());
    }

    fn refused(&self, address: SocketAddr, _: &str, _: Denial, text: &str) {
        eprintln!("{address}: refused: {}", text.escape_debug());
    }

    fn disconnected(&self, address: SocketAddr, _: &Peer, time: Duration, bytes: (u64, u64)) {
        eprintln!("{address}: gone after {time:?}, with {bytes:?} bytes");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, file, address] = &args[..] else { return Err("serve FILE ADDRESS".into()) };
    let options = ServerOptions {
        listeners: vec![TcpListener::bind(address)?],
        acceptor: None,
        observer: Arc::new(Printer),
        limits: Limits::default(),
        file: FileOptions::default(),
    };
    let server = CatalogServer::start(Path::new(file), options)?;
    println!("server:{}", server.addresses()[0]);
    loop {
        std::thread::park();
    }
}
