//! The ways in which a device becomes a local one, and which of them is taken.

use crate::exit::Failure;
use longhaul_attach::{AttachError, kernel};

/// How a device becomes a local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Via {
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

/// The order of `auto`. ublk copies each byte once and leaves out the loop
/// device; FUSE is there nearly everywhere, tells of its end, and is what was
/// measured; the other two move each byte through a socket besides, and the
/// kernel's NVMe host has limits of its own on how long it waits.
const BEST_FIRST: [Via; 4] = [Via::Ublk, Via::Fuse, Via::Nbd, Via::Nvme];

/// Why a way was not gone to its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It is not to be had here: another one may be.
    NotHere(AttachError),
    /// No other way would help.
    For(Failure),
}

impl From<AttachError> for Stopped {
    fn from(e: AttachError) -> Stopped {
        match e {
            AttachError::NoFuse(_)
            | AttachError::NoKernel(_)
            | AttachError::NoLoop(_)
            | AttachError::System { .. } => Stopped::NotHere(e),
            e => Stopped::For(e.into()),
        }
    }
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::For(failure)
    }
}

impl Via {
    pub(super) fn name(self) -> &'static str {
        match self {
            Via::Auto => "auto",
            Via::Fuse => "fuse",
            Via::Nvme => "nvme",
            Via::Nbd => "nbd",
            Via::Ublk => "ublk",
        }
    }

    /// What is tried, one after the other, where only a file will do or not.
    pub(super) fn ways(self, only_file: bool) -> &'static [Via] {
        match self {
            Via::Auto if only_file => &[Via::Fuse],
            Via::Auto => &BEST_FIRST,
            Via::Fuse => &[Via::Fuse],
            Via::Nvme => &[Via::Nvme],
            Via::Nbd => &[Via::Nbd],
            Via::Ublk => &[Via::Ublk],
        }
    }

    /// The kernel's way, if it is one.
    pub(super) fn kernel(self) -> Option<kernel::Way> {
        match self {
            Via::Auto | Via::Fuse => None,
            Via::Nvme => Some(kernel::Way::Nvme),
            Via::Nbd => Some(kernel::Way::Nbd),
            Via::Ublk => Some(kernel::Way::Ublk),
        }
    }
}

/// Goes the first of `ways` that is to be had: what came of it, and why those
/// before it were not. Where none is, the error is why it cannot be a file: that
/// way is there nearly everywhere, and the others need a module of the kernel that
/// few machines have loaded.
pub(super) fn first<T>(
    ways: &[Via],
    mut go: impl FnMut(Via) -> Result<T, Stopped>,
) -> Result<(T, Vec<String>), Failure> {
    let mut not = Vec::new();
    let mut cause = None;
    for &via in ways {
        match go(via) {
            Ok(made) => return Ok((made, not)),
            Err(Stopped::For(failure)) => return Err(failure),
            Err(Stopped::NotHere(e)) => {
                not.push(format!("{}: {e}", via.name()));
                if via == Via::Fuse || cause.is_none() {
                    cause = Some(e);
                }
            }
        }
    }
    for why in &not {
        tracing::info!("not by {why}");
    }
    Err(cause.map_or_else(|| Failure::failed("there is no way to attach it"), Failure::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn not_here(via: Via) -> Stopped {
        AttachError::NoKernel(format!("no {}", via.name())).into()
    }

    #[test]
    fn the_best_way_that_works_is_taken_and_it_is_known_why_not_another() {
        let go = |via| if via == Via::Nbd { Ok(via) } else { Err(not_here(via)) };
        let (made, not) = first(Via::Auto.ways(false), go).expect("one works");
        assert_eq!((made, not.len()), (Via::Nbd, 2));
        assert!(not[0].starts_with("ublk: ") && not[1].ends_with("no fuse"), "{not:?}");
        let failure = first::<()>(Via::Auto.ways(false), |via| Err(not_here(via))).expect_err("none works");
        assert!(failure.message.ends_with("no fuse"), "one cause: {}", failure.message);
    }

    #[test]
    fn a_way_that_was_asked_for_is_the_only_one() {
        let mut tried = Vec::new();
        let failure = first::<()>(Via::Nvme.ways(false), |via| {
            tried.push(via);
            Err(not_here(via))
        });
        assert_eq!(tried, [Via::Nvme]);
        assert!(failure.expect_err("it is not here").message.contains("no nvme"));
        assert_eq!(Via::Auto.ways(true), [Via::Fuse]);
    }

    #[test]
    fn what_no_other_way_would_mend_ends_it() {
        let mut tried = 0;
        let failure = first::<()>(Via::Auto.ways(false), |_| {
            tried += 1;
            Err(Failure::usage("the path is taken").into())
        });
        assert_eq!((tried, failure.expect_err("taken").exit), (1, Exit::Usage));
    }
}
