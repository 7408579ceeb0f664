//! Quotas: what users and groups have in a file system, and how much of it they may have.
//!
//! An object counts for the user and the group that own its inode: one file, and the bytes of its extents. While
//! usage is counted each transaction notes what it changes of it in its account, as it notes what it changes of
//! segments: so transactions of different hosts never wait for each other. The accounts are added up later
//! (`cleaner`). Usage is what a count of all inodes has found, with all changes since.
//!
//! | step of the first quota | a crash after it leaves |
//! |---|---|
//! | the state says that usage is counted, of a new generation, and the count of changes is put | accounts that note changes, and no limits |
//! | all inodes are read as of that revision, and the usage of each owner is put | the same |
//! | the state says that this is done, and the count of changes is put | quotas |
//!
//! Changes that are noted for another generation count nothing: so usage can be counted anew at any time.
//!
//! Invariants:
//! - each transaction expects the count of changes of the snapshots, which a change of the state or of a limit puts
//!   too: so it knows the state, and notes changes exactly from the revision on as of which inodes are counted;
//! - an account is added to the usage in the transaction that deletes it.
//!
//! A transaction that would add to what is above a limit is not made, by what its session knows of other hosts
//! (`table`).

mod manage;
mod table;

pub(crate) use manage::FsQuotas;
pub use manage::{FsQuota, LimitChange};
pub(crate) use table::{Fit, QuotaTable};

use crate::bytes::{Reader, Writer};
use crate::schema::{InodeRecord, Keys, unreadable, whole, writer};
use crate::store::Draft;
use longhaul_catalog::{Catalog, Entry, Revision};
use longhaul_fs::Errno;
use std::collections::BTreeMap;
use std::fmt;

/// Whom usage counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A user, by UID.
    User(u32),
    /// A group, by GID.
    Group(u32),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::User(id) => write!(f, "user {id}"),
            Owner::Group(id) => write!(f, "group {id}"),
        }
    }
}

impl Owner {
    /// As numbers of a key.
    pub(crate) fn numbers(self) -> (u64, u64) {
        match self {
            Owner::User(id) => (0, id.into()),
            Owner::Group(id) => (1, id.into()),
        }
    }

    pub(crate) fn of_numbers(kind: u64, id: u64) -> Option<Owner> {
        let id = u32::try_from(id).ok()?;
        match kind {
            0 => Some(Owner::User(id)),
            1 => Some(Owner::Group(id)),
            _ => None,
        }
    }

    /// The user and the group that have an inode.
    pub(crate) fn both(uid: u32, gid: u32) -> [Owner; 2] {
        [Owner::User(uid), Owner::Group(gid)]
    }
}

/// What objects take, or a change of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of content.
    pub bytes: i64,
    /// Files, directories and other objects.
    pub files: i64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
    }
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(mut self, other: Usage) -> Usage {
        self += other;
        self
    }
}

impl std::ops::Neg for Usage {
    type Output = Usage;

    fn neg(self) -> Usage {
        Usage { bytes: -self.bytes, files: -self.files }
    }
}

impl Usage {
    pub(crate) fn is_zero(self) -> bool {
        self == Usage::default()
    }

    fn write(self, to: &mut Writer) {
        to.u64(self.bytes.cast_unsigned()).u64(self.files.cast_unsigned());
    }

    fn read(from: &mut Reader<'_>) -> Option<Usage> {
        Some(Usage { bytes: from.u64()?.cast_signed(), files: from.u64()?.cast_signed() })
    }
}

/// How much an owner may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of content; none: as many as there is room for.
    pub bytes: Option<u64>,
    /// Files, directories and other objects; none: any number.
    pub files: Option<u64>,
}

impl Limits {
    /// There is no limit.
    pub fn are_none(self) -> bool {
        self == Limits::default()
    }
}

/// Changes of the usage of owners, of one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageChanges {
    pub(crate) generation: u64,
    pub(crate) of: BTreeMap<Owner, Usage>,
}

