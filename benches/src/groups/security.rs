//! What security and watching cost, and what floods of strangers cost a host.

pub(crate) mod encryption;
pub(crate) mod floods;
pub(crate) mod watched;

/// Bits per second in Mb/s, from bytes per second.
const MB: f64 = 1e6 / 8.0;
