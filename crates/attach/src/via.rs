//! The front ends by name, and which of them `auto` takes.

use crate::error::AttachError;
use crate::kernel::KernelDriver;
use longhaul_device::{Error, ErrorKind};
use std::str::FromStr;

/// A front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The first that this machine has and permits: ublk, fuse, nbd, nvme
    Auto,
    /// A file served by FUSE; needs no root
    Fuse,
    /// A block device of the kernel's NVMe/TCP host, over loopback
    Nvme,
    /// A block device of the kernel's NBD client
    Nbd,
    /// A block device of the kernel's ublk driver
    Ublk,
}

/// The order of `auto`. ublk copies each byte once and needs no loop device. FUSE is available on
/// nearly every host, and reports its unmount. NBD and NVMe also copy each byte through a socket,
/// and the kernel's NVMe host has timeouts of its own.
const AUTO_ORDER: [Via; 4] = [Via::Ublk, Via::Fuse, Via::Nbd, Via::Nvme];

/// Why an attempt to attach through one front end failed.
#[derive(Debug)]
pub enum FrontEndError {
    /// This host lacks the front end: the next one is tried.
    Unavailable(AttachError),
    /// The other front ends would fail as well.
    Failed(Error),
}

impl From<AttachError> for FrontEndError {
    fn from(e: AttachError) -> FrontEndError {
        match e {
            AttachError::NoFuse(_)
            | AttachError::NoKernel(_)
            | AttachError::NoLoop(_)
            | AttachError::System { .. } => FrontEndError::Unavailable(e),
            e => FrontEndError::Failed(e.into()),
        }
    }
}

impl From<Error> for FrontEndError {
    fn from(e: Error) -> FrontEndError {
        FrontEndError::Failed(e)
    }
}

impl FromStr for Via {
    type Err = String;

    fn from_str(s: &str) -> Result<Via, String> {
        Via::ALL.into_iter().find(|via| via.name() == s).ok_or_else(|| format!("'{s}' is not a front end"))
    }
}

impl Via {
    /// All of them.
    pub const ALL: [Via; 5] = [Via::Auto, Via::Fuse, Via::Nvme, Via::Nbd, Via::Ublk];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Via::Auto => "auto",
            Via::Fuse => "fuse",
            Via::Nvme => "nvme",
            Via::Nbd => "nbd",
            Via::Ublk => "ublk",
        }
    }

    /// The front ends to try, in this order; with `only_file` only those that make a file.
    pub fn candidates(self, only_file: bool) -> &'static [Via] {
        match self {
            Via::Auto if only_file => &[Via::Fuse],
            Via::Auto => &AUTO_ORDER,
            Via::Fuse => &[Via::Fuse],
            Via::Nvme => &[Via::Nvme],
            Via::Nbd => &[Via::Nbd],
            Via::Ublk => &[Via::Ublk],
        }
    }

    /// The driver of the kernel, for front ends that use one.
    pub fn kernel(self) -> Option<KernelDriver> {
        match self {
            Via::Auto | Via::Fuse => None,
            Via::Nvme => Some(KernelDriver::Nvme),
            Via::Nbd => Some(KernelDriver::Nbd),
            Via::Ublk => Some(KernelDriver::Ublk),
        }
    }
}

/// Attaches through the first of `candidates` that is available. Returns the attachment, and why
/// the candidates before it are not available.
///
/// # Errors
/// The failure of an available front end. If none is available, the error of FUSE where it is a
/// candidate: the others need kernel modules that few hosts have loaded.
pub fn first_available<T>(
    candidates: &[Via],
    mut attach: impl FnMut(Via) -> Result<T, FrontEndError>,
) -> Result<(T, Vec<String>), Error> {
    let mut passed_over = Vec::new();
    let mut cause = None;
    for &via in candidates {
        match attach(via) {
            Ok(attached) => return Ok((attached, passed_over)),
            Err(FrontEndError::Failed(e)) => return Err(e),
            Err(FrontEndError::Unavailable(e)) => {
                passed_over.push(format!("{}: {e}", via.name()));
                if via == Via::Fuse || cause.is_none() {
                    cause = Some(e);
                }
            }
        }
    }
    for why in &passed_over {
        tracing::info!("not by {why}");
    }
    let untried = || Error::new(ErrorKind::Failed, "no front end was tried: --via names none");
    Err(cause.map_or_else(untried, Error::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable(via: Via) -> FrontEndError {
        AttachError::NoKernel(format!("no {}", via.name())).into()
    }

    #[test]
    fn auto_takes_the_first_available_front_end_and_reports_those_before_it() {
        let attach = |via| if via == Via::Nbd { Ok(via) } else { Err(unavailable(via)) };
        let auto = Via::Auto.candidates(false);
        let (attached, passed_over) = first_available(auto, attach).expect("nbd is available");
        assert_eq!((attached, passed_over.len()), (Via::Nbd, 2));
        assert!(passed_over[0].starts_with("ublk: "), "{passed_over:?}");
        assert!(passed_over[1].ends_with("no fuse"), "{passed_over:?}");
        let failure = first_available::<()>(auto, |via| Err(unavailable(via))).expect_err("none works");
        assert!(failure.to_string().ends_with("no fuse"), "one cause: {failure}");
    }

    #[test]
    fn a_front_end_given_by_name_is_the_only_candidate() {
        let mut tried = Vec::new();
        let failure = first_available::<()>(Via::Nvme.candidates(false), |via| {
            tried.push(via);
            Err(unavailable(via))
        });
        assert_eq!(tried, [Via::Nvme]);
        assert!(failure.expect_err("unavailable").to_string().contains("no nvme"));
        assert_eq!(Via::Auto.candidates(true), [Via::Fuse]);
    }

    #[test]
    fn an_error_of_an_available_front_end_is_final() {
        let mut tried = 0;
        let failure = first_available::<()>(Via::Auto.candidates(false), |_| {
            tried += 1;
            Err(Error::new(ErrorKind::Invalid, "the path is taken").into())
        });
        assert_eq!((tried, failure.expect_err("taken").kind()), (1, ErrorKind::Invalid));
    }
}
