//! The verbs: a module each.

pub(crate) mod agent;
pub(crate) mod array;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod cp;
pub(crate) mod dataset;
pub(crate) mod demo;
pub(crate) mod discover;
pub(crate) mod info;
pub(crate) mod meta;
pub(crate) mod target;
pub(crate) mod wan;
