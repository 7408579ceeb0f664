//! Records in the catalog: JSON with a version.

use crate::error::{Error, Result};
use crate::manager::Manager;
use crate::shape::{Shape, VolumeLayout};
use crate::spaces::NamespaceId;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Version of all records and labels.
const FORMAT: u64 = 1;
/// Version of the intent to resize a volume, and of a volume with a member that moves, which programs
/// of version 1 do not know.
const FORMAT_RESIZE: u64 = 2;
const FORMAT_MOVING: u64 = 2;
/// Version of the intent to move a member.
const FORMAT_MOVE: u64 = 3;
/// Versions of a volume that is the data of a file system, and of intents to make and remove one.
const FORMAT_FILES: u64 = 3;
const FORMAT_FILES_INTENT: u64 = 4;

/// A record with its version, which stands first.
#[derive(Serialize)]
struct Versioned<'a, T> {
    format: u64,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Deserialize)]
struct Version {
    format: u64,
}

/// A record as JSON.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    encode_as(FORMAT, record)
}

/// An intent as JSON.
pub(crate) fn encode_intent(intent: &Intent) -> Vec<u8> {
    let format = match intent.kind {
        _ if intent.volume.shape.layout.is_files() => FORMAT_FILES_INTENT,
        IntentKind::Create | IntentKind::Remove => FORMAT,
        IntentKind::Resize => FORMAT_RESIZE,
        IntentKind::Move => FORMAT_MOVE,
    };
    encode_as(format, intent)
}

/// A volume as JSON.
pub(crate) fn encode_volume(volume: &VolumeRecord) -> Vec<u8> {
    let format = match &volume.moving {
        _ if volume.shape.layout.is_files() => FORMAT_FILES,
        Some(_) => FORMAT_MOVING,
        None => FORMAT,
    };
    encode_as(format, volume)
}

pub(crate) fn encode_as<T: Serialize>(format: u64, record: &T) -> Vec<u8> {
    // unwrap: the records have text for keys, and writing to memory does not fail.
    serde_json::to_vec(&Versioned { format, record }).unwrap_or_default()
}

/// How a record of this version begins.
const BEGIN: &[u8] = b"{\"format\":1,";

/// Reads a record, which `what` names in messages.
pub(crate) fn decode<'de, T: Deserialize<'de>>(what: &str, bytes: &'de [u8]) -> Result<T> {
    decode_to(FORMAT, what, bytes)
}

/// Reads an intent.
pub(crate) fn decode_intent(bytes: &[u8]) -> Result<Intent> {
    decode_to(FORMAT_FILES_INTENT, "an intent", bytes)
}

/// Reads a volume, or a part of its record.
pub(crate) fn decode_volume<'de, T: Deserialize<'de>>(what: &str, bytes: &'de [u8]) -> Result<T> {
    decode_to(FORMAT_FILES, what, bytes)
}

/// Reads a record of a version up to `newest`.
pub(crate) fn decode_to<'de, T: Deserialize<'de>>(newest: u64, what: &str, bytes: &'de [u8]) -> Result<T> {
    // In one pass, as thousands of records are read at a time.
    if bytes.starts_with(BEGIN)
        && let Ok(record) = serde_json::from_slice(bytes)
    {
        return Ok(record);
    }
    let refuse = |why: String| Error::Format { what: what.to_owned(), why };
    let damaged = |e: serde_json::Error| refuse(format!("it is damaged: {e}"));
    let version: Version = serde_json::from_slice(bytes).map_err(damaged)?;
    if !(FORMAT..=newest).contains(&version.format) {
        let found = version.format;
        return Err(refuse(format!("its version is {found}, and this program knows version {newest}")));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Identifies the pool, whatever its name.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Limits.
    pub quota: Quota,
    /// The catalog that manages it, which is this one; none if an earlier program made the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<Manager>,
}

/// Limits of a pool, in bytes of namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Of all volumes.
    pub pool: Option<u64>,
    /// Of the volumes of each job.
    pub job: Option<u64>,
}

/// A target of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Identity of its space: a target that moves to another address keeps it.
    pub id: String,
    /// Where it is.
    pub address: String,
    /// What fails together with it.
    pub domain: String,
    /// Bytes of its space when it was added.
    pub capacity: u64,
}

