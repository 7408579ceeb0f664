//! Checks the metadata of a file system against itself, as of one moment, and that of its snapshots.

use crate::bytes::Reader;
use crate::content::by_chunk;
use crate::extent::{BLOCK, Extent, ExtentList, Stripe};
use crate::quota::{self, Owner, Phase, QuotaRecord, QuotaState, Usage};
use crate::schema::{
    Account, Content, EntryRecord, InodeRecord, KeptChunk, Keys, SegmentRecord, SnapshotRecord,
    decode_extents, decode_filled, decode_kept, decode_knows, decode_locks, decode_orphan, decode_session,
    decode_snapshot_changes, decode_unfenced, decode_xattrs, range_of,
};
use crate::segment::Segments;
use crate::session::{ROOT, settings};
use crate::settings::FsSettings;
use longhaul_catalog::{Catalog, Revision};
use longhaul_device::{Error, ErrorKind, Result};
use longhaul_fs::FileKind;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use uuid::Uuid;

/// Problems that are described; more are counted.
const DESCRIBED: usize = 100;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsReport {
    /// Objects that are no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Segments that are not free, and all of them.
    pub segments: (u32, u32),
    /// Snapshots, each of which was checked as the file system is.
    pub snapshots: u64,
    /// Bytes of content that only they have.
    pub kept: u64,
    /// Hosts that have it mounted, by session.
    pub sessions: Vec<(u64, String)>,
    /// Sessions that are over, whose things are removed by the next mount.
    pub left: Vec<u64>,
    /// Users and groups whose usage is wrong.
    pub wrong_usage: usize,
    /// Number of problems, with those.
    pub count: usize,
    /// The first of them, a sentence each.
    pub problems: Vec<String>,
}

impl FsReport {
    fn problem(&mut self, what: impl std::fmt::Display) {
        self.count += 1;
        if self.problems.len() < DESCRIBED {
            self.problems.push(what.to_string());
        }
    }
}

/// What is known of an inode from others.
#[derive(Default)]
struct Named {
    names: u64,
    directories: u64,
}

/// Records that are kept of a key, and when they were put, by snapshot.
type KeptRecords = BTreeMap<u64, (Revision, Vec<u8>)>;

/// The records of a file system, or of a snapshot of it.
#[derive(Default)]
struct All {
    inodes: BTreeMap<u64, InodeRecord>,
    entries: Vec<(u64, Vec<u8>, EntryRecord)>,
    chunks: BTreeMap<u64, BTreeMap<u64, ExtentList>>,
    xattrs: BTreeSet<u64>,
    /// The revisions in which records of names and attributes were put.
    put: BTreeMap<Vec<u8>, Revision>,
    /// When a record was put that is kept, and what it is, by key and snapshot.
    kept: BTreeMap<Vec<u8>, KeptRecords>,
    /// By inode, chunk and snapshot.
    kept_chunks: BTreeMap<(u64, u64), BTreeMap<u64, KeptChunk>>,
    snapshots: BTreeMap<u64, (Revision, SnapshotRecord)>,
    segments: BTreeMap<u32, SegmentRecord>,
    accounts: BTreeMap<u64, Vec<Account>>,
    orphans: BTreeMap<u64, u64>,
    sessions: BTreeMap<u64, String>,
    quotas: QuotaState,
    usage: BTreeMap<Owner, QuotaRecord>,
}

