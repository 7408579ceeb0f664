//! One command from submission to completion, over as many connections as that takes.
//!
//! Invariants:
//! - a call completes once: later completions for it change nothing;
//! - the memory of a call is in one place at a time: with the call while it waits, with the queue
//!   that has sent it until that has ended, or with the caller.

use longhaul_block::IoError;
use longhaul_engine::Memory;
use longhaul_wire::command::{Sqe, io};
use longhaul_wire::completion::Cqe;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What a command leaves behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) cqe: Cqe,
    /// Bytes of a read that have come.
    pub(crate) received: u32,
    /// The memory that the command was given.
    pub(crate) memory: Option<Memory>,
}

pub(crate) type CallResult = Result<Done, IoError>;

/// Memory and purpose of a command's data.
pub(crate) enum Data {
    None,
    Write(Memory),
    Read(Memory),
}

impl Data {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Write(memory) | Data::Read(memory) => memory.len(),
        }
    }
}

/// What becomes of a command whose connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandFate {
    /// It fails with the connection: set-up, admin commands.
    Fails,
    /// It is given back, to be resent on the next one.
    IsKept,
}

/// See the module.
pub(crate) struct Call {
    pub(crate) sqe: Sqe,
    pub(crate) fate: CommandFate,
    /// Its place among the commands of its I/O queue.
    pub(crate) seq: u64,
    /// Bytes that were submitted before it.
    pub(crate) ahead: u64,
    /// The tick of the watch of its connection from which on nothing is ahead
    /// of it; 0: not yet.
    pub(crate) due: Cell<u32>,
    /// Abort was sent for it: it is late, or its caller dropped it.
    pub(crate) aborting: Cell<bool>,
    /// Its caller dropped it: it is not resent.
    pub(crate) unwanted: Cell<bool>,
    /// When a path last refused it, and for how long paths have done so.
    pub(crate) refused: Cell<Option<(Instant, Duration)>>,
    done: Cell<bool>,
    result: Cell<Option<CallResult>>,
    waker: Cell<Option<Waker>>,
}

impl Call {
    pub(crate) fn new(sqe: Sqe, fate: CommandFate, seq: u64, ahead: u64) -> Rc<Call> {
        Rc::new(Call {
            sqe,
            fate,
            seq,
            ahead,
            due: Cell::new(0),
            aborting: Cell::new(false),
            unwanted: Cell::new(false),
            refused: Cell::new(None),
            done: Cell::new(false),
            result: Cell::new(None),
            waker: Cell::new(None),
        })
    }

    pub(crate) fn finish(&self, result: CallResult) {
        if self.done.replace(true) {
            return;
        }
        self.result.set(Some(result));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether it may change the namespace, or promises that it is changed.
    pub(crate) fn changes(&self) -> bool {
        self.sqe.opcode != io::READ
    }
}

/// A command under way. Dropping this does not abort it.
pub(crate) struct Pending(pub(crate) Rc<Call>);

impl Future for Pending {
    type Output = CallResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        match self.0.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                self.0.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// A command that is not under way.
pub(crate) struct Waiting {
    pub(crate) call: Rc<Call>,
    pub(crate) data: Data,
}
