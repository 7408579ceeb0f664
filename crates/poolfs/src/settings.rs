//! How a file system lies on its members: its first record in the catalog, as JSON.

use crate::schema::FORMAT;
use longhaul_device::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How a file system lies on its members. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FsSettings {
    pub(crate) format: u64,
    /// The pool that has it.
    pub(crate) pool: Uuid,
    /// Members.
    pub(crate) members: usize,
    /// Most data units of a stripe.
    pub(crate) data: usize,
    /// Units of parity of a stripe.
    pub(crate) parity: usize,
    /// Largest unit of a stripe.
    pub(crate) unit: u64,
    /// A segment on one member.
    pub(crate) segment: u64,
    /// Number of segments.
    pub(crate) segments: u32,
    /// Where the members are, once one has moved; otherwise where they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) places: Vec<MemberPlace>,
    /// Sessions from this number on are registered with the members, which are reserved for them; none is before
    /// all programs that use the file system know that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fences: Option<u64>,
}

/// Where a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberPlace {
    /// Its namespace; that which it was made on if there is none.
    pub(crate) namespace: Option<Uuid>,
    /// Units are still to be written to it that were there before it was the member.
    pub(crate) fills: bool,
    /// The namespace that it moves from, which has these units; none if that is lost.
    pub(crate) former: Option<FormerPlace>,
}

/// Where a member was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormerPlace {
    /// Its namespace; that which the member was made on if there is none.
    pub(crate) namespace: Option<Uuid>,
}

#[derive(Deserialize)]
struct SettingsVersion {
    format: u64,
}

impl FsSettings {
    /// The version of settings that this program makes.
    pub(crate) const FORMAT: u64 = FORMAT as u64;
    /// The version of those with places of members, which programs of version 1 do not know.
    pub(crate) const FORMAT_PLACES: u64 = 2;
    /// The version of those of file systems that have snapshots, or had some.
    pub(crate) const FORMAT_SNAPSHOTS: u64 = 3;
    /// The version of those of file systems whose members are reserved for registered sessions.
    pub(crate) const FORMAT_FENCES: u64 = 4;
    /// The version of those of file systems that have quotas, or had some.
    pub(crate) const FORMAT_QUOTAS: u64 = 5;
    /// The latest version.
    pub(crate) const LATEST: u64 = FsSettings::FORMAT_QUOTAS;

    pub(crate) fn encode(&self) -> Vec<u8> {
        // unwrap: numbers only, and writing to memory does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the settings of the file system `name`.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<FsSettings> {
        let failed =
            |why: String| Error::new(ErrorKind::Failed, format!("file system {name} cannot be used: {why}"));
        let damaged = |e: serde_json::Error| failed(format!("its settings are damaged: {e}"));
        let version: SettingsVersion = serde_json::from_slice(bytes).map_err(damaged)?;
        if !(FsSettings::FORMAT..=FsSettings::LATEST).contains(&version.format) {
            return Err(failed(format!(
                "it has format {}, and this program knows format {}: use a newer program",
                version.format,
                FsSettings::LATEST
            )));
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }

    /// Where a member is.
    pub(crate) fn place(&self, member: usize) -> MemberPlace {
        self.places.get(member).copied().unwrap_or_default()
    }

    /// Changes where a member is.
    pub(crate) fn set_place(&mut self, member: usize, place: MemberPlace) {
        self.format = self.format.max(FsSettings::FORMAT_PLACES);
        self.places.resize(self.members, MemberPlace::default());
        if let Some(of) = self.places.get_mut(member) {
            *of = place;
        }
    }

    /// Sessions from this number on are registered with the members.
    pub(crate) fn fence_from(&mut self, session: u64) {
        self.format = self.format.max(FsSettings::FORMAT_FENCES);
        self.fences = Some(session);
    }

    /// Bytes of content that a whole stripe has.
    pub(crate) fn stripe(&self) -> u64 {
        self.unit * self.data as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_later_version_are_refused_with_a_sentence() {
        let settings = FsSettings {
            format: 1,
            pool: Uuid::nil(),
            members: 3,
            data: 2,
            parity: 1,
            unit: 1 << 18,
            segment: 1 << 26,
            segments: 16,
            places: Vec::new(),
            fences: None,
        };
        let text = r#"{"format":1,"pool":"00000000-0000-0000-0000-000000000000","members":3,"data":2,"parity":1,"unit":262144,"segment":67108864,"segments":16}"#;
        assert_eq!(settings.encode(), text.as_bytes());
        assert_eq!(FsSettings::decode("p/f", text.as_bytes()).expect("read"), settings);
        let later = text.replace("\"format\":1", "\"format\":6");
        let error = FsSettings::decode("p/f", later.as_bytes()).expect_err("later").to_string();
        assert!(error.contains("it has format 6, and this program knows format 5"), "{error}");
        let error = FsSettings::decode("p/f", b"{").expect_err("damaged").to_string();
        assert!(error.contains("its settings are damaged"), "{error}");
    }
}
