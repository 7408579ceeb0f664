//! The sockets of a simulated network, as the engine wants them.

use super::tcp::{CONNECTS, End, Phase, RECEIVES, SENDS};
use super::{Event, Net, State};
use longhaul_engine::net::TcpInfo;
use longhaul_engine::now;
use longhaul_engine::simulated::{Listening, Wire};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A listening socket.
pub(super) struct Listener {
    pub(super) net: Net,
    pub(super) addr: SocketAddr,
}

impl Listening for Listener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Arc<dyn Wire>, SocketAddr)>> {
        let mut state = self.net.state();
        let State { listeners, ends, .. } = &mut *state;
        let Some(backlog) = listeners.get_mut(&self.addr) else { return Poll::Pending };
        while let Some(id) = backlog.waiting.pop_front() {
            if let Some(end) = ends.get(&id) {
                let peer = end.remote;
                let socket: Arc<dyn Wire> = Arc::new(Socket { net: self.net.clone(), id });
                return Poll::Ready(Ok((socket, peer)));
            }
        }
        backlog.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.net.state();
        let waiting = state.listeners.remove(&self.addr).map(|backlog| backlog.waiting);
        for id in waiting.into_iter().flatten() {
            state.close(id);
        }
    }
}

/// A connected socket.
pub(super) struct Socket {
    pub(super) net: Net,
    pub(super) id: u64,
}

/// What a host without power has left behind.
fn gone() -> io::Error {
    ErrorKind::NotConnected.into()
}

impl Socket {
    /// Does something with the end, and waits if it cannot be done yet.
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        side: usize,
        f: impl FnOnce(&mut State, u64) -> Option<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut state = self.net.state();
        let phase = state.ends.get(&self.id).map(|end| end.phase);
        match phase {
            None => return Poll::Ready(Err(gone())),
            Some(Phase::Failed(kind)) => return Poll::Ready(Err(kind.into())),
            Some(_) => {}
        }
        if let Some(result) = f(&mut state, self.id) {
            return Poll::Ready(result);
        }
        if let Some(end) = state.ends.get_mut(&self.id) {
            end.wakers[side] = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn with<T>(&self, f: impl FnOnce(&mut End) -> T) -> Option<T> {
        self.net.state().ends.get_mut(&self.id).map(f)
    }
}

impl Wire for Socket {
    fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, CONNECTS, |state, id| (state.ends.get(&id)?.phase == Phase::Open).then_some(Ok(())))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Vec<u8>>> {
        self.poll(cx, RECEIVES, |state, id| {
            let State { ends, random, .. } = state;
            let end = ends.get_mut(&id)?;
            let bytes = end.read(most, random)?;
            if end.opens_window() {
                let update = end.acknowledgement();
                state.send(id, vec![update]);
            }
            Some(Ok(bytes))
        })
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, SENDS, |state, id| {
            let State { ends, random, .. } = state;
            let end = ends.get_mut(&id)?;
            if end.writes_ended() {
                return Some(Err(ErrorKind::BrokenPipe.into()));
            }
            let taken = end.write(bytes);
            if taken == 0 {
                return None;
            }
            let packets = end.transmit(random);
            state.send(id, packets);
            Some(Ok(taken))
        })
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let mut state = self.net.state();
        let State { ends, random, .. } = &mut *state;
        let end = ends.get_mut(&self.id).ok_or_else(gone)?;
        if how != Shutdown::Write {
            end.end_reads();
        }
        if how != Shutdown::Read {
            end.end_writes();
            end.wake(SENDS);
            let packets = end.transmit(random);
            state.send(self.id, packets);
        }
        Ok(())
    }

    fn abandon(&self) {
        self.with(|end| end.abandoned = true);
        let _ = self.shutdown(Shutdown::Both);
    }

    fn keep_alive(&self, interval: Duration, count: u32) {
        let first = self.with(|end| end.keep_alive.replace((interval, count)).is_none());
        if first == Some(true) {
            self.net.state().plan(now() + interval, Event::KeepAlive { end: self.id });
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.with(|end| end.local).unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn peer_addr(&self) -> SocketAddr {
        self.with(|end| end.remote).unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn info(&self) -> TcpInfo {
        self.with(|end| end.info()).unwrap_or_default()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.net.state().close(self.id);
    }
}
