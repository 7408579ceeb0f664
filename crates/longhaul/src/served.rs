//! Records of the media that a target's exports served last, so that another medium at the same
//! path is detected.
//!
//! Invariants:
//! - nothing is created, grown or written before the check has passed;
//! - the record of an export is replaced atomically, after its medium was opened.

use crate::exit::{Exit, Failure};
use crate::export::Export;
use crate::state;
use longhaul_block::BlockDevice;
use longhaul_block::medium::Medium;
use longhaul_block::units::format_size;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Most media that a subsystem's record holds: enough to recognise those of exports that were
/// rearranged.
const KNOWN_MAX: usize = 64;

/// The medium that an export served last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LastMedium {
    uuid: Uuid,
    path: PathBuf,
    /// Size of the device in bytes.
    size: u64,
    /// When it was last known to be served, in seconds since 1970.
    when: u64,
    /// It had no data when the target ended.
    empty: bool,
}

/// An export of a file or block device, from before it is opened until the target ends.
#[derive(Debug)]
pub(crate) struct ExportMedium {
    nqn: String,
    nsid: u32,
    path: PathBuf,
    uuid: Option<Uuid>,
    medium: Option<Medium>,
    read_only: bool,
}

/// Checks that an export, to be namespace `nsid` of the subsystem `nqn`, has the medium that it
/// served last. Nothing is changed. `None` for exports without a medium on this host: memory, and
/// arrays, whose superblocks identify them.
///
/// # Errors
/// Another medium is at the path; the message names the one served last, and what to do.
pub(crate) fn check(export: &Export, nqn: &str, nsid: u32) -> Result<Option<ExportMedium>, Failure> {
    let Some(path) = export.path() else { return Ok(None) };
    let path = std::path::absolute(path).map_err(|e| state::wrong(path, e))?;
    let medium = medium_at(&path)?;
    let record = SubsystemRecord::load(nqn)?;
    let own = medium.as_ref().and_then(Medium::uuid);
    let uuid = export.uuid.or(own);
    if let Some(last) = record.last(nsid)
        && Some(last.uuid) != uuid
        && export.uuid.is_none()
    {
        let known = uuid.is_some_and(|uuid| record.known.contains(&uuid));
        if last.path == path && !last.empty && !known && !export.create {
            return Err(refusal(export, &last, medium.as_ref()));
        }
        tracing::warn!(
            "export {} served {} ({}) last, and serves another medium now: {}",
            export.name,
            last.path.display(),
            last.uuid,
            path.display()
        );
    }
    Ok(Some(ExportMedium { nqn: nqn.to_owned(), nsid, path, uuid, medium, read_only: export.is_read_only() }))
}

fn medium_at(path: &Path) -> Result<Option<Medium>, Failure> {
    Medium::at(path, &state::directory().join("media"), state::hardware()).map_err(|e| state::wrong(path, e))
}

