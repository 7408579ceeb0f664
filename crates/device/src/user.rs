//! Users of this machine, and running with the rights of one of them.
//!
//! A program run through `sudo` uses the records of the calling user, with that user's rights.

use rustix::process::{Gid, Uid, geteuid, getgid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A user and its first group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, or the text of the number that was given instead.
    pub name: String,
    uid: u32,
    gid: u32,
    /// The home directory; `None` where no user database has the user.
    home: Option<PathBuf>,
}

impl User {
    /// A user without a home directory.
    pub fn new(name: &str, uid: u32, gid: u32) -> User {
        User { name: name.to_owned(), uid, gid, home: None }
    }

    /// The user of this process.
    pub fn own() -> User {
        let uid = geteuid().as_raw();
        User { name: uid.to_string(), uid, gid: getgid().as_raw(), home: None }
    }

    /// The user with this name, `UID` or `UID:GID`; `None` for an unknown name.
    ///
    /// # Errors
    /// The user database cannot be read.
    pub fn named(name: &str) -> io::Result<Option<User>> {
        match by_number(name) {
            Some(user) => Ok(Some(user)),
            None => find(name),
        }
    }

    /// The user that called `sudo`, `doas` or `pkexec`; `None` unless this process runs as root.
    pub fn caller() -> Option<User> {
        if !geteuid().is_root() {
            return None;
        }
        let named =
            ["SUDO_UID", "DOAS_USER", "PKEXEC_UID"].into_iter().find_map(|name| std::env::var(name).ok());
        find(&named?).ok().flatten().filter(|user| !user.is_root())
    }

    /// Numeric user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The GID of the user's first group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The home directory, where there is one.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Runs `work` with this user's rights to files, on a thread of its own. With root's rights, a
    /// symbolic link in a directory of the user could redirect writes to any file, and new files
    /// would belong to root.
    ///
    /// # Errors
    /// This process may not take the user's rights.
    pub fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
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
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// A database of accounts of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounts {
    /// Users.
    Users,
    /// Groups.
    Groups,
}

impl Accounts {
    fn name(self) -> &'static str {
        match self {
            Accounts::Users => "passwd",
            Accounts::Groups => "group",
        }
    }

    /// Looks an account up by its name or number: both of them; `None` if this machine has no such account.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn find(self, name: &str) -> io::Result<Option<(String, u32)>> {
        look_up(self.name(), name, in_database)
    }
}

/// Looks an account up in a file of `/etc`, then in the other databases of the system (`getent(1)`).
fn look_up<T>(database: &str, name: &str, find: fn(&str, &str) -> Option<T>) -> io::Result<Option<T>> {
    let table = std::fs::read_to_string(Path::new("/etc").join(database))?;
    if let Some(found) = find(&table, name) {
        return Ok(Some(found));
    }
    let output = Command::new("getent").args([database, "--", name]).stdin(Stdio::null()).output();
    Ok(output.ok().and_then(|output| find(&String::from_utf8_lossy(&output.stdout), name)))
}

/// Finds an account in text in the format of `passwd(5)` or `group(5)`: name, password, number.
fn in_database(table: &str, name: &str) -> Option<(String, u32)> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (first, number) = (fields.next()?, fields.nth(1)?);
        (first == name || number == name).then(|| Some((first.to_owned(), number.parse().ok()?))).flatten()
    })
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

/// Looks a user up by name or UID.
fn find(name: &str) -> io::Result<Option<User>> {
    look_up("passwd", name, in_passwd)
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
        let groups = "adm:x:4:a,b\nbroken\nstaff:x:50:\n";
        assert_eq!(in_database(groups, "staff"), Some(("staff".to_owned(), 50)));
        assert_eq!(in_database(groups, "4"), Some(("adm".to_owned(), 4)));
        assert_eq!(in_database(groups, "a"), None);
        assert_eq!(by_number("12:34"), Some(User { name: "12:34".into(), uid: 12, gid: 34, home: None }));
        assert_eq!((by_number("bob"), by_number("12:x"), by_number("-1")), (None, None, None));
        assert_eq!(User::named("no such user").expect("a user database"), None);
    }
}