impl UsageChanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        to.u64(self.generation).u32(self.of.len() as u32);
        for (owner, usage) in &self.of {
            let (kind, id) = owner.numbers();
            usage.write(to.u8(kind as u8).u32(id as u32));
        }
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Option<UsageChanges> {
        let generation = from.u64()?;
        let one = |from: &mut Reader<'_>| {
            Some((Owner::of_numbers(from.u8()?.into(), from.u32()?.into())?, Usage::read(from)?))
        };
        let of = (0..from.u32()?).map(|_| one(from)).collect::<Option<_>>()?;
        Some(UsageChanges { generation, of })
    }
}

/// How far the counting of usage is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is counted, and no changes are noted.
    #[default]
    Off,
    /// Changes are noted, and inodes are being counted.
    Counting,
    /// Usage is known, and limits hold.
    On,
}

/// The state of quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaState {
    /// Rises each time that inodes are counted.
    pub(crate) generation: u64,
    pub(crate) phase: Phase,
}

impl QuotaState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.u64(self.generation).u8(match self.phase {
            Phase::Off => 0,
            Phase::Counting => 1,
            Phase::On => 2,
        });
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<QuotaState> {
        whole(bytes, |from| {
            let generation = from.u64()?;
            let phase = match from.u8()? {
                0 => Phase::Off,
                1 => Phase::Counting,
                2 => Phase::On,
                _ => return None,
            };
            Some(QuotaState { generation, phase })
        })
    }

    /// That of a value in the catalog; nothing is counted without one.
    pub(crate) fn of(value: Option<&[u8]>) -> Option<QuotaState> {
        value.map_or(Some(QuotaState::default()), QuotaState::decode)
    }

    /// Whether transactions note what they change.
    pub(crate) fn counts(&self) -> bool {
        self.phase != Phase::Off
    }
}

/// Usage and limits of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaRecord {
    /// Usage of another one counts nothing.
    pub(crate) generation: u64,
    /// What was found when inodes were counted.
    pub(crate) counted: Usage,
    /// Changes since, as far as they are added up.
    pub(crate) changed: Usage,
    pub(crate) limits: Limits,
}

impl QuotaRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.u64(self.generation);
        self.counted.write(&mut to);
        self.changed.write(&mut to);
        for limit in [self.limits.bytes, self.limits.files] {
            to.u8(u8::from(limit.is_some())).u64(limit.unwrap_or(0));
        }
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<QuotaRecord> {
        whole(bytes, |from| {
            let limit = |from: &mut Reader<'_>| {
                let (is_some, limit) = (from.u8()? != 0, from.u64()?);
                Some(is_some.then_some(limit))
            };
            Some(QuotaRecord {
                generation: from.u64()?,
                counted: Usage::read(from)?,
                changed: Usage::read(from)?,
                limits: Limits { bytes: limit(from)?, files: limit(from)? },
            })
        })
    }

    /// That of a value in the catalog; an owner without one has nothing, and no limits.
    pub(crate) fn of(value: Option<&[u8]>) -> Option<QuotaRecord> {
        value.map_or(Some(QuotaRecord::default()), QuotaRecord::decode)
    }

    /// Usage as far as it is added up, of this generation.
    pub(crate) fn used(&self, generation: u64) -> Usage {
        if self.generation == generation { self.counted + self.changed } else { Usage::default() }
    }

    /// The record as one of this generation.
    pub(crate) fn of_generation(self, generation: u64) -> QuotaRecord {
        match self.generation == generation {
            true => self,
            false => QuotaRecord { generation, limits: self.limits, ..QuotaRecord::default() },
        }
    }
}

/// All quotas as of one revision.
#[derive(Debug, Default)]
pub(crate) struct AllQuotas {
    pub(crate) at: Revision,
    pub(crate) state: QuotaState,
    pub(crate) records: BTreeMap<Owner, QuotaRecord>,
    /// What is not added up: by session, number and owner.
    pub(crate) accounts: Vec<((u64, u64), UsageChanges)>,
}

