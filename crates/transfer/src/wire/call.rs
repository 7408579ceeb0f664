//! Calls and replies of a file system in frames.
//!
//! The head begins with the number of the kind, which belongs to the version of the protocol; bulk data
//! and texts that may be long are in the body.

use super::codec::{Fields, Malformed, Put};
use longhaul_engine::Buf;
use longhaul_fs::{
    Attributes, Call, Changes, DATA_MAX, DirectoryEntry, Errno, Handle, Node, Reply, Statistics, Stream,
    Time, TimeChange,
};

const LOOKUP: u8 = 1;
const FORGET: u8 = 2;
const ATTRIBUTES: u8 = 3;
const CHANGE: u8 = 4;
const READ_LINK: u8 = 5;
const CREATE: u8 = 6;
const MAKE_DIRECTORY: u8 = 7;
const MAKE_NODE: u8 = 8;
const MAKE_SYMLINK: u8 = 9;
const LINK: u8 = 10;
const REMOVE: u8 = 11;
const RENAME: u8 = 12;
const OPEN: u8 = 13;
const CLOSE: u8 = 14;
const READ: u8 = 15;
const WRITE: u8 = 16;
const FLUSH: u8 = 17;
const SYNC: u8 = 18;
const SYNC_DIRECTORY: u8 = 19;
const READ_DIRECTORY: u8 = 20;
const CLOSE_DIRECTORY: u8 = 21;
const STATISTICS: u8 = 22;
const GET_XATTR: u8 = 23;
const LIST_XATTRS: u8 = 24;
const SET_XATTR: u8 = 25;
const REMOVE_XATTR: u8 = 26;
const ALLOCATE: u8 = 27;
const SEEK: u8 = 28;

const FAILED: u8 = 0;
const DONE: u8 = 1;
const ENTRY: u8 = 2;
const REPLY_ATTRIBUTES: u8 = 3;
const CREATED: u8 = 4;
const OPENED: u8 = 5;
const DATA: u8 = 6;
const WRITTEN: u8 = 7;
const BYTES: u8 = 8;
const LISTING: u8 = 9;
const REPLY_STATISTICS: u8 = 10;
const OFFSET: u8 = 11;

