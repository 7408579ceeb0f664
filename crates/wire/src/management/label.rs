//! The label of a namespace: for which hosts, and for what, it was made.
//!
//! 3,072 bytes, little endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 7 | `LHNSLABL` |
//! | 8 to 9 | version, 1 |
//! | 10 to 11 | length of the fields |
//! | 12 to 15 | CRC32C of bytes 0 to 11 and of the fields |
//! | from 16 | the fields: type (2 bytes), length of the value (2 bytes), value |
//!
//! All zeroes are no label. A reader passes over fields whose type it does not know; a later version
//! may have other fields, and a new version number is for a form that this reader must not read.

use crate::digest::crc32c;
use crate::nqn::{Nqn, NqnError};

/// Bytes of an encoded label.
pub const LABEL_LEN: usize = 3072;

/// Bytes of a name (pool, volume, layout, job).
pub const NAME_MAX: usize = 255;

const MAGIC: [u8; 8] = *b"LHNSLABL";
const VERSION: u16 = 1;
const HEADER: usize = 16;
const FIELD_HEADER: usize = 4;

const HOST: u16 = 1;
const POOL: u16 = 2;
const VOLUME: u16 = 3;
const LAYOUT: u16 = 4;
const JOB: u16 = 5;
const EXPIRY: u16 = 6;
const THIN: u16 = 7;
const DETAIL: u16 = 8;

/// What a namespace was made for. Empty texts are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLabel {
    /// NQNs of the hosts that it is attached to, in any order, each once.
    pub hosts: Vec<String>,
    /// Name of its pool.
    pub pool: String,
    /// Name of the volume that it is a part of.
    pub volume: String,
    /// Layout of the volume, and the place of this namespace in it.
    pub layout: String,
    /// The job that it was made for.
    pub job: String,
    /// Time in seconds since 1970 after which the namespace may be removed.
    pub expiry: Option<u64>,
    /// Capacity is taken as it is written to, not when the namespace is made.
    pub thin: bool,
    /// Further record of the program that made it.
    pub detail: String,
}

