//! Metrics of a target.
//!
//! Invariants:
//! - the number of samples is bounded: [`NAMESPACES_MAX`] namespaces and [`longhaul_target::HOSTS_MAX`]
//!   hosts are shown apart, and the others together.

use crate::families::{
    ACCEPTED, AUTHENTICATION, COMMAND_ERRORS, COMMAND_TIME, CONNECT_REFUSED, CONNECTIONS, CONNECTIONS_MAX,
    CONTROLLERS, DIGEST_ERRORS, HOST_COMMANDS, HOST_CONNECTIONS, HOST_ERRORS, HOST_READ, HOST_RETRANSMITS,
    HOST_ROUND_TRIP, HOST_WRITTEN, IN_FLIGHT, MEMORY, MEMORY_MAX, NAMESPACE, NAMESPACE_ACCESSIBLE,
    NAMESPACE_SIZE, PROTOCOL_ERRORS, READ, REFUSED, STALLED, TIMEOUTS, WRITTEN,
};
use crate::page::Page;
use crate::questions::Questions;
use crate::server::{STALL, Source};
use longhaul_engine::histogram::BOUNDS;
use longhaul_target::{
    CommandCounts, Failure, HostStatistics, NamespaceStatistics, Observer, Operation, Statistics,
};

/// Namespaces that are shown apart, and subsystems; a space of jobs may have thousands.
pub(crate) const NAMESPACES_MAX: usize = 256;
/// Label of what is not shown apart.
pub(crate) const OTHERS: &str = "other";

/// The metrics of a target, and its health.
#[derive(Clone, Debug)]
pub struct TargetSource {
    observer: Observer,
    questions: Questions,
}

impl TargetSource {
    /// The metrics of the target that `observer` watches.
    pub fn new(observer: Observer) -> TargetSource {
        TargetSource { observer, questions: Questions::default() }
    }
}

impl Source for TargetSource {
    fn collect(&self, page: &mut Page) {
        let Some(statistics) = self.observer.statistics() else { return };
        collect(page, &statistics);
        let stalled = self.questions.unanswered(&self.observer.threads(), STALL);
        page.count(STALLED, &[], stalled.len() as u64);
    }

    fn check_health(&self) -> Result<(), String> {
        self.questions.check(&self.observer.threads(), STALL)
    }

    fn check_ready(&self) -> Result<(), String> {
        self.observer.check_listeners()
    }
}

fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Other => "other",
    }
}

fn failure(failure: Failure) -> &'static str {
    match failure {
        Failure::Medium => "medium",
        Failure::Reservation => "reservation",
        Failure::Digest => "digest",
        Failure::Other => "other",
    }
}

fn collect(page: &mut Page, statistics: &Statistics) {
    let (apart, together) = statistics.namespaces.split_at(statistics.namespaces.len().min(NAMESPACES_MAX));
    for namespace in apart {
        collect_namespace(page, namespace);
    }
    if !together.is_empty() {
        let mut sum = CommandCounts::default();
        together.iter().for_each(|namespace| sum.add(&namespace.counts));
        collect_counts(page, [OTHERS, OTHERS], &sum);
    }
    let (apart, together) = statistics.controllers.split_at(statistics.controllers.len().min(NAMESPACES_MAX));
    for (nqn, controllers) in apart {
        page.count(CONTROLLERS, &[nqn], *controllers as u64);
    }
    if !together.is_empty() {
        let sum = together.iter().map(|(_, controllers)| *controllers as u64).sum();
        page.count(CONTROLLERS, &[OTHERS], sum);
    }
    for host in &statistics.hosts {
        collect_host(page, host);
    }
    page.count(CONNECTIONS, &[], statistics.connections as u64);
    page.count(CONNECTIONS_MAX, &[], statistics.connections_max as u64);
    let incidents = &statistics.incidents;
    page.count(ACCEPTED, &[], incidents.accepted);
    page.count(REFUSED, &["rate"], incidents.too_often);
    page.count(REFUSED, &["limit"], incidents.too_many);
    page.count(CONNECT_REFUSED, &[], incidents.connect_refused);
    page.count(AUTHENTICATION, &[], incidents.authentication);
    page.count(DIGEST_ERRORS, &["header"], incidents.header_digest);
    page.count(DIGEST_ERRORS, &["data"], incidents.data_digest);
    page.count(PROTOCOL_ERRORS, &[], incidents.protocol);
    page.count(TIMEOUTS, &[], incidents.late);
    page.count(MEMORY, &[], statistics.memory_used as u64);
    page.count(MEMORY_MAX, &[], statistics.memory_max as u64);
}

fn collect_namespace(page: &mut Page, namespace: &NamespaceStatistics) {
    let nsid = namespace.nsid.to_string();
    let labels = [namespace.nqn.as_str(), nsid.as_str()];
    let [nqn, nsid] = labels;
    page.count(NAMESPACE, &[nqn, nsid, &namespace.name, &namespace.uuid.to_string()], 1);
    page.count(NAMESPACE_SIZE, &labels, namespace.size);
    page.count(NAMESPACE_ACCESSIBLE, &labels, namespace.is_accessible.into());
    collect_counts(page, labels, &namespace.counts);
}

fn collect_counts(page: &mut Page, [nqn, nsid]: [&str; 2], counts: &CommandCounts) {
    page.count(READ, &[nqn, nsid], counts.bytes_read);
    page.count(WRITTEN, &[nqn, nsid], counts.bytes_written);
    page.count(IN_FLIGHT, &[nqn, nsid], counts.in_flight);
    for (of, counts) in Operation::ALL.into_iter().zip(&counts.operations) {
        let labels = [nqn, nsid, operation(of)];
        page.histogram(COMMAND_TIME, &labels, &BOUNDS, &counts.buckets, counts.time);
    }
    for (why, n) in Failure::ALL.into_iter().zip(counts.failures) {
        page.count(COMMAND_ERRORS, &[nqn, nsid, failure(why)], n);
    }
}

fn collect_host(page: &mut Page, host: &HostStatistics) {
    let name = host.hostnqn.as_deref().unwrap_or(OTHERS);
    for (of, counts) in Operation::ALL.into_iter().zip(&host.counts.operations) {
        page.count(HOST_COMMANDS, &[name, operation(of)], counts.total());
    }
    page.count(HOST_ERRORS, &[name], host.counts.failures.iter().sum());
    page.count(HOST_READ, &[name], host.counts.bytes_read);
    page.count(HOST_WRITTEN, &[name], host.counts.bytes_written);
    page.count(HOST_CONNECTIONS, &[name], host.connections as u64);
    page.count(HOST_RETRANSMITS, &[name], host.retransmissions);
    if let Some(round_trip) = host.round_trip {
        page.number(HOST_ROUND_TRIP, &[name], round_trip.as_secs_f64());
    }
}
