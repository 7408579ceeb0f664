//! Metrics of a process that uses targets: its paths, and the arrays that it runs.

use crate::arrays::Arrays;
use crate::page::Page;
use crate::paths::{PathTotals, Paths};
use crate::server::Source;
use longhaul_device::Opener;

/// The paths of devices that an opener or its clones have opened, and the arrays of this process.
#[derive(Clone, Debug)]
pub struct HostSource {
    opener: Opener,
    arrays: Arrays,
}

impl HostSource {
    /// What `opener` opens from now on and has opened, and all arrays of this process.
    pub fn new(opener: Opener) -> HostSource {
        HostSource { opener, arrays: Arrays::default() }
    }
}

impl Source for HostSource {
    fn collect(&self, page: &mut Page) {
        let mut paths = Paths::default();
        for (device, path) in self.opener.paths() {
            paths.add(&device, &path.address, PathTotals::of_status(&path));
        }
        self.arrays.collect(page, &mut paths);
        paths.collect(page);
    }
}
