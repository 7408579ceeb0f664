//! Content against its checksums: all units are read, and what is wrong is repaired.
//!
//! A stripe with a wrong unit moves to another place: nothing is written where something was, which a host with
//! an old map could do to a place that is used again. The place of the wrong unit is free once its segment is.

use crate::extent::{Extent, Stripe};
use crate::relocate::{COPIED, FileExtent, MapOf, in_parts};
use crate::schema::{CHUNK, Content, KeptChunk, decode_extents, unreadable};
use crate::segment::Filler;
use crate::session::FsSession;
use crate::store::lock;
use crate::stripe::{StripeHealth, examine};
use longhaul_engine::since;
use longhaul_fs::Errno;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Stripes with wrong units that are remembered until they are repaired.
const NOTED: usize = 1024;

/// What a scrub has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Stripes that were read.
    pub stripes: u64,
    /// Bytes of their units.
    pub bytes: u64,
    /// Units whose content had another checksum.
    pub wrong: u64,
    /// Units that could not be read, as their members are missing.
    pub missing: u64,
    /// Bytes of files that were in stripes with wrong units, and were written anew.
    pub repaired: u64,
    /// Bytes of files that could not be written anew, as there is no room or members are missing.
    pub waiting: u64,
    /// Bytes of files that are lost: too few units of their stripes are right.
    pub lost: u64,
    /// Inodes of these files.
    pub files: BTreeSet<u64>,
}

/// Identifies a stripe: where its first unit is, and what is there.
type StripeId = (u8, u64, u32);

fn id_of(stripe: &Stripe) -> StripeId {
    stripe.units.first().map_or((0, 0, 0), |unit| (unit.member, unit.block, unit.sum))
}

impl FsSession {
    /// Remembers that stripes of a file have wrong units.
    pub(crate) fn note_wrong(&self, inode: u64, extents: Vec<Extent>) {
        if !extents.is_empty() {
            let mut noted = lock(&self.wrong);
            let room = NOTED.saturating_sub(noted.len());
            noted.extend(extents.into_iter().take(room).map(|extent| (MapOf::file(inode), extent)));
        }
    }

    /// Repairs what reads have found to be wrong; how many extents were repaired.
    pub(crate) fn repair_noted(&self) -> Result<usize, Errno> {
        let noted = std::mem::take(&mut *lock(&self.wrong));
        let mut current: Vec<FileExtent> = Vec::new();
        for (of, extent) in noted {
            // What is read of a file that is written may be of an old map, and its place used again.
            current.extend(self.current(of, &extent)?.into_iter().map(|extent| (of, extent)));
        }
        for part in in_parts(&current, COPIED) {
            let moved = self.relocate(part, Filler::Writes)?;
            tracing::info!("{} bytes of stripes with wrong units are written anew", moved.moved);
        }
        Ok(current.len())
    }

    /// The parts of an extent that are in the file now.
    fn current(&self, of: MapOf, extent: &Extent) -> Result<Vec<Extent>, Errno> {
        let inode = of.inode;
        if of.snapshot > 0 {
            // What is kept may go to another snapshot meanwhile: then it is found there by the next scrub.
            let chunks = extent.offset / CHUNK..=(extent.end() - 1) / CHUNK;
            let key = |chunk| self.store.keys().kept_chunk(inode, chunk, of.snapshot);
            let keys: Vec<Vec<u8>> = chunks.map(key).collect();
            let mut found = Vec::new();
            for entry in self.store.get_all(&keys)? {
                let kept = KeptChunk::decode(&entry.value)
                    .ok_or_else(|| unreadable(&format!("what is kept of inode {inode}"), &entry.value))?;
                found.extend(kept.extents.lookup(extent.offset..extent.end()));
            }
            return Ok(found.into_iter().filter(|now| now.is_part_of(extent)).collect());
        }
        let Some(record) = self.store.inode(inode)? else { return Ok(Vec::new()) };
        let range = extent.offset..extent.end();
        let found = match &record.content {
            Content::Inline(list) => list.lookup(range),
            Content::Chunks => {
                let chunks = extent.offset / CHUNK..=(extent.end() - 1) / CHUNK;
                let keys: Vec<Vec<u8>> = chunks.map(|chunk| self.store.keys().chunk(inode, chunk)).collect();
                let mut found = Vec::new();
                for entry in self.store.get_all(&keys)? {
                    let list = decode_extents(&entry.value)
                        .ok_or_else(|| unreadable(&format!("a chunk of inode {inode}"), &entry.value))?;
                    found.extend(list.lookup(range.clone()));
                }
                found
            }
            Content::None | Content::Link(_) => Vec::new(),
        };
        Ok(found.into_iter().filter(|now| now.is_part_of(extent)).collect())
    }

    /// Reads all units of all stripes, with `limit` bytes a second at most, and repairs what is wrong. `show` is
    /// told now and then.
    pub(crate) fn scrub(
        &self,
        limit: Option<u64>,
        show: &mut dyn FnMut(&ScrubReport),
    ) -> Result<ScrubReport, Errno> {
        let mut report = ScrubReport::default();
        // Stripes have parts of several files: each is read once.
        let mut seen: HashMap<StripeId, StripeHealth> = HashMap::new();
        let (begun, mut wrong) = (longhaul_engine::now(), Vec::new());
        self.scan(&mut |of, list| {
            for extent in list.iter() {
                let stripe = &extent.stripe;
                let health = match seen.get(&id_of(stripe)) {
                    Some(health) => *health,
                    None => {
                        let before = self.store.settings_at();
                        let mut health = examine(&self.members, stripe);
                        if health.missing > 0 && self.have_moved_since(before) {
                            health = examine(&self.members, stripe);
                        }
                        if health != StripeHealth::default() && self.current(of, extent)?.is_empty() {
                            health = StripeHealth::default();
                        }
                        report.stripes += 1;
                        report.bytes += u64::from(stripe.unit) * stripe.units.len() as u64;
                        report.wrong += health.wrong as u64;
                        report.missing += health.missing as u64;
                        seen.insert(id_of(stripe), health);
                        show(&report);
                        health
                    }
                };
                if health.is_lost {
                    report.lost += extent.len;
                    report.files.insert(of.inode);
                } else if health.wrong > 0 {
                    wrong.push((of, extent.clone()));
                }
                if let Some(limit) = limit {
                    let due = Duration::from_secs_f64(report.bytes as f64 / limit.max(1) as f64);
                    std::thread::sleep(due.saturating_sub(since(begun)));
                }
            }
            Ok(!self.is_ending.load(Relaxed))
        })?;
        for part in in_parts(&wrong, COPIED) {
            let bytes: u64 = part.iter().map(|(_, extent)| extent.len).sum();
            match self.relocate(part, Filler::Writes) {
                // What is not as it was read was written anew by others.
                Ok(done) => {
                    let unread: u64 = done.unread.iter().map(|(_, extent)| extent.len).sum();
                    report.repaired += bytes - unread;
                    report.waiting += unread;
                }
                Err(e) => {
                    tracing::warn!("{bytes} bytes of stripes with wrong units are not repaired: {e}");
                    report.waiting += bytes;
                }
            }
        }
        show(&report);
        Ok(report)
    }
}
