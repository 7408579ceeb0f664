//! The [`BlockDevice`] interface, its back ends and its filters.
//!
//! A [`BlockDevice`] is what every part of Longhaul stores blocks on and
//! takes blocks from. It is shared by threads; to do I/O, each thread opens
//! its own [`BlockIo`] on it, so that nothing on the data path is locked.
//! Filters (delay, error, …) are devices that wrap a device. [`Blocking`] is
//! the short way for code that runs on no engine.

mod advice;
mod blocking;
mod device;
mod extents;
mod file;
pub mod filter;
mod losses;
pub mod medium;
mod mem;
mod null;
mod part;
mod reservation;
pub mod signature;
mod spec;
pub mod testing;
pub mod units;

pub use advice::Advice;
pub use blocking::{Blocking, Interrupt};
pub use device::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags, read_range,
};
pub use extents::{DeviceExtent, ExtentDevice};
pub use file::{FileDevice, FileOptions, OpenError};
pub use losses::TellsLosses;
pub use mem::MemDevice;
pub use null::NullDevice;
pub use part::PartDevice;
pub use reservation::{ReservationState, Reservations};
pub use spec::{Backend, BackendSpec, FilterSpec, SpecError};
