//! What the kernel asks.
//!
//! A request is a header, a structure, and up to two names or a block of data. All lengths are checked: bytes
//! of any content give a request or [`Malformed`].

use crate::abi::{self, fattr, opcode};
use zerocopy::FromBytes;

/// Bytes that are no request of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {unique} (opcode {opcode}) is malformed: {why}")]
pub struct Malformed {
    /// Number of the request; 0 if it has none.
    pub unique: u64,
    /// Number of the operation.
    pub opcode: u32,
    /// What is wrong.
    pub why: &'static str,
}

/// What all requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub unique: u64,
    /// The object: of a name, the directory.
    pub node: u64,
    /// User of the process; that of writes from the page cache is unknown.
    pub uid: u32,
    /// Group of the process.
    pub gid: u32,
    /// The process, 0 if it is unknown.
    pub pid: u32,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its header.
    pub header: Header,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// A new time of access or change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// The time of the server's clock.
    Now,
    /// Seconds since 1970, and nanoseconds.
    At(i64, u32),
}

/// Attributes to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// An open file.
    pub handle: Option<u64>,
    /// Permissions.
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Time of access.
    pub atime: Option<NewTime>,
    /// Time of change.
    pub mtime: Option<NewTime>,
}

/// A lock, or the range that a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// An open file.
    pub handle: u64,
    /// What has the lock: of flock(2) an open file description, of fcntl(2) the descriptors of a process.
    pub owner: u64,
    /// The lock is one of flock(2), which is for the whole file.
    pub flock: bool,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK` of fcntl(2).
    pub kind: i32,
    /// First byte.
    pub start: u64,
    /// Last byte: `i64::MAX` up to the end of the file.
    pub end: u64,
    /// The process.
    pub pid: u32,
}

/// The last descriptor of an open file was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The file.
    pub handle: u64,
    /// The owner whose flock(2) locks end.
    pub flock_owner: Option<u64>,
}

/// What is asked. Names have no zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the structures of the header")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    GetAttr {
        handle: Option<u64>,
    },
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The header has the directory of the new name.
    Link {
        node: u64,
        name: &'a [u8],
    },
    /// `flags` of open(2), as those of the others below.
    Open {
        flags: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        flags: u32,
    },
    Statistics,
    Release(Release),
    Sync {
        handle: u64,
        data_only: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattrs {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    /// A descriptor was closed: the fcntl(2) locks of the owner end.
    Flush {
        handle: u64,
        owner: u64,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
    },
    /// With attributes.
    ReadDirectoryPlus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReleaseDirectory {
        handle: u64,
    },
    SyncDirectory {
        handle: u64,
    },
    /// Whether the lock would be given.
    GetLock(Lock),
    SetLock {
        lock: Lock,
        waits: bool,
    },
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        flags: u32,
    },
    Allocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
}

/// What the kernel sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Request(Request<'a>),
    Init {
        unique: u64,
        init: abi::InitIn,
        flags2: u32,
    },
    /// No reply follows.
    Forget {
        node: u64,
        lookups: u64,
    },
    /// No reply follows; pairs of nodes and lookups.
    BatchForget(Forgets<'a>),
    /// The process gives up waiting for this request.
    Interrupt {
        of: u64,
    },
    Destroy {
        unique: u64,
    },
    /// An operation that this crate does not know.
    Unknown {
        unique: u64,
    },
}

/// Objects to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = abi::ForgetOne> {
        let parts = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        parts.filter_map(|part| abi::ForgetOne::read_from_bytes(part).ok())
    }
}

/// What is left of a request.
struct Body<'a> {
    unique: u64,
    opcode: u32,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn wrong(&self, why: &'static str) -> Malformed {
        Malformed { unique: self.unique, opcode: self.opcode, why }
    }

    fn structure<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| self.wrong("it is too short"))?;
        self.rest = rest;
        Ok(value)
    }

    /// A name with a zero byte behind it.
    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| self.wrong("a name has no end"))?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let bytes = self.rest.get(..len as usize).ok_or_else(|| self.wrong("its data is too short"))?;
        self.rest = &self.rest[len as usize..];
        Ok(bytes)
    }

    fn io(&mut self) -> Result<abi::IoIn, Malformed> {
        self.structure()
    }

    fn lock(&mut self) -> Result<Lock, Malformed> {
        let abi::LkIn { handle, owner, lock, flags, .. } = self.structure()?;
        let kind = lock.kind.cast_signed();
        if ![libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].contains(&kind) || lock.start > lock.end {
            return Err(self.wrong("the kind or the range of the lock is wrong"));
        }
        let flock = flags & abi::LK_FLOCK != 0;
        Ok(Lock { handle, owner, flock, kind, start: lock.start, end: lock.end, pid: lock.pid })
    }

    fn set_attr(&mut self) -> Result<SetAttr, Malformed> {
        let new: abi::SetattrIn = self.structure()?;
        let has = |bit: u32| new.valid & bit != 0;
        let time = |set: u32, now: u32, seconds: u64, nanoseconds: u32| match () {
            () if !has(set) => None,
            () if has(now) => Some(NewTime::Now),
            () => Some(NewTime::At(seconds.cast_signed(), nanoseconds)),
        };
        if new.atimensec >= 1_000_000_000 || new.mtimensec >= 1_000_000_000 {
            return Err(self.wrong("a time has more than a second of nanoseconds"));
        }
        Ok(SetAttr {
            handle: has(fattr::HANDLE).then_some(new.handle),
            mode: has(fattr::MODE).then_some(new.mode),
            uid: has(fattr::UID).then_some(new.uid),
            gid: has(fattr::GID).then_some(new.gid),
            size: has(fattr::SIZE).then_some(new.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, new.atime, new.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, new.mtime, new.mtimensec),
        })
    }
}

/// What the bytes of one read of `/dev/fuse` say.
pub(crate) fn parse(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    let mut body = Body { unique: 0, opcode: 0, rest: bytes };
    let header: abi::InHeader = body.structure()?;
    (body.unique, body.opcode) = (header.unique, header.opcode);
    if header.len as usize != bytes.len() {
        return Err(body.wrong("its length is another one"));
    }
    let unique = header.unique;
    let operation = match header.opcode {
        opcode::INIT => {
            let init = body.structure()?;
            // Kernels before 7.36 end here.
            let flags2 = body.structure::<u32>().unwrap_or(0);
            return Ok(Message::Init { unique, init, flags2 });
        }
        opcode::FORGET => {
            let lookups = body.structure()?;
            return Ok(Message::Forget { node: header.node, lookups });
        }
        opcode::BATCH_FORGET => {
            let abi::BatchForgetIn { count, .. } = body.structure()?;
            let len = (count as usize).checked_mul(size_of::<abi::ForgetOne>());
            let forgets = len.and_then(|len| body.rest.get(..len));
            return Ok(Message::BatchForget(Forgets(forgets.ok_or_else(|| body.wrong("it is too short"))?)));
        }
        opcode::INTERRUPT => return Ok(Message::Interrupt { of: body.structure()? }),
        opcode::DESTROY => return Ok(Message::Destroy { unique }),
        _ => match operation(&mut body)? {
            Some(operation) => operation,
            None => return Ok(Message::Unknown { unique }),
        },
    };
    let abi::InHeader { node, uid, gid, pid, .. } = header;
    Ok(Message::Request(Request { header: Header { unique, node, uid, gid, pid }, operation }))
}

fn operation<'a>(body: &mut Body<'a>) -> Result<Option<Operation<'a>>, Malformed> {
    Ok(Some(match body.opcode {
        opcode::LOOKUP => Operation::Lookup { name: body.name()? },
        opcode::GETATTR => {
            let abi::GetattrIn { flags, handle, .. } = body.structure()?;
            Operation::GetAttr { handle: (flags & abi::GETATTR_FH != 0).then_some(handle) }
        }
        opcode::SETATTR => Operation::SetAttr(body.set_attr()?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink { name: body.name()?, target: body.name()? },
        opcode::MKNOD => {
            let abi::MknodIn { mode, rdev, .. } = body.structure()?;
            Operation::MakeNode { name: body.name()?, mode, rdev }
        }
        opcode::MKDIR => {
            let abi::MkdirIn { mode, .. } = body.structure()?;
            Operation::MakeDirectory { name: body.name()?, mode }
        }
        opcode::UNLINK => Operation::Unlink { name: body.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: body.name()? },
        opcode::RENAME => {
            let new_parent = body.structure()?;
            Operation::Rename { new_parent, name: body.name()?, new_name: body.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let abi::Rename2In { new_parent, flags, .. } = body.structure()?;
            Operation::Rename { new_parent, name: body.name()?, new_name: body.name()?, flags }
        }
        opcode::LINK => Operation::Link { node: body.structure()?, name: body.name()? },
        opcode::OPEN => Operation::Open { flags: body.structure::<abi::OpenIn>()?.flags },
        opcode::READ => {
            let abi::IoIn { handle, offset, size, .. } = body.io()?;
            Operation::Read { handle, offset, size }
        }
        opcode::WRITE => {
            let abi::IoIn { handle, offset, size, flags, .. } = body.io()?;
            Operation::Write { handle, offset, data: body.bytes(size)?, flags }
        }
        opcode::STATFS => Operation::Statistics,
        opcode::RELEASE => {
            let abi::ReleaseIn { handle, release_flags, lock_owner, .. } = body.structure()?;
            let unlocks = release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release(Release { handle, flock_owner: unlocks.then_some(lock_owner) })
        }
        opcode::FSYNC => {
            let abi::FsyncIn { handle, flags, .. } = body.structure()?;
            Operation::Sync { handle, data_only: flags & abi::FSYNC_FDATASYNC != 0 }
        }
        opcode::SETXATTR => {
            let abi::SetxattrIn { size, flags } = body.structure()?;
            Operation::SetXattr { name: body.name()?, value: body.bytes(size)?, flags }
        }
        opcode::GETXATTR => {
            let abi::GetxattrIn { size, .. } = body.structure()?;
            Operation::GetXattr { name: body.name()?, size }
        }
        opcode::LISTXATTR => Operation::ListXattrs { size: body.structure::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: body.name()? },
        opcode::FLUSH => {
            let abi::FlushIn { handle, lock_owner, .. } = body.structure()?;
            Operation::Flush { handle, owner: lock_owner }
        }
        opcode::OPENDIR => Operation::OpenDirectory,
        opcode::READDIR => {
            let abi::IoIn { handle, offset, size, .. } = body.io()?;
            Operation::ReadDirectory { handle, offset, size }
        }
        opcode::READDIRPLUS => {
            let abi::IoIn { handle, offset, size, .. } = body.io()?;
            Operation::ReadDirectoryPlus { handle, offset, size }
        }
        opcode::RELEASEDIR => {
            Operation::ReleaseDirectory { handle: body.structure::<abi::ReleaseIn>()?.handle }
        }
        opcode::FSYNCDIR => Operation::SyncDirectory { handle: body.structure::<abi::FsyncIn>()?.handle },
        opcode::GETLK => Operation::GetLock(body.lock()?),
        opcode::SETLK => Operation::SetLock { lock: body.lock()?, waits: false },
        opcode::SETLKW => Operation::SetLock { lock: body.lock()?, waits: true },
        opcode::ACCESS => Operation::Access { mask: body.structure::<abi::AccessIn>()?.mask },
        opcode::CREATE => {
            let abi::CreateIn { flags, mode, .. } = body.structure()?;
            Operation::Create { name: body.name()?, mode, flags }
        }
        opcode::FALLOCATE => {
            let abi::FallocateIn { handle, offset, length, mode, .. } = body.structure()?;
            Operation::Allocate { handle, offset, len: length, mode }
        }
        opcode::LSEEK => {
            let abi::LseekIn { handle, offset, whence, .. } = body.structure()?;
            Operation::Seek { handle, offset, whence }
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{Immutable, IntoBytes};

    /// A request of these parts.
    fn made(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
        let rest = parts.concat();
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + rest.len()) as u32,
            opcode,
            unique: 8,
            node: 5,
            uid: 1000,
            gid: 100,
            pid: 77,
            ..abi::InHeader::default()
        };
        [header.as_bytes(), &rest].concat()
    }

    fn asked(
        opcode: u32,
        structure: &(impl IntoBytes + Immutable),
        rest: &[u8],
        then: impl Fn(Operation<'_>),
    ) {
        let bytes = made(opcode, &[structure.as_bytes(), rest]);
        match parse(&bytes) {
            Ok(Message::Request(Request { header, operation })) => {
                assert_eq!(header, Header { unique: 8, node: 5, uid: 1000, gid: 100, pid: 77 });
                then(operation);
            }
            other => panic!("{other:?}"),
        }
        // Each byte is needed.
        for len in 0..bytes.len() {
            let mut short = bytes[..len].to_vec();
            assert!(parse(&short).is_err(), "{len} bytes, with the length of all");
            if let Some(field) = short.get_mut(..4) {
                field.copy_from_slice(&(len as u32).to_ne_bytes());
                assert!(parse(&short).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn each_structure_is_read_and_none_is_read_beyond_its_end() {
        let io = abi::IoIn { handle: 3, offset: 4096, size: 5, flags: 0o4000, ..abi::IoIn::default() };
        asked(opcode::WRITE, &io, b"bytes", |operation| {
            assert_eq!(
                operation,
                Operation::Write { handle: 3, offset: 4096, data: b"bytes", flags: 0o4000 }
            );
        });
        asked(opcode::READ, &io, b"", |operation| {
            assert_eq!(operation, Operation::Read { handle: 3, offset: 4096, size: 5 });
        });
        let rename = abi::Rename2In { new_parent: 6, flags: 2, padding: 0 };
        asked(opcode::RENAME2, &rename, b"old\0new\0", |operation| {
            assert_eq!(
                operation,
                Operation::Rename { name: b"old", new_parent: 6, new_name: b"new", flags: 2 }
            );
        });
        asked(opcode::SETXATTR, &abi::SetxattrIn { size: 3, flags: 1 }, b"user.a\0abc", |operation| {
            assert_eq!(operation, Operation::SetXattr { name: b"user.a", value: b"abc", flags: 1 });
        });
        asked(opcode::LINK, &9_u64, b"name\0", |operation| {
            assert_eq!(operation, Operation::Link { node: 9, name: b"name" });
        });
        let create = abi::CreateIn { flags: 2, mode: 0o644, umask: 0o22, open_flags: 0 };
        asked(opcode::CREATE, &create, b"name\0", |operation| {
            assert_eq!(operation, Operation::Create { name: b"name", mode: 0o644, flags: 2 });
        });
        let release = abi::ReleaseIn { handle: 3, flags: 0, release_flags: 2, lock_owner: 11 };
        asked(opcode::RELEASE, &release, b"", |operation| {
            assert_eq!(operation, Operation::Release(Release { handle: 3, flock_owner: Some(11) }));
        });
        asked(opcode::RELEASE, &abi::ReleaseIn { release_flags: 1, ..release }, b"", |operation| {
            assert_eq!(operation, Operation::Release(Release { handle: 3, flock_owner: None }));
        });
        asked(
            opcode::FLUSH,
            &abi::FlushIn { handle: 3, lock_owner: 11, ..abi::FlushIn::default() },
            b"",
            |op| {
                assert_eq!(op, Operation::Flush { handle: 3, owner: 11 });
            },
        );
    }

    #[test]
    fn locks_have_their_kind_and_owner() {
        let range = abi::FileLock { start: 10, end: 19, kind: libc::F_WRLCK as u32, pid: 77 };
        let lock = abi::LkIn { handle: 3, owner: 11, lock: range, flags: 0, padding: 0 };
        let posix =
            Lock { handle: 3, owner: 11, flock: false, kind: libc::F_WRLCK, start: 10, end: 19, pid: 77 };
        asked(opcode::SETLKW, &lock, b"", |operation| {
            assert_eq!(operation, Operation::SetLock { lock: posix, waits: true });
        });
        asked(opcode::SETLK, &abi::LkIn { flags: abi::LK_FLOCK, ..lock }, b"", |operation| {
            assert_eq!(operation, Operation::SetLock { lock: Lock { flock: true, ..posix }, waits: false });
        });
        asked(opcode::GETLK, &lock, b"", |operation| assert_eq!(operation, Operation::GetLock(posix)));
        for wrong in [abi::FileLock { kind: 3, ..range }, abi::FileLock { start: 20, ..range }] {
            let bytes = made(opcode::SETLK, &[abi::LkIn { lock: wrong, ..lock }.as_bytes()]);
            assert_eq!(parse(&bytes).expect_err("no lock").why, "the kind or the range of the lock is wrong");
        }
    }

    #[test]
    fn only_the_attributes_that_are_valid_are_changed() {
        let new = abi::SetattrIn {
            valid: fattr::SIZE | fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME,
            handle: 3,
            size: 100,
            mode: 0o777,
            mtime: (-5_i64).cast_unsigned(),
            mtimensec: 6,
            ..abi::SetattrIn::default()
        };
        asked(opcode::SETATTR, &new, b"", |operation| {
            let wanted = SetAttr {
                size: Some(100),
                atime: Some(NewTime::Now),
                mtime: Some(NewTime::At(-5, 6)),
                ..SetAttr::default()
            };
            assert_eq!(operation, Operation::SetAttr(wanted));
        });
        let bytes = made(opcode::SETATTR, &[abi::SetattrIn { mtimensec: 1_000_000_000, ..new }.as_bytes()]);
        assert!(parse(&bytes).is_err());
    }

    #[test]
    fn interrupts_and_forgets_are_not_requests() {
        let bytes = made(opcode::INTERRUPT, &[&77_u64.to_ne_bytes()]);
        assert_eq!(parse(&bytes), Ok(Message::Interrupt { of: 77 }));
        let forgets = [(9_u64, 1_u64), (10, 2)].map(|(node, lookups)| abi::ForgetOne { node, lookups });
        let count = abi::BatchForgetIn { count: 2, dummy: 0 };
        let bytes = made(opcode::BATCH_FORGET, &[count.as_bytes(), forgets.as_bytes()]);
        let Ok(Message::BatchForget(found)) = parse(&bytes) else { panic!("{:?}", parse(&bytes)) };
        assert_eq!(found.iter().collect::<Vec<_>>(), forgets);
        for count in [3, u32::MAX] {
            let bytes = made(
                opcode::BATCH_FORGET,
                &[abi::BatchForgetIn { count, dummy: 0 }.as_bytes(), forgets.as_bytes()],
            );
            assert!(parse(&bytes).is_err());
        }
        assert_eq!(parse(&made(4711, &[])), Ok(Message::Unknown { unique: 8 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Bytes of any content neither panic nor are read beyond their end.
        #[test]
        fn any_bytes_are_read_or_refused(opcode in 0_u32..60, rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = made(opcode, &[&rest]);
            if let Ok(Message::BatchForget(forgets)) = parse(&bytes) {
                prop_assert!(forgets.iter().count() * 16 <= rest.len());
            }
            let _ = parse(&rest);
        }
    }
}
