//! Metrics of an audit log.

use crate::families::{AUDIT_DROPPED, AUDIT_FAILURES, AUDIT_LINES};
use crate::page::Page;
use crate::server::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the writer of an audit log counts.
#[derive(Debug, Default)]
pub struct AuditCounts {
    /// Lines that were written.
    pub lines: AtomicU64,
    /// Events that were not: they found no room, or the file took no line.
    pub dropped: AtomicU64,
    /// Attempts to write, or to open the file, that failed.
    pub failures: AtomicU64,
}

impl AuditCounts {
    /// Adds to one of them.
    pub fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// The metrics of an audit log.
#[derive(Clone, Debug)]
pub struct AuditSource(Arc<AuditCounts>);

impl AuditSource {
    /// Those that are counted in `counts`.
    pub fn new(counts: Arc<AuditCounts>) -> AuditSource {
        AuditSource(counts)
    }
}

impl Source for AuditSource {
    fn collect(&self, page: &mut Page) {
        let AuditCounts { lines, dropped, failures } = &*self.0;
        for (family, counter) in [(AUDIT_LINES, lines), (AUDIT_DROPPED, dropped), (AUDIT_FAILURES, failures)]
        {
            page.count(family, &[], counter.load(Ordering::Relaxed));
        }
    }
}
