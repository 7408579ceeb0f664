//! Where the members of this host's arrays are.

use crate::exit::Failure;
use crate::names::{parse_bytes, parse_time};
use longhaul_array::Options;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

/// Where records are, below the state directory.
const BELOW: &str = "arrays";

/// An array, and the devices that may be its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    /// As a person names them.
    pub(crate) devices: Vec<String>,
    pub(crate) care: Care,
}

/// How a person wants an array to be looked after.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Care {
    /// Bytes per second that rebuild and scrub read of each member at most
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) rebuild_rate: Option<u64>,
    /// Bytes per second that scrub reads of each member at most
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) scrub_rate: Option<u64>,
    /// Scrub by itself, so long after the last time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) scrub_every: Option<Duration>,
    /// Time that a member may be out of reach until a spare takes its place
    /// [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) spare_grace: Option<Duration>,
    /// Reads that may be raced by reconstruction when they are late, of a
    /// hundred [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    pub(crate) hedge: Option<u32>,
    /// Write whole stripes through the journal as well: a crash and the loss of a
    /// member in the same moment then leave nothing undefined, at twice the bytes
    #[arg(long)]
    pub(crate) journal_all: bool,
}

impl Care {
    fn parse(value: &Value) -> Care {
        let time = |name: &str| value[name].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
        Care {
            rebuild_rate: value["rebuild_rate"].as_u64(),
            scrub_rate: value["scrub_rate"].as_u64(),
            scrub_every: time("scrub_every"),
            spare_grace: time("spare_grace"),
            hedge: value["hedge"].as_u64().and_then(|percent| percent.try_into().ok()),
            journal_all: value["journal_all"].as_bool().unwrap_or(false),
        }
    }

    /// Options of an array that is run this way.
    pub(crate) fn options(&self) -> Options {
        let usual = Options::default();
        Options {
            rebuild_rate: self.rebuild_rate,
            scrub_rate: self.scrub_rate,
            scrub_every: self.scrub_every,
            spare_grace: self.spare_grace.unwrap_or(usual.spare_grace),
            hedge_percent: self.hedge.unwrap_or(usual.hedge_percent),
            journal_all: self.journal_all,
            ..usual
        }
    }
}

pub(super) fn directory() -> PathBuf {
    crate::state::directory().join(BELOW)
}

impl Record {
    /// Finds the record that `name` (a name or a UUID) means.
    pub(crate) fn find(name: &str) -> Result<Record, Failure> {
        let all = Record::all()?;
        let uuid = name.parse::<Uuid>().ok();
        let mut found = all.iter().filter(|record| record.name == name || Some(record.uuid) == uuid);
        match (found.next(), found.next()) {
            (Some(record), None) => Ok(record.clone()),
            (Some(a), Some(b)) => Err(Failure::usage(format!(
                "arrays {} and {} are both called {name}: use the UUID",
                a.uuid, b.uuid
            ))),
            (None, _) => {
                let known: Vec<&str> = all.iter().map(|record| record.name.as_str()).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(Failure::usage(format!(
                    "no array {name} is known on this host (known: {known}): \
                     longhaul array assemble --device … makes it known"
                )))
            }
        }
    }

    /// All records, by name.
    pub(crate) fn all() -> Result<Vec<Record>, Failure> {
        let directory = directory();
        let entries = match std::fs::read_dir(&directory) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| wrong(&directory, e))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| wrong(&directory, e))?.path();
            if path.extension().is_some_and(|ext| ext == "json") {
                let text = std::fs::read_to_string(&path).map_err(|e| wrong(&path, e))?;
                all.push(Record::parse(&text).ok_or_else(|| wrong(&path, "not a record of an array"))?);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn parse(text: &str) -> Option<Record> {
        let value: Value = serde_json::from_str(text).ok()?;
        let devices = value["devices"].as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
        Some(Record {
            uuid: value["uuid"].as_str()?.parse().ok()?,
            name: value["name"].as_str()?.to_owned(),
            devices: devices.collect::<Option<_>>()?,
            care: Care::parse(&value),
        })
    }

    /// Keeps it; an earlier one of the same array is replaced as a whole.
    pub(crate) fn save(&self) -> Result<(), Failure> {
        let directory = directory();
        std::fs::create_dir_all(&directory).map_err(|e| wrong(&directory, e))?;
        let text = json!({
            "uuid": self.uuid.to_string(), "name": self.name, "devices": self.devices,
            "rebuild_rate": self.care.rebuild_rate, "scrub_rate": self.care.scrub_rate,
            "scrub_every": self.care.scrub_every.map(|time| time.as_secs_f64()),
            "spare_grace": self.care.spare_grace.map(|time| time.as_secs_f64()),
            "hedge": self.care.hedge, "journal_all": self.care.journal_all,
        });
        let path = directory.join(format!("{}.json", self.uuid));
        let new = directory.join(format!("{}.new", self.uuid));
        std::fs::write(&new, format!("{text:#}\n")).map_err(|e| wrong(&new, e))?;
        std::fs::rename(&new, &path).map_err(|e| wrong(&path, e))
    }

    /// The array is no more.
    pub(crate) fn forget(&self) -> Result<(), Failure> {
        let _ = std::fs::remove_file(super::kept::path(self.uuid));
        let path = directory().join(format!("{}.json", self.uuid));
        std::fs::remove_file(&path).map_err(|e| wrong(&path, e))
    }

    /// Adds a device, if it is not there yet.
    pub(crate) fn add(&mut self, device: &str) {
        if !self.devices.iter().any(|known| known == device) {
            self.devices.push(device.to_owned());
        }
    }
}

fn wrong(path: &Path, e: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_others_are_not() {
        let text = r#"{"uuid":"00000000-0000-0000-0000-000000000007","name":"a","devices":["/x"],"rebuild_rate":5,
                "scrub_every":2.5,"hedge":0,"journal_all":true}"#;
        let record = Record::parse(text).expect("a record");
        assert_eq!((record.uuid, record.care.rebuild_rate), (Uuid::from_u128(7), Some(5)));
        assert_eq!(
            (record.care.scrub_every, record.care.spare_grace),
            (Some(Duration::from_millis(2500)), None)
        );
        let options = record.care.options();
        assert_eq!((options.hedge_percent, options.journal_all), (0, true));
        assert_eq!(record.devices, ["/x"]);
        for text in
            ["", "{}", r#"{"uuid":"x","name":"a","devices":[]}"#, r#"{"uuid":7,"name":"a","devices":[1]}"#]
        {
            assert_eq!(Record::parse(text), None, "{text}");
        }
    }
}
