//! What a server sends.

use super::fields::{Fields, Malformed, put_bytes, put_number};
use super::request::milliseconds;
use crate::error::Error;
use crate::types::{Commit, Entry, Event, LeaseId, Revision};
use std::time::Duration;

/// Kinds of frames that servers send.
mod kind {
    pub(super) const WELCOME: u8 = 0;
    pub(super) const REFUSED: u8 = 1;
    pub(super) const COMMITTED: u8 = 2;
    pub(super) const ENTRIES: u8 = 3;
    pub(super) const EVENTS: u8 = 4;
    pub(super) const GRANTED: u8 = 5;
    pub(super) const KEPT: u8 = 6;
    pub(super) const REVOKED: u8 = 7;
    pub(super) const FAILED: u8 = 8;
    pub(super) const PONG: u8 = 9;
}

/// Entries of an answer that may have more of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The revision that all pieces of the answer are of.
    pub revision: Revision,
    /// Entries, of which the first [`keys`](Self::keys) are of keys that were asked for.
    pub entries: Vec<Entry>,
    /// See [`entries`](Self::entries).
    pub keys: usize,
    /// Without revisions and leases.
    pub bare: bool,
    /// Another piece follows.
    pub more: bool,
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The client may go on.
    Welcome {
        /// The catalog that is served.
        identity: u64,
    },
    /// The client may not; the connection ends.
    Refused {
        /// Version of the protocol that the server speaks.
        version: u64,
        /// Why, as a sentence.
        why: String,
    },
    /// How a transaction ended.
    Committed(Commit),
    /// What was read.
    Entries(Piece),
    /// Changes of a watch.
    Events {
        /// The watch has all changes up to this revision, once no more of them follow.
        through: Revision,
        /// The changes.
        events: Vec<Event>,
        /// More changes of the last revision follow.
        more: bool,
    },
    /// A new lease.
    Granted(LeaseId),
    /// The lease lasts for that time from now.
    Kept(Duration),
    /// The lease has ended.
    Revoked,
    /// It was not done, or a watch has ended.
    Failed(Error),
    /// A sign of life.
    Pong,
}

/// What was attempted, by the number that it has in a frame.
const ATTEMPTED: [&str; 5] = ["use", "open", "read", "write", "watch"];

fn put_error(out: &mut Vec<u8>, error: &Error) {
    let mut put = |code: u8, number: u64, why: &str| {
        out.push(code);
        put_number(out, number);
        put_bytes(out, why.as_bytes());
    };
    match error {
        Error::LeaseExpired(lease) => put(1, lease.0, ""),
        Error::Compacted { at } => put(2, *at, ""),
        Error::Invalid(why) => put(3, 0, why),
        Error::Busy { seconds, .. } => put(4, *seconds, ""),
        Error::Failed { attempted, why, .. } => {
            let number = ATTEMPTED.iter().position(|name| name == attempted).unwrap_or(0);
            put(5, number as u64, why);
        }
        // A server has none of these of its own.
        Error::Unreachable { why, .. } | Error::Refused { why, .. } => put(5, 0, why),
        Error::Unknown { why, .. } => put(6, 0, why),
    }
}

/// An error; the caller puts the name of its catalog into it.
fn error(fields: &mut Fields<'_>) -> Result<Error, Malformed> {
    let (code, number, why) = (fields.byte()?, fields.number()?, fields.text()?);
    let catalog = String::new();
    Ok(match code {
        1 => Error::LeaseExpired(LeaseId(number)),
        2 => Error::Compacted { at: number },
        3 => Error::Invalid(why),
        4 => Error::Busy { catalog, seconds: number },
        5 => {
            let attempted = usize::try_from(number).ok().and_then(|number| ATTEMPTED.get(number));
            Error::Failed { catalog, attempted: attempted.ok_or(Malformed("an error is unknown"))?, why }
        }
        6 => Error::Unknown { catalog, why },
        _ => return Err(Malformed("an error is unknown")),
    })
}

/// Appends an entry. Keys that follow each other begin alike, which is written once.
fn put_entry(out: &mut Vec<u8>, entry: &Entry, before: &[u8], bare: bool) {
    let shared = entry.key.iter().zip(before).take_while(|(a, b)| a == b).count();
    put_number(out, shared as u64);
    put_bytes(out, &entry.key[shared..]);
    put_bytes(out, &entry.value);
    if !bare {
        put_number(out, entry.modified);
        put_number(out, entry.modified - entry.created.min(entry.modified));
        put_number(out, entry.lease.map_or(0, |lease| lease.0));
    }
}

