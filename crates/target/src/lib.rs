//! The NVMe/TCP target: listener, discovery, subsystems and namespaces over
//! block devices.
//!
//! A [`Target`] runs engine threads; each connection lives on one of them.
//! The queues of one controller may be on different threads: they share its
//! state through a lock that only admin commands and failures take, while
//! reads and writes touch nothing that another thread writes.

#![forbid(unsafe_code)]

mod accept;
mod access;
mod admin;
mod attendance;
mod audit;
mod auth;
mod changes;
mod config;
mod connection;
mod connections;
mod counts;
mod durable;
mod exports;
#[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "a program without TLS makes no PSKs"))]
mod generated;
mod io;
mod ledger;
mod long;
mod memory;
mod observer;
mod pace;
mod patience;
mod pieces;
mod quiet;
mod rates;
mod refusals;
mod registry;
mod reserved;
mod share;
mod sizes;
mod space;
mod standby;
mod state;
mod store;
mod subsystem;
mod target;
mod tls;

pub use access::{HostLists, HostRights};
pub use audit::{
    Audit, AuditEvent, AuditHost, Recorded, RefusalReason, ReservationAction, SpaceAction, SpaceEvent,
};
pub use auth::Keys;
pub use changes::{Applied, ChangeError, InUse, LastStep, TargetChanges};
pub use config::{Config, Patience, TransportListener};
pub use counts::{CommandCounts, Failure, Operation};
pub use exports::PreparedExport;
pub use longhaul_auth::{DhGroup, Generations, HashFunction, HostKey, KeySource, Secret, SecretError};
pub use longhaul_conn::transport;
pub use longhaul_proto::controller::HostAccess;
pub use longhaul_proto::reservation::{Registration, ReservationRecord};
pub use observer::{
    ControllerStatus, HOSTS_MAX, HostStatistics, IncidentCounts, NamespaceStatistics, Observer, Statistics,
};
pub use rates::HostRates;
pub use space::{
    BlockSpace, BlockSpaceOptions, DirSpace, NamespaceLabel, NewNamespace, ReservationStores, Space,
    SpaceCapacity, SpaceError, SpaceNamespace, SpaceSpec, check_name,
};
pub use standby::StandbyDevice;
pub use state::{MediumSpec, ReservationFile, ServedMedium, TargetState, nqn_made_of};
pub use store::ReservationStore;
pub use subsystem::{NSID_MAX, Namespace};
pub use target::{Error, Target, is_loopback};
pub use tls::TlsPolicy;
