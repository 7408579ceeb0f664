//! From devices to a set of members: create, examine, select the current members.

pub(crate) mod assemble;
pub(crate) mod candidate;
pub(crate) mod copies;
pub(crate) mod create;
pub(crate) mod current;
pub(crate) mod measure;
pub(crate) mod survey;