fn entry(fields: &mut Fields<'_>, before: &[u8], bare: bool) -> Result<Entry, Malformed> {
    let shared = usize::try_from(fields.number()?).ok().and_then(|shared| before.get(..shared));
    let key = [shared.ok_or(Malformed("a key shares more than there is"))?, fields.bytes()?].concat();
    let value = fields.bytes()?.to_vec();
    if bare {
        return Ok(Entry { key, value, created: 0, modified: 0, lease: None });
    }
    let modified = fields.number()?;
    let created = modified.checked_sub(fields.number()?).ok_or(Malformed("a revision is below zero"))?;
    let lease = fields.number()?;
    Ok(Entry { key, value, created, modified, lease: (lease > 0).then_some(LeaseId(lease)) })
}

fn piece(fields: &mut Fields<'_>) -> Result<Piece, Malformed> {
    let flags = fields.byte()?;
    if flags > 3 {
        return Err(Malformed("a flag is unknown"));
    }
    let (revision, keys) = (fields.number()?, fields.number()?);
    let bare = flags & 1 == 1;
    let mut last: Vec<u8> = Vec::new();
    // What keys share is written once: a frame of a megabyte could announce keys of many.
    let mut left = 4 * super::MAX_FRAME;
    let entries = fields.list(3, |fields| {
        let entry = entry(fields, &last, bare)?;
        left = left.checked_sub(entry.key.len()).ok_or(Malformed("its keys are too long"))?;
        last.clone_from(&entry.key);
        Ok(entry)
    })?;
    let keys = usize::try_from(keys).ok().filter(|keys| *keys <= entries.len());
    let keys = keys.ok_or(Malformed("it has more entries of keys than entries"))?;
    Ok(Piece { revision, entries, keys, bare, more: flags & 2 != 0 })
}

/// Bytes that an event takes at most besides its key and value.
const EVENT: usize = 32;
/// Bytes that an entry takes at most besides its key and value.
const ENTRY: usize = 64;

/// Bytes of an event in a frame, at most.
pub(crate) fn event_size(event: &Event) -> usize {
    EVENT + event.key.len() + event.value.as_ref().map_or(0, Vec::len)
}

/// Bytes of an entry in a frame, at most.
pub(crate) fn entry_size(entry: &Entry) -> usize {
    ENTRY + entry.key.len() + entry.value.len()
}

