//! The label of a namespace: what it is a part of, written at the target.

use crate::error::Result;
use crate::manager::Manager;
use crate::record::{PoolRecord, SnapshotOf, VolumeRecord, decode_to, encode_as};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Version of labels, and of those of namespaces that are to become a member, which programs of version 1
/// would take for one.
const FORMAT: u64 = 1;
const FORMAT_JOINING: u64 = 2;
/// Version of those of the data of a file system, which such programs do not know either.
const FORMAT_FILES: u64 = 3;
/// Version of those of clones whose superblock is that of another array, which such programs would take for
/// members.
const FORMAT_COPIED: u64 = 4;

/// What a namespace is a part of: all that a lost catalog is made again from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Identifies the pool.
    pub pool: Uuid,
    /// Name of the pool when the label was written.
    pub pool_name: String,
    /// Failure domain of the target.
    pub domain: String,
    /// Identifies the volume.
    pub volume: Uuid,
    /// Name of the volume when the label was written.
    pub name: String,
    /// Number of times that the volume has been renamed: the highest has the name.
    pub renames: u64,
    /// Which member it is, from zero; spares follow the members.
    pub index: usize,
    /// Shape of the volume.
    pub shape: Shape,
    /// NQNs of the hosts that may use it.
    pub hosts: Vec<String>,
    /// The job that it was made for.
    pub job: Option<String>,
    /// When it may be removed, in seconds since 1970.
    pub expires: Option<u64>,
    /// It takes capacity as it is written to.
    pub thin: bool,
    /// The host that made the volume, and when, in seconds since 1970.
    pub made_by: String,
    /// See [`made_by`](Self::made_by).
    pub made_at: u64,
    /// The member moves here, and may still be in the place where it was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joining: bool,
    /// What its volume is a snapshot of, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_of: Option<SnapshotOf>,
    /// It is a clone that has the superblock of the array that it was cloned from: its volume is not made
    /// yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
    /// The catalog that manages the pool; earlier programs pass over it, and wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<Manager>,
}

impl Label {
    /// The label of member `index` of a volume.
    pub(crate) fn of(volume: &VolumeRecord, pool: &PoolRecord, domain: &str, index: usize) -> Label {
        Label {
            pool: pool.uuid,
            pool_name: pool.name.clone(),
            domain: domain.to_owned(),
            volume: volume.uuid,
            name: volume.name.clone(),
            renames: volume.renames,
            index,
            shape: volume.shape,
            hosts: volume.hosts.clone(),
            job: volume.job.clone(),
            expires: volume.expires,
            thin: volume.thin,
            made_by: volume.made_by.clone(),
            made_at: volume.made_at,
            joining: false,
            snapshot_of: volume.snapshot_of.clone(),
            copied: false,
            manager: pool.manager.clone(),
        }
    }

    /// The label as text, with its version.
    pub fn to_text(&self) -> String {
        let format = match (self.copied, self.joining) {
            (true, _) => FORMAT_COPIED,
            _ if self.shape.layout.is_files() => FORMAT_FILES,
            (false, true) => FORMAT_JOINING,
            (false, false) => FORMAT,
        };
        String::from_utf8_lossy(&encode_as(format, self)).into_owned()
    }

    /// Reads a label.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) for one of a later version, or one that is damaged.
    pub fn parse(text: &str) -> Result<Label> {
        decode_to(FORMAT_COPIED, "the label of a namespace", text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_label_is_read_back_and_its_form_is_fixed() {
        let text = r#"{"format":1,"pool":"00000000-0000-0000-0000-000000000001","pool_name":"p","domain":"r1","volume":"00000000-0000-0000-0000-000000000002","name":"v","renames":3,"index":4,"shape":{"layout":"double-parity","width":6,"spares":1,"unit":262144,"size":1099511627776,"member_size":275951648768},"hosts":["nqn.2014-08.org.example:a"],"job":"4711","expires":1790000000,"thin":false,"made_by":"dtn1","made_at":1780000000}"#;
        let label = Label::parse(text).expect("read");
        assert_eq!((label.index, label.shape.width, label.expires), (4, 6, Some(1_790_000_000)));
        assert_eq!(label.to_text(), text);
        let joining = text.replace("\"format\":1", "\"format\":2");
        let joining = joining.replace("1780000000}", "1780000000,\"joining\":true}");
        let snapshot_of = Some(SnapshotOf { volume: Uuid::from_u128(9), name: "s".to_owned() });
        let copied = Label { snapshot_of, copied: true, ..label.clone() };
        let end = r#"1780000000,"snapshot_of":{"volume":"00000000-0000-0000-0000-000000000009","name":"s"},"copied":true}"#;
        let form = text.replace("\"format\":1", "\"format\":4").replace("1780000000}", end);
        assert_eq!((copied.to_text(), Label::parse(&form)), (form, Ok(copied)));
        assert_eq!(Label::parse(&joining), Ok(Label { joining: true, ..label }));
        assert_eq!(Label::parse(&joining).expect("read").to_text(), joining);
        let files =
            text.replace("\"format\":1", "\"format\":3").replace("\"double-parity", "\"files+double-parity");
        assert_eq!(Label::parse(&files).expect("read").to_text(), files);
        let end = r#"1780000000,"manager":{"id":"00000000-0000-0000-0000-000000000003","epoch":2,"host":"dtn1","hostnqn":"nqn.2014-08.org.example:a","catalog":"/var/lib/longhaul/catalog","since":1770000000,"released":1775000000}}"#;
        let managed = text.replace("1780000000}", end);
        let read = Label::parse(&managed).expect("read");
        let released =
            |label: &Label| label.manager.as_ref().map(|manager| (manager.epoch, manager.released));
        assert_eq!((released(&read), read.to_text()), (Some((2, Some(1_775_000_000))), managed));
        let later = text.replace("\"format\":1", "\"format\":5");
        assert!(matches!(Label::parse(&later), Err(Error::Format { .. })));
        assert!(matches!(Label::parse(&text[..80]), Err(Error::Format { .. })));
    }
}