/// A part of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Identity of the target; empty if it was not found at an import.
    pub target: String,
    /// The namespace, once it was made.
    pub namespace: Option<NamespaceId>,
}

/// A member that moves to another target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Which one, of the volume's members and spares.
    pub index: usize,
    /// Where it moves to.
    pub to: Member,
}

/// Whether a volume can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// It is being made; its name is taken.
    Creating,
    /// It can be used.
    Ready,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Identifies the volume, whatever its name.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Number of times that it has been renamed.
    pub renames: u64,
    /// How it lies on its members.
    pub shape: Shape,
    /// Members, then spares.
    pub members: Vec<Member>,
    /// The array over the members; none for a single namespace.
    pub array: Option<Uuid>,
    /// NQNs of the hosts that may use it.
    pub hosts: Vec<String>,
    /// The job that it was made for.
    pub job: Option<String>,
    /// When it may be removed, in seconds since 1970.
    pub expires: Option<u64>,
    /// Its namespaces take capacity as they are written to.
    pub thin: bool,
    /// The host that made it, and when, in seconds since 1970.
    pub made_by: String,
    /// See [`made_by`](Self::made_by).
    pub made_at: u64,
    /// Whether it can be used.
    pub state: VolumeState,
    /// The member that moves, if one does: the array may have it in the one place or the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
    /// What it is a snapshot of, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_of: Option<SnapshotOf>,
}

/// The volume that another one is a snapshot of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOf {
    /// Identifies it; it may have been removed since.
    pub volume: Uuid,
    /// Its name at that time.
    pub name: String,
}

impl VolumeRecord {
    /// The namespaces that its array may have: those of its members, and the one that a member moves to.
    pub(crate) fn all_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(self.moving.iter().map(|moving| &moving.to))
    }
}

/// What a list of volumes shows of one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VolumeBrief<'a> {
    /// Its name.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// How it lies on its members.
    pub shape: BriefShape,
    /// The job that it was made for.
    #[serde(borrow)]
    pub job: Option<Cow<'a, str>>,
    /// When it may be removed, in seconds since 1970.
    pub expires: Option<u64>,
    /// Whether it can be used.
    pub state: VolumeState,
    /// What it is a snapshot of, if it is one.
    #[serde(default)]
    pub snapshot_of: Option<SnapshotOf>,
}

/// A part of a [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct BriefShape {
    /// Distribution over the members.
    pub layout: VolumeLayout,
    /// Members, without spares.
    pub width: usize,
    /// Members that wait to replace one.
    pub spares: usize,
    /// Size in bytes that was asked for.
    pub size: u64,
}

/// What is done to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IntentKind {
    /// It is being made; undone if its host is lost.
    Create,
    /// It is being removed; continued by any host.
    Remove,
    /// Its namespaces grow; continued by any host.
    Resize,
    /// A member moves to another target; continued, undone or published, as its array says.
    Move,
}

/// A volume that is being made, removed or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Identifies the intent.
    pub uuid: Uuid,
    /// What is done.
    pub kind: IntentKind,
    /// The volume; of one that is being removed, the members that are left, and of one with a member that
    /// moves, the place that it moves to alone.
    pub volume: VolumeRecord,
    /// The host that began it.
    pub host: String,
    /// When, in seconds since 1970 by that host's clock.
    pub since: u64,
    /// Bytes of each member before, of a volume that is being resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<u64>,
}

/// Bytes of namespaces that are promised, made or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// By target.
    pub targets: BTreeMap<String, u64>,
    /// By job.
    pub jobs: BTreeMap<String, u64>,
}

impl Usage {
    /// Adds the members of a volume.
    pub(crate) fn add(&mut self, volume: &VolumeRecord) {
        let size = volume.shape.member_size;
        for member in volume.members.iter().filter(|member| !member.target.is_empty()) {
            *self.targets.entry(member.target.clone()).or_default() += size;
            if let Some(job) = &volume.job {
                *self.jobs.entry(job.clone()).or_default() += size;
            }
        }
    }

    /// Each member of a volume has `more` bytes than before.
    pub(crate) fn extend(&mut self, volume: &VolumeRecord, more: u64) {
        let mut larger = volume.clone();
        larger.shape.member_size = more;
        self.add(&larger);
    }

