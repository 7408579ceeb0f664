//! A target in memory, for tests and simulations of pools. It is on no network: what becomes of a call
//! on its way, the caller decides.

use crate::label::Label;
use crate::spaces::{Namespace, NamespaceId, Space, SpaceError, SpaceResult};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A namespace of a [`MemoryTarget`].
#[derive(Clone, Debug)]
pub struct MemoryNamespace {
    /// Its bytes.
    pub size: u64,
    /// What it is a part of.
    pub label: Label,
    /// The array that was made on it.
    pub array: Option<Uuid>,
}

/// A target with one space.
#[derive(Clone, Debug)]
pub struct MemoryTarget {
    /// Its identity.
    pub id: String,
    /// Bytes of its space.
    pub capacity: u64,
    /// While this is not 0 it answers nothing. A simulation of time counts it down.
    pub down: u64,
    /// Its namespaces by UUID. They have no numbers of their own.
    pub namespaces: BTreeMap<Uuid, MemoryNamespace>,
}

fn missing() -> SpaceError {
    SpaceError::Failed("no such namespace".to_owned())
}

fn full() -> SpaceError {
    SpaceError::Full("no room".to_owned())
}

fn id(uuid: Uuid) -> NamespaceId {
    NamespaceId { nsid: 1, uuid }
}

impl MemoryTarget {
    /// An empty target with this identity, and a space of `capacity` bytes.
    pub fn new(id: impl Into<String>, capacity: u64) -> MemoryTarget {
        MemoryTarget { id: id.into(), capacity, down: 0, namespaces: BTreeMap::new() }
    }

    /// The target at an address, if it answers.
    ///
    /// # Errors
    /// [`SpaceError::Unreachable`] if it does not.
    pub fn at<'a>(
        all: &'a mut BTreeMap<String, MemoryTarget>,
        address: &str,
    ) -> SpaceResult<&'a mut MemoryTarget> {
        let target = all.get_mut(address).filter(|target| target.down == 0);
        target.ok_or_else(|| SpaceError::Unreachable("nothing listens there".to_owned()))
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.capacity - self.namespaces.values().map(|namespace| namespace.size).sum::<u64>()
    }

    /// As [`Spaces::space`](crate::Spaces::space).
    pub fn space(&self) -> Space {
        Space { id: self.id.clone(), capacity: self.capacity, free: self.free(), is_whole: false }
    }

    /// As [`Spaces::list`](crate::Spaces::list).
    pub fn list(&self) -> Vec<Namespace> {
        // As a target keeps it: as text.
        let label = |label: &Label| Label::parse(&label.to_text()).map_err(|e| e.to_string());
        let namespace = |(uuid, stored): (&Uuid, &MemoryNamespace)| Namespace {
            id: id(*uuid),
            size: stored.size,
            label: Some(label(&stored.label)),
        };
        self.namespaces.iter().map(namespace).collect()
    }

    /// As [`Spaces::make`](crate::Spaces::make); the namespace gets this UUID.
    ///
    /// # Errors
    /// [`SpaceError::Full`].
    pub fn make(&mut self, uuid: Uuid, size: u64, label: &Label) -> SpaceResult<NamespaceId> {
        if size > self.free() {
            return Err(full());
        }
        self.namespaces.insert(uuid, MemoryNamespace { size, label: label.clone(), array: None });
        Ok(id(uuid))
    }

    /// As [`Spaces::clone_of`](crate::Spaces::clone_of); the namespace gets this UUID. Of content it has
    /// the array alone.
    ///
    /// # Errors
    /// [`SpaceError::Failed`] if there is no such namespace, [`SpaceError::Full`].
    pub fn clone_of(&mut self, uuid: Uuid, source: NamespaceId, label: &Label) -> SpaceResult<NamespaceId> {
        let cloned = self.namespace(source)?.clone();
        if cloned.size > self.free() {
            return Err(full());
        }
        self.namespaces.insert(uuid, MemoryNamespace { label: label.clone(), ..cloned });
        Ok(id(uuid))
    }

    /// As [`Spaces::remove`](crate::Spaces::remove): what was removed, if it was there.
    pub fn remove(&mut self, namespace: NamespaceId) -> Option<MemoryNamespace> {
        self.namespaces.remove(&namespace.uuid)
    }

    /// As [`Spaces::grow`](crate::Spaces::grow).
    ///
    /// # Errors
    /// [`SpaceError::Full`]; [`SpaceError::Failed`] if there is no such namespace.
    pub fn grow(&mut self, namespace: NamespaceId, size: u64) -> SpaceResult<()> {
        let free = self.free();
        let stored = self.namespace(namespace)?;
        if size > stored.size.saturating_add(free) {
            return Err(full());
        }
        stored.size = stored.size.max(size);
        Ok(())
    }

    /// A namespace, to change what is stored of it.
    ///
    /// # Errors
    /// [`SpaceError::Failed`] if it does not exist.
    pub fn namespace(&mut self, namespace: NamespaceId) -> SpaceResult<&mut MemoryNamespace> {
        self.namespaces.get_mut(&namespace.uuid).ok_or_else(missing)
    }
}
