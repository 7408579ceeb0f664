//! Errors of catalogs.

use crate::types::{LeaseId, Revision};

/// The result of a call to a catalog.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a catalog did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No member of the store answers, or it has no majority. Nothing was changed.
    #[error("catalog {catalog} cannot be reached: {why}; check that it runs, and the network to it")]
    Unreachable {
        /// Name of the catalog.
        catalog: String,
        /// What happened at the last member that was tried.
        why: String,
    },
    /// The server of the catalog does not let this host in.
    #[error("catalog {catalog} refuses this host: {why}")]
    Refused {
        /// Name of the catalog.
        catalog: String,
        /// Why, and what to do.
        why: String,
    },
    /// The answer to a transaction was lost: it may or may not have been made.
    #[error("it is unknown whether catalog {catalog} has made a change: {why}")]
    Unknown {
        /// Name of the catalog.
        catalog: String,
        /// What happened.
        why: String,
    },
    /// Another process has held the catalog's file for long.
    #[error("catalog {catalog} is held by another process, for {seconds} s: look for one that is stopped")]
    Busy {
        /// Name of the catalog.
        catalog: String,
        /// Seconds that the call has waited.
        seconds: u64,
    },
    /// The lease has run out, or was revoked.
    #[error("lease {0} has run out")]
    LeaseExpired(LeaseId),
    /// The catalog does not keep its state as of this revision any more.
    #[error("revision {at} of the catalog is not kept any more: read it anew")]
    Compacted {
        /// The revision asked for.
        at: Revision,
    },
    /// The call can never succeed.
    #[error("not a call that a catalog can do: {0}")]
    Invalid(String),
    /// Anything else, such as an error of the disk.
    #[error("cannot {attempted} catalog {catalog}: {why}")]
    Failed {
        /// Name of the catalog.
        catalog: String,
        /// `open`, `read`, `write`, `watch` or `use`.
        attempted: &'static str,
        /// What happened.
        why: String,
    },
}
