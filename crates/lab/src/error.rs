//! Why a study, or a run of the program, fails.

use std::fmt;

/// An error with its message: what was attempted, on what, what happened, what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options do not fit each other, or the result to resume.
    #[error("{0}")]
    Usage(String),
    /// A run of the program took longer than it may.
    #[error("{0}")]
    TimedOut(String),
    /// A run of the program failed.
    #[error("{message}")]
    Run {
        /// Its exit code; `None` if a signal ended it.
        exit: Option<i32>,
        /// What it reported.
        message: String,
    },
    /// Content differs from what was written.
    #[error("{0}")]
    Mismatch(String),
    /// I/O to a device failed.
    #[error(transparent)]
    Device(#[from] longhaul_block::IoError),
    /// A target cannot be reached, or refuses.
    #[error(transparent)]
    Connect(#[from] longhaul_initiator::Error),
    /// A copy failed.
    #[error(transparent)]
    Copy(#[from] longhaul_transfer::CopyError),
    /// Any other error, with its message.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn usage(message: impl fmt::Display) -> Error {
        Error::Usage(message.to_string())
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Error {
        Error::Failed(message.to_string())
    }
}

/// What a measurement returns.
pub(crate) type Outcome = Result<(), Error>;

impl From<longhaul_wan::Error> for Error {
    fn from(e: longhaul_wan::Error) -> Error {
        match e {
            longhaul_wan::Error::Invalid(_) | longhaul_wan::Error::NoLink(_) => Error::usage(e),
            _ => Error::failed(e),
        }
    }
}

impl From<longhaul_results::ReadError> for Error {
    fn from(e: longhaul_results::ReadError) -> Error {
        match e {
            longhaul_results::ReadError::Io { .. } => Error::failed(e),
            _ => Error::usage(e),
        }
    }
}

impl From<longhaul_target::Error> for Error {
    fn from(e: longhaul_target::Error) -> Error {
        match e {
            longhaul_target::Error::Config(_) => Error::usage(e),
            _ => Error::failed(e),
        }
    }
}
