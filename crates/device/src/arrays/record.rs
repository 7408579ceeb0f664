//! Records of arrays: the names of their devices, and their settings on this host.

use super::registry::Registry;
use crate::error::{Error, Result};
use crate::user::User;
use longhaul_array::Options;
use longhaul_engine::state_file;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

/// Version of the records' format.
const VERSION: u64 = 1;
/// Why a file is not used.
const NO_RECORD: &str = "not a record of an array";

/// An array, and the devices that may be its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayRecord {
    /// Identifies the array.
    pub uuid: Uuid,
    /// The name that the user gave it.
    pub name: String,
    /// Device names as given on the command line.
    pub devices: Vec<String>,
    /// The member that was last found on each of these devices, by the name of the device: says
    /// which device a member was on that is not there any more.
    pub members: BTreeMap<String, Uuid>,
    /// Settings of the array on this host.
    pub settings: ArraySettings,
    /// The registry that holds this record.
    pub registry: Registry,
}

/// Settings of rebuild, scrub, spares and hedged reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArraySettings {
    /// Most bytes per second that rebuild and scrub read from each member.
    pub rebuild_rate: Option<u64>,
    /// Most bytes per second that scrub reads from each member.
    pub scrub_rate: Option<u64>,
    /// Scrub automatically, this long after the last scrub.
    pub scrub_every: Option<Duration>,
    /// How long a member may be offline before a spare replaces it.
    pub spare_grace: Option<Duration>,
    /// Most reads that are hedged, in percent.
    pub hedge: Option<u32>,
    /// Journal full-stripe writes too.
    pub journal_all: bool,
}

impl ArraySettings {
    fn parse(value: &Value) -> ArraySettings {
        let time = |name: &str| value[name].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
        ArraySettings {
            rebuild_rate: value["rebuild_rate"].as_u64(),
            scrub_rate: value["scrub_rate"].as_u64(),
            scrub_every: time("scrub_every"),
            spare_grace: time("spare_grace"),
            hedge: value["hedge"].as_u64().and_then(|percent| percent.try_into().ok()),
            journal_all: value["journal_all"].as_bool().unwrap_or(false),
        }
    }

    /// The options to assemble the array with.
    pub fn options(&self) -> Options {
        let default = Options::default();
        Options {
            rebuild_rate: self.rebuild_rate,
            scrub_rate: self.scrub_rate,
            scrub_every: self.scrub_every,
            spare_grace: self.spare_grace.unwrap_or(default.spare_grace),
            hedge_percent: self.hedge.unwrap_or(default.hedge_percent),
            journal_all: self.journal_all,
            ..default
        }
    }
}

impl ArrayRecord {
    /// Finds a record by the name or the UUID of the array.
    ///
    /// # Errors
    /// No array of the visible registries has the name, or more than one.
    pub fn find(name: &str) -> Result<ArrayRecord> {
        let all = ArrayRecord::all()?;
        let uuid = name.parse::<Uuid>().ok();
        let is_it = |record: &&ArrayRecord| record.name == name || Some(record.uuid) == uuid;
        let mut found = all.iter().filter(is_it);
        match (found.next(), found.next()) {
            (Some(record), None) => Ok(record.clone()),
            (Some(a), Some(b)) => Err(Error::invalid(format!(
                "arrays {} and {} are both called {name}: use the UUID",
                a.uuid, b.uuid
            ))),
            (None, _) => Err(unknown(name, &all, is_it)),
        }
    }

