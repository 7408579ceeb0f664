//! Connections to an agent from clients without the key, or without a request.

mod common;

use common::peer::*;
use common::*;
use longhaul_transfer::wire::{Frame, RefusalKind};
use longhaul_transfer::{Agent, Key, Monitor, Settings, copy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// More than an agent lets wait.
const IDLE: usize = 1400;

/// Lets this process have as many descriptors as it may; whether it may have so many.
fn descriptors(needed: u64) -> bool {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let enough = raised.is_ok() && maximum.is_none_or(|maximum| maximum >= needed);
    if !enough {
        longhaul_skip::skip!("this process may not have {needed} descriptors");
    }
    enough
}

/// Keeps connections open that say nothing: for each that is closed comes another.
struct Strangers {
    going: Arc<AtomicBool>,
    /// Connections that were made in all.
    made: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Strangers {
    fn come(to: SocketAddr) -> Strangers {
        let (going, made) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (go, count) = (Arc::clone(&going), Arc::clone(&made));
        let thread = std::thread::spawn(move || {
            let mut idle: Vec<TcpStream> = Vec::new();
            while go.load(Relaxed) {
                idle.retain_mut(|stream| match stream.read(&mut [0; 256]) {
                    Ok(0) => false,
                    Ok(_) => true,
                    Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
                });
                // A connection at a time, so that there is a processor for others.
                for _ in idle.len()..IDLE {
                    let limit = Duration::from_secs(1);
                    let Ok(stream) = TcpStream::connect_timeout(&to, limit) else { break };
                    stream.set_nonblocking(true).expect("set");
                    idle.push(stream);
                    count.fetch_add(1, Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let strangers = Strangers { going, made, thread: Some(thread) };
        strangers.wait_for(IDLE);
        strangers
    }

    /// Waits until so many connections were made.
    fn wait_for(&self, made: usize) {
        while self.made.load(Relaxed) < made {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.going.store(false, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Copies a small tree there, with this key.
fn copies(agent: &Agent, dir: &std::path::Path, key: Option<Key>, name: &str) {
    let settings = Settings { key, connect: Duration::from_secs(120), ..Settings::default() };
    let spec = spec(local(&dir.join("source")), at(agent, name));
    let copied = copy(&spec, &settings, &Arc::new(Monitor::new()));
    assert!(copied.is_ok(), "{:?}", copied.err());
    assert_same(&dir.join("source"), &dir.join("root").join(name));
}

#[test]
fn silent_connections_do_not_keep_clients_out() {
    if !descriptors(2 * IDLE as u64 + 4096) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    fs::create_dir_all(&root).expect("made");
    fs::create_dir(dir.path().join("source")).expect("made");
    for i in 0..20 {
        fs::write(dir.path().join("source").join(i.to_string()), noise(i, 10_000)).expect("written");
    }
    let key = Key::random().expect("a key");
    for key in [Some(key), None] {
        let agent = agent_with(&root, |config| config.key = key.clone());
        let strangers = Strangers::come(agent.address());
        for i in 0..3 {
            let before = strangers.made.load(Relaxed);
            copies(&agent, dir.path(), key.clone(), &format!("{}-{i}", key.is_some()));
            // The strangers stay: a new one replaces each that was evicted.
            strangers.wait_for(before + 1);
        }
    }
}

#[test]
fn an_evicted_connection_gets_a_refusal() {
    if !descriptors(4096) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent_with(dir.path(), |config| config.key = Key::random().ok());
    let mut first = Peer::connect(&agent);
    let _others: Vec<Peer> = (0..600).map(|_| Peer::connect(&agent)).collect();
    let Some(Frame::Refuse(refusal)) = first.hear() else { panic!("no refusal was received") };
    assert_eq!(refusal.kind, RefusalKind::Busy);
    let message = refusal.message;
    assert!(message.contains("the agent is busy") && message.contains("wait for a greeting"), "{message}");
}