/// Checks the metadata of the file system `uuid`, called `name`.
///
/// # Errors
/// The catalog cannot be read, or has no such file system of a version that this program knows. Problems of
/// the metadata are no error.
pub fn check(catalog: &dyn Catalog, uuid: Uuid, name: &str) -> Result<FsReport> {
    let Some(settings) = settings(catalog, uuid, name)? else {
        let why = format!("file system {name} has no metadata: it was not made whole; remove it");
        return Err(Error::new(ErrorKind::Failed, why));
    };
    let keys = Keys::new(uuid);
    let found = catalog.range(keys.all(), None).map_err(|e| Error::new(ErrorKind::Failed, e))?;
    let mut report = FsReport::default();
    let all = All::read(&keys, found.entries, &mut report);
    all.check_names(&mut report);
    all.check_content(&settings, &mut report);
    all.check_kept(&keys, &mut report);
    all.check_sessions(&mut report);
    all.check_usage(&mut report);
    let (files, directories, bytes) = (report.files, report.directories, report.bytes);
    for (number, (at, snapshot)) in all.snapshots.iter().filter(|(_, (_, one))| !one.is_removed) {
        let view = all.at(&keys, *number, *at, &mut report);
        let (before, described) = (report.count, report.problems.len());
        view.check_names(&mut report);
        view.check_files(&mut report, &mut |_| {});
        if report.count > before {
            let of = |problem: &mut String| *problem = format!("snapshot {}: {problem}", snapshot.name);
            report.problems.iter_mut().skip(described).for_each(of);
        }
        report.snapshots += 1;
    }
    (report.files, report.directories, report.bytes) = (files, directories, bytes);
    report.segments = (all.segments.len() as u32, settings.segments);
    report.sessions = all.sessions.into_iter().collect();
    Ok(report)
}

impl All {
    fn read(keys: &Keys, entries: Vec<longhaul_catalog::Entry>, report: &mut FsReport) -> All {
        let mut all = All::default();
        for entry in entries {
            if matches!(keys.kind(&entry.key), b'i' | b'd' | b'a') {
                all.put.insert(entry.key.clone(), entry.modified);
            }
            if all.add(keys, &entry.key, &entry.value, entry.modified).is_none() {
                let kind = entry.key.get(keys.all().len()).map_or(' ', |kind| char::from(*kind));
                let number = Reader(entry.key.get(keys.all().len() + 1..).unwrap_or_default()).u64();
                let number = number.map(|number| format!(" {number}")).unwrap_or_default();
                report.problem(format_args!("record {kind}{number} is damaged or of a later version"));
            }
        }
        all
    }

    /// `None` if it cannot be read.
    fn add(&mut self, keys: &Keys, key: &[u8], value: &[u8], put: Revision) -> Option<()> {
        let one = || Some(keys.parse(key, 1)?.0[0]);
        match key.get(keys.all().len())? {
            b's' | b'n' | b'r' | b'l' | b'w' => {}
            b'v' => {
                decode_snapshot_changes(value)?;
            }
            b'e' => {
                decode_knows(value)?;
            }
            b'm' => {
                decode_unfenced(value)?;
            }
            b't' => {
                let record = SnapshotRecord::decode(value)?;
                let at = if record.at == 0 { put } else { record.at };
                self.snapshots.insert(one()?, (at, record));
            }
            b'p' => {
                let (key, snapshot) = keys.kept_of(key)?;
                self.kept.entry(key).or_default().insert(snapshot, decode_kept(value)?);
            }
            b'y' => {
                let (numbers, _) = keys.parse(key, 3)?;
                let of = self.kept_chunks.entry((numbers[0], numbers[1])).or_default();
                of.insert(numbers[2], KeptChunk::decode(value)?);
            }
            b'i' => {
                self.inodes.insert(one()?, InodeRecord::decode(value)?);
            }
            b'd' => {
                let (numbers, name) = keys.parse(key, 1)?;
                self.entries.push((numbers[0], name.to_vec(), EntryRecord::decode(value)?));
            }
            b'x' => {
                let (numbers, _) = keys.parse(key, 2)?;
                self.chunks.entry(numbers[0]).or_default().insert(numbers[1], decode_extents(value)?);
            }
            b'a' => {
                decode_xattrs(value)?;
                self.xattrs.insert(one()?);
            }
            b'g' => {
                self.segments.insert(u32::try_from(one()?).ok()?, SegmentRecord::decode(value)?);
            }
            b'f' => {
                decode_filled(value)?;
            }
            // Of a file, the guard of its locks, or those of a session.
            b'k' => {
                if keys.parse(key, 2).is_some() {
                    decode_locks(value)?;
                }
            }
            b'q' => self.accounts.entry(one()?).or_default().push(Account::decode(value)?),
            b'o' => {
                self.orphans.insert(one()?, decode_orphan(value)?);
            }
            b'u' => match keys.parse(key, 2) {
                Some((numbers, _)) => {
                    let owner = Owner::of_numbers(numbers[0], numbers[1])?;
                    self.usage.insert(owner, QuotaRecord::decode(value)?);
                }
                None => self.quotas = QuotaState::decode(value)?,
            },
            b'c' => {
                self.sessions.insert(one()?, decode_session(value)?);
            }
            _ => return None,
        }
        Some(())
    }

