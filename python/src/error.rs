//! Errors as exceptions: `longhaul.Error` with the words of the command line, and `OSError` for those of files.

use longhaul_block::IoError;
use longhaul_device::{Error, ErrorKind};
use longhaul_fs::Errno;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// `longhaul.Error`: it is a class of the Python part, so that it can be pickled and subclassed.
static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The word for a kind: `longhaul.Error.kind`.
fn word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Incomplete => "incomplete",
        ErrorKind::Mismatch => "mismatch",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Refused => "refused",
        ErrorKind::TimedOut => "timed-out",
        _ => "failed",
    }
}

fn number(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::Mismatch => Errno::BADMSG,
        ErrorKind::Unreachable => Errno::HOSTUNREACH,
        ErrorKind::Refused => Errno::ACCESS,
        ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::IO,
    }
}

fn exception(py: Python<'_>, number: Errno, message: &str, kind: ErrorKind) -> PyErr {
    let made = ERROR
        .import(py, "longhaul._errors", "Error")
        .and_then(|class| class.call1((number.raw_os_error(), message, word(kind))));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// The exception of an error of opening or managing a device.
pub(crate) fn of_device(py: Python<'_>, e: &Error) -> PyErr {
    exception(py, number(e.kind()), &e.to_string(), e.kind())
}

/// The exception of an error of I/O.
pub(crate) fn of_io(py: Python<'_>, e: IoError) -> PyErr {
    let special = match &e {
        IoError::ReadOnly => Some(Errno::ROFS),
        IoError::NoSpace => Some(Errno::NOSPC),
        IoError::OutOfRange { .. } | IoError::Unaligned { .. } => Some(Errno::INVAL),
        IoError::Unsupported(_) => Some(Errno::OPNOTSUPP),
        _ => None,
    };
    let e = Error::from(e);
    exception(py, special.unwrap_or_else(|| number(e.kind())), &e.to_string(), e.kind())
}

/// The exception of an error number of a file system, with the file: `FileNotFoundError` and its like.
pub(crate) fn of_file(py: Python<'_>, e: Errno, path: &str) -> PyErr {
    let number = e.raw_os_error();
    match py.import("os").and_then(|os| os.call_method1("strerror", (number,))) {
        Ok(words) => PyOSError::new_err((number, words.unbind(), path.to_owned())),
        Err(e) => e,
    }
}

/// A closed file is used: the exception of Python's own files.
pub(crate) fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// An argument is wrong.
pub(crate) fn invalid(py: Python<'_>, message: impl std::fmt::Display) -> PyErr {
    of_device(py, &Error::new(ErrorKind::Invalid, message))
}