/// Encodes a call: appends to the head, and returns the body.
pub(super) fn encode_call(call: Call, to: &mut Vec<u8>) -> Option<Buf> {
    let named = |to: &mut Vec<u8>, kind: u8, parent: Node, name: &[u8]| {
        to.u8(kind);
        to.u64(parent.0);
        to.bytes(name);
    };
    match call {
        Call::Lookup { parent, name } => named(to, LOOKUP, parent, &name),
        Call::Forget { node, lookups } => {
            to.u8(FORGET);
            to.u64(node.0);
            to.u64(lookups);
        }
        Call::Attributes { node, handle } => {
            to.u8(ATTRIBUTES);
            to.u64(node.0);
            optional(to, handle.map(|handle| handle.0), Vec::<u8>::u64);
        }
        Call::Change { node, handle, changes } => {
            to.u8(CHANGE);
            to.u64(node.0);
            optional(to, handle.map(|handle| handle.0), Vec::<u8>::u64);
            let Changes { mode, uid, gid, size, accessed, modified } = changes;
            for number in [mode, uid, gid] {
                optional(to, number, Vec::<u8>::u32);
            }
            optional(to, size, Vec::<u8>::u64);
            for time in [accessed, modified] {
                match time {
                    None => to.u8(0),
                    Some(TimeChange::Now) => to.u8(1),
                    Some(TimeChange::At(time)) => {
                        to.u8(2);
                        put_time(to, time);
                    }
                }
            }
        }
        Call::ReadLink { node } => numbers(to, READ_LINK, &[node.0]),
        Call::Create { parent, name, mode, flags } => {
            named(to, CREATE, parent, &name);
            to.u32(mode);
            to.u32(flags);
        }
        Call::MakeDirectory { parent, name, mode } => {
            named(to, MAKE_DIRECTORY, parent, &name);
            to.u32(mode);
        }
        Call::MakeNode { parent, name, mode, rdev } => {
            named(to, MAKE_NODE, parent, &name);
            to.u32(mode);
            to.u64(rdev);
        }
        Call::MakeSymlink { parent, name, target } => {
            named(to, MAKE_SYMLINK, parent, &name);
            to.bytes(&target);
        }
        Call::Link { node, parent, name } => {
            named(to, LINK, parent, &name);
            to.u64(node.0);
        }
        Call::Remove { parent, name, directory } => {
            named(to, REMOVE, parent, &name);
            to.u8(directory.into());
        }
        Call::Rename { parent, name, new_parent, new_name, flags } => {
            named(to, RENAME, parent, &name);
            to.u64(new_parent.0);
            to.bytes(&new_name);
            to.u32(flags);
        }
        Call::Open { node, flags } => {
            numbers(to, OPEN, &[node.0]);
            to.u32(flags);
        }
        Call::Close { handle } => numbers(to, CLOSE, &[handle.0]),
        Call::Read { handle, offset, len } => {
            numbers(to, READ, &[handle.0, offset]);
            to.u32(len);
        }
        Call::Write { handle, offset, data } => {
            numbers(to, WRITE, &[handle.0, offset]);
            return Some(data);
        }
        Call::Flush { handle } => numbers(to, FLUSH, &[handle.0]),
        Call::Sync { handle, data_only } => {
            numbers(to, SYNC, &[handle.0]);
            to.u8(data_only.into());
        }
        Call::SyncDirectory { node } => numbers(to, SYNC_DIRECTORY, &[node.0]),
        Call::ReadDirectory { node, stream, after } => {
            numbers(to, READ_DIRECTORY, &[node.0, stream.0, after])
        }
        Call::CloseDirectory { stream } => numbers(to, CLOSE_DIRECTORY, &[stream.0]),
        Call::Statistics => to.u8(STATISTICS),
        Call::GetXattr { node, name } => named(to, GET_XATTR, node, &name),
        Call::ListXattrs { node } => numbers(to, LIST_XATTRS, &[node.0]),
        Call::SetXattr { node, name, value, flags } => {
            named(to, SET_XATTR, node, &name);
            to.u32(flags);
            return Some(Buf::copy_of(&value));
        }
        Call::RemoveXattr { node, name } => named(to, REMOVE_XATTR, node, &name),
        Call::Allocate { handle, offset, len, mode } => {
            numbers(to, ALLOCATE, &[handle.0, offset, len]);
            to.u32(mode);
        }
        Call::Seek { handle, offset, hole } => {
            numbers(to, SEEK, &[handle.0, offset]);
            to.u8(hole.into());
        }
    }
    None
}

