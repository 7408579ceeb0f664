//! Users of this machine, and running with the rights of one of them.
//!
//! An agent started by root serves clients of other machines: like rsync's daemon
//! (`rsyncd.conf(5)`, `uid`), it switches to an unprivileged user once it has opened the files
//! that need root. A verb run through `sudo` uses the records of the calling user, with that
//! user's rights.

use crate::exit::Failure;
use rustix::process::{Gid, Uid, geteuid, getgid, getuid};
use rustix::thread::{
    CapabilitySet, capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The unprivileged user, and its UID where no user database has it.
const UNPRIVILEGED: &str = "nobody";
const UNPRIVILEGED_ID: u32 = 65_534;

/// A user and its first group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// The name, or the text of the number that was given instead.
    pub(crate) name: String,
    uid: u32,
    gid: u32,
    /// The home directory; `None` where no user database has the user.
    home: Option<PathBuf>,
}

impl User {
    /// The user of this process.
    pub(crate) fn own() -> User {
        let uid = geteuid().as_raw();
        User { name: uid.to_string(), uid, gid: getgid().as_raw(), home: None }
    }

    /// The unprivileged user, `nobody`.
    pub(crate) fn unprivileged() -> User {
        let (name, id) = (UNPRIVILEGED, UNPRIVILEGED_ID);
        let found = find(name).ok().flatten();
        found.unwrap_or_else(|| User { name: name.into(), uid: id, gid: id, home: None })
    }

    /// The user with this name, `UID` or `UID:GID`.
    ///
    /// # Errors
    /// No user has that name.
    pub(crate) fn named(name: &str) -> Result<User, Failure> {
        if let Some(user) = by_number(name) {
            return Ok(user);
        }
        let found = find(name).map_err(|e| Failure::failed(format_args!("/etc/passwd: {e}")))?;
        found.ok_or_else(|| Failure::usage(format_args!("--user {name}: there is no user of that name")))
    }

    /// The user that called `sudo`, `doas` or `pkexec`; `None` unless this process runs as root.
    pub(crate) fn caller() -> Option<User> {
        if !geteuid().is_root() {
            return None;
        }
        let named =
            ["SUDO_UID", "DOAS_USER", "PKEXEC_UID"].into_iter().find_map(|name| std::env::var(name).ok());
        find(&named?).ok().flatten().filter(|user| !user.is_root())
    }

    /// The UID.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// The home directory, where there is one.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Runs `work` with this user's rights to files, on a thread of its own. With root's rights, a
    /// symbolic link in a directory of the user could redirect writes to any file, and new files
    /// would belong to root.
    ///
    /// # Errors
    /// This process may not take the user's rights.
    pub(crate) fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let run = move || {
            // Credentials are per thread in the kernel. The real UID stays root's, so that the
            // user cannot send signals to this process meanwhile.
            set_thread_groups(&[gid])?;
            set_thread_res_gid(None, gid, None)?;
            set_thread_res_uid(None, uid, None)?;
            Ok(work())
        };
        std::thread::scope(|scope| match scope.spawn(run).join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Whether it is root.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Switches this process to the user, permanently. No other thread may run: credentials are
    /// per thread in the kernel (`setresuid(2)`, C library/kernel differences), and threads
    /// started later inherit them.
    ///
    /// # Errors
    /// Other threads run, or this process may not switch to that user.
    pub(crate) fn switch_to(&self) -> io::Result<()> {
        if (getuid().as_raw(), geteuid().as_raw()) == (self.uid, self.uid) {
            return Ok(());
        }
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!("{threads} threads run already")));
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // Groups first: with the UID, this process loses the right to change them.
        set_thread_groups(&[gid])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        // Verifies that the saved UID was dropped as well.
        if !self.is_root() && set_thread_res_uid(None, Uid::ROOT, None).is_ok() {
            return Err(io::Error::other("the rights of root can be taken back"));
        }
        Ok(())
    }
}

/// Checks for `CAP_SYS_ADMIN`, so that a verb that needs it fails before it changes anything.
/// `what` and `for_what` are for the message: the verb, and the step that needs root.
///
/// # Errors
/// This process lacks the capability.
pub(crate) fn needs_root(what: &str, for_what: &str) -> Result<(), Failure> {
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    match (may, geteuid().is_root()) {
        (true, _) => Ok(()),
        (false, false) => {
            Err(Failure::failed(format_args!("{what} needs root, {for_what}: run it with sudo")))
        }
        (false, true) => Err(Failure::failed(format_args!(
            "{what} needs the right CAP_SYS_ADMIN, {for_what}, which root does not have here: run it outside of \
             this container, or give the container that right"
        ))),
    }
}

/// A user given as `UID` or `UID:GID`; without `GID`, the group from the user database.
fn by_number(text: &str) -> Option<User> {
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let uid: u32 = uid.parse().ok()?;
    let first_group = || find(text).ok().flatten().map(|user| user.gid);
    let gid = match gid {
        Some(gid) => gid.parse().ok()?,
        None => first_group().unwrap_or(uid),
    };
    Some(User { name: text.to_owned(), uid, gid, home: None })
}

/// Looks a user up by name or UID: in `/etc/passwd`, then in the other user databases of the
/// system (`getent(1)`).
fn find(name: &str) -> io::Result<Option<User>> {
    let table = std::fs::read_to_string("/etc/passwd")?;
    if let Some(user) = in_passwd(&table, name) {
        return Ok(Some(user));
    }
    let output = Command::new("getent").args(["passwd", "--", name]).stdin(Stdio::null()).output();
    Ok(output.ok().and_then(|output| in_passwd(&String::from_utf8_lossy(&output.stdout), name)))
}

/// Finds a user in text in the format of `passwd(5)`: name, password, UID, GID, comment, home, shell.
fn in_passwd(table: &str, name: &str) -> Option<User> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (first, uid) = (fields.next()?, fields.nth(1)?);
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).filter(|home| home.starts_with('/')).map(PathBuf::from);
        let matches = first == name || uid == name;
        matches.then(|| Some(User { name: first.to_owned(), uid: uid.parse().ok()?, gid, home })).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65533:n:/x:/sh\n";
        let user = Some(User { name: "nobody".into(), uid: 65534, gid: 65533, home: Some("/x".into()) });
        assert_eq!((in_passwd(table, "nobody"), in_passwd(table, "65534")), (user.clone(), user));
        assert_eq!(in_passwd(table, "nob"), None);
        assert_eq!(by_number("12:34"), Some(User { name: "12:34".into(), uid: 12, gid: 34, home: None }));
        assert_eq!((by_number("bob"), by_number("12:x"), by_number("-1")), (None, None, None));
        assert!(User::named("no such user").is_err());
        assert!(!User::unprivileged().is_root());
    }
}
