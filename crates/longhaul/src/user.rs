//! Users of this machine, and running with the rights of one of them.
//!
//! An agent that root starts serves strangers: as rsync's daemon does
//! (`rsyncd.conf(5)`, `uid`), it becomes an unprivileged user once it has opened what
//! only root may open. A verb that root runs by `sudo` uses the records of the user that
//! called `sudo`, with that user's rights.

use crate::exit::Failure;
use rustix::process::{Gid, Uid, geteuid, getgid, getuid};
use rustix::thread::{
    CapabilitySet, capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The user without rights of its own, and its number where no user database has it.
const NOBODY: &str = "nobody";
const NOBODY_ID: u32 = 65_534;

/// A user and its first group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// As it was named.
    pub(crate) name: String,
    uid: u32,
    gid: u32,
    /// Without one where no user database has the user.
    home: Option<PathBuf>,
}

impl User {
    /// The user of this process.
    pub(crate) fn own() -> User {
        let uid = geteuid().as_raw();
        User { name: uid.to_string(), uid, gid: getgid().as_raw(), home: None }
    }

    /// The unprivileged one.
    pub(crate) fn nobody() -> User {
        let found = find(NOBODY).ok().flatten();
        found.unwrap_or(User { name: NOBODY.into(), uid: NOBODY_ID, gid: NOBODY_ID, home: None })
    }

    /// By its name, or as `UID` or `UID:GID`.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn named(name: &str) -> Result<User, Failure> {
        if let Some(user) = numbered(name) {
            return Ok(user);
        }
        let found = find(name).map_err(|e| Failure::failed(format_args!("/etc/passwd: {e}")))?;
        found.ok_or_else(|| Failure::usage(format_args!("--user {name}: there is no user of that name")))
    }

    /// The user that called `sudo`, `doas` or `pkexec`, where root runs this for another one.
    pub(crate) fn caller() -> Option<User> {
        if !geteuid().is_root() {
            return None;
        }
        let named =
            ["SUDO_UID", "DOAS_USER", "PKEXEC_UID"].into_iter().find_map(|name| std::env::var(name).ok());
        find(&named?).ok().flatten().filter(|user| !user.is_root())
    }

    /// The number of the user.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// The home directory, where there is one.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Does `work` with this user's rights to files, on a thread of its own: what root did
    /// in a directory of the user could otherwise be led elsewhere by a link, and would
    /// belong to root.
    ///
    /// # Errors
    /// This process may not take the user's rights.
    pub(crate) fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let run = move || {
            // The kernel keeps these for each thread. The real user stays root, so that the
            // user cannot send this process a signal meanwhile.
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

    /// Makes this process run as the user, for good. No other thread may run: the
    /// kernel keeps these numbers for each thread (`setresuid(2)`, C library/kernel
    /// differences), and threads that start later inherit them.
    ///
    /// # Errors
    /// Other threads run, or this process may not become that user.
    pub(crate) fn become_it(&self) -> io::Result<()> {
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

/// Fails where this process may not do what only root may: before anything else is done.
///
/// # Errors
/// `what` needs root, `for what`; with what to do.
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

/// A user by number. Without a group, the user database says which.
fn numbered(text: &str) -> Option<User> {
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let uid: u32 = uid.parse().ok()?;
    let known = || find(text).ok().flatten().map(|user| user.gid);
    let gid = match gid {
        Some(gid) => gid.parse().ok()?,
        None => known().unwrap_or(uid),
    };
    Some(User { name: text.to_owned(), uid, gid, home: None })
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

/// A line of `passwd(5)`: name, password, user, group, what people call it, home, shell.
fn in_table(table: &str, name: &str) -> Option<User> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (first, uid) = (fields.next()?, fields.nth(1)?);
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).filter(|home| home.starts_with('/')).map(PathBuf::from);
        let is_it = first == name || uid == name;
        is_it.then(|| Some(User { name: first.to_owned(), uid: uid.parse().ok()?, gid, home })).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65533:n:/x:/sh\n";
        let nobody = Some(User { name: "nobody".into(), uid: 65534, gid: 65533, home: Some("/x".into()) });
        assert_eq!((in_table(table, "nobody"), in_table(table, "65534")), (nobody.clone(), nobody));
        assert_eq!(in_table(table, "nob"), None);
        assert_eq!(numbered("12:34"), Some(User { name: "12:34".into(), uid: 12, gid: 34, home: None }));
        assert_eq!((numbered("bob"), numbered("12:x"), numbered("-1")), (None, None, None));
        assert!(User::named("no such user").is_err());
        assert!(!User::nobody().is_root());
    }
}