/// Why bytes are no label, or a label no bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Neither zeroes nor the beginning of a label.
    #[error("it does not begin as a label does")]
    NoLabel,
    /// A version that this program does not know.
    #[error("version {0} of the label is not known: it is of a newer program")]
    Version(u16),
    /// The checksum does not match, or a field is cut.
    #[error("it is damaged (the checksum does not match)")]
    Damaged,
    /// A field has a value that it cannot have.
    #[error("its field '{0}' is not text, too long, or of a wrong length")]
    Field(&'static str),
    /// A host's name is no NQN.
    #[error(transparent)]
    Host(#[from] NqnError),
    /// There is no room for all of it.
    #[error("it takes {0} bytes; at most {LABEL_LEN} are allowed")]
    TooLong(usize),
}

impl NamespaceLabel {
    /// Whether there is anything in it.
    pub fn is_empty(&self) -> bool {
        *self == NamespaceLabel::default()
    }

    /// The label as 3,072 bytes; zeroes if it is empty.
    ///
    /// # Errors
    /// A host's name is no NQN, a name is longer than [`NAME_MAX`], or all of it is too long.
    pub fn encode(&self) -> Result<Vec<u8>, LabelError> {
        let mut out = vec![0; HEADER];
        for host in &self.hosts {
            Nqn::new(host.as_str())?;
            put(&mut out, HOST, host.as_bytes());
        }
        for (kind, name, text) in self.names() {
            if text.len() > NAME_MAX {
                return Err(LabelError::Field(name));
            }
            if !text.is_empty() {
                put(&mut out, kind, text.as_bytes());
            }
        }
        if let Some(expiry) = self.expiry {
            put(&mut out, EXPIRY, &expiry.to_le_bytes());
        }
        if self.thin {
            put(&mut out, THIN, &[]);
        }
        if !self.detail.is_empty() {
            if self.detail.len() > LABEL_LEN {
                return Err(LabelError::TooLong(out.len() + self.detail.len()));
            }
            put(&mut out, DETAIL, self.detail.as_bytes());
        }
        if out.len() > LABEL_LEN {
            return Err(LabelError::TooLong(out.len()));
        }
        if out.len() == HEADER {
            return Ok(vec![0; LABEL_LEN]);
        }
        let len = (out.len() - HEADER) as u16;
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(&out);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out.resize(LABEL_LEN, 0);
        Ok(out)
    }

    fn names(&self) -> [(u16, &'static str, &str); 4] {
        [
            (POOL, "pool", &self.pool),
            (VOLUME, "volume", &self.volume),
            (LAYOUT, "layout", &self.layout),
            (JOB, "job", &self.job),
        ]
    }

    /// Reads a label; an empty one from zeroes.
    ///
    /// # Errors
    /// The bytes are not a label that this version reads.
    pub fn decode(bytes: &[u8]) -> Result<NamespaceLabel, LabelError> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(NamespaceLabel::default());
        }
        let (header, rest) = bytes.split_at_checked(HEADER).ok_or(LabelError::NoLabel)?;
        if header[..8] != MAGIC {
            return Err(LabelError::NoLabel);
        }
        let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        if word(8) != VERSION {
            return Err(LabelError::Version(word(8)));
        }
        let len = usize::from(word(10));
        let fields = rest.get(..len).ok_or(LabelError::Damaged)?;
        let sum = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
        if sum != checksum(&bytes[..HEADER + len]) {
            return Err(LabelError::Damaged);
        }
        NamespaceLabel::of_fields(fields)
    }

    fn of_fields(mut rest: &[u8]) -> Result<NamespaceLabel, LabelError> {
        let mut label = NamespaceLabel::default();
        while !rest.is_empty() {
            let (header, tail) = rest.split_at_checked(FIELD_HEADER).ok_or(LabelError::Damaged)?;
            let kind = u16::from_le_bytes([header[0], header[1]]);
            let len = usize::from(u16::from_le_bytes([header[2], header[3]]));
            let (value, next) = tail.split_at_checked(len).ok_or(LabelError::Damaged)?;
            match kind {
                HOST => {
                    let host = text("host", value, usize::MAX)?;
                    Nqn::new(host.as_str())?;
                    if !label.hosts.contains(&host) {
                        label.hosts.push(host);
                    }
                }
                POOL => label.pool = text("pool", value, NAME_MAX)?,
                VOLUME => label.volume = text("volume", value, NAME_MAX)?,
                LAYOUT => label.layout = text("layout", value, NAME_MAX)?,
                JOB => label.job = text("job", value, NAME_MAX)?,
                EXPIRY => {
                    let seconds = value.try_into().map_err(|_| LabelError::Field("expiry"))?;
                    label.expiry = Some(u64::from_le_bytes(seconds));
                }
                THIN => label.thin = true,
                DETAIL => label.detail = text("detail", value, usize::MAX)?,
                // Of a newer program.
                _ => {}
            }
            rest = next;
        }
        Ok(label)
    }
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&kind.to_le_bytes());
    // No caller gives more than LABEL_LEN bytes.
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
}

fn text(name: &'static str, value: &[u8], most: usize) -> Result<String, LabelError> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= most);
    text.map(str::to_owned).ok_or(LabelError::Field(name))
}

