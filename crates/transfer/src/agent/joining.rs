//! Data connections that wait for their session, and sessions that wait for theirs.
//!
//! Invariants:
//! - a connection waits for [`GREETING`] at most, and keeps its pending slot until its
//!   session takes it;
//! - the connections of a session in `expected` are not evicted.

use super::GREETING;
use super::pending::PendingSlot;
use crate::link::Link;
use crate::session::error::SessionError;
use crate::wire::Hello;
use futures_util::future::{Either, select};
use longhaul_engine::sync::Notify;
use longhaul_engine::timeout;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Interval of checks for the connections of a session: all sessions wait on one
/// notification, so each polls as well.
const POLL: Duration = Duration::from_millis(20);

/// A random number that identifies a session.
type SessionId = [u8; 16];

/// A connection that waits for its session.
struct JoiningConnection {
    link: Link,
    slot: Rc<PendingSlot>,
    taken: Rc<Notify>,
}

/// The connections of an agent that wait for their sessions.
#[derive(Default)]
pub(super) struct JoiningConnections {
    waiting: RefCell<HashMap<SessionId, Vec<JoiningConnection>>>,
    joined: Notify,
    /// Sessions that wait for their connections.
    expected: RefCell<HashSet<SessionId>>,
}

/// A session that waits for its connections; they are not evicted meanwhile.
pub(super) struct ExpectedSession<'a>(&'a JoiningConnections, SessionId);

impl Drop for ExpectedSession<'_> {
    fn drop(&mut self) {
        self.0.expected.borrow_mut().remove(&self.1);
    }
}

impl JoiningConnections {
    /// Protects the connections of a session until the result is dropped.
    pub(super) fn expect(&self, session: SessionId) -> ExpectedSession<'_> {
        self.expected.borrow_mut().insert(session);
        for joining in self.waiting.borrow().get(&session).into_iter().flatten() {
            joining.slot.protect();
        }
        ExpectedSession(self, session)
    }

    /// Holds a connection until its session takes it, or its timeout; returns the
    /// connection if it was evicted.
    pub(super) async fn join(&self, session: SessionId, link: Link, slot: Rc<PendingSlot>) -> Option<Link> {
        if self.expected.borrow().contains(&session) {
            slot.protect();
        }
        let taken = Rc::new(Notify::new());
        let joining = JoiningConnection { link, slot: Rc::clone(&slot), taken: Rc::clone(&taken) };
        self.waiting.borrow_mut().entry(session).or_default().push(joining);
        self.joined.notify();
        let time = timeout(GREETING, taken.notified());
        let evicted = match select(pin!(time), pin!(slot.evicted())).await {
            Either::Left((Ok(()), _)) => return None,
            Either::Left((Err(_), _)) => false,
            Either::Right(_) => true,
        };
        let mut all = self.waiting.borrow_mut();
        let own = all.get_mut(&session).and_then(|waiting| {
            let at = waiting.iter().position(|joining| Rc::ptr_eq(&joining.taken, &taken))?;
            Some(waiting.swap_remove(at))
        });
        all.retain(|_, waiting| !waiting.is_empty());
        own.filter(|_| evicted).map(|own| own.link)
    }

    /// Waits for the remaining connections of a session, whose first one is `link`.
    ///
    /// # Errors
    /// They did not arrive within [`GREETING`], or more than announced arrived.
    pub(super) async fn gather(&self, hello: &Hello, link: Link) -> Result<Vec<Link>, SessionError> {
        let mut links = vec![link];
        let wanted = usize::from(hello.streams);
        let all = async {
            loop {
                for joining in self.waiting.borrow_mut().remove(&hello.session).unwrap_or_default() {
                    joining.taken.notify();
                    links.push(joining.link);
                }
                if links.len() >= wanted {
                    break;
                }
                let _ = timeout(POLL, self.joined.notified()).await;
            }
        };
        let arrived = timeout(GREETING, all).await;
        if arrived.is_err() || links.len() != wanted {
            return Err(SessionError::Lost);
        }
        Ok(links)
    }
}
