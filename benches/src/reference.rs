//! What Longhaul is compared with.
//!
//! The plain stream and the bare request and response are built in: system
//! calls on a blocking socket in straight lines, a thread a side, with the
//! processors, congestion control and memory of the measurement beside them.

mod copiers;
mod fio;
mod iperf;
mod isal;
mod ping_pong;
mod socket;
mod sshfs;
mod stream;

pub(crate) use copiers::{Copier, Who, all as copiers, tally};
pub(crate) use fio::{available as fio_available, run as fio};
pub(crate) use iperf::Iperf;
pub(crate) use isal::Isal;
pub(crate) use ping_pong::{Wait, run as ping_pong};
pub(crate) use sshfs::Sshfs;
pub(crate) use stream::{Memory, run as stream};
