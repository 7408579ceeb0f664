//! The one host that runs an array: heartbeats and takeover, the witness, and the record of this host.

pub(crate) mod clock;
pub(crate) mod fence;
pub(crate) mod memory;
pub(crate) mod witness;
