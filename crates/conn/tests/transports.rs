//! The transports of this crate keep their contract, and transports that break it are found out.

use longhaul_conn::conformance::check;
use longhaul_conn::transport::{InProcess, Tcp, Transport, Unix};
use longhaul_engine::{Config, Engine, EngineKind};
use std::sync::Arc;

/// Checks it on each engine that this machine has.
fn conforms(transport: &Arc<dyn Transport>, address: &str) {
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        let config = Config { kind, ..Config::default() };
        if Engine::new(&config).is_err() {
            longhaul_skip::skip_part!("{kind:?} is not to be had");
            continue;
        }
        let result = check(Arc::clone(transport), address, &config);
        assert_eq!(result.map_err(|fault| format!("{kind:?}: {fault}")), Ok(()));
    }
}

#[test]
fn tcp() {
    conforms(&(Arc::new(Tcp) as _), "127.0.0.1:0");
}

#[test]
fn unix_sockets() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    conforms(&(Arc::new(Unix) as _), path.to_str().expect("a path"));
    assert!(!path.exists(), "the socket's file goes with its listener");
}

#[test]
fn pairs_within_a_process() {
    conforms(&(Arc::new(InProcess::new()) as _), "a name");
}