    fn check_names(&self, report: &mut FsReport) {
        let mut named: BTreeMap<u64, Named> = BTreeMap::new();
        let mut within: BTreeMap<u64, Named> = BTreeMap::new();
        for (directory, name, entry) in &self.entries {
            let shown = format!("'{}' in directory {directory}", String::from_utf8_lossy(name));
            match self.inodes.get(&entry.inode) {
                None => report
                    .problem(format_args!("{shown} stands for inode {}, which is not there", entry.inode)),
                Some(inode) => {
                    if EntryRecord::new(entry.inode, inode.mode) != *entry {
                        report.problem(format_args!("{shown} has another kind than inode {}", entry.inode));
                    }
                    if inode.is_directory() && inode.parent != *directory {
                        let parent = inode.parent;
                        report
                            .problem(format_args!("directory {} is {shown}, and says {parent}", entry.inode));
                    }
                }
            }
            if !self.inodes.get(directory).is_some_and(InodeRecord::is_directory) {
                report.problem(format_args!("{shown}: there is no such directory"));
            }
            named.entry(entry.inode).or_default().names += 1;
            let of = within.entry(*directory).or_default();
            of.names += 1;
            of.directories += u64::from(entry.is_directory());
        }
        for (number, inode) in &self.inodes {
            let names = named.get(number).map_or(0, |named| named.names);
            let inside = within.get(number);
            if inode.is_directory() {
                report.directories += 1;
                let (entries, directories) =
                    inside.map_or((0, 0), |inside| (inside.names, inside.directories));
                if inode.entries != entries {
                    report.problem(format_args!(
                        "directory {number} has {entries} entries, and says {}",
                        inode.entries
                    ));
                }
                if u64::from(inode.links) != directories + 2 {
                    report.problem(format_args!(
                        "directory {number} has {} links, and says {}",
                        directories + 2,
                        inode.links
                    ));
                }
                if names != u64::from(*number != ROOT) {
                    report.problem(format_args!("directory {number} has {names} names"));
                }
            } else {
                report.files += 1;
                if u64::from(inode.links) != names {
                    report
                        .problem(format_args!("inode {number} has {names} names, and says {}", inode.links));
                }
                if (names == 0) != self.orphans.contains_key(number) {
                    report.problem(format_args!(
                        "inode {number} has {names} names, and is no orphan or one all the same"
                    ));
                }
            }
            if inode.has_xattrs != self.xattrs.contains(number) {
                report.problem(format_args!(
                    "inode {number} has extended attributes, and says it has not, or the other way"
                ));
            }
        }
        for number in self.xattrs.iter().filter(|number| !self.inodes.contains_key(number)) {
            report
                .problem(format_args!("there are extended attributes of inode {number}, which is not there"));
        }
        if !self.inodes.contains_key(&ROOT) {
            report.problem("there is no top directory");
        }
        self.check_tree(report);
    }

