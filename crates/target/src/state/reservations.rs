//! Records of reservations that persist, a file for each namespace in the state directory.
//!
//! Invariants:
//! - a record is replaced atomically and durably;
//! - a record that cannot be read, or that another namespace wrote, is an error and never taken
//!   for none.

use super::write;
use crate::store::ReservationStore;
use longhaul_engine::state_file;
use longhaul_proto::reservation::{Registration, ReservationRecord};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The record of one namespace.
#[derive(Debug)]
pub struct ReservationFile {
    namespace: Uuid,
    path: PathBuf,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct FileRecord {
    version: u32,
    namespace: Uuid,
    generation: u32,
    registrations: Vec<FileRegistration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservation: Option<FileReservation>,
}

#[derive(Serialize, Deserialize)]
struct FileRegistration {
    host: Uuid,
    /// In hexadecimal, since JSON readers round large integers.
    key: String,
}

#[derive(Serialize, Deserialize)]
struct FileReservation {
    /// Code of the reservation type (NVMe Base 2.1, Reservation Type Encoding).
    #[serde(rename = "type")]
    kind: u8,
    host: Uuid,
}

impl ReservationFile {
    /// The file of the namespace with this UUID.
    pub(super) fn of(directory: &Path, namespace: Uuid) -> ReservationFile {
        ReservationFile { namespace, path: directory.join(format!("reservations/{namespace}.json")) }
    }

    fn wrong(&self, e: impl std::fmt::Display) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "cannot use {}: {e}; repair it, or remove it to forget which hosts are registered",
                self.path.display()
            ),
        )
    }

    fn parse(&self, text: &str) -> io::Result<ReservationRecord> {
        let FileRecord { version, namespace, generation, registrations, reservation } =
            serde_json::from_str(text).map_err(|e| self.wrong(e))?;
        if namespace != self.namespace {
            return Err(self.wrong(format_args!("it is of namespace {namespace}")));
        }
        let registration = |one: FileRegistration| {
            let key = one.key.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let key = key.ok_or_else(|| self.wrong(format_args!("'{}' is not a key", one.key)))?;
            Ok(Registration { host: one.host.into_bytes(), key })
        };
        Ok(ReservationRecord {
            version,
            generation,
            registrations: registrations.into_iter().map(registration).collect::<io::Result<_>>()?,
            held: reservation.map(|one| (one.kind, one.host.into_bytes())),
        })
    }
}

impl ReservationStore for ReservationFile {
    fn load(&self) -> io::Result<Option<ReservationRecord>> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => self.parse(&text).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.wrong(e)),
        }
    }

    fn save(&self, record: Option<&ReservationRecord>) -> io::Result<()> {
        let Some(ReservationRecord { version, generation, registrations, held }) = record else {
            return state_file::remove(&self.path).map_err(|e| self.wrong(e));
        };
        let registration = |one: &Registration| FileRegistration {
            host: Uuid::from_bytes(one.host),
            key: format!("{:#x}", one.key),
        };
        let record = FileRecord {
            version: *version,
            namespace: self.namespace,
            generation: *generation,
            registrations: registrations.iter().map(registration).collect(),
            reservation: held.map(|(kind, host)| FileReservation { kind, host: Uuid::from_bytes(host) }),
        };
        let text = serde_json::to_value(record).map_err(|e| self.wrong(e))?;
        write(&self.path, &text).map_err(|e| self.wrong(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As version 1 writes it.
    const GOLDEN: &str = r#"{
  "generation": 3,
  "namespace": "00000000-0000-0000-0000-000000000007",
  "registrations": [
    {
      "host": "00000000-0000-0000-0000-000000000001",
      "key": "0xffffffffffffffff"
    }
  ],
  "reservation": {
    "host": "00000000-0000-0000-0000-000000000001",
    "type": 2
  },
  "version": 1
}
"#;

    fn record() -> ReservationRecord {
        let host = Uuid::from_u128(1).into_bytes();
        let registrations = vec![Registration { host, key: u64::MAX }];
        ReservationRecord { version: 1, generation: 3, registrations, held: Some((2, host)) }
    }

    #[test]
    fn the_format_of_a_record_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("reservations/7.json");
        let file = ReservationFile { namespace: Uuid::from_u128(7), path: path.clone() };
        assert_eq!(file.load().expect("none yet"), None);
        file.save(Some(&record())).expect("saved");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), GOLDEN);
        assert_eq!(file.load().expect("readable"), Some(record()));
        let free = ReservationRecord { held: None, ..record() };
        file.save(Some(&free)).expect("replaced");
        assert_eq!(file.load().expect("readable"), Some(free));
        file.save(None).expect("removed");
        file.save(None).expect("nothing to remove");
        assert_eq!(file.load().expect("none"), None);
    }

    #[test]
    fn a_damaged_record_is_not_taken_for_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("7.json");
        let file = |n| ReservationFile { namespace: Uuid::from_u128(n), path: path.clone() };
        let half = &GOLDEN[..GOLDEN.len() / 2];
        for (text, n, words) in [
            (half, 7, "remove it"),
            (GOLDEN, 8, "it is of namespace"),
            (&GOLDEN.replace("0xff", "0xzz"), 7, "is not a key"),
            ("", 7, "cannot use"),
        ] {
            std::fs::write(&path, text).expect("written");
            let refused = file(n).load().expect_err("damaged").to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
