//! The memory of a target: one bound, three pools.

use longhaul_engine::{BUF_MAX, BufPool};

/// Share of the bound kept back for everything that is not I/O data: tables
/// of commands and queues, staging areas, code.
const OVERHEAD_SHARE: usize = 4;

/// Buffers for the data of commands.
///
/// Data that is on its way in a capsule has a pool of its own: a connection
/// whose next bytes wait for memory stops receiving, and must not wait for
/// memory that only later bytes of the same connection would set free (as
/// that of a write whose data was asked for by R2T).
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// For in-capsule data.
    pub(crate) in_capsule: BufPool,
    /// For reads, and for writes by R2T.
    pub(crate) host: BufPool,
    /// For what Compare and Verify read: held only while the device reads,
    /// and by commands that may hold memory of the other pools.
    pub(crate) check: BufPool,
}

impl Memory {
    /// Bytes handed out at this moment.
    pub(crate) fn used(&self) -> usize {
        self.in_capsule.used() + self.host.used() + self.check.used()
    }

    /// Divides `bound` bytes.
    pub(crate) fn new(bound: usize) -> Memory {
        let data = (bound - bound / OVERHEAD_SHARE - BUF_MAX) / 2;
        Memory { in_capsule: BufPool::new(data), host: BufPool::new(data), check: BufPool::new(BUF_MAX) }
    }

    /// The smallest bound that makes sense: each pool can meet any request.
    pub(crate) const MIN: usize = 4 * BUF_MAX;
}