    /// Every directory is below the top one.
    fn check_tree(&self, report: &mut FsReport) {
        let mut below: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (directory, _, entry) in self.entries.iter().filter(|(_, _, entry)| entry.is_directory()) {
            below.entry(*directory).or_default().push(entry.inode);
        }
        let (mut reached, mut left) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(directory) = left.pop() {
            let inside = below.get(&directory).into_iter().flatten();
            left.extend(inside.filter(|inside| reached.insert(**inside)));
        }
        let directories = self.inodes.iter().filter(|(_, inode)| inode.is_directory());
        for (number, _) in directories.filter(|(number, _)| !reached.contains(number)) {
            report.problem(format_args!("directory {number} is not below the top one"));
        }
    }

    /// What a snapshot has.
    fn at(&self, keys: &Keys, number: u64, at: Revision, report: &mut FsReport) -> All {
        let mut view = All { orphans: self.orphans.clone(), ..All::default() };
        let mut known: BTreeSet<&[u8]> = BTreeSet::new();
        for (key, kept) in &self.kept {
            let Some((_, (put, value))) = kept.range(number..).next() else { continue };
            known.insert(key);
            if *put <= at && view.add(keys, key, value, *put).is_none() {
                report.problem(format_args!("a record that snapshot {number} has kept is damaged"));
            }
        }
        let is_old = |key: &[u8]| !known.contains(key) && self.put.get(key).is_some_and(|put| *put <= at);
        let mut unchanged = BTreeMap::new();
        for (inode, record) in &self.inodes {
            if is_old(&keys.inode(*inode)) {
                unchanged.insert(*inode, record.clone());
            }
        }
        view.inodes.append(&mut unchanged);
        let entries =
            self.entries.iter().filter(|(directory, name, _)| is_old(&keys.entry(*directory, name)));
        view.entries.extend(entries.cloned());
        view.xattrs.extend(self.xattrs.iter().filter(|inode| is_old(&keys.xattrs(**inode))));
        // Files without a name are of no program.
        view.inodes.retain(|_, inode| inode.links > 0);
        view.orphans.clear();
        view.xattrs.retain(|inode| view.inodes.contains_key(inode));
        for (inode, record) in &mut view.inodes {
            if record.kind() != FileKind::Regular {
                continue;
            }
            let mut lists: BTreeMap<u64, ExtentList> = match self.inodes.get(inode).map(|now| &now.content) {
                Some(Content::Inline(list)) => {
                    let all: Vec<Extent> = list.iter().cloned().collect();
                    by_chunk(&all).into_iter().map(|(at, list)| (at, list.into_iter().collect())).collect()
                }
                Some(Content::Chunks) => self.chunks.get(inode).cloned().unwrap_or_default(),
                _ => BTreeMap::new(),
            };
            for ((_, chunk), kept) in self.kept_chunks.range((*inode, 0)..=(*inode, u64::MAX)) {
                let list = lists.entry(*chunk).or_default();
                kept.range(number..).rev().for_each(|(_, one)| one.lay_over(list));
            }
            lists.values_mut().for_each(|list| drop(list.remove(record.size..u64::MAX)));
            lists.retain(|_, list| !list.is_empty());
            record.content = Content::Chunks;
            if record.trims {
                // What was behind its end then is not kept.
                record.stored = lists.values().flat_map(ExtentList::iter).map(|extent| extent.len).sum();
            }
            view.chunks.insert(*inode, lists);
        }
        view
    }

