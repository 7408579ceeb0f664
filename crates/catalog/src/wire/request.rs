//! What clients send.

use super::fields::{Fields, Malformed, put_bytes, put_number};
use crate::types::{Expect, LeaseId, Op, Revision, Txn};
use std::time::Duration;

/// What a connection begins with, in every version.
const MAGIC: &[u8] = b"longhaul catalog";
/// Most bytes of a host's name: that of an NQN.
const HOST: usize = 223;

/// Kinds of frames that clients send.
mod kind {
    pub(super) const HELLO: u8 = 0;
    pub(super) const COMMIT: u8 = 1;
    pub(super) const READ: u8 = 2;
    pub(super) const WATCH: u8 = 3;
    pub(super) const CANCEL: u8 = 4;
    pub(super) const GRANT: u8 = 5;
    pub(super) const KEEP: u8 = 6;
    pub(super) const REVOKE: u8 = 7;
    pub(super) const PING: u8 = 8;
}

/// The first frame of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol that it speaks.
    pub version: u64,
    /// What it calls itself.
    pub host: String,
}

impl Hello {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        super::frame(0, kind::HELLO, out, |out| {
            out.extend_from_slice(MAGIC);
            put_number(out, self.version);
            put_bytes(out, self.host.as_bytes());
        });
    }

    /// Reads it. Fields of later versions may follow.
    ///
    /// # Errors
    /// It is no such frame.
    pub fn decode(frame: &[u8]) -> Result<Hello, Malformed> {
        const OTHER: Malformed = Malformed("the peer does not speak the protocol of catalog servers");
        let (_, kind, mut fields) = super::open(frame)?;
        for byte in MAGIC {
            if fields.byte() != Ok(*byte) {
                return Err(OTHER);
            }
        }
        if kind != kind::HELLO {
            return Err(OTHER);
        }
        let (version, host) = (fields.number()?, fields.text()?);
        // A shorter name would be that of another host.
        if host.len() > HOST {
            return Err(Malformed("the host's name is longer than an NQN"));
        }
        Ok(Hello { version, host })
    }
}

/// Identifies a commit of a client, so that one that is sent again is answered and not made twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The client: a number that it has drawn.
    pub client: u64,
    /// Its commit.
    pub number: u64,
    /// All its commits before this one were answered.
    pub answered: u64,
}

/// What changes a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A transaction.
    Commit(Txn, Option<Token>),
    /// A new lease.
    Grant(Duration),
    /// A lease is kept.
    Keep(LeaseId),
    /// A lease ends.
    Revoke(LeaseId),
}

/// Entries of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// What their keys begin with.
    pub prefix: Vec<u8>,
    /// Their keys are greater.
    pub after: Option<Vec<u8>>,
    /// How many at most.
    pub most: Option<u64>,
    /// As of this revision; the newest without it.
    pub at: Option<Revision>,
}

/// What is read: some keys, and entries of a prefix, all as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Keys of which the entries are read.
    pub keys: Vec<Vec<u8>>,
    /// Entries of a prefix, which follow those of the keys.
    pub part: Option<KeyRange>,
    /// Keys and values are enough.
    pub bare: bool,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A change.
    Change(Change),
    /// A read.
    Read(Question),
    /// Changes of the keys with this prefix, from this revision on, until they are cancelled.
    Watch {
        /// What the keys begin with.
        prefix: Vec<u8>,
        /// The first revision.
        from: Revision,
    },
    /// Ends the watch of the same id.
    Cancel,
    /// Asks for a sign of life.
    Ping,
}

fn put_option(out: &mut Vec<u8>, number: Option<u64>) {
    // One more than the number; none of them is the largest.
    put_number(out, number.map_or(0, |number| number.saturating_add(1)));
}

fn option(fields: &mut Fields<'_>) -> Result<Option<u64>, Malformed> {
    Ok(fields.number()?.checked_sub(1))
}

fn put_txn(out: &mut Vec<u8>, txn: &Txn) {
    put_number(out, txn.expectations.len() as u64);
    for (key, expect) in &txn.expectations {
        put_bytes(out, key);
        // Revisions begin with 1; two of them are never reached.
        put_number(
            out,
            match expect {
                Expect::Absent => 0,
                Expect::Present => u64::MAX,
                Expect::Modified(revision) => *revision,
            },
        );
    }
    put_number(out, txn.changes.len() as u64);
    for (key, op) in &txn.changes {
        put_bytes(out, key);
        match op {
            Op::Delete => out.push(0),
            Op::Put { value, lease } => {
                out.push(1 + u8::from(lease.is_some()));
                lease.iter().for_each(|lease| put_number(out, lease.0));
                put_bytes(out, value);
            }
        }
    }
}

