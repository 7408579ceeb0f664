//! Failures of a session as a whole.

use super::Violation;
use crate::link::LinkError;
use crate::wire::Refusal;
use std::io;

/// Why a session failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A connection failed, or carried a malformed frame.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The other side violated the protocol.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The other side refused to continue.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The other side closed the connection early.
    #[error("the other side closed the connection before the copy was complete")]
    Lost,
    /// The other side sent nothing for this long.
    #[error("nothing was received from the other side for {} s: it hangs, or is stopped", .0.as_secs())]
    Silent(std::time::Duration),
    /// This side failed.
    #[error("{0}")]
    Local(String),
    /// The user interrupted the copy.
    #[error("interrupted")]
    Interrupted,
}

impl From<io::Error> for SessionError {
    fn from(e: io::Error) -> SessionError {
        SessionError::Link(e.into())
    }
}