/// CRC32C of a label whose fields end with `bytes`, without the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    let mut covered = bytes[..12].to_vec();
    covered.extend_from_slice(&bytes[HEADER..]);
    crc32c(&covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label() -> NamespaceLabel {
        NamespaceLabel {
            hosts: vec!["nqn.2014-08.org.example:a".into(), "nqn.2014-08.org.example:b".into()],
            pool: "scratch".into(),
            volume: "run 7".into(),
            layout: "parity 2/6".into(),
            job: "4711".into(),
            expiry: Some(0x0102_0304_0506_0708),
            thin: true,
            detail: "{\"x\":1}".into(),
        }
    }

    #[test]
    fn the_format_is_kept() {
        let bytes = NamespaceLabel { pool: "p".into(), expiry: Some(2), thin: true, ..Default::default() }
            .encode()
            .expect("short");
        assert_eq!(bytes.len(), LABEL_LEN);
        assert_eq!(bytes[..12], *b"LHNSLABL\x01\x00\x15\x00");
        assert_eq!(bytes[16..37], *b"\x02\0\x01\0p\x06\0\x08\0\x02\0\0\0\0\0\0\0\x07\0\0\0");
        assert_eq!(bytes[12..16], crc32c(&[&bytes[..12], &bytes[16..37]].concat()).to_le_bytes());
        assert!(bytes[37..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn labels_are_read_back() {
        let bytes = label().encode().expect("short");
        assert_eq!(NamespaceLabel::decode(&bytes), Ok(label()));
        let none = NamespaceLabel::default().encode().expect("short");
        assert_eq!(none, vec![0; LABEL_LEN]);
        assert_eq!(NamespaceLabel::decode(&none), Ok(NamespaceLabel::default()));
    }

    #[test]
    fn damage_is_found_in_every_byte() {
        let good = label().encode().expect("short");
        let len = HEADER + usize::from(u16::from_le_bytes([good[10], good[11]]));
        for at in 0..len {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            assert!(NamespaceLabel::decode(&bytes).is_err(), "byte {at}");
        }
        assert_eq!(NamespaceLabel::decode(&good[..len - 1]), Err(LabelError::Damaged));
        assert_eq!(NamespaceLabel::decode(&good[..9]), Err(LabelError::NoLabel));
    }

    fn with_fields(fields: &[u8]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &(fields.len() as u16).to_le_bytes()].concat();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(fields);
        let sum = checksum(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(LABEL_LEN, 0);
        bytes
    }

    #[test]
    fn what_later_programs_add_is_passed_over() {
        let bytes = with_fields(b"\x63\0\x03\0xyz\x02\0\x01\0p");
        let label = NamespaceLabel { pool: "p".into(), ..Default::default() };
        assert_eq!(NamespaceLabel::decode(&bytes), Ok(label));
        let mut newer = with_fields(b"");
        newer[8] = 2;
        assert_eq!(NamespaceLabel::decode(&newer), Err(LabelError::Version(2)));
    }

    #[test]
    fn wrong_fields_are_refused() {
        assert_eq!(NamespaceLabel::decode(&with_fields(b"\x02\0\x05\0p")), Err(LabelError::Damaged));
        assert_eq!(NamespaceLabel::decode(&with_fields(b"\x02\0")), Err(LabelError::Damaged));
        assert_eq!(NamespaceLabel::decode(&with_fields(b"\x02\0\x01\0\xFF")), Err(LabelError::Field("pool")));
        assert_eq!(NamespaceLabel::decode(&with_fields(b"\x06\0\x01\0\0")), Err(LabelError::Field("expiry")));
        let refused = NamespaceLabel::decode(&with_fields(b"\x01\0\x01\0x"));
        assert!(matches!(refused, Err(LabelError::Host(_))));
        let long = NamespaceLabel { job: "j".repeat(256), ..Default::default() };
        assert_eq!(long.encode(), Err(LabelError::Field("job")));
        let host = NamespaceLabel { hosts: vec!["me".into()], ..Default::default() };
        assert!(matches!(host.encode(), Err(LabelError::Host(_))));
        for len in [LABEL_LEN - HEADER - FIELD_HEADER, LABEL_LEN, 1 << 20] {
            let detail = NamespaceLabel { detail: "d".repeat(len), ..Default::default() };
            let fits = len == LABEL_LEN - HEADER - FIELD_HEADER;
            assert_eq!(detail.encode().is_ok(), fits, "{len}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = NamespaceLabel::decode(&bytes);
            let _ = NamespaceLabel::decode(&with_fields(&bytes));
        }

        #[test]
        fn what_decodes_is_encoded_the_same(fields in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(label) = NamespaceLabel::decode(&with_fields(&fields)) {
                let bytes = label.encode().expect("it was decoded from as many bytes");
                prop_assert_eq!(NamespaceLabel::decode(&bytes), Ok(label));
            }
        }
    }
}
