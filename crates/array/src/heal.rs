//! Background work that restores redundancy: rebuild, resync, scrub, and arbitration of contradictions.

pub(crate) mod arbitrate;
pub(crate) mod grow;
pub(crate) mod lost;
pub(crate) mod moving;
pub(crate) mod pace;
pub(crate) mod rebuild;
pub(crate) mod replace;
pub(crate) mod resync;
pub(crate) mod scrub;
pub(crate) mod upkeep;
pub(crate) mod verify;
