//! Which host opened a volume last: for the message to the next one, which is refused. The right to
//! write is not decided here, but at the members.

use crate::error::Result;
use crate::keys;
use crate::name::check_name;
use crate::pool::{Pool, TRIES};
use crate::record::{decode, encode};
use crate::time::{format_time, wall_time};
use longhaul_catalog::{Expect, Txn};
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// The host that opened a volume last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUser {
    /// What its kernel calls it.
    pub host: String,
    /// Its host NQN.
    pub hostnqn: String,
    /// When it opened the volume, in seconds since 1970 by its clock.
    pub since: u64,
}

impl fmt::Display for VolumeUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} ({}) opened it on {}", self.host, self.hostnqn, format_time(self.since))
    }
}

impl Pool {
    /// Records that the host with this NQN has opened a volume. Nothing is recorded of a volume that is
    /// gone.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn record_user(&self, name: &str, hostnqn: &str) -> Result<()> {
        check_name("volume", name)?;
        let user =
            VolumeUser { host: self.host.name.clone(), hostnqn: hostnqn.to_owned(), since: wall_time() };
        for _ in 0..TRIES {
            let (volume, at) = self.find(name)?;
            let key = keys::volume(self.uuid(), name);
            let txn = Txn::new().expect(&key, Expect::Modified(at));
            let txn = txn.put(&keys::user(self.uuid(), volume.uuid), &encode(&user));
            if self.host.commit(&txn, || Ok(self.user_of(volume.uuid)?.as_ref() == Some(&user)))? {
                return Ok(());
            }
        }
        Err(crate::error::Error::Contended(self.record.name.clone()))
    }

    /// The host that opened a volume last; `None` if none has.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn user_of(&self, volume: Uuid) -> Result<Option<VolumeUser>> {
        let found = self.host.catalog.get(&keys::user(self.uuid(), volume))?;
        found.map(|entry| decode("the record of a volume's host", &entry.value)).transpose()
    }
}
