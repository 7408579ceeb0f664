//! A relay with switches: what a link does at its worst, on loopback.

use super::LISTEN;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the target.
    Forward,
    /// To the host.
    Back,
}

/// Changes bytes of the numbered connection on their way.
pub type Tamper = Box<dyn FnMut(usize, Way, &mut [u8]) + Send>;

struct State {
    target: SocketAddr,
    /// Ways on which nothing gets through, though connections live.
    held: [bool; 2],
    /// New connections are closed at once.
    refusing: bool,
    /// Connections beyond so many at a time are closed at once.
    limit: usize,
    accepted: usize,
    /// So many connections to come are closed at once.
    to_turn_away: usize,
    open: usize,
    live: Vec<TcpStream>,
    tamper: Option<Tamper>,
}

impl State {
    fn takes_another(&self) -> bool {
        !self.refusing && self.open < self.limit
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }
}

/// See the module.
pub struct Relay {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Relay {
    /// Leads to `target`.
    pub fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind(LISTEN).expect("bound");
        let addr = listener.local_addr().expect("address");
        let state = State {
            target,
            held: [false; 2],
            refusing: false,
            limit: usize::MAX,
            accepted: 0,
            to_turn_away: 0,
            open: 0,
            live: Vec::new(),
            tamper: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let relay = Relay { addr, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for near in listener.incoming() {
                serve(&shared, near.expect("accepted"));
            }
        });
        relay
    }

    /// `uri`, but through the relay.
    pub fn uri(&self, uri: &str) -> String {
        let target = self.shared.lock().target.to_string();
        uri.replace(&target, &self.addr.to_string())
    }

    /// New connections lead to another place.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.lock().target = target;
    }

    /// Cuts every connection, and lets no new one through.
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.refusing = true;
        for stream in state.live.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Lets new connections through.
    pub fn restore(&self) {
        self.shared.lock().refusing = false;
    }

    /// Cuts every connection; new ones get through.
    pub fn flap(&self) {
        self.cut();
        self.restore();
    }

    /// Swallows everything on these ways, without a word.
    pub fn hold(&self, forward: bool, back: bool) {
        self.shared.lock().held = [forward, back];
        self.shared.changed.notify_all();
    }

    /// Lets so many connections through at a time: a new one takes the place of one that has ended.
    pub fn limit(&self, n: usize) {
        self.shared.lock().limit = n;
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }

    /// Cuts every connection, and closes so many new ones at once.
    pub fn turn_away(&self, n: usize) {
        self.shared.lock().to_turn_away = n;
        self.flap();
    }

    /// Changes bytes on their way from now on.
    pub fn tamper(&self, tamper: Option<Tamper>) {
        self.shared.lock().tamper = tamper;
    }
}

/// A connection that gets through, until both of its ways have ended.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
    }
}

fn serve(shared: &Arc<Shared>, near: TcpStream) {
    let target = {
        let mut state = shared.lock();
        if !state.takes_another() {
            return;
        }
        if state.to_turn_away > 0 {
            state.to_turn_away -= 1;
            return;
        }
        state.target
    };
    let Ok(far) = TcpStream::connect(target) else { return };
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("set");
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("cloned");
    // Judged and listed at once: a cut that comes between would miss it.
    let (open, number) = {
        let mut state = shared.lock();
        if !state.takes_another() {
            return;
        }
        state.accepted += 1;
        state.open += 1;
        state.live.extend([clone(&near), clone(&far)]);
        (Arc::new(Open(Arc::clone(shared))), state.accepted)
    };
    for (way, from, to) in [(Way::Forward, clone(&near), clone(&far)), (Way::Back, far, near)] {
        let open = Arc::clone(&open);
        thread::spawn(move || {
            pass(&open.0, number, way, &from, &to);
            for stream in [from, to] {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }
}

fn pass(shared: &Shared, number: usize, way: Way, mut from: &TcpStream, mut to: &TcpStream) {
    let mut bytes = vec![0; 1 << 18];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let mut state = shared.lock();
        while state.held[way as usize] && !state.refusing {
            state = shared.changed.wait(state).expect("no panic");
        }
        if let Some(tamper) = &mut state.tamper {
            tamper(number, way, &mut bytes[..n]);
        }
        drop(state);
        if to.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}