/// Decodes a call.
pub(super) fn decode_call(mut from: Fields<'_>, body: Buf) -> Result<Call, Malformed> {
    let from = &mut from;
    let kind = from.u8()?;
    let call = match kind {
        LOOKUP => Call::Lookup { parent: node(from)?, name: name(from)? },
        FORGET => Call::Forget { node: node(from)?, lookups: from.u64()? },
        ATTRIBUTES => Call::Attributes { node: node(from)?, handle: optional_handle(from)? },
        CHANGE => Call::Change {
            node: node(from)?,
            handle: optional_handle(from)?,
            changes: Changes {
                mode: take_optional(from, Fields::u32)?,
                uid: take_optional(from, Fields::u32)?,
                gid: take_optional(from, Fields::u32)?,
                size: take_optional(from, Fields::u64)?,
                accessed: time_change(from)?,
                modified: time_change(from)?,
            },
        },
        READ_LINK => Call::ReadLink { node: node(from)? },
        CREATE => {
            Call::Create { parent: node(from)?, name: name(from)?, mode: from.u32()?, flags: from.u32()? }
        }
        MAKE_DIRECTORY => Call::MakeDirectory { parent: node(from)?, name: name(from)?, mode: from.u32()? },
        MAKE_NODE => {
            Call::MakeNode { parent: node(from)?, name: name(from)?, mode: from.u32()?, rdev: from.u64()? }
        }
        MAKE_SYMLINK => Call::MakeSymlink { parent: node(from)?, name: name(from)?, target: name(from)? },
        LINK => Call::Link { parent: node(from)?, name: name(from)?, node: node(from)? },
        REMOVE => Call::Remove { parent: node(from)?, name: name(from)?, directory: flag(from)? },
        RENAME => Call::Rename {
            parent: node(from)?,
            name: name(from)?,
            new_parent: node(from)?,
            new_name: name(from)?,
            flags: from.u32()?,
        },
        OPEN => Call::Open { node: node(from)?, flags: from.u32()? },
        CLOSE => Call::Close { handle: handle(from)? },
        READ => {
            let (handle, offset, len) = (handle(from)?, from.u64()?, from.u32()?);
            if len as usize > DATA_MAX || offset.checked_add(len.into()).is_none() {
                return Err(Malformed::Value("range"));
            }
            Call::Read { handle, offset, len }
        }
        WRITE => {
            let (handle, offset) = (handle(from)?, from.u64()?);
            if body.len() > DATA_MAX || offset.checked_add(body.len() as u64).is_none() {
                return Err(Malformed::Value("range"));
            }
            Call::Write { handle, offset, data: body.clone() }
        }
        FLUSH => Call::Flush { handle: handle(from)? },
        SYNC => Call::Sync { handle: handle(from)?, data_only: flag(from)? },
        SYNC_DIRECTORY => Call::SyncDirectory { node: node(from)? },
        READ_DIRECTORY => {
            Call::ReadDirectory { node: node(from)?, stream: Stream(from.u64()?), after: from.u64()? }
        }
        CLOSE_DIRECTORY => Call::CloseDirectory { stream: Stream(from.u64()?) },
        STATISTICS => Call::Statistics,
        GET_XATTR => Call::GetXattr { node: node(from)?, name: name(from)? },
        LIST_XATTRS => Call::ListXattrs { node: node(from)? },
        SET_XATTR => {
            Call::SetXattr { node: node(from)?, name: name(from)?, flags: from.u32()?, value: body.to_vec() }
        }
        REMOVE_XATTR => Call::RemoveXattr { node: node(from)?, name: name(from)? },
        ALLOCATE => {
            Call::Allocate { handle: handle(from)?, offset: from.u64()?, len: from.u64()?, mode: from.u32()? }
        }
        SEEK => Call::Seek { handle: handle(from)?, offset: from.u64()?, hole: flag(from)? },
        _ => return Err(Malformed::Value("call")),
    };
    from.clone().end()?;
    if !body.is_empty() && !matches!(kind, WRITE | SET_XATTR) {
        return Err(Malformed::Value("body"));
    }
    Ok(call)
}

