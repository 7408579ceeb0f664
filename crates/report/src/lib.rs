//! What results say: comparisons, figures and pages.
//!
//! It reads what the other layers have written ([`Document`](longhaul_results::Document)), and nothing
//! else: no clock, no network, no device. Only `picture` runs a program, a browser.
//!
//! | module | is |
//! |---|---|
//! | [`compare`] | one result beside another |
//! | [`figure`] | a figure as SVG: axes, legend, error bars |
//! | [`page`] | all of it as one HTML page, CSV and SVG files |
//! | [`picture`] | figures as PNG files |

#![forbid(unsafe_code)]

pub mod compare;
pub mod figure;
pub mod page;
pub mod picture;
