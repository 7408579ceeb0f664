//! Errors of pools.

use crate::manager::Manager;
use crate::place::Shortage;
use crate::spaces::{SpaceError, shown};
use longhaul_block::units::format_size;
use longhaul_device::{ErrorKind, Reason};

/// The result of a call to a pool.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a pool did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A name cannot be used.
    #[error("'{name}' cannot be the name of a {what}: {why}")]
    Name {
        /// `pool` or `volume`.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The name is taken.
    #[error("there is a {what} called {name} already: choose another name")]
    Exists {
        /// `pool` or `volume`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The catalog has the pool that is to be imported.
    #[error(
        "pool {0} is in this catalog already: to import it again, with further targets for instance, take it out first \
         ('longhaul pool export {0}')"
    )]
    Imported(String),
    /// No label of a pool was found.
    #[error("no namespace at these targets is of a pool: there is nothing to import")]
    NothingToImport,
    /// There is no such thing.
    #[error("there is no {what} called {name} in {place}")]
    NotFound {
        /// `pool`, `volume` or `target`.
        what: &'static str,
        /// The name.
        name: String,
        /// The pool or catalog that was looked in.
        place: String,
    },
    /// It is in use.
    #[error("{what} is not removed: {why}")]
    InUse {
        /// What was to be removed.
        what: String,
        /// What uses it.
        why: String,
    },
    /// A volume keeps its size, or waits for the rest of its namespaces.
    #[error("volume {volume} is not resized: {why}")]
    NotResized {
        /// `POOL/NAME`.
        volume: String,
        /// Why not.
        why: String,
    },
    /// No snapshot was made: the volume is as it was, and nothing is left.
    #[error("no snapshot of volume {volume} is made: {why}")]
    NoSnapshot {
        /// `POOL/NAME`.
        volume: String,
        /// Why not.
        why: String,
    },
    /// A member stays where it is, or is not whole where it has moved to.
    #[error("volume {volume} is not moved: {why}")]
    NotMoved {
        /// `POOL/NAME`.
        volume: String,
        /// Why not.
        why: String,
    },
    /// The array of a volume did not do as asked.
    #[error(transparent)]
    Array(#[from] longhaul_device::Error),
    /// No volume can have this shape.
    #[error("no volume can be made so: {0}")]
    Shape(String),
    /// A limit would be exceeded.
    #[error(
        "{} more would exceed the limit of {owner}, {}, of which {} are taken: remove volumes, or ask for less",
        format_size(*asked), format_size(*limit), format_size(*taken)
    )]
    Quota {
        /// The pool, or a job.
        owner: String,
        /// Bytes of the new namespaces.
        asked: u64,
        /// Bytes that are allowed.
        limit: u64,
        /// Bytes that are taken.
        taken: u64,
    },
    /// The members cannot be placed.
    #[error("{0}")]
    Shortage(Shortage),
    /// A target did not do as asked.
    #[error("cannot {attempted} at target {}: {source}", shown(address))]
    Space {
        /// What was attempted.
        attempted: &'static str,
        /// Address of the target.
        address: String,
        /// What happened.
        source: SpaceError,
    },
    /// A target belongs to something else.
    #[error("target {} is not used: {why}", shown(address))]
    Foreign {
        /// Address of the target.
        address: String,
        /// What it belongs to.
        why: String,
    },
    /// Another catalog manages the pool that is to be imported, and has not released it.
    #[error(
        "pool {pool} is not imported: {manager}; export it there ('longhaul pool export'), and import it then. If that catalog is lost, --force takes the pool over from it"
    )]
    Managed {
        /// Name of the pool.
        pool: String,
        /// That catalog.
        manager: Box<Manager>,
    },
    /// Hosts use volumes of the pool that is to be imported.
    #[error(
        "pool {pool} is not imported: {}; end that there, or --force takes the volumes from these hosts",
        uses.join(", ")
    )]
    Used {
        /// Name of the pool.
        pool: String,
        /// What uses each volume.
        uses: Vec<String>,
    },
    /// Another catalog has taken the pool over from this one.
    #[error(
        "pool {pool} is not used by this catalog any more: {manager}, and has taken the pool over from here; use it there, or import it here again. 'longhaul pool export {pool}' removes the records that are here"
    )]
    Superseded {
        /// Name of the pool.
        pool: String,
        /// That catalog.
        manager: Box<Manager>,
    },
    /// This host does not know the pool.
    #[error("{0}")]
    Unknown(String),
    /// A file of this host cannot be read or written, or it has no thread to spare.
    #[error("{0}")]
    Local(String),
    /// A name may mean several things.
    #[error("{0}")]
    Ambiguous(String),
    /// Another host has taken over what this one was doing: its lease had run out.
    #[error("volume {0} was undone by another host, as this one did not keep its lease: try again")]
    Overtaken(String),
    /// Other hosts change the pool all the time.
    #[error("pool {0} was changed by other hosts each time: try again")]
    Contended(String),
    /// A record cannot be read.
    #[error("{what} cannot be used: {why}")]
    Format {
        /// The record.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The catalog did not do as asked.
    #[error(transparent)]
    Catalog(#[from] longhaul_catalog::Error),
}

impl From<Error> for longhaul_device::Error {
    fn from(e: Error) -> longhaul_device::Error {
        let kind = match &e {
            Error::Array(e) => e.kind(),
            Error::Name { .. } | Error::Shape(_) | Error::Unknown(_) | Error::Ambiguous(_) => {
                ErrorKind::Invalid
            }
            Error::InUse { .. }
            | Error::Foreign { .. }
            | Error::Managed { .. }
            | Error::Used { .. }
            | Error::Superseded { .. }
            | Error::NotResized { .. }
            | Error::NoSnapshot { .. }
            | Error::NotMoved { .. } => ErrorKind::Refused,
            Error::Space { source: SpaceError::Unreachable(_), .. }
            | Error::Catalog(longhaul_catalog::Error::Unreachable { .. }) => ErrorKind::Unreachable,
            Error::Space { source: SpaceError::Refused(_), .. }
            | Error::Catalog(longhaul_catalog::Error::Refused { .. }) => ErrorKind::Refused,
            Error::Catalog(longhaul_catalog::Error::Busy { .. }) => ErrorKind::TimedOut,
            _ => ErrorKind::Failed,
        };
        let reason = match &e {
            Error::Array(e) => e.reason(),
            Error::Exists { .. } => Some(Reason::Exists),
            Error::NotFound { what: "volume", .. } => Some(Reason::NotFound),
            Error::Quota { .. } | Error::Shortage(_) | Error::Space { source: SpaceError::Full(_), .. } => {
                Some(Reason::NoSpace)
            }
            Error::InUse { .. } => Some(Reason::InUse),
            _ => None,
        };
        longhaul_device::Error::new(kind, e).because(reason)
    }
}
