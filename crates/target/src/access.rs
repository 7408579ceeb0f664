//! Which hosts may connect to which subsystem, and which of them may write: settings that change while the
//! target runs.

use crate::subsystem::lock;
use longhaul_proto::controller::HostAccess;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// What hosts may do with a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRights {
    /// Hosts that may connect and read.
    pub read: HostAccess,
    /// Those of them that may also write, and reserve namespaces.
    pub write: HostAccess,
}

impl HostRights {
    /// Whether the host may connect.
    pub fn may_read(&self, hostnqn: &str) -> bool {
        self.read.allows(hostnqn)
    }

    /// Whether the host may connect and write.
    pub fn may_write(&self, hostnqn: &str) -> bool {
        self.read.allows(hostnqn) && self.write.allows(hostnqn)
    }
}

/// These hosts may read and write, and no others.
impl From<HostAccess> for HostRights {
    fn from(hosts: HostAccess) -> HostRights {
        HostRights { read: hosts.clone(), write: hosts }
    }
}

/// The rights of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLists {
    /// To subsystems that have no list of their own.
    pub all: HostRights,
    /// To these subsystems, by NQN, in place of [`all`](Self::all).
    pub of: BTreeMap<String, HostRights>,
}

impl HostLists {
    /// What hosts may do with the subsystem of this NQN.
    pub fn of(&self, nqn: &str) -> &HostRights {
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
    pub(crate) fn new(lists: HostLists) -> Access {
        Access { lists: RwLock::new(lists), order: Mutex::default() }
    }

    pub(crate) fn of(&self, nqn: &str) -> HostRights {
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
