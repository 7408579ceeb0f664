//! Metrics of a running program for Prometheus and whatever reads its formats.
//!
//! A [`Server`] answers `GET /metrics`, `/healthz` and `/readyz` on threads of its own, so that it does while
//! the data path stalls. What it says comes from [`Source`]s: a target, the paths of an initiator, arrays. The
//! [`FAMILIES`] are all that can be on the page, and `docs/metrics.md` is checked against them.

#![forbid(unsafe_code)]

mod agent;
mod arrays;
mod audit;
mod catalog;
mod families;
mod filesystem;
mod host;
mod http;
mod page;
mod paths;
mod process;
mod questions;
mod server;
mod target;

pub use agent::AgentSource;
pub use audit::{AuditCounts, AuditSource};
pub use catalog::CatalogSource;
pub use families::{FAMILIES, Family, FamilyKind, Unit};
pub use filesystem::FileSystemSource;
pub use host::HostSource;
pub use page::{Format, Page};
pub use server::{BindError, Bound, Server, Source};
pub use target::TargetSource;
