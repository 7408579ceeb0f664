//! The right to carry out an intent: a key under a lease, which a thread keeps.

use crate::error::Result;
use longhaul_catalog::{Catalog, Error, LeaseId};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The lease is kept this many times while it lasts: one of these may be late.
const KEPT: u32 = 3;

/// A lease that is kept until this is dropped. Only [`release`](Self::release) ends it at once: what
/// a host leaves behind when it is lost is held until the lease runs out.
pub(crate) struct Claim {
    catalog: Arc<dyn Catalog>,
    lease: LeaseId,
    _end: Sender<()>,
}

impl Claim {
    pub(crate) fn new(catalog: &Arc<dyn Catalog>, ttl: Duration) -> Result<Claim> {
        let lease = catalog.grant(ttl)?;
        let (end, ended) = channel();
        let keeper = Arc::clone(catalog);
        std::thread::spawn(move || {
            while ended.recv_timeout(ttl / KEPT) == Err(RecvTimeoutError::Timeout) {
                match keeper.keep(lease) {
                    Ok(_) => {}
                    Err(Error::LeaseExpired(_)) => return,
                    // The next time may be in time yet.
                    Err(e) => tracing::warn!("lease {lease} is not kept: {e}"),
                }
            }
        });
        Ok(Claim { catalog: Arc::clone(catalog), lease, _end: end })
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Ends the lease, and with it the keys under it.
    pub(crate) fn release(self) {
        if let Err(e) = self.catalog.revoke(self.lease) {
            tracing::debug!("lease {} is left to run out: {e}", self.lease);
        }
    }
}
