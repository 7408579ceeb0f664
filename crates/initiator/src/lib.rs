//! The NVMe/TCP initiator: controllers and queues; a remote namespace as a
//! block device.
//!
//! [`RemoteDevice::connect`] brings a controller up; its admin queue is
//! served by one thread of the process. Each engine thread that opens the
//! device gets an I/O queue, a connection, of its own, so that nothing on the
//! data path is shared.
//!
//! [`open`] and [`Blocking`](longhaul_block::Blocking) are the short way for
//! code that runs on no engine (the example `remote_disk` is a whole program):
//!
//! ```no_run
//! use longhaul_block::Blocking;
//!
//! let disk = Blocking::open(longhaul_initiator::open("nvme+tcp://dtn1.example.org/scratch")?)?;
//! let mut block = vec![0; disk.info().block_size as usize];
//! disk.read_at(&mut block, 0)?;
//! block[0] ^= 1;
//! disk.write_at(&block, 0)?;
//! disk.flush()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On an engine thread any number of operations are under way at a time, and
//! buffers are handed over, not copied:
//!
//! ```no_run
//! use longhaul_block::{BlockDevice, WriteFlags};
//! use longhaul_engine::{Buf, BufMut, Config, Engine};
//! use longhaul_initiator::{Options, RemoteDevice};
//!
//! Engine::new(&Config::default())?.block_on(async {
//!     let uri = "nvme+tcp://dtn1.example.org/scratch".parse()?;
//!     let device = RemoteDevice::connect(&uri, Options::default()).await?;
//!     let io = device.open().await?;
//!     let first = io.write(0, Buf::copy_of(&[1; 4096]), WriteFlags::default());
//!     let second = io.write(4096, Buf::copy_of(&[2; 4096]), WriteFlags::default());
//!     first.await?;
//!     second.await?;
//!     io.flush().await?;
//!     let both = io.read(0, BufMut::zeroed(8192)).await?;
//!     assert_eq!(both[4095..4097], [1, 2]);
//!     device.close().await;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod access;
mod auth;
mod backoff;
mod black_hole;
mod call;
mod controller;
mod device;
mod discover;
mod error;
mod events;
mod fence;
mod handshake;
mod info;
mod io;
mod io_queue;
mod keep_alive;
mod multipath;
pub mod namespaces;
mod options;
pub mod path;
mod prepared;
mod queue;
mod reach;
mod register;
mod reservation;
mod session;
mod setup;
mod split;
mod supervise;
mod tls;
mod uri;
mod watch;

pub use controller::Outage;
pub use device::RemoteDevice;
pub use discover::{Discovery, DiscoveryRecord, discover};
pub use error::{Error, Result};
pub use info::{ControllerEvent, ControllerInfo, NamespaceInfo, SetUp};
pub use io::{Abort, RemoteIo};
pub use longhaul_conn::{TLS_MISSING, transport};
pub use longhaul_wire::nqn::DISCOVERY_NQN;
pub use longhaul_wire::reservation::{PersistChange, Registrant, ReservationReport, ReservationType};
pub use multipath::{MultipathDevice, MultipathIo, PathState, PathStatus};
pub use options::{HostIdentity, Options, host_identity};
pub use path::{PathOptions, PathReport, Traffic, WayTraffic};
pub use register::{Entries, Registrar};
pub use reservation::Reservation;
pub use supervise::CONNECTION_LOST;
pub use uri::{
    DISCOVERY_PORT, IO_PORT, SCHEME, SCHEMES, Uri, UriError, UriOptions, parse_authority, unix_uri,
};

use std::sync::Arc;

/// Connects to the namespace that `uri` names, with default options; for
/// code that runs on no engine.
///
/// # Errors
/// Each way in which it can fail is an [`Error`] of its own.
pub fn open(uri: &str) -> Result<Arc<RemoteDevice>> {
    RemoteDevice::connect_blocking(&uri.parse()?, Options::default())
}