    /// What snapshots have kept is of them.
    fn check_kept(&self, keys: &Keys, report: &mut FsReport) {
        let is_there = |snapshot: &u64| self.snapshots.contains_key(snapshot);
        for (key, kept) in &self.kept {
            let kind = char::from(keys.kind(key));
            for snapshot in kept.keys().filter(|snapshot| !is_there(snapshot)) {
                report.problem(format_args!(
                    "a record {kind} is kept for snapshot {snapshot}, which is not there"
                ));
            }
        }
        for ((inode, chunk), kept) in &self.kept_chunks {
            for (snapshot, one) in kept {
                let shown = format!("what snapshot {snapshot} has kept of chunk {chunk} of inode {inode}");
                if !is_there(snapshot) {
                    report.problem(format_args!("{shown}: there is no such snapshot"));
                }
                let range = range_of(*chunk);
                let is_within = |part: &Range<u64>| range.start <= part.start && part.end <= range.end;
                let has = |extent: &Extent| {
                    one.changed.iter().any(|part| part.start <= extent.offset && extent.end() <= part.end)
                };
                if !one.changed.iter().all(is_within) || !one.extents.iter().all(has) {
                    report.problem(format_args!("{shown} is of another part"));
                }
                report.kept += one.extents.iter().map(|extent| extent.len).sum::<u64>();
            }
        }
    }

    /// The extents of all inodes, and those that snapshots have kept.
    fn check_content(&self, settings: &FsSettings, report: &mut FsReport) {
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let mut stripes: HashSet<Arc<Stripe>> = HashSet::new();
        let mut parts: Vec<(u8, u64, u64, u64)> = Vec::new();
        let mut add = |extent: &Extent| {
            let segment = extent.stripe.segment(settings.segment);
            *live.entry(segment).or_default() += extent.len;
            stripes.insert(Arc::clone(&extent.stripe));
            let first = extent.stripe.units.first().map_or((0, 0), |unit| (unit.member, unit.block));
            parts.push((first.0, first.1, extent.skip, extent.skip + extent.len));
        };
        self.check_files(report, &mut add);
        self.kept_chunks.values().flat_map(BTreeMap::values).flat_map(|one| one.extents.iter()).for_each(add);
        parts.sort_unstable();
        for pair in parts.windows(2) {
            let ((member, block, _, end), (other, at, from, _)) = (pair[0], pair[1]);
            if (member, block) == (other, at) && end > from {
                report.problem(format_args!(
                    "byte {from} of the stripe at block {block} of member {member} is at two places"
                ));
            }
        }
        self.check_segments(&live, report);
        check_places(settings, &stripes, report);
    }

    /// The maps of files.
    fn check_files(&self, report: &mut FsReport, see: &mut dyn FnMut(&Extent)) {
        for number in self.chunks.keys() {
            if !self.inodes.get(number).is_some_and(|inode| inode.content == Content::Chunks) {
                report.problem(format_args!("there are chunks of inode {number}, which has none"));
            }
        }
        for (number, inode) in &self.inodes {
            let mut stored = 0;
            let mut add = |extent: &Extent| {
                stored += extent.len;
                see(extent);
            };
            match &inode.content {
                Content::Inline(list) => {
                    list.iter().for_each(&mut add);
                    if list.end() > inode.size {
                        report.problem(format_args!("inode {number} has content behind its end"));
                    }
                }
                Content::Chunks => {
                    for (chunk, list) in self.chunks.get(number).into_iter().flatten() {
                        list.iter().for_each(&mut add);
                        let range = range_of(*chunk);
                        if list.lookup(range).len() != list.len() {
                            report.problem(format_args!(
                                "chunk {chunk} of inode {number} has content of another"
                            ));
                        }
                        if list.end() > inode.size && !inode.trims {
                            report.problem(format_args!("chunk {chunk} of inode {number} is behind its end"));
                        }
                    }
                }
                Content::None | Content::Link(_) => {}
            }
            report.bytes += stored;
            if stored != inode.stored {
                report.problem(format_args!(
                    "inode {number} has {stored} bytes of content, and says {}",
                    inode.stored
                ));
            }
        }
    }