/// Encodes a reply, or the number of an error: appends to the head, and returns the body.
pub(super) fn encode_reply(reply: Result<Reply, Errno>, to: &mut Vec<u8>) -> Option<Buf> {
    let reply = match reply {
        Ok(reply) => reply,
        Err(errno) => {
            to.u8(FAILED);
            to.u32(errno.raw_os_error() as u32);
            return None;
        }
    };
    match reply {
        Reply::Done => to.u8(DONE),
        Reply::Entry(attributes) => {
            to.u8(ENTRY);
            put_attributes(to, &attributes);
        }
        Reply::Attributes(attributes) => {
            to.u8(REPLY_ATTRIBUTES);
            put_attributes(to, &attributes);
        }
        Reply::Created(attributes, handle) => {
            numbers(to, CREATED, &[handle.0]);
            put_attributes(to, &attributes);
        }
        Reply::Opened(attributes, handle) => {
            numbers(to, OPENED, &[handle.0]);
            put_attributes(to, &attributes);
        }
        Reply::Data(data) => {
            to.u8(DATA);
            return Some(data);
        }
        Reply::Written(len) => {
            to.u8(WRITTEN);
            to.u32(len);
        }
        Reply::Bytes(bytes) => {
            to.u8(BYTES);
            return Some(Buf::copy_of(&bytes));
        }
        Reply::Listing(entries, is_last) => {
            to.u8(LISTING);
            to.u8(is_last.into());
            let mut body = Vec::with_capacity(entries.len() * 128);
            for entry in &entries {
                body.bytes(&entry.name);
                body.u64(entry.position);
                put_attributes(&mut body, &entry.attributes);
            }
            return Some(Buf::copy_of(&body));
        }
        Reply::Statistics(statistics) => {
            let Statistics { block_size, blocks, free, available, files, files_free, name_max } = statistics;
            numbers(to, REPLY_STATISTICS, &[blocks, free, available, files, files_free]);
            to.u32(block_size);
            to.u32(name_max);
        }
        Reply::Offset(offset) => numbers(to, OFFSET, &[offset]),
    }
    None
}

/// Decodes a reply.
pub(super) fn decode_reply(mut from: Fields<'_>, body: Buf) -> Result<Result<Reply, Errno>, Malformed> {
    let from = &mut from;
    let reply = match from.u8()? {
        FAILED => {
            let number = i32::try_from(from.u32()?).map_err(|_| Malformed::Value("error number"))?;
            // 1 to 4095 are the kernel's errors.
            if !(1..4096).contains(&number) {
                return Err(Malformed::Value("error number"));
            }
            return Ok(Err(Errno::from_raw_os_error(number)));
        }
        DONE => Reply::Done,
        ENTRY => Reply::Entry(take_attributes(from)?),
        REPLY_ATTRIBUTES => Reply::Attributes(take_attributes(from)?),
        CREATED => {
            let handle = handle(from)?;
            Reply::Created(take_attributes(from)?, handle)
        }
        OPENED => {
            let handle = handle(from)?;
            Reply::Opened(take_attributes(from)?, handle)
        }
        DATA => Reply::Data(body),
        WRITTEN => Reply::Written(from.u32()?),
        BYTES => Reply::Bytes(body.to_vec()),
        LISTING => {
            let is_last = flag(from)?;
            let (mut rest, mut entries) = (Fields(&body), Vec::new());
            while !rest.is_empty() {
                entries.push(DirectoryEntry {
                    name: name(&mut rest)?,
                    position: rest.u64()?,
                    attributes: take_attributes(&mut rest)?,
                });
            }
            Reply::Listing(entries, is_last)
        }
        REPLY_STATISTICS => Reply::Statistics(Statistics {
            blocks: from.u64()?,
            free: from.u64()?,
            available: from.u64()?,
            files: from.u64()?,
            files_free: from.u64()?,
            block_size: from.u32()?,
            name_max: from.u32()?,
        }),
        OFFSET => Reply::Offset(from.u64()?),
        _ => return Err(Malformed::Value("reply")),
    };
    from.clone().end()?;
    Ok(Ok(reply))
}

fn numbers(to: &mut Vec<u8>, kind: u8, numbers: &[u64]) {
    to.u8(kind);
    numbers.iter().for_each(|number| to.u64(*number));
}

fn optional<T>(to: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    to.u8(value.is_some().into());
    if let Some(value) = value {
        put(to, value);
    }
}

fn take_optional<'a, T>(
    from: &mut Fields<'a>,
    take: impl FnOnce(&mut Fields<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if flag(from)? { take(from).map(Some) } else { Ok(None) }
}

fn flag(from: &mut Fields<'_>) -> Result<bool, Malformed> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::Value("flag")),
    }
}

fn node(from: &mut Fields<'_>) -> Result<Node, Malformed> {
    from.u64().map(Node)
}

