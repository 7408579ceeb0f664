//! Which hosts may connect to which subsystem: a setting that changes while the target runs.

use crate::config::Config;
use crate::subsystem::lock;
use longhaul_proto::controller::HostAccess;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Hosts that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLists {
    /// To subsystems that have no list of their own.
    pub all: HostAccess,
    /// To these subsystems, by NQN, in place of [`all`](Self::all).
    pub of: BTreeMap<String, HostAccess>,
}

impl HostLists {
    /// Which hosts may connect to the subsystem of this NQN.
    pub fn of(&self, nqn: &str) -> &HostAccess {
        self.of.get(nqn).unwrap_or(&self.all)
    }
}

/// The lists in force.
#[derive(Debug)]
pub(crate) struct Access {
    lists: RwLock<HostLists>,
    /// Held while exports, spaces or lists are changed: one change at a time.
    order: Mutex<()>,
}

impl Access {
    /// Those that a target starts with.
    pub(crate) fn new(config: &Config) -> Access {
        let lists = HostLists { all: config.hosts.clone(), of: config.hosts_of.clone() };
        Access { lists: RwLock::new(lists), order: Mutex::default() }
    }

    pub(crate) fn of(&self, nqn: &str) -> HostAccess {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).of(nqn).clone()
    }

    pub(crate) fn lists(&self) -> HostLists {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, lists: HostLists) {
        *self.lists.write().unwrap_or_else(PoisonError::into_inner) = lists;
    }

    pub(crate) fn order(&self) -> MutexGuard<'_, ()> {
        lock(&self.order)
    }
}
