//! Growth: the members have become larger, and the array follows while it is used.
//!
//! Invariants:
//! - what is added is zeroes, with checksums and bitmap pages, durably on every member and before the
//!   first superblock says that it is there: after a crash the newest superblock has the old size or
//!   the new one, and either is right;
//! - users reach what is added when the superblocks of all members have it.

use crate::assembly::create::zero;
use crate::core::Core;
use crate::error::ArrayError;
use crate::format::geometry::Geometry;
use crate::heal::upkeep::TaskGuard;
use crate::io::intent::Intent;
use longhaul_block::{IoError, IoResult, WriteFlags};
use std::rc::Rc;
use uuid::Uuid;

/// A member as it was when its new part was prepared.
type Prepared = (Uuid, u64);

impl Core {
    /// Extends the array to what its members have; returns its sizes before and after.
    pub(crate) async fn grow(self: &Rc<Self>) -> Result<(u64, u64), ArrayError> {
        let _admitted = self.admit_change()?;
        let _running = TaskGuard::new(self);
        let _alone = self.upkeep.growing.exclusive(0).await;
        let (before, size) = (self.geometry(), self.smallest_member()?);
        let grown = before.grown(size)?;
        if grown == before {
            return Ok((before.size(), before.size()));
        }
        self.check_spares(&grown)?;
        let prepared = self.prepare_growth(&before, &grown).await?;
        {
            let alone = self.publication.exclusive().await;
            self.check_running()?;
            self.check_prepared(&prepared)?;
            self.set_geometry(grown);
            self.publish_alone(&alone).await?;
        }
        self.show_size();
        tracing::info!("array {}: has {} bytes instead of {}", self.name, grown.size(), before.size());
        Ok((before.size(), grown.size()))
    }

    /// The size of the smallest member, in bytes, as the devices have it now.
    fn smallest_member(&self) -> Result<u64, ArrayError> {
        let mut smallest = u64::MAX;
        for member in &self.members {
            let Some(device) = member.device().filter(|_| member.is_active()) else {
                return Err(ArrayError::Refused(format!(
                    "array {} does not grow while member {} is missing or being rebuilt: wait for it, or replace it",
                    self.name, member.index
                )));
            };
            let failed = |source| ArrayError::Device { device: device.info().name, source };
            smallest = smallest.min(device.refresh().map_err(failed)?.size);
        }
        Ok(smallest)
    }

    /// Refuses spares that could not replace a member any more.
    fn check_spares(&self, grown: &Geometry) -> Result<(), ArrayError> {
        for spare in self.spares.list() {
            let Some(device) = spare.device else {
                return Err(ArrayError::Refused(format!(
                    "array {} does not grow while its spare {} is out of reach: its size is not known",
                    self.name, spare.uuid
                )));
            };
            let name = device.info().name;
            let failed = |source| ArrayError::Device { device: name.clone(), source };
            let (size, needs) = (device.refresh().map_err(failed)?.size, grown.end());
            if size < needs {
                return Err(ArrayError::Refused(format!(
                    "array {} does not grow: its spare {name} has {size} bytes, and needs {needs}: make it larger too",
                    self.name
                )));
            }
        }
        Ok(())
    }

    /// Makes what is added read as zeroes on every member, with its pages of the write-intent bitmap.
    async fn prepare_growth(&self, before: &Geometry, grown: &Geometry) -> Result<Vec<Prepared>, ArrayError> {
        let pages = Intent::new(self.array, grown.regions()).pages().split_off(self.intent.page_count());
        let prepare = |member: &crate::member::Member| {
            let found = (member.uuid(), member.incarnation());
            let (pages, index) = (pages.clone(), member.index);
            async move {
                let member = &self.members[index];
                let prepared = self.prepare_member(index, before.end(), grown.end(), pages).await;
                let device = || member.name().unwrap_or_default();
                prepared.map(|()| found).map_err(|source| ArrayError::Device { device: device(), source })
            }
        };
        futures_util::future::try_join_all(self.members.iter().map(prepare)).await
    }

    async fn prepare_member(
        &self,
        index: usize,
        from: u64,
        to: u64,
        pages: Vec<(u64, longhaul_engine::Buf)>,
    ) -> IoResult<()> {
        let member = &self.members[index];
        let device = member.device().ok_or_else(|| member.offline_error())?;
        // A handle of its own: what lies behind the array concerns no operation of a user, and a long
        // range must not count as a member that does not answer.
        let io = device.open().await?;
        member.until_writable().await.map_err(|e| e.error)?;
        zero(&io, from, to).await?;
        for (at, page) in pages {
            member.until_writable().await.map_err(|e| e.error)?;
            io.write(at, page, WriteFlags { fua: false }).await?;
        }
        io.flush().await
    }

    /// Refuses if a member was lost or exchanged since its new part was prepared.
    fn check_prepared(&self, prepared: &[Prepared]) -> Result<(), ArrayError> {
        let is_same = |(member, (uuid, incarnation)): (&crate::member::Member, &Prepared)| {
            member.is_active() && member.uuid() == *uuid && member.incarnation() == *incarnation
        };
        if self.members.iter().zip(prepared).all(is_same) {
            return Ok(());
        }
        Err(ArrayError::Io(IoError::Offline(format!(
            "array {} has not grown: a member was lost meanwhile; try again when it is back",
            self.name
        ))))
    }
}
