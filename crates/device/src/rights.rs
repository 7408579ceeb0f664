//! Rights of this process: switching to another user, and checks for root.
//!
//! An agent started by root serves clients of other machines: like rsync's daemon
//! (`rsyncd.conf(5)`, `uid`), it switches to an unprivileged user once it has opened the files
//! that need root.

use crate::error::{Error, Result};
use crate::user::User;
use rustix::process::{Gid, Uid, geteuid, getuid};
use rustix::thread::{
    CapabilitySet, capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::io;

/// The unprivileged user, and its UID where no user database has it.
const UNPRIVILEGED: &str = "nobody";
const UNPRIVILEGED_ID: u32 = 65_534;

impl User {
    /// The unprivileged user, `nobody`.
    pub fn unprivileged() -> User {
        let (name, id) = (UNPRIVILEGED, UNPRIVILEGED_ID);
        let found = User::named(name).ok().flatten();
        found.unwrap_or_else(|| User::new(name, id, id))
    }

    /// Switches this process to the user, permanently. No other thread may run: credentials are
    /// per thread in the kernel (`setresuid(2)`, C library/kernel differences), and threads
    /// started later inherit them.
    ///
    /// # Errors
    /// Other threads run, or this process may not switch to that user.
    pub fn switch_to(&self) -> io::Result<()> {
        if (getuid().as_raw(), geteuid().as_raw()) == (self.uid(), self.uid()) {
            return Ok(());
        }
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!("{threads} threads run already")));
        }
        let (uid, gid) = (Uid::from_raw(self.uid()), Gid::from_raw(self.gid()));
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

/// Checks for `CAP_SYS_ADMIN`, so that a program that needs it fails before it changes anything.
/// `what` and `for_what` are for the message: the command, and the step that needs root.
///
/// # Errors
/// This process lacks the capability.
pub fn needs_root(what: &str, for_what: &str) -> Result<()> {
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    match (may, geteuid().is_root()) {
        (true, _) => Ok(()),
        (false, false) => Err(Error::failed(format_args!("{what} needs root, {for_what}: run it with sudo"))),
        (false, true) => Err(Error::failed(format_args!(
            "{what} needs the right CAP_SYS_ADMIN, {for_what}, which root does not have here: run it outside of \
             this container, or give the container that right"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unprivileged_user_is_not_root() {
        assert!(!User::unprivileged().is_root());
    }
}
