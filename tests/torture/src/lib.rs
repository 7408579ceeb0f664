//! Loads that stress file systems, and know the expected content.
//!
//! [`fsx`] applies every kind of change to one file and compares it with memory; [`stress`] does so
//! with trees of files, several at a time; [`records`] makes records durable one by one, for tests
//! that cut the power. All loads are made from a seed, so the expected content follows from the
//! seed alone.
//!
//! `fsx` and `fsstress` of the xfstests project are the models; none of their code is in here.

#![deny(unsafe_code)]

pub mod fsx;
mod map;
pub mod random;
pub mod records;
pub mod stress;
