//! The user that an agent runs as.
//!
//! An agent that root starts serves strangers: as rsync's daemon does
//! (`rsyncd.conf(5)`, `uid`), it becomes an unprivileged user once it has opened what
//! only root may open.

use crate::exit::Failure;
use rustix::process::{Gid, Uid, geteuid, getgid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::process::{Command, Stdio};

/// The user without rights of its own, and its number where no user database has it.
const NOBODY: &str = "nobody";
const NOBODY_ID: u32 = 65_534;

/// A user and its first group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// As it was named.
    pub(super) name: String,
    uid: u32,
    gid: u32,
}

impl User {
    /// The user of this process.
    pub(super) fn own() -> User {
        let uid = geteuid().as_raw();
        User { name: uid.to_string(), uid, gid: getgid().as_raw() }
    }

    /// The unprivileged one.
    pub(super) fn nobody() -> User {
        let found = find(NOBODY).ok().flatten();
        found.unwrap_or(User { name: NOBODY.into(), uid: NOBODY_ID, gid: NOBODY_ID })
    }

    /// By its name, or as `UID` or `UID:GID`.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn named(name: &str) -> Result<User, Failure> {
        if let Some(user) = numbered(name) {
            return Ok(user);
        }
        let found = find(name).map_err(|e| Failure::failed(format_args!("/etc/passwd: {e}")))?;
        found.ok_or_else(|| Failure::usage(format_args!("--user {name}: there is no user of that name")))
    }

    /// Whether it is root.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Makes this process run as the user, for good. No other thread may run: the
    /// kernel keeps these numbers for each thread (`setresuid(2)`, C library/kernel
    /// differences), and threads that start later inherit them.
    ///
    /// # Errors
    /// Other threads run, or this process may not become that user.
    pub(super) fn become_it(&self) -> io::Result<()> {
        if (getuid().as_raw(), geteuid().as_raw()) == (self.uid, self.uid) {
            return Ok(());
        }
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!("{threads} threads run already")));
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // The groups first: the right to change them goes with the user.
        set_thread_groups(&[gid])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        // What could be taken back would be no protection.
        if !self.is_root() && set_thread_res_uid(None, Uid::ROOT, None).is_ok() {
            return Err(io::Error::other("the rights of root can be taken back"));
        }
        Ok(())
    }
}

/// A user by number. Without a group, the user database says which.
fn numbered(text: &str) -> Option<User> {
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let uid: u32 = uid.parse().ok()?;
    let known = || find(text).ok().flatten().map(|user| user.gid);
    let gid = match gid {
        Some(gid) => gid.parse().ok()?,
        None => known().unwrap_or(uid),
    };
    Some(User { name: text.to_owned(), uid, gid })
}

/// Looks a user up by name or number: in `/etc/passwd`, and where it is not there, in
/// what else the system has (`getent(1)`).
fn find(name: &str) -> io::Result<Option<User>> {
    let table = std::fs::read_to_string("/etc/passwd")?;
    if let Some(user) = in_table(&table, name) {
        return Ok(Some(user));
    }
    let asked = Command::new("getent").args(["passwd", "--", name]).stdin(Stdio::null()).output();
    Ok(asked.ok().and_then(|answer| in_table(&String::from_utf8_lossy(&answer.stdout), name)))
}

/// A line of `passwd(5)`: name, password, user, group, and more.
fn in_table(table: &str, name: &str) -> Option<User> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (first, uid) = (fields.next()?, fields.nth(1)?);
        let gid = fields.next()?.parse().ok()?;
        let is_it = first == name || uid == name;
        is_it.then(|| Some(User { name: first.to_owned(), uid: uid.parse().ok()?, gid })).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65533:n:/:/x\n";
        let nobody = Some(User { name: "nobody".into(), uid: 65534, gid: 65533 });
        assert_eq!((in_table(table, "nobody"), in_table(table, "65534")), (nobody.clone(), nobody));
        assert_eq!(in_table(table, "nob"), None);
        assert_eq!(numbered("12:34"), Some(User { name: "12:34".into(), uid: 12, gid: 34 }));
        assert_eq!((numbered("bob"), numbered("12:x"), numbered("-1")), (None, None, None));
        assert!(User::named("no such user").is_err());
        assert!(!User::nobody().is_root());
    }
}
