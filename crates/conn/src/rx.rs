//! The receive loop.
//!
//! Invariants:
//! - staged bytes are consumed in order, before more is received;
//! - while payload is under way its memory is either in the message or with
//!   the driver, never in both.

use crate::channel::Incoming;
use crate::shared::{Driver, Shared};
use longhaul_engine::{RecvMsg, yield_now};
use longhaul_proto::transport::{Endpoint, Want};
use std::io;

/// Payload from which on the rest of it is received directly, with little
/// staging behind it: below, one large staged receive for many PDUs and a
/// copy out of the cache cost less than a system call for each.
const BULK: usize = 16 << 10;
/// Staging behind bulk: the next header or two, and hardly any data to copy.
const STAGING_AFTER_BULK: usize = 256;

/// Staging of a connection that has not received as much at once yet: most connections of a
/// target are idle, and a few commands fit.
const STAGING_FIRST: usize = 4 << 10;

/// Receives after which the other tasks of the thread have their turn, also if
/// there always is more to receive.
const TURN: u64 = 16;

/// Staging while nothing is looked at.
const LINGER_STAGING: usize = 4096;

/// Why the receive loop ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The peer closed the connection between two PDUs or within one.
    #[error("the peer closed the connection")]
    Eof,
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The protocol ended it; the queue's last event says why.
    #[error("the protocol ended the connection")]
    Protocol,
    /// This end wanted it.
    #[error("closed")]
    Local,
}

/// Receives until the connection ends, with a staging area of up to `staging`
/// bytes: it is small until a receive fills it. Then the transmit loop ends too.
pub async fn receive<D: Driver>(shared: &Shared<D::Queue>, driver: &D, staging: usize) -> Ended {
    let msg = Incoming::new(staging.min(STAGING_FIRST), &shared.stream);
    let mut loop_ = Receive { shared, driver, msg, most: staging, staged: 0, bulk: false };
    let ended = loop_.run().await;
    shared.end();
    ended
}

/// Takes what still comes until the peer closes its side, and forgets it: a
/// socket that is closed with unread input resets the connection, and the
/// last thing that was sent (a TermReq, say) may not arrive.
pub async fn linger<Q>(shared: &Shared<Q>) {
    let mut msg = RecvMsg::new(LINGER_STAGING);
    loop {
        let (result, back) = shared.stream.recv(msg).await;
        msg = back;
        if !matches!(result, Ok(1..)) {
            return;
        }
    }
}

struct Receive<'a, D: Driver> {
    shared: &'a Shared<D::Queue>,
    driver: &'a D,
    msg: Incoming,
    /// Size of the staging area once it was too small.
    most: usize,
    /// Staged bytes consumed so far.
    staged: usize,
    /// The last payload was bulk: expect the same.
    bulk: bool,
}

impl<D: Driver> Receive<'_, D> {
    async fn run(&mut self) -> Ended {
        loop {
            self.consume();
            if self.shared.queue.borrow().is_closed() {
                return Ended::Protocol;
            }
            if self.shared.is_ending() {
                return Ended::Local;
            }
            let want = match self.shared.held_back.get() {
                true => Want::Nothing,
                false => self.shared.queue.borrow().want(),
            };
            let received = match want {
                Want::Nothing => {
                    self.shared.resume.notified().await;
                    continue;
                }
                // Staged bytes that were not handled yet come first.
                _ if self.staged < self.msg.staged().len() => continue,
                Want::Bytes => self.receive_bytes().await,
                Want::Payload { slot, offset, len } => {
                    self.receive_payload(slot, offset as usize, len as usize).await
                }
            };
            match received {
                Ok(0) => return Ended::Eof,
                Ok(_) => {}
                // With TLS, what this end has shut down looks as if the peer had cut it.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && self.shared.is_ending() => {
                    return Ended::Local;
                }
                Err(e) => return Ended::Io(e),
            }
            if self.shared.progress.get().is_multiple_of(TURN) {
                // The driver handles received bytes before anything else runs.
                self.consume();
                yield_now().await;
            }
        }
    }

    /// Gives staged bytes to the queue, or to the payload that it wants, as far as it takes them,
    /// and lets the driver handle the resulting events.
    fn consume(&mut self) {
        loop {
            let rest = &self.msg.staged()[self.staged..];
            let taken = match self.shared.queue.borrow().want() {
                Want::Nothing => 0,
                _ if rest.is_empty() => 0,
                Want::Bytes => usize::MAX,
                Want::Payload { slot, offset, len } => {
                    let n = rest.len().min(len as usize);
                    self.bulk = len as usize >= BULK;
                    if let Some(mut memory) = self.driver.take_destination(slot) {
                        memory.copy_in(offset as usize, &rest[..n]);
                        self.driver.put_destination(slot, memory);
                    }
                    n
                }
            };
            let taken = match taken {
                0 => 0,
                usize::MAX => self.shared.queue.borrow_mut().handle(rest),
                n => {
                    self.shared.queue.borrow_mut().handle_payload(&rest[..n]);
                    n
                }
            };
            self.staged += taken;
            self.driver.events();
            if self.shared.queue.borrow().has_transmit() {
                self.shared.output.notify();
            }
            if taken == 0 {
                return;
            }
        }
    }

    async fn receive_bytes(&mut self) -> io::Result<usize> {
        let limit = if self.bulk { STAGING_AFTER_BULK } else { usize::MAX };
        self.bulk = false;
        self.receive_into(limit).await
    }

    async fn receive_payload(&mut self, slot: u16, offset: usize, len: usize) -> io::Result<usize> {
        let Some(memory) = self.driver.take_destination(slot) else {
            // The command was aborted; its data is received and discarded.
            let n = self.receive_into(len).await?;
            return Ok(n);
        };
        self.bulk = len >= BULK;
        self.msg.set_direct(memory, offset, len);
        let limit = if self.bulk { STAGING_AFTER_BULK } else { usize::MAX };
        let result = self.receive_into(limit).await;
        if let Some((memory, placed)) = self.msg.take_direct() {
            if placed > 0 {
                let mut queue = self.shared.queue.borrow_mut();
                let bytes = if queue.params().data_digest { memory.bytes() } else { None };
                match bytes {
                    Some(bytes) => queue.handle_payload(&bytes[offset..offset + placed]),
                    None => queue.handle_payload_len(placed),
                }
            }
            self.driver.put_destination(slot, memory);
        }
        result
    }

    async fn receive_into(&mut self, limit: usize) -> io::Result<usize> {
        let msg = &mut self.msg;
        // Everything staged is consumed: a full staging area can be exchanged.
        if msg.staged().len() == msg.staging_len() && msg.staging_len() < self.most {
            msg.resize_staging(self.most);
        }
        msg.set_staging_limit(limit);
        let result = msg.receive(&self.shared.stream).await;
        self.staged = 0;
        self.shared.progress.set(self.shared.progress.get() + 1);
        let received = *result.as_ref().unwrap_or(&0) as u64;
        self.shared.received.set(self.shared.received.get() + received);
        result
    }
}