impl Reply {
    /// Appends it as a frame.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let put = |kind, out: &mut Vec<u8>, body: &dyn Fn(&mut Vec<u8>)| super::frame(id, kind, out, body);
        match self {
            Reply::Welcome { identity } => put(kind::WELCOME, out, &|out| {
                put_number(out, super::VERSION);
                put_number(out, *identity);
            }),
            Reply::Refused { version, why } => put(kind::REFUSED, out, &|out| {
                put_number(out, *version);
                put_bytes(out, why.as_bytes());
            }),
            Reply::Committed(commit) => put(kind::COMMITTED, out, &|out| {
                let (Commit::Done(revision) | Commit::Conflict(revision)) = commit;
                out.push(commit.is_done().into());
                put_number(out, *revision);
            }),
            Reply::Entries(Piece { revision, entries, keys, bare, more }) => {
                put(kind::ENTRIES, out, &|out| {
                    out.push(u8::from(*bare) | u8::from(*more) << 1);
                    put_number(out, *revision);
                    put_number(out, *keys as u64);
                    put_number(out, entries.len() as u64);
                    let mut last: &[u8] = &[];
                    for entry in entries {
                        put_entry(out, entry, last, *bare);
                        last = &entry.key;
                    }
                });
            }
            Reply::Events { through, events, more } => put(kind::EVENTS, out, &|out| {
                put_number(out, *through);
                out.push((*more).into());
                put_number(out, events.len() as u64);
                for Event { revision, key, value } in events {
                    put_number(out, *revision);
                    put_bytes(out, key);
                    out.push(value.is_some().into());
                    value.iter().for_each(|value| put_bytes(out, value));
                }
            }),
            Reply::Granted(lease) => put(kind::GRANTED, out, &|out| put_number(out, lease.0)),
            Reply::Kept(left) => put(kind::KEPT, out, &|out| put_number(out, milliseconds(*left))),
            Reply::Revoked => put(kind::REVOKED, out, &|_| ()),
            Reply::Failed(error) => put(kind::FAILED, out, &|out| put_error(out, error)),
            Reply::Pong => put(kind::PONG, out, &|_| ()),
        }
    }

    /// Reads a frame of a server; its id, and what it says.
    ///
    /// # Errors
    /// It is no such frame.
    pub fn decode(frame: &[u8]) -> Result<(u64, Reply), Malformed> {
        let (id, kind, mut fields) = super::open(frame)?;
        let fields = &mut fields;
        let reply = match kind {
            kind::WELCOME => {
                if fields.number()? != super::VERSION {
                    return Err(Malformed("it welcomes with another version of the protocol"));
                }
                Reply::Welcome { identity: fields.number()? }
            }
            // Fields of later versions may follow.
            kind::REFUSED => {
                return Ok((id, Reply::Refused { version: fields.number()?, why: fields.text()? }));
            }
            kind::COMMITTED => match (fields.byte()?, fields.number()?) {
                (0, revision) => Reply::Committed(Commit::Conflict(revision)),
                (1, revision) => Reply::Committed(Commit::Done(revision)),
                _ => return Err(Malformed("a flag is unknown")),
            },
            kind::ENTRIES => Reply::Entries(piece(fields)?),
            kind::EVENTS => {
                let (through, more) = (fields.number()?, fields.byte()? == 1);
                let events = fields.list(3, |fields| {
                    let (revision, key) = (fields.number()?, fields.bytes()?.to_vec());
                    let value = match fields.byte()? {
                        0 => None,
                        1 => Some(fields.bytes()?.to_vec()),
                        _ => return Err(Malformed("a flag is unknown")),
                    };
                    Ok(Event { revision, key, value })
                })?;
                Reply::Events { through, events, more }
            }
            kind::GRANTED => Reply::Granted(LeaseId(fields.number()?)),
            kind::KEPT => Reply::Kept(Duration::from_millis(fields.number()?)),
            kind::REVOKED => Reply::Revoked,
            kind::FAILED => Reply::Failed(error(fields)?),
            kind::PONG => Reply::Pong,
            _ => return Err(Malformed("an answer is of an unknown kind")),
        };
        fields.end((id, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MAX_FRAME, split};
    use super::*;

    fn entries(bare: bool) -> Vec<Entry> {
        let entry = |key: &[u8], created: u64, modified: u64, lease: u64| Entry {
            key: key.to_vec(),
            value: key[1..].to_vec(),
            created: if bare { 0 } else { created },
            modified: if bare { 0 } else { modified },
            lease: (lease > 0 && !bare).then_some(LeaseId(lease)),
        };
        vec![entry(b"a", 1, 1, 0), entry(b"aa", 1, u64::MAX, 7), entry(b"ab", 3, 9, 0), entry(b"b", 1, 2, 0)]
    }

    fn replies() -> Vec<Reply> {
        let piece = |bare, keys| Piece { revision: 12, entries: entries(bare), keys, bare, more: !bare };
        let catalog = String::new;
        let mut replies = vec![
            Reply::Welcome { identity: u64::MAX },
            Reply::Refused { version: 3, why: "no".into() },
            Reply::Committed(Commit::Done(7)),
            Reply::Committed(Commit::Conflict(7)),
            Reply::Entries(piece(false, 2)),
            Reply::Entries(piece(true, 0)),
            Reply::Entries(Piece::default()),
            Reply::Events {
                through: 9,
                events: vec![
                    Event { revision: 8, key: b"k".to_vec(), value: Some(Vec::new()) },
                    Event { revision: 9, key: b"l".to_vec(), value: None },
                ],
                more: true,
            },
            Reply::Granted(LeaseId(1)),
            Reply::Kept(Duration::from_millis(1)),
            Reply::Revoked,
            Reply::Pong,
        ];
        let errors = [
            Error::LeaseExpired(LeaseId(4)),
            Error::Compacted { at: 4 },
            Error::Invalid("x".into()),
            Error::Busy { catalog: catalog(), seconds: 30 },
            Error::Failed { catalog: catalog(), attempted: "write", why: "full".into() },
            Error::Unknown { catalog: catalog(), why: "full".into() },
        ];
        replies.extend(errors.map(Reply::Failed));
        replies
    }

    #[test]
    fn replies_are_read_as_they_were_written() {
        for (id, reply) in (0..).zip(replies()) {
            let mut out = Vec::new();
            reply.encode(id, &mut out);
            let (frame, taken) = split(&out, MAX_FRAME).expect("a frame").expect("whole");
            assert_eq!((Reply::decode(frame), taken), (Ok((id, reply.clone())), out.len()));
            for end in 0..frame.len() {
                assert!(Reply::decode(&frame[..end]).is_err(), "{reply:?}");
            }
            if !matches!(reply, Reply::Refused { .. }) {
                assert!(Reply::decode(&[frame, &[0]].concat()).is_err());
            }
        }
    }

    /// Ten megabytes of keys in some kilobytes are not unpacked.
    #[test]
    fn shared_keys_are_bounded() {
        let mut body = vec![1, 1, 0];
        put_number(&mut body, 1000);
        put_number(&mut body, 0);
        put_bytes(&mut body, &vec![b'k'; 100_000]);
        put_bytes(&mut body, b"");
        for _ in 1..1000 {
            put_number(&mut body, 100_000);
            put_bytes(&mut body, b"");
            put_bytes(&mut body, b"");
        }
        let mut out = Vec::new();
        super::super::frame(1, kind::ENTRIES, &mut out, |out| out.extend_from_slice(&body));
        assert_eq!(Reply::decode(&out[super::super::LENGTH..]), Err(Malformed("its keys are too long")));
    }
}
