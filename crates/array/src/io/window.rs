//! A limit on bytes in flight from all members together.
//!
//! Members answer as fast as each of them can. If the sum exceeds what the link of this host or a
//! switch in front of it carries, packets are dropped and retransmitted: the more members, the
//! lower the throughput. So the bytes in flight from all members are limited to what fills their
//! paths, as the members measure it; further reads wait here, not in the network.
//!
//! Invariants:
//! - `used` exceeds `limit` only by a single larger read, and is the sum of the permits that are
//!   held;
//! - users come first, but when `ahead` has counted [`USERS_AHEAD`] of their grants a waiting background read has its
//!   turn;
//! - a permit is taken before a stripe lock, never while holding one, which could deadlock.

use crate::core::Core;
use futures_channel::oneshot;
use longhaul_engine::now;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Grants to users while background reads wait.
const USERS_AHEAD: u32 = 8;
/// Time after a read for which users count as active.
const AT_WORK: Duration = Duration::from_millis(200);

/// Origin of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOrigin {
    User,
    /// Rebuild and scrub: half of the window, while users are active.
    Background,
}

#[derive(Default)]
pub(crate) struct ReadWindow {
    state: RefCell<WindowState>,
}

#[derive(Default)]
struct WindowState {
    limit: u64,
    used: u64,
    users: VecDeque<WaitingRead>,
    background: VecDeque<WaitingRead>,
    /// Grants to users while background reads were waiting.
    ahead: u32,
    last_user: Option<Instant>,
}

struct WaitingRead {
    bytes: u64,
    grant: oneshot::Sender<ReadPermit>,
}

/// Bytes in flight, returned on drop.
pub(crate) struct ReadPermit {
    window: Rc<ReadWindow>,
    bytes: u64,
}

impl WindowState {
    fn fits(&self, bytes: u64, reader: ReadOrigin) -> bool {
        let at_work = self.last_user.is_some_and(|last| now() - last < AT_WORK);
        let limit = if reader == ReadOrigin::Background && at_work { self.limit / 2 } else { self.limit };
        self.used == 0 || self.used + bytes <= limit
    }

    /// Whether a new read may pass. Users that never fill the window have no queue, and take their
    /// turns all the same.
    fn is_first(&self, reader: ReadOrigin) -> bool {
        let turn = reader == ReadOrigin::User && self.ahead < USERS_AHEAD;
        self.users.is_empty() && (turn || self.background.is_empty())
    }

    fn grant(&mut self, bytes: u64, reader: ReadOrigin) {
        self.ahead =
            if reader == ReadOrigin::User && !self.background.is_empty() { self.ahead + 1 } else { 0 };
        self.used += bytes;
    }

    /// The next waiting read, if it fits.
    fn next(&mut self) -> Option<WaitingRead> {
        let turn = self.users.is_empty() || self.ahead >= USERS_AHEAD;
        let reader =
            if turn && !self.background.is_empty() { ReadOrigin::Background } else { ReadOrigin::User };
        let queue = if reader == ReadOrigin::User { &self.users } else { &self.background };
        if !self.fits(queue.front()?.bytes, reader) {
            return None;
        }
        let next =
            if reader == ReadOrigin::User { &mut self.users } else { &mut self.background }.pop_front()?;
        self.grant(next.bytes, reader);
        Some(next)
    }
}

impl ReadWindow {
    /// Takes `bytes` of a window that has `limit` bytes now.
    pub(crate) async fn take(self: &Rc<Self>, bytes: u64, limit: u64, reader: ReadOrigin) -> ReadPermit {
        let granted = {
            let mut state = self.state.borrow_mut();
            state.limit = limit;
            if reader == ReadOrigin::User {
                state.last_user = Some(now());
            }
            if state.is_first(reader) && state.fits(bytes, reader) {
                state.grant(bytes, reader);
                return ReadPermit { window: Rc::clone(self), bytes };
            }
            let (grant, granted) = oneshot::channel();
            let waiting = WaitingRead { bytes, grant };
            match reader {
                ReadOrigin::User => state.users.push_back(waiting),
                ReadOrigin::Background => state.background.push_back(waiting),
            }
            granted
        };
        match granted.await {
            Ok(room) => room,
            Err(_) => unreachable!("a waiter is granted a permit, or is dropped"),
        }
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let mut grants = Vec::new();
        {
            let mut state = self.window.state.borrow_mut();
            assert!(self.bytes <= state.used, "a permit returns more bytes than are in flight");
            state.used -= self.bytes;
            while let Some(next) = state.next() {
                grants.push(next);
            }
        }
        // If the waiter was dropped, so is the permit here, which passes on.
        for WaitingRead { bytes, grant } in grants {
            drop(grant.send(ReadPermit { window: Rc::clone(&self.window), bytes }));
        }
    }
}