fn handle(from: &mut Fields<'_>) -> Result<Handle, Malformed> {
    from.u64().map(Handle)
}

fn optional_handle(from: &mut Fields<'_>) -> Result<Option<Handle>, Malformed> {
    take_optional(from, handle)
}

fn name(from: &mut Fields<'_>) -> Result<Vec<u8>, Malformed> {
    from.bytes().map(<[u8]>::to_vec)
}

fn put_time(to: &mut Vec<u8>, time: Time) {
    to.u64(time.seconds as u64);
    to.u32(time.nanoseconds);
}

fn take_time(from: &mut Fields<'_>) -> Result<Time, Malformed> {
    let time = Time { seconds: from.u64()? as i64, nanoseconds: from.u32()? };
    if time.nanoseconds < 1_000_000_000 { Ok(time) } else { Err(Malformed::Value("time")) }
}

fn time_change(from: &mut Fields<'_>) -> Result<Option<TimeChange>, Malformed> {
    match from.u8()? {
        0 => Ok(None),
        1 => Ok(Some(TimeChange::Now)),
        2 => take_time(from).map(|time| Some(TimeChange::At(time))),
        _ => Err(Malformed::Value("time")),
    }
}

fn put_attributes(to: &mut Vec<u8>, attributes: &Attributes) {
    let a = attributes;
    for number in [a.node.0, a.generation, a.size, a.blocks, a.rdev] {
        to.u64(number);
    }
    for time in [a.accessed, a.modified, a.changed] {
        put_time(to, time);
    }
    for number in [a.mode, a.links, a.uid, a.gid, a.block_size] {
        to.u32(number);
    }
    to.u8(a.is_plain.into());
}

