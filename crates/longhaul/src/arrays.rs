//! Arrays as devices: records of their members, and the processes that run them.
//!
//! Members know what they are, but not where: a *record* of each array that
//! was made or assembled on this host says that, in the *registry* of the user
//! that did it; root has that of the user that called `sudo` as well. Whoever runs an array (a
//! target, a load) answers questions on a socket, so that `array status` and
//! the like reach it.

mod control;
mod kept;
mod record;
mod registry;
mod running;

pub(crate) use control::{ArrayClient, Reply, Request};
pub(crate) use record::{ArrayRecord, Care};
pub(crate) use registry::Registry;
pub(crate) use running::{Running, labels, look, open_members};

use crate::exit::{Exit, Failure};
use longhaul_array::ArrayError;
use longhaul_block::IoError;

/// How device names of arrays begin.
pub(crate) const SCHEME: &str = "array:";

impl From<ArrayError> for Failure {
    fn from(e: ArrayError) -> Failure {
        let exit = match &e {
            ArrayError::Layout(_) | ArrayError::Name(_) => Exit::Usage,
            ArrayError::Taken { .. }
            | ArrayError::TakenUnknown { .. }
            | ArrayError::Content { .. }
            | ArrayError::InUse(_)
            | ArrayError::DeviceInUse { .. }
            | ArrayError::Diverged { .. }
            | ArrayError::Newer { .. }
            | ArrayError::Outdated { .. }
            | ArrayError::Refused(_) => Exit::Refused,
            ArrayError::Io(IoError::Unreachable(_))
            | ArrayError::Assemble(IoError::Unreachable(_))
            | ArrayError::Device { source: IoError::Unreachable(_), .. } => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Failure::new(exit, e)
    }
}