fn txn(fields: &mut Fields<'_>) -> Result<Txn, Malformed> {
    let expectations = fields.list(2, |fields| {
        let key = fields.bytes()?.to_vec();
        let expect = match fields.number()? {
            0 => Expect::Absent,
            u64::MAX => Expect::Present,
            revision => Expect::Modified(revision),
        };
        Ok((key, expect))
    })?;
    let changes = fields.list(2, |fields| {
        let key = fields.bytes()?.to_vec();
        let op = match fields.byte()? {
            0 => Op::Delete,
            leased @ (1 | 2) => {
                let lease = if leased == 2 { Some(LeaseId(fields.number()?)) } else { None };
                Op::Put { value: fields.bytes()?.to_vec(), lease }
            }
            _ => return Err(Malformed("an operation is unknown")),
        };
        Ok((key, op))
    })?;
    Ok(Txn { expectations, changes })
}

impl Request {
    /// Appends it as a frame.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let put = |kind, out: &mut Vec<u8>, body: &dyn Fn(&mut Vec<u8>)| super::frame(id, kind, out, body);
        match self {
            Request::Change(Change::Commit(txn, token)) => put(kind::COMMIT, out, &|out| {
                out.push(token.is_some().into());
                if let Some(Token { client, number, answered }) = token {
                    [client, number, answered].into_iter().for_each(|number| put_number(out, *number));
                }
                put_txn(out, txn);
            }),
            Request::Change(Change::Grant(ttl)) => {
                put(kind::GRANT, out, &|out| put_number(out, milliseconds(*ttl)));
            }
            Request::Change(Change::Keep(lease)) => put(kind::KEEP, out, &|out| put_number(out, lease.0)),
            Request::Change(Change::Revoke(lease)) => put(kind::REVOKE, out, &|out| put_number(out, lease.0)),
            Request::Read(Question { keys, part, bare }) => put(kind::READ, out, &|out| {
                out.push(u8::from(*bare) | u8::from(part.is_some()) << 1);
                put_number(out, keys.len() as u64);
                keys.iter().for_each(|key| put_bytes(out, key));
                if let Some(KeyRange { prefix, after, most, at }) = part {
                    put_bytes(out, prefix);
                    out.push(after.is_some().into());
                    after.iter().for_each(|after| put_bytes(out, after));
                    put_option(out, *most);
                    put_option(out, *at);
                }
            }),
            Request::Watch { prefix, from } => put(kind::WATCH, out, &|out| {
                put_bytes(out, prefix);
                put_number(out, *from);
            }),
            Request::Cancel => put(kind::CANCEL, out, &|_| ()),
            Request::Ping => put(kind::PING, out, &|_| ()),
        }
    }

    /// Reads a frame of a client behind its first one; its id, and what it asks for.
    ///
    /// # Errors
    /// It is no such frame.
    pub fn decode(frame: &[u8]) -> Result<(u64, Request), Malformed> {
        let (id, kind, mut fields) = super::open(frame)?;
        let fields = &mut fields;
        let request = match kind {
            kind::COMMIT => {
                let token = match fields.byte()? {
                    0 => None,
                    1 => {
                        let (client, number) = (fields.number()?, fields.number()?);
                        Some(Token { client, number, answered: fields.number()? })
                    }
                    _ => return Err(Malformed("a flag is unknown")),
                };
                Request::Change(Change::Commit(txn(fields)?, token))
            }
            kind::READ => Request::Read(question(fields)?),
            kind::WATCH => Request::Watch { prefix: fields.bytes()?.to_vec(), from: fields.number()? },
            kind::CANCEL => Request::Cancel,
            kind::GRANT => Request::Change(Change::Grant(Duration::from_millis(fields.number()?))),
            kind::KEEP => Request::Change(Change::Keep(LeaseId(fields.number()?))),
            kind::REVOKE => Request::Change(Change::Revoke(LeaseId(fields.number()?))),
            kind::PING => Request::Ping,
            _ => return Err(Malformed("a request is of an unknown kind")),
        };
        fields.end((id, request))
    }
}

fn question(fields: &mut Fields<'_>) -> Result<Question, Malformed> {
    let flags = fields.byte()?;
    let keys = fields.list(1, |fields| Ok(fields.bytes()?.to_vec()))?;
    let part = match flags >> 1 {
        0 => None,
        1 => {
            let prefix = fields.bytes()?.to_vec();
            let after = match fields.byte()? {
                0 => None,
                1 => Some(fields.bytes()?.to_vec()),
                _ => return Err(Malformed("a flag is unknown")),
            };
            Some(KeyRange { prefix, after, most: option(fields)?, at: option(fields)? })
        }
        _ => return Err(Malformed("a flag is unknown")),
    };
    Ok(Question { keys, part, bare: flags & 1 == 1 })
}