fn take_attributes(from: &mut Fields<'_>) -> Result<Attributes, Malformed> {
    Ok(Attributes {
        node: node(from)?,
        generation: from.u64()?,
        size: from.u64()?,
        blocks: from.u64()?,
        rdev: from.u64()?,
        accessed: take_time(from)?,
        modified: take_time(from)?,
        changed: take_time(from)?,
        mode: from.u32()?,
        links: from.u32()?,
        uid: from.u32()?,
        gid: from.u32()?,
        block_size: from.u32()?,
        is_plain: flag(from)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Time = Time { seconds: -5, nanoseconds: 999_999_999 };

    fn attributes() -> Attributes {
        Attributes {
            node: Node(7),
            generation: 8,
            size: 9,
            blocks: 10,
            accessed: TIME,
            modified: Time::default(),
            changed: TIME,
            mode: 0o100_644,
            links: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            block_size: 4096,
            is_plain: true,
        }
    }

    fn calls() -> Vec<Call> {
        let (node, parent, handle) = (Node(2), Node(3), Handle(4));
        let name = || b"n\xff".to_vec();
        let changes = Changes {
            mode: Some(1),
            uid: None,
            gid: Some(2),
            size: Some(3),
            accessed: Some(TimeChange::Now),
            modified: Some(TimeChange::At(TIME)),
        };
        vec![
            Call::Lookup { parent, name: name() },
            Call::Forget { node, lookups: 9 },
            Call::Attributes { node, handle: None },
            Call::Change { node, handle: Some(handle), changes },
            Call::ReadLink { node },
            Call::Create { parent, name: name(), mode: 5, flags: 6 },
            Call::MakeDirectory { parent, name: name(), mode: 5 },
            Call::MakeNode { parent, name: name(), mode: 5, rdev: 6 },
            Call::MakeSymlink { parent, name: name(), target: b"to".to_vec() },
            Call::Link { node, parent, name: name() },
            Call::Remove { parent, name: name(), directory: true },
            Call::Rename { parent, name: name(), new_parent: node, new_name: b"m".to_vec(), flags: 1 },
            Call::Open { node, flags: 2 },
            Call::Close { handle },
            Call::Read { handle, offset: 5, len: 6 },
            Call::Write { handle, offset: 5, data: Buf::copy_of(b"data") },
            Call::Flush { handle },
            Call::Sync { handle, data_only: true },
            Call::SyncDirectory { node },
            Call::ReadDirectory { node, stream: Stream(5), after: 6 },
            Call::CloseDirectory { stream: Stream(5) },
            Call::Statistics,
            Call::GetXattr { node, name: name() },
            Call::ListXattrs { node },
            Call::SetXattr { node, name: name(), value: b"v".to_vec(), flags: 1 },
            Call::RemoveXattr { node, name: name() },
            Call::Allocate { handle, offset: 5, len: 6, mode: 3 },
            Call::Seek { handle, offset: 5, hole: true },
        ]
    }

    fn replies() -> Vec<Result<Reply, Errno>> {
        let statistics = Statistics {
            block_size: 1,
            blocks: 2,
            free: 3,
            available: 4,
            files: 5,
            files_free: 6,
            name_max: 7,
        };
        let entry = DirectoryEntry { name: b"n".to_vec(), position: 3, attributes: attributes() };
        vec![
            Err(Errno::STALE),
            Ok(Reply::Done),
            Ok(Reply::Entry(attributes())),
            Ok(Reply::Attributes(attributes())),
            Ok(Reply::Created(attributes(), Handle(5))),
            Ok(Reply::Opened(attributes(), Handle(5))),
            Ok(Reply::Data(Buf::copy_of(b"data"))),
            Ok(Reply::Written(6)),
            Ok(Reply::Bytes(b"text".to_vec())),
            Ok(Reply::Listing(vec![entry], true)),
            Ok(Reply::Statistics(statistics)),
            Ok(Reply::Offset(7)),
        ]
    }

    #[test]
    fn all_are_read_back_and_their_kinds_are_fixed() {
        for (index, call) in calls().into_iter().enumerate() {
            let (mut head, shown) = (Vec::new(), format!("{call:?}"));
            let body = encode_call(call, &mut head).unwrap_or_else(|| Buf::copy_of(&[]));
            assert_eq!(usize::from(head[0]), index + 1, "{shown}");
            let read = decode_call(Fields(&head), body.clone()).expect(&shown);
            assert_eq!(format!("{read:?}"), shown);
            for len in 0..head.len() {
                assert!(decode_call(Fields(&head[..len]), body.clone()).is_err(), "{len} bytes of {shown}");
            }
        }
        for (index, reply) in replies().into_iter().enumerate() {
            let (mut head, shown) = (Vec::new(), format!("{reply:?}"));
            let body = encode_reply(reply, &mut head).unwrap_or_else(|| Buf::copy_of(&[]));
            assert_eq!(usize::from(head[0]), index, "{shown}");
            let read = decode_reply(Fields(&head), body.clone()).expect(&shown);
            assert_eq!(format!("{read:?}"), shown);
            for len in 0..head.len() {
                assert!(decode_reply(Fields(&head[..len]), body.clone()).is_err(), "{len} bytes of {shown}");
            }
        }
    }

    #[test]
    fn impossible_values_are_refused() {
        let mut head = Vec::new();
        encode_call(Call::Read { handle: Handle(1), offset: u64::MAX, len: 1 }, &mut head);
        assert!(decode_call(Fields(&head), Buf::copy_of(&[])).is_err(), "beyond the largest offset");
        let mut head = Vec::new();
        encode_call(Call::Read { handle: Handle(1), offset: 0, len: DATA_MAX as u32 + 1 }, &mut head);
        assert!(decode_call(Fields(&head), Buf::copy_of(&[])).is_err(), "longer than a body");
        let mut head = Vec::new();
        encode_call(Call::Statistics, &mut head);
        assert!(decode_call(Fields(&head), Buf::copy_of(b"x")).is_err(), "a body where none belongs");
        assert!(decode_reply(Fields(&[FAILED, 0, 0, 0, 0]), Buf::copy_of(&[])).is_err(), "error 0");
    }
}
