//! The interface to the service manager: sockets that it passes to the service (sd_listen_fds(3)), and
//! notifications of the state of the service (sd_notify(3)).
//!
//! Invariants:
//! - without a manager nothing is sent, and an error of one is no error of the service;
//! - the watchdog is answered only after each thread that serves has answered.

use crate::exit::Failure;
use listenfd::ListenFd;
use longhaul_engine::Handle;
use rustix::net::sockopt::socket_acceptconn;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Answers to the watchdog in its period: one that is late may miss its turn once.
const ANSWERS: u32 = 2;

/// The service manager, if there is one. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    socket: Option<Arc<UnixDatagram>>,
    /// Period of its watchdog.
    watchdog: Option<Duration>,
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

impl Manager {
    /// The one that has started this process (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
    pub(crate) fn of_this_process() -> Manager {
        let named = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = named.and_then(|name| match connect(&name) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(e) => {
                tracing::warn!(
                    "NOTIFY_SOCKET {}: the service manager gets no notifications: {e}",
                    name.display()
                );
                None
            }
        });
        let own = number::<u32>("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id());
        let period = number("WATCHDOG_USEC").filter(|period| own && *period > 0);
        Manager { watchdog: socket.as_ref().and(period).map(Duration::from_micros), socket }
    }

    fn send(&self, message: &str) {
        let Some(socket) = self.socket.as_deref() else { return };
        if let Err(e) = socket.send(message.as_bytes()) {
            tracing::debug!("the service manager has not got a notification: {e}");
        }
    }

    /// The service serves; `status` is a sentence for people.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// The service reads its configuration again, and says when it is [`ready`](Self::ready).
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=Reading the configuration again"));
    }

    /// The service ends.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=Completing what is under way");
    }

    /// Answers the manager's watchdog, if it has one, for as long as these threads answer, until the result
    /// is dropped.
    pub(crate) fn watch(&self, threads: Vec<(String, Handle)>) -> Option<Watchdog> {
        let (manager, pause) = (self.clone(), self.watchdog? / ANSWERS);
        let (until_end, ended) = mpsc::channel::<()>();
        let run = move || {
            loop {
                for (name, thread) in &threads {
                    // A thread that never answers is what the watchdog is for.
                    if thread.spawn(|| async {}).wait().is_err() {
                        return tracing::debug!("{name} has ended");
                    }
                }
                manager.send("WATCHDOG=1");
                if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("watchdog".to_owned()).spawn(run) {
            Ok(_) => Some(Watchdog { _until_end: until_end }),
            Err(e) => {
                tracing::warn!("the watchdog of the service manager is not answered: {e}");
                None
            }
        }
    }
}

/// See [`Manager::watch`].
#[derive(Debug)]
pub(crate) struct Watchdog {
    _until_end: mpsc::Sender<()>,
}

/// A status has one line.
fn line(text: &str) -> String {
    text.replace('\n', " ")
}

/// A socket that is connected to that of the manager: a path, or an abstract name that begins with `@`. So a
/// process that gives up its rights later, and cannot reach the path any more, still tells the manager.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let to = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&to)?;
    Ok(socket)
}

/// The listening sockets that the service manager has for this process (`LISTEN_FDS`, `LISTEN_PID`).
///
/// # Errors
/// What it gives is no listening TCP socket.
pub(crate) fn listeners() -> Result<Vec<TcpListener>, Failure> {
    // Without it, they may be of a process that has started this one.
    if number::<u32>("LISTEN_PID") != Some(std::process::id()) {
        return Ok(Vec::new());
    }
    let wrong = |index: usize, why: &dyn std::fmt::Display| {
        Failure::usage(format_args!(
            "socket {index} of the service manager: {why}; give it listening TCP sockets (ListenStream=ADDR:PORT)"
        ))
    };
    let mut given = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..given.len() {
        let taken = given.take_tcp_listener(index).map_err(|e| wrong(index, &e))?;
        let Some(listener) = taken else { continue };
        if !socket_acceptconn(&listener).map_err(|e| wrong(index, &e))? {
            return Err(wrong(index, &"it does not listen"));
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn manager(name: &str, watchdog: Option<Duration>) -> Manager {
        let socket = connect(OsStr::new(name)).expect("a socket");
        Manager { socket: Some(Arc::new(socket)), watchdog }
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut text = [0; 512];
        let len = socket.recv(&mut text).expect("received");
        String::from_utf8(text[..len].to_vec()).expect("UTF-8")
    }

    fn bound(name: &str) -> UnixDatagram {
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        socket
    }

    #[test]
    fn each_state_is_one_message() {
        let name = format!("longhaul-service-{}", std::process::id());
        let socket = bound(&name);
        let manager = manager(&format!("@{name}"), None);
        manager.ready("Serving\nx");
        assert_eq!(received(&socket), "READY=1\nSTATUS=Serving x");
        let before = clock_gettime(ClockId::Monotonic);
        manager.reloading();
        let text = received(&socket);
        let micros = text.lines().nth(1).and_then(|line| line.strip_prefix("MONOTONIC_USEC="));
        let micros: i64 = micros.expect("a time").parse().expect("a number");
        assert!(text.starts_with("RELOADING=1\n"), "{text}");
        assert!(micros >= before.tv_sec * 1_000_000 + before.tv_nsec / 1000, "{text}");
        manager.stopping();
        assert!(received(&socket).starts_with("STOPPING=1\n"));
        assert!(manager.watch(Vec::new()).is_none(), "it has no watchdog");
    }

    #[test]
    fn the_watchdog_is_answered_while_threads_answer() {
        let name = format!("longhaul-watchdog-{}", std::process::id());
        let socket = bound(&name);
        let manager = manager(&format!("@{name}"), Some(Duration::from_millis(20)));
        let engine = longhaul_engine::Thread::start("watched", Default::default()).expect("started");
        let watchdog = manager.watch(vec![("watched".to_owned(), engine.handle())]);
        for _ in 0..3 {
            assert_eq!(received(&socket), "WATCHDOG=1");
        }
        // A thread that is stuck: what was sent before is received, and then nothing.
        let (go, stuck) = mpsc::channel::<()>();
        let is_stuck = engine.handle().spawn(move || async move { _ = stuck.recv() });
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        let began = Instant::now();
        while socket.recv(&mut [0; 64]).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "it is answered all the same");
        }
        drop(go);
        is_stuck.wait().expect("it went on");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        assert_eq!(received(&socket), "WATCHDOG=1");
        drop(watchdog);
    }
}