impl AllQuotas {
    /// Reads them; the inner one is `None` if a record cannot be read.
    pub(crate) fn read(catalog: &dyn Catalog, keys: &Keys) -> longhaul_catalog::Result<Option<AllQuotas>> {
        let read = || {
            let found = catalog.range(&keys.quotas(), None)?;
            let accounts = catalog.range(&keys.accounts(), Some(found.revision))?.entries;
            Ok(AllQuotas::of(keys, found.revision, &found.entries, &accounts))
        };
        match read() {
            // A catalog under load may have forgotten the revision as of which the accounts are read.
            Err(longhaul_catalog::Error::Compacted { .. }) => read(),
            found => found,
        }
    }

    fn of(keys: &Keys, at: Revision, records: &[Entry], accounts: &[Entry]) -> Option<AllQuotas> {
        let mut all = AllQuotas { at, ..AllQuotas::default() };
        for entry in records {
            match keys.parse(&entry.key, 2) {
                Some((numbers, _)) => {
                    let owner = Owner::of_numbers(numbers[0], numbers[1])?;
                    all.records.insert(owner, QuotaRecord::decode(&entry.value)?);
                }
                None => all.state = QuotaState::decode(&entry.value)?,
            }
        }
        for entry in accounts {
            let (numbers, _) = keys.parse(&entry.key, 2)?;
            let usage = crate::schema::Account::decode(&entry.value)?.usage;
            if !usage.is_empty() && usage.generation == all.state.generation {
                all.accounts.push(((numbers[0], numbers[1]), usage));
            }
        }
        Some(all)
    }

    /// Usage of each owner of whom there is a record or a change.
    pub(crate) fn usage(&self) -> BTreeMap<Owner, Usage> {
        usage_of(self.state.generation, &self.records, self.accounts.iter().map(|(_, changes)| changes))
    }
}

/// Usage by records, with changes that are not added up to them.
pub(crate) fn usage_of<'c>(
    generation: u64,
    records: &BTreeMap<Owner, QuotaRecord>,
    changes: impl Iterator<Item = &'c UsageChanges>,
) -> BTreeMap<Owner, Usage> {
    let of = |(owner, record): (&Owner, &QuotaRecord)| (*owner, record.used(generation));
    let mut all: BTreeMap<Owner, Usage> = records.iter().map(of).collect();
    for (owner, change) in changes.filter(|changes| changes.generation == generation).flat_map(|one| &one.of)
    {
        *all.entry(*owner).or_default() += *change;
    }
    all
}

/// Counts an inode for its owners.
pub(crate) fn count(usage: &mut BTreeMap<Owner, Usage>, inode: &InodeRecord) {
    let (owners, own) = inode.usage();
    owners.into_iter().for_each(|owner| *usage.entry(owner).or_default() += own);
}

/// Reads all quotas for a session.
pub(crate) fn read_for(catalog: &dyn Catalog, keys: &Keys) -> Result<AllQuotas, Errno> {
    let found = AllQuotas::read(catalog, keys);
    found.map_err(|e| crate::store::failed(&e))?.ok_or_else(|| unreadable("a record of quotas", b""))
}

/// Part of a transaction that adds up accounts: changes of usage.
pub(crate) fn add_usage(
    draft: &mut Draft<'_>,
    state: QuotaState,
    usage: BTreeMap<Owner, Usage>,
) -> Result<(), Errno> {
    let owners: Vec<(Vec<u8>, Usage)> =
        usage.into_iter().map(|(owner, usage)| (draft.keys().quota(owner), usage)).collect();
    if owners.is_empty() {
        return Ok(());
    }
    let wanted: Vec<Vec<u8>> = owners.iter().map(|(key, _)| key.clone()).collect();
    let found: BTreeMap<Vec<u8>, Vec<u8>> =
        draft.get_all(&wanted)?.into_iter().map(|entry| (entry.key, entry.value)).collect();
    for (key, usage) in owners {
        let value = found.get(&key).map(|value| &value[..]);
        let record = QuotaRecord::of(value)
            .ok_or_else(|| unreadable("a record of quotas", value.unwrap_or_default()))?;
        let mut record = record.of_generation(state.generation);
        record.changed += usage;
        let is_nothing =
            record.limits.are_none() && record.used(state.generation).is_zero() && state.phase == Phase::On;
        match is_nothing {
            true => draft.delete(&key),
            false => draft.put(&key, record.encode()),
        }
    }
    Ok(())
}