fn refusal(export: &Export, last: &LastMedium, medium: Option<&Medium>) -> Failure {
    let now = match medium {
        None => "there is nothing now".to_owned(),
        Some(medium) => {
            let size = format_size(medium.size());
            match (medium.uuid(), medium.foreign()) {
                (Some(uuid), _) => format!("there is another medium now, {uuid} of {size}"),
                (None, Some(of)) if of == last.uuid => {
                    format!("there is a copy of it now, or it was moved here ({size})")
                }
                (None, _) if medium.is_empty() => format!("there is a new or empty file of {size} now"),
                (None, _) => format!("there is a medium without identity now, of {size}"),
            }
        }
    };
    let message = format!(
        "export {} is not served: at {} it served medium {} of {} last ({}), and {now}. Is a file system \
         not mounted, or a disk missing? If it is the same content, moved or restored, give the export \
         uuid={}; to serve the new medium as another disk, give it the option create",
        export.name,
        last.path.display(),
        last.uuid,
        format_size(last.size),
        ago(last.when),
        last.uuid,
    );
    Failure::new(Exit::Refused, message)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The time since `when` (seconds since 1970) as text, in the largest unit of which it has two.
fn ago(when: u64) -> String {
    let seconds = now().saturating_sub(when);
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let (count, unit) = units
        .into_iter()
        .find(|(len, _)| seconds >= 2 * len)
        .map_or((seconds, "seconds"), |(len, unit)| (seconds / len, unit));
    format!("{count} {unit} ago")
}

impl ExportMedium {
    /// Returns the identity of the medium that was opened as `device`, and records that this export
    /// serves it. A medium without an identity gets a new one, which is stored if possible.
    ///
    /// # Errors
    /// The medium was removed or replaced since the check, or the record cannot be read.
    pub(crate) fn identify(&mut self, device: &dyn BlockDevice) -> Result<Uuid, Failure> {
        // Looked up again: opening may have created the file.
        let mut medium = medium_at(&self.path)?
            .ok_or_else(|| state::wrong(&self.path, "it was removed while it was opened"))?;
        if let Some(checked) = &self.medium
            && !checked.is_same(&medium)
        {
            return Err(state::wrong(&self.path, "it was replaced while it was opened: try again"));
        }
        let uuid = self.uuid.unwrap_or_else(Uuid::new_v4);
        let is_identified = self.read_only && medium.uuid().is_some();
        if !is_identified && let Err(e) = medium.keep(uuid) {
            tracing::warn!(
                "{}: its identity {uuid} cannot be kept ({e}): give uuid={uuid} with each start",
                self.path.display()
            );
        }
        (self.uuid, self.medium) = (Some(uuid), Some(medium));
        self.save(uuid, device.info().size, false)?;
        Ok(uuid)
    }

    /// Whether both exports have the same file or block device.
    pub(crate) fn is_same(&self, other: &ExportMedium) -> bool {
        self.medium.as_ref().zip(other.medium.as_ref()).is_some_and(|(one, two)| one.is_same(two))
    }

    /// Records, at the end of the target, when the medium was served last and whether it is empty.
    pub(crate) fn end(&self, device: &dyn BlockDevice) {
        let Some((uuid, medium)) = self.uuid.zip(self.medium.as_ref()) else { return };
        if let Err(failure) = self.save(uuid, device.info().size, medium.is_empty()) {
            tracing::warn!("{}", failure.message);
        }
    }

    fn save(&self, uuid: Uuid, size: u64, empty: bool) -> Result<(), Failure> {
        let mut record = SubsystemRecord::load(&self.nqn)?;
        record.known.retain(|known| *known != uuid);
        record.known.insert(0, uuid);
        record.known.truncate(KNOWN_MAX);
        let last = LastMedium { uuid, path: self.path.clone(), size, when: now(), empty };
        record.namespaces.insert(self.nsid.to_string(), last.to_json());
        let saved = state::save(&SubsystemRecord::path(&self.nqn), &record.to_json(&self.nqn));
        if let Err(failure) = saved {
            // The record is an additional check: without it the target serves all the same.
            tracing::warn!("{}: another medium at the same path will not be detected", failure.message);
        }
        Ok(())
    }
}

/// The media that the exports of one subsystem served.
#[derive(Debug, Default)]
struct SubsystemRecord {
    /// [`LastMedium`] as JSON, by namespace identifier.
    namespaces: Map<String, Value>,
    /// All media served, the latest first.
    known: Vec<Uuid>,
}

impl SubsystemRecord {
    fn path(nqn: &str) -> PathBuf {
        let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, nqn.as_bytes()).simple();
        state::directory().join("exports").join(format!("{name}.json"))
    }

    fn load(nqn: &str) -> Result<SubsystemRecord, Failure> {
        let Some(mut value) = state::load(&SubsystemRecord::path(nqn))? else {
            return Ok(SubsystemRecord::default());
        };
        let known = value["known"].as_array().into_iter().flatten();
        let known = known.filter_map(|uuid| uuid.as_str()?.parse().ok()).collect();
        let namespaces = match value["namespaces"].take() {
            Value::Object(namespaces) => namespaces,
            _ => Map::new(),
        };
        Ok(SubsystemRecord { namespaces, known })
    }

    fn last(&self, nsid: u32) -> Option<LastMedium> {
        LastMedium::parse(self.namespaces.get(&nsid.to_string())?)
    }

    fn to_json(&self, nqn: &str) -> Value {
        let known: Vec<String> = self.known.iter().map(Uuid::to_string).collect();
        json!({ "nqn": nqn, "namespaces": self.namespaces, "known": known })
    }
}

impl LastMedium {
    fn parse(value: &Value) -> Option<LastMedium> {
        Some(LastMedium {
            uuid: value["uuid"].as_str()?.parse().ok()?,
            path: value["path"].as_str()?.into(),
            size: value["size"].as_u64()?,
            when: value["when"].as_u64()?,
            empty: value["empty"].as_bool()?,
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "uuid": self.uuid.to_string(), "path": self.path.to_string_lossy(), "size": self.size,
            "when": self.when, "empty": self.empty,
        })
    }
}
