//! NVMe, NVMe over Fabrics and NVMe/TCP bytes: checked views and encoders, CRC32C digests.
//!
//! Nothing here does I/O or keeps state. Fixed-size structures are `zerocopy`
//! views, so that any bytes of the right length can be looked at and no bytes
//! can make a decoder panic; what the bytes may say is for `proto` to judge.

#![forbid(unsafe_code)]

pub mod command;
pub mod completion;
pub mod digest;
pub mod fabrics;
pub mod feature;
pub mod identify;
mod layout;
pub mod log;
pub mod management;
pub mod nqn;
pub mod pdu;
pub mod registration;
pub mod reservation;
mod status;
mod text;

pub use text::Ascii;
