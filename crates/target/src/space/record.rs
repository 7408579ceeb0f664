//! The record of a namespace: a checksummed text file beside its content.
//!
//! The first line is `longhaul-namespace crc32c=XXXXXXXX`, the checksum of all that follows: a JSON
//! object, whose `version` says how it is to be read.

use longhaul_proto::controller::NewNamespace;
use longhaul_wire::digest::crc32c;
use longhaul_wire::management::NamespaceLabel;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const VERSION: u32 = 1;
const FIRST_LINE: &str = "longhaul-namespace crc32c=";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamespaceRecord {
    version: u32,
    pub(super) nsid: u32,
    pub(super) uuid: Uuid,
    /// Bytes.
    pub(super) size: u64,
    /// Bytes of a logical block.
    pub(super) block_size: u32,
    pub(super) shared: bool,
    pub(super) thin: bool,
    hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pool: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    volume: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    layout: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expiry: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    detail: String,
}

impl NamespaceRecord {
    pub(super) fn new(nsid: u32, uuid: Uuid, new: &NewNamespace) -> NamespaceRecord {
        let record = NamespaceRecord {
            version: VERSION,
            nsid,
            uuid,
            size: new.blocks << new.block_shift,
            block_size: 1 << new.block_shift,
            shared: new.shared,
            thin: new.label.thin,
            hosts: Vec::new(),
            pool: String::new(),
            volume: String::new(),
            layout: String::new(),
            job: String::new(),
            expiry: None,
            detail: String::new(),
        };
        record.with_label(&new.label)
    }

    /// With another label; whether it is thin stays as it is.
    pub(super) fn with_label(&self, label: &NamespaceLabel) -> NamespaceRecord {
        let NamespaceLabel { hosts, pool, volume, layout, job, expiry, thin: _, detail } = label.clone();
        NamespaceRecord { hosts, pool, volume, layout, job, expiry, detail, ..self.clone() }
    }

    /// Of a clone, which is thin: the blocks that it shares cannot be reserved.
    pub(super) fn cloned_as(&self, nsid: u32, uuid: Uuid, label: &NamespaceLabel) -> NamespaceRecord {
        NamespaceRecord { nsid, uuid, thin: true, ..self.with_label(label) }
    }

    /// With another size.
    pub(super) fn with_size(&self, size: u64) -> NamespaceRecord {
        NamespaceRecord { size, ..self.clone() }
    }

    pub(super) fn label(&self) -> NamespaceLabel {
        let NamespaceRecord { hosts, pool, volume, layout, job, expiry, thin, detail, .. } = self.clone();
        NamespaceLabel { hosts, pool, volume, layout, job, expiry, thin, detail }
    }

    /// The file's content.
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        text.push('\n');
        Ok(format!("{FIRST_LINE}{:08x}\n{text}", crc32c(text.as_bytes())).into_bytes())
    }

    /// Reads the file's content. The error names the fault.
    pub(super) fn decode(bytes: &[u8]) -> Result<NamespaceRecord, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let (first, json) = text.split_once('\n').ok_or("it is cut")?;
        let sum = first.strip_prefix(FIRST_LINE).ok_or("it is not a record of a namespace")?;
        if u32::from_str_radix(sum, 16) != Ok(crc32c(json.as_bytes())) {
            return Err("its checksum does not match".into());
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(json).map_err(|e| e.to_string())?;
        if version != VERSION {
            return Err(format!("version {version} is of a newer program"));
        }
        let record: NamespaceRecord = serde_json::from_str(json).map_err(|e| e.to_string())?;
        record.check()?;
        Ok(record)
    }

    /// Whether it is of a version that this program knows, and describes a namespace.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version {} is of a newer program", self.version));
        }
        let sound = [512, 4096].contains(&self.block_size) && self.size != 0 && self.nsid != 0;
        if !sound || !self.size.is_multiple_of(self.block_size.into()) {
            return Err("it contradicts itself".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> NamespaceRecord {
        let label = NamespaceLabel {
            hosts: vec!["nqn.2014-08.org.example:a".into()],
            job: "4711".into(),
            expiry: Some(1_800_000_000),
            ..NamespaceLabel::default()
        };
        NamespaceRecord::new(
            3,
            Uuid::from_u128(7),
            &NewNamespace { blocks: 2, block_shift: 12, shared: true, label },
        )
    }

    /// As version 1 writes it.
    const GOLDEN: &str = r#"{
  "version": 1,
  "nsid": 3,
  "uuid": "00000000-0000-0000-0000-000000000007",
  "size": 8192,
  "block_size": 4096,
  "shared": true,
  "thin": false,
  "hosts": [
    "nqn.2014-08.org.example:a"
  ],
  "job": "4711",
  "expiry": 1800000000
}
"#;

    #[test]
    fn the_format_of_a_record_is_kept() {
        let bytes = record().encode().expect("encoded");
        let text = String::from_utf8(bytes.clone()).expect("text");
        let (first, json) = text.split_once('\n').expect("two lines");
        assert_eq!(json, GOLDEN);
        assert_eq!(first, format!("longhaul-namespace crc32c={:08x}", crc32c(GOLDEN.as_bytes())));
        assert_eq!(NamespaceRecord::decode(&bytes), Ok(record()));
    }

    #[test]
    fn a_damaged_record_is_found() {
        let good = record().encode().expect("encoded");
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(NamespaceRecord::decode(&bytes).is_err(), "byte {at}");
            assert!(NamespaceRecord::decode(&good[..at]).is_err(), "cut at {at}");
        }
        let with = |from: &str, to: &str| {
            let json = GOLDEN.replace(from, to);
            NamespaceRecord::decode(format!("{FIRST_LINE}{:08x}\n{json}", crc32c(json.as_bytes())).as_bytes())
        };
        assert!(with("\"version\": 1", "\"version\": 2").expect_err("newer").contains("newer program"));
        assert!(with("8192", "8191").is_err(), "no whole number of blocks");
        assert!(with("\"block_size\": 4096", "\"block_size\": 0").is_err());
    }
}