    /// The records of all visible registries, sorted by name. Of an array in two registries, the
    /// record in the user's own one.
    ///
    /// # Errors
    /// A registry cannot be read, or has a damaged record.
    pub fn all() -> Result<Vec<ArrayRecord>> {
        let mut all: Vec<ArrayRecord> = Vec::new();
        for registry in Registry::all() {
            for record in ArrayRecord::all_in(&registry)? {
                if !all.iter().any(|known| known.uuid == record.uuid) {
                    all.push(record);
                }
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The record as it is in its registry now; `None` if it is not there, or cannot be read.
    pub(super) fn reread(&self) -> Option<ArrayRecord> {
        let path = self.path();
        let text = self.registry.with_rights(|| std::fs::read_to_string(path)).and_then(|read| read).ok()?;
        ArrayRecord::parse(&text, &self.registry).ok()
    }

    /// The arrays of volumes of pools that this user has opened on this host, each called `POOL/NAME`.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn of_volumes() -> Result<Vec<ArrayRecord>> {
        ArrayRecord::all_in(&Registry::of_volumes())
    }

    fn all_in(registry: &Registry) -> Result<Vec<ArrayRecord>> {
        let directory = registry.directory();
        let read = || {
            let entries = match std::fs::read_dir(directory) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries.map_err(|e| wrong(directory, e))?,
            };
            let mut all = Vec::new();
            for entry in entries {
                let path = entry.map_err(|e| wrong(directory, e))?.path();
                if path.extension().is_some_and(|ext| ext == "json") {
                    let text = std::fs::read_to_string(&path).map_err(|e| wrong(&path, e))?;
                    let record = ArrayRecord::parse(&text, registry);
                    all.push(record.map_err(|e| wrong(&path, e))?);
                }
            }
            Ok(all)
        };
        registry.with_rights(read).map_err(|e| wrong(directory, e))?
    }

    fn parse(text: &str, registry: &Registry) -> std::result::Result<ArrayRecord, String> {
        let value: Value = serde_json::from_str(text).map_err(|_| NO_RECORD)?;
        // Records of the first release have no version.
        let version = value["version"].as_u64().unwrap_or(VERSION);
        if version > VERSION {
            return Err(format!(
                "a record of version {version}, and this program knows version {VERSION}: use the program that \
                 wrote it, or a newer one"
            ));
        }
        ArrayRecord::from_json(&value, registry).ok_or_else(|| NO_RECORD.to_owned())
    }

    fn from_json(value: &Value, registry: &Registry) -> Option<ArrayRecord> {
        let devices = value["devices"].as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
        Some(ArrayRecord {
            uuid: value["uuid"].as_str()?.parse().ok()?,
            name: value["name"].as_str()?.to_owned(),
            devices: devices.collect::<Option<_>>()?,
            members: parse_members(&value["members"]),
            settings: ArraySettings::parse(value),
            registry: registry.clone(),
        })
    }

    /// Writes the record; an earlier one of the same array is replaced atomically.
    ///
    /// # Errors
    /// The registry cannot be written.
    pub fn save(&self) -> Result<()> {
        let directory = self.registry.directory();
        let text = self.to_json();
        let path = self.path();
        let write = || {
            std::fs::create_dir_all(directory).map_err(|e| wrong(directory, e))?;
            state_file::replace(&path, format!("{text:#}\n").as_bytes()).map_err(|e| wrong(&path, e))
        };
        self.registry.with_rights(write).map_err(|e| wrong(directory, e))?
    }

    fn to_json(&self) -> Value {
        let members: BTreeMap<_, _> =
            self.members.iter().map(|(name, uuid)| (name, uuid.to_string())).collect();
        json!({
            "version": VERSION,
            "uuid": self.uuid.to_string(), "name": self.name, "devices": self.devices,
            "members": members,
            "rebuild_rate": self.settings.rebuild_rate, "scrub_rate": self.settings.scrub_rate,
            "scrub_every": self.settings.scrub_every.map(|time| time.as_secs_f64()),
            "spare_grace": self.settings.spare_grace.map(|time| time.as_secs_f64()),
            "hedge": self.settings.hedge, "journal_all": self.settings.journal_all,
        })
    }

    /// Removes the record of an array that does not exist any more.
    ///
    /// # Errors
    /// The registry cannot be written.
    pub fn forget(&self) -> Result<()> {
        let (path, known) = (self.path(), super::last_known::path(self));
        let remove = || {
            let _ = std::fs::remove_file(known);
            std::fs::remove_file(&path)
        };
        let removed = self.registry.with_rights(remove).and_then(|removed| removed);
        removed.map_err(|e| wrong(&path, e))
    }

    fn path(&self) -> PathBuf {
        self.registry.directory().join(format!("{}.json", self.uuid))
    }

    /// Adds a device name, unless the record has it.
    pub fn add(&mut self, device: &str) {
        if !self.devices.iter().any(|known| known == device) {
            self.devices.push(device.to_owned());
        }
    }

    /// Removes the device that `member` was on, unless it is `but`.
    pub fn remove_member(&mut self, member: Uuid, but: &str) {
        let ArrayRecord { devices, members, .. } = self;
        devices.retain(|name| name == but || members.get(name) != Some(&member));
        members.retain(|name, _| devices.contains(name));
    }
}

/// An invalid UUID is left out: it is found again when the array is next opened.
fn parse_members(value: &Value) -> BTreeMap<String, Uuid> {
    let members = value.as_object().into_iter().flatten();
    members.filter_map(|(name, uuid)| Some((name.clone(), uuid.as_str()?.parse().ok()?))).collect()
}

/// The error for a name that no visible registry has, with where the array may be instead.
fn unknown(name: &str, all: &[ArrayRecord], is_it: impl Fn(&&ArrayRecord) -> bool) -> Error {
    let of_machine = ArrayRecord::all_in(&Registry::of_machine()).unwrap_or_default();
    if of_machine.iter().any(|record| is_it(&record)) {
        return Error::invalid(format!("array {name} is root's on this host: run this with sudo"));
    }
    let known: Vec<&str> = all.iter().map(|record| record.name.as_str()).collect();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    let visible_to = match User::caller() {
        Some(user) => format!("to root or {}", user.name),
        None => "to this user".into(),
    };
    Error::invalid(format!(
        "no array {name} is known {visible_to} on this host (known: {known}). Arrays are recorded for the user \
         that makes them, and root has those of the user that calls sudo: run this as that user, or with sudo \
         from there; longhaul array assemble --device … makes an array known that was made elsewhere"
    ))
}

fn wrong(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::failed(format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_records_are_parsed_and_others_rejected() {
        let text = r#"{"uuid":"00000000-0000-0000-0000-000000000007","name":"a","devices":["/x"],"rebuild_rate":5,
                "scrub_every":2.5,"hedge":0,"journal_all":true}"#;
        let registry = Registry::own();
        let record = ArrayRecord::parse(text, &registry).expect("a record");
        assert_eq!((record.uuid, record.settings.rebuild_rate), (Uuid::from_u128(7), Some(5)));
        assert_eq!(
            (record.settings.scrub_every, record.settings.spare_grace),
            (Some(Duration::from_millis(2500)), None)
        );
        let options = record.settings.options();
        assert_eq!((options.hedge_percent, options.journal_all), (0, true));
        assert_eq!((&record.devices[..], record.members.len()), (&["/x".to_owned()][..], 0));
        for text in
            ["", "{}", r#"{"uuid":"x","name":"a","devices":[]}"#, r#"{"uuid":7,"name":"a","devices":[1]}"#]
        {
            assert_eq!(ArrayRecord::parse(text, &registry), Err(NO_RECORD.into()), "{text}");
        }
    }

    #[test]
    fn the_bytes_of_a_record_are_fixed_and_those_of_a_newer_version_refused() {
        let text = r#"{
  "devices": [
    "/x",
    "/y"
  ],
  "hedge": 3,
  "journal_all": false,
  "members": {
    "/x": "00000000-0000-0000-0000-000000000001"
  },
  "name": "a",
  "rebuild_rate": 5,
  "scrub_every": 2.5,
  "scrub_rate": null,
  "spare_grace": null,
  "uuid": "00000000-0000-0000-0000-000000000007",
  "version": 1
}"#;
        let record = ArrayRecord::parse(text, &Registry::own()).expect("a record");
        assert_eq!(format!("{:#}", record.to_json()), text);
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        let refused = ArrayRecord::parse(&newer, &Registry::own()).expect_err("newer");
        assert!(refused.starts_with("a record of version 2, and this program knows version 1"), "{refused}");
    }

    #[test]
    fn the_device_of_a_replaced_member_goes() {
        let text = r#"{"uuid":"00000000-0000-0000-0000-000000000007","name":"a","devices":["/x","/y","/z"],
                "members":{"/x":"00000000-0000-0000-0000-000000000001",
                "/y":"00000000-0000-0000-0000-000000000002","/z":5}}"#;
        let record = ArrayRecord::parse(text, &Registry::own()).expect("a record");
        let without = |member: u128, but: &str| {
            let mut record = record.clone();
            record.remove_member(Uuid::from_u128(member), but);
            record.devices
        };
        assert_eq!(without(2, "/new"), ["/x", "/z"]);
        assert_eq!(without(2, "/y"), ["/x", "/y", "/z"], "another medium under the same name");
        assert_eq!(without(5, "/new"), ["/x", "/y", "/z"], "nothing is known of it");
    }
}
