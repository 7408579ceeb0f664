//! What security and watching cost, and what floods of strangers cost a host.

pub(crate) mod encryption;
pub(crate) mod floods;
pub(crate) mod watched;

use super::MB;
