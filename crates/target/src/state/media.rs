//! Records of the media that a target's exports served last, so that another medium at the same
//! path is detected.
//!
//! Invariants:
//! - nothing is created, grown or written before the check has passed;
//! - the record of an export is replaced atomically, after its medium was opened.

use super::{TargetState, VERSION, hardware, load, write, wrong};
use crate::target::Error;
use longhaul_block::BlockDevice;
use longhaul_block::medium::Medium;
use longhaul_block::units::format_size;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
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

/// The medium that an export is about to serve, as its user gives it.
#[derive(Clone, Copy, Debug)]
pub struct MediumSpec<'a> {
    /// Name of the export, for messages.
    pub name: &'a str,
    /// NQN of its subsystem.
    pub nqn: &'a str,
    /// Its namespace identifier there.
    pub nsid: u32,
    /// The file or block device.
    pub path: &'a Path,
    /// UUID of the namespace, where the user sets it.
    pub uuid: Option<Uuid>,
    /// Serve the medium as a new disk, even if another one was served there.
    pub create: bool,
    /// The export refuses all writes.
    pub read_only: bool,
}

/// The file or block device of an export, from before it is opened until the target ends.
#[derive(Debug)]
pub struct ServedMedium {
    state: TargetState,
    nqn: String,
    nsid: u32,
    path: PathBuf,
    uuid: Option<Uuid>,
    medium: Option<Medium>,
    read_only: bool,
}

/// See [`TargetState::check_medium`].
pub(super) fn check(state: &TargetState, spec: &MediumSpec<'_>) -> Result<ServedMedium, Error> {
    let path = std::path::absolute(spec.path).map_err(|e| wrong(spec.path, e))?;
    let medium = medium_at(state, &path)?;
    let record = SubsystemRecord::load(state, spec.nqn)?;
    let own = medium.as_ref().and_then(Medium::uuid);
    let uuid = spec.uuid.or(own);
    if let Some(last) = record.last(spec.nsid)
        && Some(last.uuid) != uuid
        && spec.uuid.is_none()
    {
        let known = uuid.is_some_and(|uuid| record.known.contains(&uuid));
        if last.path == path && !last.empty && !known && !spec.create {
            return Err(refusal(spec.name, &last, medium.as_ref()));
        }
        tracing::warn!(
            "export {} served {} ({}) last, and serves another medium now: {}",
            spec.name,
            last.path.display(),
            last.uuid,
            path.display()
        );
    }
    Ok(ServedMedium {
        state: state.clone(),
        nqn: spec.nqn.to_owned(),
        nsid: spec.nsid,
        path,
        uuid,
        medium,
        read_only: spec.read_only,
    })
}

fn medium_at(state: &TargetState, path: &Path) -> Result<Option<Medium>, Error> {
    Medium::at(path, &state.directory.join("media"), hardware()).map_err(|e| wrong(path, e))
}

fn refusal(name: &str, last: &LastMedium, medium: Option<&Medium>) -> Error {
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
        "export {name} is not served: at {} it served medium {} of {} last ({}), and {now}. Is a file system \
         not mounted, or a disk missing? If it is the same content, moved or restored, give the export \
         uuid={}; to serve the new medium as another disk, give it the option create",
        last.path.display(),
        last.uuid,
        format_size(last.size),
        ago(last.when),
        last.uuid,
    );
    Error::OtherMedium(message)
}

fn now() -> u64 {
    longhaul_engine::wall_time().as_secs()
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

impl ServedMedium {
    /// Returns the identity of the medium that was opened as `device`, and records that this export
    /// serves it. A medium without an identity gets a new one, which is stored if possible.
    ///
    /// # Errors
    /// The medium was removed or replaced since the check, or the record cannot be read.
    pub fn identify(&mut self, device: &dyn BlockDevice) -> Result<Uuid, Error> {
        // Looked up again: opening may have created the file.
        let mut medium = medium_at(&self.state, &self.path)?
            .ok_or_else(|| wrong(&self.path, "it was removed while it was opened"))?;
        if let Some(checked) = &self.medium
            && !checked.is_same(&medium)
        {
            return Err(wrong(&self.path, "it was replaced while it was opened: try again"));
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

    /// Whether the file or device that is served is the one at its path.
    ///
    /// # Errors
    /// What is there cannot be examined.
    pub fn is_there(&self) -> Result<bool, Error> {
        let now = medium_at(&self.state, &self.path)?;
        Ok(now.as_ref().zip(self.medium.as_ref()).is_some_and(|(one, two)| one.is_same(two)))
    }

    /// Whether both exports have the same file or block device.
    pub fn is_same(&self, other: &ServedMedium) -> bool {
        self.medium.as_ref().zip(other.medium.as_ref()).is_some_and(|(one, two)| one.is_same(two))
    }

    /// Records, at the end of the target, when the medium was served last and whether it is empty.
    pub fn end(&self, device: &dyn BlockDevice) {
        let Some((uuid, medium)) = self.uuid.zip(self.medium.as_ref()) else { return };
        if let Err(e) = self.save(uuid, device.info().size, medium.is_empty()) {
            tracing::warn!("{e}");
        }
    }

    fn save(&self, uuid: Uuid, size: u64, empty: bool) -> Result<(), Error> {
        let mut record = SubsystemRecord::load(&self.state, &self.nqn)?;
        record.known.retain(|known| *known != uuid);
        record.known.insert(0, uuid);
        record.known.truncate(KNOWN_MAX);
        let last = LastMedium { uuid, path: self.path.clone(), size, when: now(), empty };
        record.namespaces.insert(self.nsid.to_string(), last.to_json());
        let path = SubsystemRecord::path(&self.state, &self.nqn);
        if let Err(e) = write(&path, &record.to_json(&self.nqn)).map_err(|e| wrong(&path, e)) {
            // The record is an additional check: without it the target serves all the same.
            tracing::warn!("{e}: another medium at the same path will not be detected");
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
    fn path(state: &TargetState, nqn: &str) -> PathBuf {
        let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, nqn.as_bytes()).simple();
        state.directory.join("exports").join(format!("{name}.json"))
    }

    fn load(state: &TargetState, nqn: &str) -> Result<SubsystemRecord, Error> {
        let Some(mut value) = load(&SubsystemRecord::path(state, nqn))? else {
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
        json!({ "version": VERSION, "nqn": nqn, "namespaces": self.namespaces, "known": known })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_record_are_fixed() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = TargetState::at(dir.path().to_owned());
        let text = r#"{
  "known": [
    "00000000-0000-0000-0000-000000000007"
  ],
  "namespaces": {
    "1": {
      "empty": false,
      "path": "/srv/scratch",
      "size": 1048576,
      "uuid": "00000000-0000-0000-0000-000000000007",
      "when": 1795219202
    }
  },
  "nqn": "nqn.2026-11.io.longhaul:x",
  "version": 1
}
"#;
        let nqn = "nqn.2026-11.io.longhaul:x";
        let path = SubsystemRecord::path(&state, nqn);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, text).expect("written");
        let record = SubsystemRecord::load(&state, nqn).expect("a record");
        let last = record.last(1).expect("a medium");
        assert_eq!((last.uuid, last.size), (Uuid::from_u128(7), 1 << 20));
        write(&path, &record.to_json(nqn)).expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        std::fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).expect("written");
        assert!(SubsystemRecord::load(&state, nqn).is_err(), "a newer version");
    }
}
