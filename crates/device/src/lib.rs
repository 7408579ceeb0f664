//! Opens any device by its name: what the `longhaul` program takes for a device, other programs
//! open by [`open`].
//!
//! | name | device |
//! |---|---|
//! | `nvme+tcp://HOST/SUBNQN` | a namespace of a target |
//! | `array:NAME`, `array:UUID` | an array that is known on this host ([`arrays`]) |
//! | `file:PATH`, `block:PATH`, `PATH` | a file or a block device |
//! | `mem:SIZE` | memory |
//! | `null:SIZE` | reads zeroes, forgets writes |
//!
//! Layers above add kinds of names to an [`Opener`] by a [`Scheme`], as that of pools does for
//! `volume:POOL/NAME`.
//!
//! Local devices take options, such as `mem:1GiB,ro,delay=5ms`: see
//! [`BackendSpec`](longhaul_block::BackendSpec).
//!
//! ```
//! use longhaul_engine::{BufMut, Config, Engine};
//!
//! Engine::new(&Config::default())?.block_on(async {
//!     let device = longhaul_device::open("mem:1MiB").await?;
//!     let io = device.block().open().await?;
//!     let block = io.read(0, BufMut::zeroed(4096)).await?;
//!     assert_eq!(block[..], [0; 4096]);
//!     drop(io);
//!     device.close().await?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It also keeps what a user of this host knows of devices: the records of arrays ([`arrays`]) and
//! the list of attached devices ([`attached`]).

#![forbid(unsafe_code)]

pub mod arrays;
pub mod attached;
mod device;
mod error;
pub mod keys;
mod opener;
mod remotes;
mod rights;
pub mod runtime;
mod shown;
mod single;
pub mod state;
mod user;

pub use device::Device;
pub use error::{Error, ErrorKind, Reason, Result};
pub use opener::{Opener, Scheme};
pub use rights::needs_root;
pub use shown::{Shown, ShownSocket};
pub use single::SingleVolume;
pub use user::{Accounts, User};

/// Opens the device `name` with default options. The calling engine serves its other tasks
/// meanwhile; [`Opener`] has options, and opens on threads without an engine.
///
/// # Errors
/// The [kind](Error::kind) is [`Invalid`](ErrorKind::Invalid) for what is not a name of a device or
/// of a known array, [`Unreachable`](ErrorKind::Unreachable) or [`TimedOut`](ErrorKind::TimedOut)
/// for a target or an array whose members cannot be reached, [`Refused`](ErrorKind::Refused) for an
/// array that another process runs, or by a target.
pub async fn open(name: &str) -> Result<Device> {
    Opener::default().open(name).await
}
