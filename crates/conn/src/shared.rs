//! What the two tasks of a connection and its driver share.

use crate::channel::Channel;
use longhaul_engine::sync::Notify;
use longhaul_engine::{Memory, Segment};
use longhaul_proto::transport::Endpoint;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The side that knows the commands and owns their memory.
pub trait Driver {
    /// The protocol state machine of this end.
    type Queue: Endpoint;

    /// Takes out the destination memory of `slot`'s payload. It is given back before anything else
    /// is done.
    fn take_destination(&self, slot: u16) -> Option<Memory>;

    /// Gives it back.
    fn put_destination(&self, slot: u16, memory: Memory);

    /// The memory that payload of `slot` comes from.
    fn source(&self, slot: u16, offset: usize, len: usize) -> Segment;

    /// CRC32C of a part of it (asked for only where data digests are in use).
    fn digest(&self, slot: u16, offset: usize, len: usize) -> u32;

    /// The memory of `slot` is not needed for sending any more.
    fn release(&self, slot: u16);

    /// Handles the events that input has brought.
    fn events(&self);
}

/// Round trip from which on sending is paced: a metropolitan one.
const FAR: Duration = Duration::from_millis(1);

/// What a far peer may send at once when it begins.
const WINDOW: u32 = 4 << 20;

/// A burst of a whole window overflows any queue on the way that is smaller
/// than the window: 1 MiB sent at once, and the queue of a router often is a
/// tenth of that. Near by windows are small, and a timer costs more than it
/// brings.
fn prepare_if_far(channel: &Channel) {
    let Ok(stream) = channel.tcp() else { return };
    let rtt = stream.info().ok().and_then(|info| info.min_rtt);
    if rtt.is_some_and(|rtt| rtt >= FAR) {
        // What cannot be paced, or begins slowly, is sent all the same.
        let _ = stream.pace();
        let _ = stream.open_window(WINDOW);
    }
}

/// A queue and what it runs on.
#[derive(Debug)]
pub struct Shared<Q> {
    /// The state machine. Never borrowed across an await.
    pub queue: RefCell<Q>,
    /// What the connection runs on.
    pub stream: Channel,
    /// Something may be ready to be sent.
    pub output: Notify,
    /// Signalled when input that was held back may be handled.
    pub resume: Notify,
    /// Receives and sends that were done: shows a peer that has stalled.
    pub progress: Cell<u64>,
    /// Bytes received from the peer so far.
    pub received: Cell<u64>,
    /// A send is under way.
    pub sending: Cell<bool>,
    /// Nothing is received until this is over and [`resume`](Self::resume) says so.
    pub held_back: Cell<bool>,
    /// The receive task has ended: send what there is and end too.
    pub(crate) ending: Cell<bool>,
}

impl<Q> Shared<Q> {
    /// Joins a state machine and what it runs on.
    pub fn new(queue: Q, stream: impl Into<Channel>) -> Shared<Q> {
        let stream = stream.into();
        prepare_if_far(&stream);
        Shared {
            queue: RefCell::new(queue),
            stream,
            output: Notify::new(),
            resume: Notify::new(),
            progress: Cell::new(0),
            received: Cell::new(0),
            sending: Cell::new(false),
            held_back: Cell::new(false),
            ending: Cell::new(false),
        }
    }

    /// Ends the connection once everything queued is sent.
    pub fn end(&self) {
        self.ending.set(true);
        self.output.notify();
        self.resume.notify();
    }

    /// Whether [`end`](Self::end) was called.
    pub fn is_ending(&self) -> bool {
        self.ending.get()
    }
}
