//! A protocol queue on a connection: the receive and transmit loops that target
//! and initiator share. `proto` says what the bytes mean, `engine` moves
//! them, the [`Driver`] owns the memory of commands. A connection is one of TCP,
//! or of any other [`transport`].
//!
//! A connection is two tasks of one engine thread, [`receive`] and
//! [`transmit`], around one [`Shared`] queue. While a batch is being sent the
//! next one accumulates in the queue, and one receive may bring many
//! capsules: so the cost of system calls falls as depth grows.

#![forbid(unsafe_code)]

mod channel;
pub mod conformance;
mod rx;
#[cfg(feature = "tls")]
mod secure;
mod shared;
pub mod transport;
mod tx;

pub use channel::{Channel, FreeChannel, TLS_MISSING};
#[cfg(feature = "tls")]
pub use longhaul_tls::{Chosen, HelloError, Refusal, TlsError};
pub use rx::{Ended, linger, receive};
#[cfg(feature = "tls")]
pub use secure::{Detached, Secure, SecureError, accept, connect, is_tls};
pub use shared::{Driver, Shared};
pub use tx::transmit;