impl Core {
    /// Bytes of reads to have in flight from all members together; `None` if a member has no
    /// advice. A quarter more than fills their paths, since these are not loaded evenly at every
    /// moment.
    fn read_limit(&self) -> Option<u64> {
        let advice = self.members.usable().map(|member| member.advice());
        let reads: Vec<u64> = advice.collect::<Option<Vec<_>>>()?.iter().map(|one| one.read).collect();
        Some(reads.iter().fold(0u64, |sum, read| sum.saturating_add(*read)).saturating_mul(5) / 4)
    }

    /// Waits until this many bytes may be read from members.
    pub(crate) async fn room(&self, bytes: u64, reader: ReadOrigin) -> Option<ReadPermit> {
        Some(self.io.window.take(bytes, self.read_limit()?, reader).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;
    use futures_util::future::poll_immediate;
    use std::pin::pin;

    #[test]
    fn users_come_first_and_background_reads_do_not_starve() {
        run(async {
            let window = Rc::new(ReadWindow::default());
            let mut held = window.take(100, 100, ReadOrigin::User).await;
            let mut rebuild = Box::pin(window.take(40, 100, ReadOrigin::Background));
            assert!(poll_immediate(&mut rebuild).await.is_none());
            for round in 0.. {
                let mut user = Box::pin(window.take(100, 100, ReadOrigin::User));
                assert!(poll_immediate(&mut user).await.is_none());
                drop(held);
                if let Some(room) = poll_immediate(&mut rebuild).await {
                    assert_eq!(round, USERS_AHEAD);
                    assert!(poll_immediate(&mut user).await.is_none(), "it is full again");
                    drop(room);
                    held = user.await;
                    break;
                }
                held = user.await;
            }
            drop(held);
            assert_eq!(window.state.borrow().used, 0);
        });
    }

    /// Users that keep more than half of a window in use, but never all of it, do not starve
    /// background reads.
    #[test]
    fn background_reads_have_their_turn_among_users_that_fit() {
        run(async {
            let window = Rc::new(ReadWindow::default());
            let mut held: VecDeque<ReadPermit> = VecDeque::new();
            for _ in 0..3 {
                held.push_back(window.take(20, 100, ReadOrigin::User).await);
            }
            let mut rebuild = Box::pin(window.take(50, 100, ReadOrigin::Background));
            assert!(poll_immediate(&mut rebuild).await.is_none(), "most of it is taken by users");
            for round in 0..USERS_AHEAD {
                let user = window.take(20, 100, ReadOrigin::User);
                held.push_back(poll_immediate(pin!(user)).await.expect("there is room"));
                drop(held.pop_front());
                assert!(poll_immediate(&mut rebuild).await.is_none(), "{round}");
            }
            let mut user = Box::pin(window.take(20, 100, ReadOrigin::User));
            assert!(poll_immediate(&mut user).await.is_none(), "it is not its turn");
            held.clear();
            drop(poll_immediate(&mut rebuild).await.expect("it is its turn"));
            drop(poll_immediate(&mut user).await.expect("and then the user's"));
            assert_eq!(window.state.borrow().used, 0);
        });
    }

    #[test]
    fn a_window_is_exceeded_only_by_a_single_read() {
        run(async {
            let window = Rc::new(ReadWindow::default());
            let big = window.take(500, 100, ReadOrigin::User).await;
            let mut rest: Vec<_> = (0..3).map(|_| Box::pin(window.take(60, 100, ReadOrigin::User))).collect();
            for waiting in &mut rest {
                assert!(poll_immediate(waiting).await.is_none());
            }
            // A waiter that is dropped does not block the others.
            drop(rest.remove(0));
            drop(big);
            let first = rest.remove(0).await;
            assert_eq!(window.state.borrow().used, 60);
            assert!(poll_immediate(&mut rest[0]).await.is_none());
            drop(first);
            drop(rest.remove(0).await);
            assert_eq!(window.state.borrow().used, 0);
        });
    }
}