/// Whole milliseconds.
pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{MAX_FRAME, split};
    use super::*;

    /// One of each kind.
    fn requests() -> Vec<Request> {
        let lease = LeaseId(7);
        let txn = Txn::new().expect(b"a", Expect::Absent).expect(b"b", Expect::Present);
        let txn = txn.expect(b"c", Expect::Modified(300)).put(b"a", b"1").put_leased(b"b", b"", lease);
        let token = Token { client: u64::MAX, number: 9, answered: 3 };
        let part =
            KeyRange { prefix: b"p/".to_vec(), after: Some(b"p/a".to_vec()), most: Some(0), at: Some(12) };
        let keys = vec![b"k".to_vec(), Vec::new()];
        vec![
            Request::Change(Change::Commit(txn.clone(), Some(token))),
            Request::Change(Change::Commit(txn.delete(b"c"), None)),
            Request::Change(Change::Commit(Txn::new(), None)),
            Request::Change(Change::Grant(Duration::from_millis(1500))),
            Request::Change(Change::Keep(lease)),
            Request::Change(Change::Revoke(lease)),
            Request::Read(Question { keys, part: Some(part.clone()), bare: true }),
            Request::Read(Question {
                part: Some(KeyRange { after: None, most: None, at: None, ..part }),
                ..Question::default()
            }),
            Request::Read(Question::default()),
            Request::Watch { prefix: Vec::new(), from: 1 << 40 },
            Request::Cancel,
            Request::Ping,
        ]
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        for (id, request) in (1 << 60..).zip(requests()) {
            let mut out = Vec::new();
            request.encode(id, &mut out);
            let (frame, taken) = split(&out, MAX_FRAME).expect("a frame").expect("whole");
            assert_eq!((Request::decode(frame), taken), (Ok((id, request)), out.len()));
            for end in 0..out.len() {
                assert_eq!(split(&out[..end], MAX_FRAME), Ok(None));
            }
            // Neither less nor more is a request.
            for end in 0..frame.len() {
                assert!(Request::decode(&frame[..end]).is_err());
            }
            assert!(Request::decode(&[frame, &[0]].concat()).is_err());
        }
    }

    #[test]
    fn a_hello_is_read_also_of_a_later_version() {
        let hello = Hello { version: 99, host: "nqn.2014-08.org.example:host".into() };
        let mut out = Vec::new();
        hello.encode(&mut out);
        let (frame, _) = split(&out, MAX_FRAME).expect("a frame").expect("whole");
        assert_eq!(Hello::decode(frame), Ok(hello.clone()));
        assert_eq!(Hello::decode(&[frame, b"more"].concat()), Ok(hello));
        assert!(Hello::decode(b"GET / HTTP/1.1\r\n\r\nGET / HTTP").is_err());
    }

    #[test]
    fn a_hello_with_another_name_than_was_sent_is_refused() {
        let hello = |host: &str| {
            let mut out = Vec::new();
            Hello { version: 1, host: host.into() }.encode(&mut out);
            out
        };
        let decoded =
            |bytes: &[u8]| Hello::decode(split(bytes, MAX_FRAME).expect("a frame").expect("whole").0);
        assert!(decoded(&hello(&"n".repeat(HOST))).is_ok());
        assert!(decoded(&hello(&"n".repeat(HOST + 1))).is_err());
        let mut not_text = hello("host");
        *not_text.last_mut().expect("a name") = 0xff;
        assert!(decoded(&not_text).is_err());
    }

    #[test]
    fn the_largest_transaction_fits_into_a_frame() {
        use crate::types::{MAX_CHANGES, MAX_OPERATIONS, MAX_TRANSACTION};
        let key = |i: usize| format!("{i:0200}").into_bytes();
        let txn = (0..MAX_OPERATIONS).fold(Txn::new(), |txn, i| txn.expect(&key(i), Expect::Present));
        let txn = (0..MAX_CHANGES - 1).fold(txn, |txn, i| txn.put_leased(&key(i), b"", LeaseId(u64::MAX)));
        let left = vec![1; MAX_TRANSACTION - txn.bytes() - 1];
        let txn = txn.put(b"x", &left);
        assert_eq!((txn.check(), txn.bytes()), (Ok(()), MAX_TRANSACTION));
        let token = Token { client: u64::MAX, number: u64::MAX, answered: u64::MAX };
        let mut out = Vec::new();
        Request::Change(Change::Commit(txn, Some(token))).encode(1, &mut out);
        assert!(split(&out, MAX_FRAME).expect("within bounds").is_some());
        assert!(split(&[0xff; 8], MAX_FRAME).is_err() && split(&[0; 8], MAX_FRAME).is_err());
    }
}
