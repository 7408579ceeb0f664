//! Data sets: what they are made of and how they are made.

#![forbid(unsafe_code)]

pub mod dataset;
