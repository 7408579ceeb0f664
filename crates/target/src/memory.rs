//! The memory of a target: one bound, four parts, shared fairly by hosts.

use crate::ledger::{Ledger, Peer};
use crate::share::{MemoryPart, Share, Turns};
use longhaul_engine::{BUF_MAX, Registrar};
use std::rc::Rc;
use std::sync::Arc;

/// Share of the bound kept back for everything that is not I/O data: tables
/// of commands and queues, staging areas, code.
const OVERHEAD_SHARE: usize = 4;

/// Part of the bound for replies of admin queues, and its limits in bytes: a
/// thousand Identify at least, and no more than many thousands.
const REPLIES_SHARE: usize = 16;
const REPLIES_MIN: usize = 1 << 20;
const REPLIES_MAX: usize = 16 << 20;

/// A reply up to this length in bytes has memory from the part for replies;
/// longer ones (a log page read far beyond its end) wait for that of reads.
pub(crate) const REPLY_MAX: usize = 64 << 10;

/// Long commands (Write Zeroes, Verify, Deallocate) that are under way at a
/// time, of all hosts: enough to keep a device busy, and little enough that
/// reads and writes between their slices are hardly delayed.
const LONG_COMMANDS: usize = 8;

/// Buffers for the data of commands.
///
/// Data that is on its way in a capsule has a part of its own: a connection
/// whose next bytes wait for memory stops receiving, and must not wait for
/// memory that only later bytes of the same connection would set free (as
/// that of a write whose data was asked for by R2T). So have the replies of
/// admin queues: no I/O keeps a host from connecting. Connect takes no memory
/// of any part.
pub(crate) struct Memory {
    /// For in-capsule data.
    in_capsule: MemoryPart,
    /// For reads, and for writes by R2T.
    host: MemoryPart,
    /// For what Compare and Verify read: held only while the device reads,
    /// and by commands that may hold memory of the other parts.
    check: MemoryPart,
    /// For what admin commands send.
    replies: MemoryPart,
    /// Turns of long commands.
    long: Arc<Ledger>,
}

/// The shares of one connection in each part of the memory.
pub(crate) struct Shares {
    pub(crate) in_capsule: Rc<Share>,
    pub(crate) host: Rc<Share>,
    pub(crate) check: Rc<Share>,
    pub(crate) replies: Rc<Share>,
    pub(crate) long: Rc<Turns>,
}

impl Memory {
    /// Bytes handed out at this moment.
    pub(crate) fn used(&self) -> usize {
        let parts = [&self.in_capsule, &self.host, &self.check, &self.replies];
        parts.iter().map(|part| part.pool.used()).sum()
    }

    /// Divides `bound` bytes, which are registered with these.
    pub(crate) fn new(bound: usize, registrars: &[Arc<dyn Registrar>]) -> Memory {
        let replies = (bound / REPLIES_SHARE).clamp(REPLIES_MIN, REPLIES_MAX);
        let data = (bound - bound / OVERHEAD_SHARE - BUF_MAX - replies) / 2;
        // Each of these can meet any request.
        let data = data.max(BUF_MAX);
        Memory {
            in_capsule: MemoryPart::registered(data, registrars),
            host: MemoryPart::registered(data, registrars),
            check: MemoryPart::registered(BUF_MAX, registrars),
            replies: MemoryPart::registered(replies, registrars),
            long: Ledger::new(LONG_COMMANDS),
        }
    }

    /// The shares of one connection of a host.
    pub(crate) fn shares(&self, peer: &Peer) -> Shares {
        Shares {
            in_capsule: self.in_capsule.share(peer),
            host: self.host.share(peer),
            check: self.check.share(peer),
            replies: self.replies.share(peer),
            long: Turns::new(self.long.account(peer)),
        }
    }

    /// The smallest bound that makes sense: each part can meet any request.
    pub(crate) const MIN: usize = 4 * BUF_MAX;
}
