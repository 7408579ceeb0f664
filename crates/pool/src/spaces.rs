//! What a pool asks of targets.

use crate::label::Label;
use crate::record::VolumeRecord;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A space of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its identity, which it keeps at another address, such as the NQN of its subsystem.
    pub id: String,
    /// All bytes of it.
    pub capacity: u64,
    /// Bytes that namespaces can still be made of.
    pub free: u64,
    /// It is one namespace, which is used as a whole: for one member, which may grow by what is free.
    pub is_whole: bool,
}

/// An address as messages have it: of `HOST:PORT/NQN` the name that ends the NQN.
pub fn shown(address: &str) -> String {
    match address.split_once("/nqn.") {
        Some((machine, nqn)) => format!("{machine}/{}", nqn.rsplit(':').next().unwrap_or(nqn)),
        None => address.to_owned(),
    }
}

/// The host of an address `HOST:PORT/NQN`.
pub fn machine(address: &str) -> &str {
    let host = address.split('/').next().unwrap_or_default();
    host.rsplit_once(':').map_or(host, |(host, _)| host)
}

/// Which namespace of a space is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceId {
    /// Its number there, by which hosts reach it; used again some time after it was removed.
    pub nsid: u32,
    /// Its identity, which is never used again.
    pub uuid: Uuid,
}

/// A namespace of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number and identity.
    pub id: NamespaceId,
    /// Size in bytes.
    pub size: u64,
    /// What it is a part of; none for one that no pool made, and the reason for one that cannot be
    /// read.
    pub label: Option<Result<Label, String>>,
}

/// Why a target did not do as asked. After any of these but [`Full`](Self::Full) and
/// [`Refused`](Self::Refused) it may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// There is no room.
    #[error("{0}")]
    Full(String),
    /// This host may not do that there.
    #[error("{0}")]
    Refused(String),
    /// It cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// What a target has done, or why it did not.
pub(crate) type SpaceResult<T> = Result<T, SpaceError>;

/// Whether the array of a volume has a member at the place that it moves to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has, and keeps it.
    Yes,
    /// It has not, and no host uses it.
    No,
    /// A host uses it, or did so when it crashed: it may change at any time.
    InUse,
}

/// Makes and removes namespaces at targets, and arrays over them. Each change is durable when the call
/// returns.
pub trait Spaces: Send + Sync {
    /// The space at an address.
    ///
    /// # Errors
    /// It cannot be reached, or does not let this host manage it.
    fn space(&self, address: &str) -> Result<Space, SpaceError>;

    /// All its namespaces, with their labels.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError>;

    /// The label of a namespace; `None` if the namespace does not exist, or has none that can be read.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn label(&self, address: &str, namespace: NamespaceId) -> Result<Option<Label>, SpaceError> {
        let found = self.list(address)?.into_iter().find(|found| found.id == namespace);
        Ok(found.and_then(|found| found.label?.ok()))
    }

    /// Makes a namespace that reads as zeroes, for the hosts of its label. Its label is written with it,
    /// in one step.
    ///
    /// # Errors
    /// [`SpaceError::Full`], or as for [`Self::space`].
    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError>;

    /// Removes a namespace. One that does not exist is not an error.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError>;

    /// Makes a namespace larger: it has `size` bytes then, or more if it had. What is added reads as
    /// zeroes.
    ///
    /// # Errors
    /// [`SpaceError::Full`], or as for [`Self::space`]; it does not exist any more; or namespaces do not
    /// grow there, as is so unless a space says otherwise.
    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
        let _ = (address, size);
        Err(SpaceError::Refused(format!("namespace {} does not grow", namespace.uuid)))
    }

    /// Puts another label in place of that of a namespace, whose hosts are those that may use it then.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError>;

    /// Makes the array of a volume, whose members are at these addresses, and returns its UUID.
    ///
    /// # Errors
    /// A member cannot be reached, or written.
    fn format(&self, volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError>;

    /// Whether namespaces of a target can be cloned: it tries that, and makes nothing.
    ///
    /// # Errors
    /// [`SpaceError::Refused`] if they cannot, as is so unless a space says otherwise; or as for
    /// [`Self::space`].
    fn check_clones(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        let _ = address;
        Err(SpaceError::Refused(format!("namespace {} is not cloned", namespace.uuid)))
    }

    /// Makes a namespace with the content that another one has at one moment, for the hosts of its label,
    /// which is written with it in one step. It takes capacity as one of the two is written to.
    ///
    /// # Errors
    /// As for [`Self::check_clones`]; or the other one does not exist any more.
    fn clone_of(&self, address: &str, source: NamespaceId, label: &Label) -> Result<NamespaceId, SpaceError> {
        let _ = label;
        self.check_clones(address, source)?;
        Err(SpaceError::Refused(format!("namespace {} is not cloned", source.uuid)))
    }

    /// Makes the array of a volume of `members`, which are clones of the members of array `of`, and returns
    /// its UUID. The namespaces have the labels of the volume then.
    ///
    /// # Errors
    /// A member cannot be reached, or written, or is no such clone.
    fn adopt(
        &self,
        volume: &VolumeRecord,
        of: Uuid,
        members: &[(String, NamespaceId, Label)],
    ) -> Result<Uuid, SpaceError> {
        let _ = (of, members);
        Err(SpaceError::Refused(format!("clones for volume {} are not adopted", volume.name)))
    }

    /// The array whose superblock is on a namespace.
    ///
    /// # Errors
    /// The namespace cannot be read.
    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError>;

    /// What shows that a host uses the namespaces of a volume at this moment: a heartbeat of its array that
    /// moves, or the reservation of a host that runs no array. It takes the time for which a takeover
    /// watches heartbeats, unless the array was stopped. Spaces that know no hosts see none.
    ///
    /// # Errors
    /// None of the namespaces can be read.
    fn in_use(&self, members: &[(String, NamespaceId)]) -> Result<Option<String>, SpaceError> {
        let _ = members;
        Ok(None)
    }

    /// Takes the namespaces of a volume from the host that uses them, by preempting its reservations: what
    /// it writes from then on is refused. They are used by no host then.
    ///
    /// # Errors
    /// They cannot be reached, or do not refuse the writes of other hosts.
    fn evict(&self, members: &[(String, NamespaceId)]) -> Result<(), SpaceError> {
        let _ = members;
        Ok(())
    }

    /// NQN by which this host manages the targets; empty where hosts have none.
    fn hostnqn(&self) -> String {
        String::new()
    }

    /// Whether the array on the namespaces `members` has a member on `place`, which is one of them.
    ///
    /// # Errors
    /// None of them can be read, or arrays cannot be asked, as is so unless a space says otherwise.
    fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> Result<Taken, SpaceError> {
        let (_, (address, _)) = (members, place);
        Err(SpaceError::Refused(format!("the array at {} is not asked from here", shown(address))))
    }

    /// Round trip of the path to a target that was asked for its [space](Self::space), if it was measured.
    fn round_trip(&self, address: &str) -> Option<std::time::Duration> {
        let _ = address;
        None
    }

    /// The identity of a new pool, volume or intent. Random; a simulation has its own.
    fn new_uuid(&self) -> Uuid {
        Uuid::new_v4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_short() {
        for (address, short, host) in [
            ("dtn1:4420/nqn.2026-11.io.longhaul:ab12:fast", "dtn1:4420/fast", "dtn1"),
            ("[::1]:4499/nqn.2014-08.org.example.x", "[::1]:4499/2014-08.org.example.x", "[::1]"),
            ("t1", "t1", "t1"),
        ] {
            assert_eq!((shown(address).as_str(), machine(address)), (short, host));
        }
    }
}
