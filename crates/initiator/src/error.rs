//! Why a remote device cannot be had.

use longhaul_block::IoError;
use longhaul_wire::completion::Status;

/// Result of reaching a remote device.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a remote device cannot be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The URI makes no sense.
    #[error(transparent)]
    Uri(#[from] crate::UriError),
    /// The name of the host does not resolve.
    #[error("cannot resolve host '{host}': {reason}")]
    Resolve {
        /// Host name of the URI.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// There is no connection.
    #[error("cannot reach {addr}: {reason}")]
    Unreachable {
        /// Address and port.
        addr: String,
        /// Why there is no connection, as the system reports it.
        reason: String,
        /// The error of connect(2), where no connection was made.
        connect: Option<std::io::ErrorKind>,
    },
    /// The far side took too long.
    #[error("{addr} did not answer {what} within {seconds} s{hint}")]
    TimedOut {
        /// Address and port.
        addr: String,
        /// The request, such as "connect".
        what: &'static str,
        /// How long was waited.
        seconds: f64,
        /// A possible cause, as a clause that follows the error; empty if unknown.
        hint: String,
    },
    /// The far side speaks, but refuses.
    #[error("{addr} refused {what}: {reason}")]
    Refused {
        /// Address and port.
        addr: String,
        /// The command that was refused.
        what: String,
        /// The target's answer, as a status or a sentence.
        reason: String,
    },
    /// The far side has no such subsystem or namespace.
    #[error("{0}")]
    NotFound(String),
    /// The target violates the protocol, or lacks a required feature.
    #[error("{addr} cannot be used: {reason}")]
    Incompatible {
        /// Address and port.
        addr: String,
        /// What the target violates or lacks.
        reason: String,
    },
    /// This machine cannot: no thread, no engine.
    #[error("{0}")]
    Local(String),
}

impl From<Error> for IoError {
    fn from(e: Error) -> IoError {
        match e {
            Error::Refused { .. } | Error::NotFound(_) => IoError::Refused(e.to_string()),
            _ => IoError::Unreachable(e.to_string()),
        }
    }
}

/// Why there is no connection any more, in words that stand behind others.
pub(crate) fn reason(e: &IoError) -> String {
    match e {
        IoError::Unreachable(text) => text.clone(),
        e => e.to_string(),
    }
}

/// The status of a completion as an I/O error.
pub(crate) fn io_error(status: Status) -> IoError {
    let code = |s: Status| (s.sct(), s.sc());
    match code(status) {
        c if c == code(Status::ABORT_REQUESTED) => IoError::Aborted,
        c if c == code(Status::CAPACITY_EXCEEDED) => IoError::NoSpace,
        c if c == code(Status::WRITE_PROTECTED) => IoError::ReadOnly,
        c if c == code(Status::RESERVATION_CONFLICT) => IoError::Reserved,
        c if c == code(Status::COMPARE_FAILURE) => IoError::Integrity("the content differs".into()),
        c if c == code(Status::TRANSIENT_TRANSPORT) => {
            IoError::Integrity("a data digest did not match".into())
        }
        // Another controller of the subsystem may serve the namespace.
        //= NVMe Base 2.1, Asymmetric Namespace Access: a path status says that the namespace is reached another way
        c if c == code(Status::ANA_INACCESSIBLE) || c == code(Status::ANA_TRANSITION) => {
            IoError::Offline(format!(
                "the target stands by for the namespace, and another one serves it ({status}): use the address \
                 of that one, or wait until this one has taken it over"
            ))
        }
        // The way is at fault, or about to go: the target stops, say.
        c if c == code(Status::ABORTED_SQ_DELETION) => IoError::Unreachable(status.to_string()),
        (Status::PATH, _) => IoError::Unreachable(status.to_string()),
        (Status::MEDIA, _) => IoError::Medium(status.to_string()),
        _ => IoError::Refused(status.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test: NVMe Base 2.1, Asymmetric Namespace Access
    #[test]
    fn a_target_that_stands_by_is_no_lost_connection() {
        for status in [Status::ANA_INACCESSIBLE, Status::ANA_TRANSITION] {
            let error = io_error(status);
            assert!(matches!(&error, IoError::Offline(why) if why.contains("stands by")), "{error:?}");
            assert!(error.is_out_of_reach());
        }
        assert!(matches!(io_error(Status::INTERNAL_PATH_ERROR), IoError::Unreachable(_)));
    }
}
