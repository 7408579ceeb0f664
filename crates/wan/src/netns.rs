//! Network namespaces, and threads and commands in them.

use crate::{Error, sys};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

/// Directory of the namespaces of `ip netns`.
const DIR: &str = "/run/netns";

/// A network namespace of an emulated path.
///
/// Clones refer to the same namespace. A socket belongs to the namespace in which it was
/// created; a thread begins in the namespace of the thread that starts it.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<NamespaceFile>);

#[derive(Debug)]
struct NamespaceFile {
    name: String,
    file: File,
}

impl Namespace {
    pub(crate) fn open(name: &str) -> io::Result<Namespace> {
        let file = File::open(format!("{DIR}/{name}"))?;
        Ok(Namespace(Arc::new(NamespaceFile { name: name.to_owned(), file })))
    }

    /// The name for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Moves the calling thread into the namespace, permanently.
    pub(crate) fn enter(&self) -> rustix::io::Result<()> {
        move_into_link_name_space(self.0.file.as_fd(), Some(LinkNameSpaceType::Network))
    }

    /// Runs a closure in the namespace, on a thread of its own, and waits for it. Threads
    /// that it starts are in the namespace as well.
    ///
    /// # Errors
    /// The namespace cannot be entered; the closure did not run then.
    ///
    /// # Panics
    /// If the closure panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let within = || self.enter().map(|()| work());
        let done = std::thread::scope(|scope| scope.spawn(within).join());
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.map_err(|e| Error::system(format!("cannot enter namespace {}", self.name()))(e.into()))
    }

    /// A command that will run in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::run_within(&mut command, self.clone());
        command
    }

    /// As [`command`](Self::command); gets SIGTERM when the calling thread ends.
    pub fn bound_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(program);
        sys::end_with_starter(&mut command);
        command
    }
}
