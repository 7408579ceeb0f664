//! Results: the one format that all measurements are written in and read from.
//!
//! A result is a JSON document: fio's layout ([`schema`]), with a [`record`] of the conditions of
//! the numbers and whether they count. `bench`, `netbench`, `diagnose`, `cp` and `study` write it,
//! and `report` reads it; no other crate declares a name of it.
//!
//! | module | is |
//! |---|---|
//! | [`schema`] | fio's layout: jobs, directions, latencies |
//! | [`record`] | runs, cells, questions, validity; writes the file |
//! | [`published`] | a published statement, as a cell or question cites it |
//! | [`host`] | facts about a machine that numbers depend on |
//! | [`read`] | reads a file, of this program or of fio, and checks it |
//! | [`stats`] | means and ratios with their confidence intervals |

#![forbid(unsafe_code)]

pub mod host;
pub mod published;
pub mod read;
pub mod record;
pub mod schema;
pub mod stats;

pub use read::{Document, ReadError};