    fn check_segments(&self, live: &BTreeMap<u32, u64>, report: &mut FsReport) {
        let mut books: BTreeMap<u32, (u64, u64)> =
            self.segments.iter().map(|(segment, record)| (*segment, (record.added, record.freed))).collect();
        for account in self.accounts.values().flatten() {
            for (segment, (added, freed)) in &account.segments {
                let book = books.entry(*segment).or_default();
                *book = (book.0 + added, book.1 + freed);
            }
        }
        for (segment, bytes) in live {
            if !self.segments.contains_key(segment) {
                report.problem(format_args!(
                    "segment {segment} has {bytes} bytes of files, and counts as free"
                ));
            }
        }
        for (segment, (added, freed)) in books {
            let bytes = live.get(&segment).copied().unwrap_or(0);
            if added.checked_sub(freed) != Some(bytes) {
                report.problem(format_args!(
                    "segment {segment} has {bytes} bytes of files, and its books say {added} less {freed}"
                ));
            }
            let is_left = self.segments.get(&segment).is_some_and(|record| record.session == 0);
            if is_left
                && bytes == 0
                && !self.accounts.values().flatten().any(|a| a.segments.contains_key(&segment))
            {
                report.problem(format_args!("segment {segment} has nothing, and is not free"));
            }
        }
    }

    /// What users and groups have is what their inodes have.
    fn check_usage(&self, report: &mut FsReport) {
        let generation = self.quotas.generation;
        if self.quotas.phase != Phase::On {
            return;
        }
        let accounts = self.accounts.values().flatten().map(|account| &account.usage);
        let said = quota::usage_of(generation, &self.usage, accounts);
        let mut found: BTreeMap<Owner, Usage> = BTreeMap::new();
        self.inodes.values().for_each(|inode| quota::count(&mut found, inode));
        let owners: BTreeSet<Owner> = said.keys().chain(found.keys()).copied().collect();
        for owner in owners {
            let of = |all: &BTreeMap<Owner, Usage>| all.get(&owner).copied().unwrap_or_default();
            let (said, found) = (of(&said), of(&found));
            if said != found {
                report.wrong_usage += 1;
                report.problem(format_args!(
                    "{owner} has {} files with {} bytes, and its usage says {} with {}",
                    found.files, found.bytes, said.files, said.bytes
                ));
            }
        }
    }

    fn check_sessions(&self, report: &mut FsReport) {
        let mut named: BTreeSet<u64> = self.segments.values().map(|record| record.session).collect();
        named.extend(self.orphans.values());
        named.extend(self.accounts.keys());
        named.remove(&0);
        report.left = named.into_iter().filter(|session| !self.sessions.contains_key(session)).collect();
        for number in self.orphans.keys().filter(|number| !self.inodes.contains_key(number)) {
            report.problem(format_args!("inode {number} is an orphan, and not there"));
        }
    }
}

/// No byte of a member is in two stripes.
fn check_places(settings: &FsSettings, stripes: &HashSet<Arc<Stripe>>, report: &mut FsReport) {
    let mut places: Vec<(u8, u64, u64)> = Vec::new();
    for stripe in stripes {
        let unit = u64::from(stripe.unit);
        let members: BTreeSet<u8> = stripe.units.iter().map(|unit| unit.member).collect();
        let segment = stripe.segment(settings.segment);
        let is_right = members.len() == stripe.units.len()
            && unit.is_multiple_of(BLOCK)
            && unit > 0
            && members.iter().all(|member| usize::from(*member) < settings.members)
            && stripe.units.iter().all(|place| {
                place.block * BLOCK / settings.segment == u64::from(segment)
                    && Segments::is_within(settings, place.block, unit)
            });
        if !is_right {
            report.problem(format_args!(
                "a stripe in segment {segment} has units where none can be: {stripe:?}"
            ));
        }
        places.extend(
            stripe.units.iter().map(|place| (place.member, place.block * BLOCK, place.block * BLOCK + unit)),
        );
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        if pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1 {
            report.problem(format_args!("bytes at {} of member {} are of two stripes", pair[1].1, pair[1].0));
        }
    }
}
