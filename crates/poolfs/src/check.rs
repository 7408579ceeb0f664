//! Checks the metadata of a file system against itself, as of one moment.

use crate::bytes::Reader;
use crate::extent::{BLOCK, Extent, ExtentList, Stripe};
use crate::schema::{
    Account, CHUNK, Content, EntryRecord, InodeRecord, Keys, SegmentRecord, decode_extents, decode_filled,
    decode_locks, decode_orphan, decode_session, decode_xattrs,
};
use crate::segment::Segments;
use crate::session::{ROOT, settings};
use crate::settings::FsSettings;
use longhaul_catalog::Catalog;
use longhaul_device::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet, HashSet};
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
    /// Hosts that have it mounted, by session.
    pub sessions: Vec<(u64, String)>,
    /// Sessions that are over, whose things are removed by the next mount.
    pub left: Vec<u64>,
    /// Number of problems.
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

/// The records of a file system.
#[derive(Default)]
struct All {
    inodes: BTreeMap<u64, InodeRecord>,
    entries: Vec<(u64, Vec<u8>, EntryRecord)>,
    chunks: BTreeMap<u64, BTreeMap<u64, ExtentList>>,
    xattrs: BTreeSet<u64>,
    segments: BTreeMap<u32, SegmentRecord>,
    accounts: BTreeMap<u64, Vec<Account>>,
    orphans: BTreeMap<u64, u64>,
    sessions: BTreeMap<u64, String>,
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
    all.check_sessions(&mut report);
    report.segments = (all.segments.len() as u32, settings.segments);
    report.sessions = all.sessions.into_iter().collect();
    Ok(report)
}

impl All {
    fn read(keys: &Keys, entries: Vec<longhaul_catalog::Entry>, report: &mut FsReport) -> All {
        let mut all = All::default();
        for entry in entries {
            if all.add(keys, &entry.key, &entry.value).is_none() {
                let kind = entry.key.get(keys.all().len()).map_or(' ', |kind| char::from(*kind));
                let number = Reader(entry.key.get(keys.all().len() + 1..).unwrap_or_default()).u64();
                let number = number.map(|number| format!(" {number}")).unwrap_or_default();
                report.problem(format_args!("record {kind}{number} is damaged or of a later version"));
            }
        }
        all
    }

    /// `None` if it cannot be read.
    fn add(&mut self, keys: &Keys, key: &[u8], value: &[u8]) -> Option<()> {
        let one = || Some(keys.parse(key, 1)?.0[0]);
        match key.get(keys.all().len())? {
            b's' | b'n' | b'r' | b'l' | b'w' => {}
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

    /// The extents of all inodes.
    fn check_content(&self, settings: &FsSettings, report: &mut FsReport) {
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let mut stripes: HashSet<Arc<Stripe>> = HashSet::new();
        for number in self.chunks.keys() {
            if !self.inodes.get(number).is_some_and(|inode| inode.content == Content::Chunks) {
                report.problem(format_args!("there are chunks of inode {number}, which has none"));
            }
        }
        for (number, inode) in &self.inodes {
            let mut stored = 0;
            let mut add = |extent: &Extent| {
                stored += extent.len;
                let segment = extent.stripe.segment(settings.segment);
                *live.entry(segment).or_default() += extent.len;
                stripes.insert(Arc::clone(&extent.stripe));
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
                        let range = chunk * CHUNK..(chunk + 1) * CHUNK;
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
        self.check_segments(&live, report);
        check_places(settings, &stripes, report);
    }

    fn check_segments(&self, live: &BTreeMap<u32, u64>, report: &mut FsReport) {
        let mut books: BTreeMap<u32, (u64, u64)> =
            self.segments.iter().map(|(segment, record)| (*segment, (record.added, record.freed))).collect();
        for Account(account) in self.accounts.values().flatten() {
            for (segment, (added, freed)) in account {
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
            if is_left && bytes == 0 && !self.accounts.values().flatten().any(|a| a.0.contains_key(&segment))
            {
                report.problem(format_args!("segment {segment} has nothing, and is not free"));
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