    /// The members of a volume have `less` bytes again.
    pub(crate) fn reduce(&mut self, volume: &VolumeRecord, less: u64) {
        let mut smaller = volume.clone();
        smaller.shape.member_size = less;
        self.subtract(&smaller, |_| true);
    }

    /// Subtracts the members of a volume that are at `targets`.
    pub(crate) fn subtract(&mut self, volume: &VolumeRecord, is_gone: impl Fn(&str) -> bool) {
        let size = volume.shape.member_size;
        for member in volume.members.iter().filter(|m| !m.target.is_empty() && is_gone(&m.target)) {
            take(&mut self.targets, &member.target, size);
            if let Some(job) = &volume.job {
                take(&mut self.jobs, job, size);
            }
        }
    }

    /// Bytes at all targets.
    pub fn total(&self) -> u64 {
        self.targets.values().sum()
    }
}

/// Subtracts, and forgets what comes to zero.
fn take(from: &mut BTreeMap<String, u64>, key: &str, bytes: u64) {
    if let Some(value) = from.get_mut(key) {
        *value = value.saturating_sub(bytes);
        if *value == 0 {
            from.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_records_is_fixed() {
        let text = r#"{"format":1,"uuid":"00000000-0000-0000-0000-000000000001","kind":"create","volume":{"uuid":"00000000-0000-0000-0000-000000000002","name":"v","renames":0,"shape":{"layout":"single","width":1,"spares":0,"unit":0,"size":5,"member_size":1048576},"members":[{"target":"t","namespace":null}],"array":null,"hosts":[],"job":"7","expires":null,"thin":false,"made_by":"h","made_at":9,"state":"creating"},"host":"h","since":9}"#;
        let intent: Intent = decode("an intent", text.as_bytes()).expect("read");
        assert_eq!(String::from_utf8(encode(&intent)).expect("text"), text);
        let resize = Intent { kind: IntentKind::Resize, former: Some(4096), ..intent.clone() };
        let text = text.replace("\"format\":1", "\"format\":2").replace("\"create\"", "\"resize\"");
        let text = text.replace("\"since\":9}", "\"since\":9,\"former\":4096}");
        assert_eq!(String::from_utf8(encode_intent(&resize)).expect("text"), text);
        assert_eq!(decode_intent(text.as_bytes()), Ok(resize));
        let mut usage = Usage::default();
        usage.add(&intent.volume);
        let form = r#"{"format":1,"targets":{"t":1048576},"jobs":{"7":1048576}}"#;
        assert_eq!(String::from_utf8(encode(&usage)).expect("text"), form);
        usage.subtract(&intent.volume, |_| false);
        assert_eq!(usage.total(), 1 << 20);
        usage.subtract(&intent.volume, |_| true);
        assert_eq!(usage, Usage::default());
    }

    #[test]
    fn the_record_of_a_pool_may_lack_its_manager() {
        let text = r#"{"format":1,"uuid":"00000000-0000-0000-0000-000000000001","name":"p","quota":{"pool":null,"job":7}}"#;
        let old: PoolRecord = decode("the record of a pool", text.as_bytes()).expect("read");
        assert_eq!(
            (old.manager.as_ref(), String::from_utf8(encode(&old)).expect("text")),
            (None, text.into())
        );
        let managed = text.replace(
            "7}}",
            r#"7},"manager":{"id":"00000000-0000-0000-0000-000000000001","epoch":1,"host":"dtn1","hostnqn":"nqn.2014-08.org.example:a","catalog":"etcd at mgmt1:2379","since":1770000000}}"#,
        );
        let record: PoolRecord = decode("the record of a pool", managed.as_bytes()).expect("read");
        assert_eq!(record.manager.as_ref().map(|manager| manager.since), Some(1_770_000_000));
        assert_eq!(String::from_utf8(encode(&record)).expect("text"), managed);
    }

    #[test]
    fn other_versions_are_refused() {
        for (text, why) in [
            (r#"{"format":2}"#, "its version is 2, and this program knows version 1"),
            (r#"{"uuid":1}"#, "it is damaged: missing field `format`"),
            (r#"{"format":1,"targets":3}"#, "it is damaged"),
            ("", "it is damaged"),
        ] {
            let error = decode::<Usage>("usage", text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
