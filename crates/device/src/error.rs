//! Errors of opening and managing devices.

use longhaul_array::ArrayError;
use longhaul_block::IoError;
use std::fmt;

/// Result of opening or managing a device.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of an [`Error`]. The numbers are part of the control sockets' protocol, and are the
/// exit codes of the `longhaul` program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An error of no other kind.
    Failed = 1,
    /// An invalid name or request.
    Invalid = 2,
    /// Done, but not all of it.
    Incomplete = 3,
    /// Content differs from what was written.
    Mismatch = 4,
    /// The device could not be reached, or the connection to it was lost.
    Unreachable = 5,
    /// The operation was refused, by the device or to protect data.
    Refused = 6,
    /// A timeout expired.
    TimedOut = 7,
}

impl ErrorKind {
    /// The kind with this number; [`ErrorKind::Failed`] for an unknown one.
    pub fn of(number: Option<u64>) -> ErrorKind {
        let all = [
            ErrorKind::Invalid,
            ErrorKind::Incomplete,
            ErrorKind::Mismatch,
            ErrorKind::Unreachable,
            ErrorKind::Refused,
            ErrorKind::TimedOut,
        ];
        all.into_iter().find(|kind| Some(*kind as u64) == number).unwrap_or(ErrorKind::Failed)
    }
}

/// What programs may want to tell apart among errors of one [`ErrorKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The name is taken.
    Exists,
    /// There is no volume or file system of this name.
    NotFound,
    /// The targets have no room, or too few of them have, or a limit of the pool would be exceeded.
    NoSpace,
    /// A process, a host or another command uses it or changes it at this moment.
    InUse,
    /// The device has no file system: its first and last bytes are zeroes.
    Empty,
}

impl Reason {
    /// Its name, as events have it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Exists => "exists",
            Reason::NotFound => "not-found",
            Reason::NoSpace => "no-space",
            Reason::InUse => "in-use",
            Reason::Empty => "empty",
        }
    }

    /// The reason with this name; `None` for an unknown one.
    pub fn of(name: &str) -> Option<Reason> {
        let all = [Reason::Exists, Reason::NotFound, Reason::NoSpace, Reason::InUse, Reason::Empty];
        all.into_iter().find(|reason| reason.name() == name)
    }
}

/// Why a device cannot be opened, found or managed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    reason: Option<Reason>,
}

impl Error {
    /// An error with this message: what was attempted, on what, what happened, what to do.
    pub fn new(kind: ErrorKind, message: impl fmt::Display) -> Error {
        Error { kind, message: message.to_string(), reason: None }
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Failed, message)
    }

    /// The error with what programs tell it apart by.
    #[must_use]
    pub fn because(self, reason: Option<Reason>) -> Error {
        Error { reason, ..self }
    }

    /// What programs tell the error apart by; `None` for most.
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The error as replies of control sockets have it.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "exit": self.kind as u8, "message": self.message })
    }

    /// The error of a reply; `None` for a reply without a message.
    pub(crate) fn parse(error: &serde_json::Value) -> Option<Error> {
        let message = error["message"].as_str()?;
        Some(Error::new(ErrorKind::of(error["exit"].as_u64()), message))
    }
}

impl From<IoError> for Error {
    fn from(e: IoError) -> Error {
        let kind = match &e {
            IoError::Integrity(_) => ErrorKind::Mismatch,
            IoError::Reserved => ErrorKind::Refused,
            e if e.is_out_of_reach() => ErrorKind::Unreachable,
            _ => ErrorKind::Failed,
        };
        Error::new(kind, e)
    }
}

impl From<ArrayError> for Error {
    fn from(e: ArrayError) -> Error {
        let kind = match &e {
            ArrayError::Layout(_) | ArrayError::Name(_) => ErrorKind::Invalid,
            ArrayError::Taken { .. }
            | ArrayError::TakenUnknown { .. }
            | ArrayError::Content { .. }
            | ArrayError::InUse(_)
            | ArrayError::DeviceInUse { .. }
            | ArrayError::Diverged { .. }
            | ArrayError::Newer { .. }
            | ArrayError::Outdated { .. }
            | ArrayError::Reserved { .. }
            | ArrayError::ReservedByOther { .. }
            | ArrayError::TakenOver(_)
            | ArrayError::Refused(_) => ErrorKind::Refused,
            ArrayError::Io(e) | ArrayError::Assemble(e) | ArrayError::Device { source: e, .. }
                if e.is_out_of_reach() =>
            {
                ErrorKind::Unreachable
            }
            _ => ErrorKind::Failed,
        };
        Error::new(kind, e)
    }
}

impl From<longhaul_initiator::Error> for Error {
    fn from(e: longhaul_initiator::Error) -> Error {
        use longhaul_initiator::Error as Remote;
        let kind = match e {
            Remote::Uri(_) => ErrorKind::Invalid,
            Remote::Resolve { .. } | Remote::Unreachable { .. } | Remote::Incompatible { .. } => {
                ErrorKind::Unreachable
            }
            Remote::TimedOut { .. } => ErrorKind::TimedOut,
            Remote::Refused { .. } => ErrorKind::Refused,
            Remote::NotFound(_) | Remote::Local(_) => ErrorKind::Failed,
        };
        let hint = match &e {
            Remote::Unreachable { connect: Some(std::io::ErrorKind::ConnectionRefused), .. } => {
                ": nothing listens there; check host and port, and whether the target runs"
            }
            Remote::Resolve { .. } => "; check the name, or use an address",
            Remote::TimedOut { .. } => {
                "; check whether it is an NVMe/TCP target, or allow more with --connect-timeout"
            }
            _ => "",
        };
        Error::new(kind, format_args!("{e}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_read_back_from_replies() {
        for number in 1..=7 {
            let kind = ErrorKind::of(Some(number));
            assert_eq!(kind as u64, number);
            let error = Error::new(kind, "x");
            assert_eq!(Error::parse(&error.to_json()), Some(error));
        }
        let reasons = ["exists", "not-found", "no-space", "in-use", "empty"];
        assert!(reasons.into_iter().all(|name| Reason::of(name).is_some_and(|reason| reason.name() == name)));
        assert_eq!(Reason::of("other"), None);
        assert_eq!((ErrorKind::of(None), ErrorKind::of(Some(9))), (ErrorKind::Failed, ErrorKind::Failed));
        assert_eq!(Error::parse(&serde_json::json!({ "exit": 5 })), None);
    }
}
