//! Metrics of a catalog server.

use crate::families::{
    CATALOG_BATCHES, CATALOG_CHANGES, CATALOG_CLIENTS, CATALOG_FAILED, CATALOG_READS, CATALOG_REFUSED,
    CATALOG_WATCHES,
};
use crate::page::Page;
use crate::server::Source;
use longhaul_catalog::server::ServerCounts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The metrics of a catalog server.
#[derive(Clone, Debug)]
pub struct CatalogSource(Arc<ServerCounts>);

impl CatalogSource {
    /// Those that are counted in `counts`.
    pub fn new(counts: Arc<ServerCounts>) -> CatalogSource {
        CatalogSource(counts)
    }
}

impl Source for CatalogSource {
    fn collect(&self, page: &mut Page) {
        let ServerCounts { clients, refused, watches, reads, changes, batches, failed } = &*self.0;
        for (family, counter) in [
            (CATALOG_CLIENTS, clients),
            (CATALOG_REFUSED, refused),
            (CATALOG_WATCHES, watches),
            (CATALOG_READS, reads),
            (CATALOG_CHANGES, changes),
            (CATALOG_BATCHES, batches),
            (CATALOG_FAILED, failed),
        ] {
            page.count(family, &[], counter.load(Ordering::Relaxed));
        }
    }
}
