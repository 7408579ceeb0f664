//! What results say: the per-file model, comparisons, figures and pages.
//!
//! It reads what the other layers have written ([`Document`](longhaul_results::Document)), and nothing
//! else: no clock, no network, no device.
//!
//! | module | is |
//! |---|---|
//! | [`compare`] | one result beside another |
//! | [`model`] | T = N·t0 + B/R: what a file costs, and which stage of it |
//! | [`cause`] | what keeps a copy from being faster, and what to do |
//! | [`figure`] | a figure as SVG: axes, legend, error bars |
//! | [`page`] | all of it as one HTML page, CSV and SVG files |

#![forbid(unsafe_code)]

pub mod cause;
pub mod compare;
pub mod figure;
pub mod model;
pub mod page;
