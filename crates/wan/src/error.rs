//! Errors of emulated links.

use std::io;

/// Why there is no link, or why it does not change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine, or this user, cannot have one: the reason to skip a test.
    #[error("{0}")]
    Unavailable(String),
    /// A name that is taken. What bears it is left alone.
    #[error("{what} '{name}' exists already; choose another name")]
    Exists {
        /// Kind of thing.
        what: &'static str,
        /// Name of the path.
        name: String,
    },
    /// Settings that make no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such link.
    #[error("there is no link {0}")]
    NoLink(usize),
    /// No process emulates a path of this name.
    #[error("no emulated path is called '{0}'")]
    NotRunning(String),
    /// A system call or a program failed.
    #[error("{what}: {source}")]
    System {
        /// The operation, and its object.
        what: String,
        /// Why it did not work.
        source: io::Error,
    },
    /// The thread that moves packets has ended.
    #[error("the link has stopped")]
    Stopped,
}

impl Error {
    /// For `map_err`: names the operation.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        |source| Error::System { what: what.into(), source }
    }
}
