//! Loads that break file systems, and know what must be there afterwards.
//!
//! [`fsx`] does everything that can be done to one file and compares it with
//! memory; [`stress`] does it to trees of files, several at a time; [`records`]
//! makes records durable one by one, for tests that cut the power. All loads
//! are made from a seed: what a run did is known without having seen it.
//!
//! `fsx` and `fsstress` of the xfstests project are the models; none of their
//! code is in here.

#![deny(unsafe_code)]

pub mod fsx;
mod map;
pub mod random;
pub mod records;
pub mod stress;
