//! All families of metrics that a page may have.

/// What a family's samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// It only grows, and begins at 0 with the process or with what it is about.
    Counter,
    /// A state at this moment.
    Gauge,
    /// Counts of what took up to some times, their number and sum.
    Histogram,
    /// 1, for its labels.
    Info,
}

impl FamilyKind {
    /// Its name in both formats.
    pub fn name(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
            FamilyKind::Info => "info",
        }
    }
}

/// The unit of a family, with which its name ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// From 0 to 1.
    Ratio,
}

impl Unit {
    /// Its name, if it has one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Unit::None => None,
            Unit::Bytes => Some("bytes"),
            Unit::Seconds => Some("seconds"),
            Unit::Ratio => Some("ratio"),
        }
    }
}

/// A family of metrics.
#[derive(Debug)]
pub struct Family {
    /// Its name; samples of counters have `_total` behind it, and of information `_info`.
    pub name: &'static str,
    /// What its samples are.
    pub kind: FamilyKind,
    /// What they are in.
    pub unit: Unit,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it is.
    pub help: &'static str,
}

impl Family {
    /// The name of its samples (of a histogram: without what tells them apart), as in queries.
    pub fn sample(&self) -> String {
        let end = match self.kind {
            FamilyKind::Counter => "_total",
            FamilyKind::Info => "_info",
            FamilyKind::Gauge | FamilyKind::Histogram => "",
        };
        format!("{}{end}", self.name)
    }
}

macro_rules! families {
    ($($constant:ident: $kind:ident $unit:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub(crate) const $constant: &Family = &Family {
                name: $name, kind: FamilyKind::$kind, unit: Unit::$unit, labels: &[$($label),*], help: $help,
            };
        )*

        /// All families, in the order of the page.
        pub const FAMILIES: &[&Family] = &[$($constant),*];
    };
}

families! {
    BUILD: Info None "longhaul_build" ["version"] "The program.";
    START_TIME: Gauge Seconds "process_start_time_seconds" [] "When the process started, since 1970-01-01.";
    CPU_TIME: Counter Seconds "process_cpu_seconds" [] "Processor time of the process, in user and kernel together.";
    RESIDENT: Gauge Bytes "process_resident_memory_bytes" [] "Resident set of the process.";
    DESCRIPTORS: Gauge None "process_open_fds" [] "Descriptors that the process has open.";
    DESCRIPTORS_MAX: Gauge None "process_max_fds" [] "Descriptors that the process may have open.";
    THREADS: Gauge None "process_threads" [] "Threads of the process.";

    STALLED: Gauge None "longhaul_stalled_threads" []
        "Threads of a target or agent that do not answer: /healthz names them.";

    NAMESPACE: Info None "longhaul_target_namespace" ["subsystem", "nsid", "name", "uuid"]
        "A namespace that the target has: the name of its export or space, and its UUID.";
    NAMESPACE_SIZE: Gauge Bytes "longhaul_target_namespace_size_bytes" ["subsystem", "nsid"]
        "Size of the namespace.";
    NAMESPACE_ACCESSIBLE: Gauge None "longhaul_target_namespace_accessible" ["subsystem", "nsid"]
        "1 if this target serves the namespace, 0 while another one does.";
    READ: Counter Bytes "longhaul_target_read_bytes" ["subsystem", "nsid"]
        "Bytes of reads that succeeded.";
    WRITTEN: Counter Bytes "longhaul_target_written_bytes" ["subsystem", "nsid"]
        "Bytes of writes that succeeded.";
    COMMAND_TIME: Histogram Seconds "longhaul_target_command_duration_seconds" ["subsystem", "nsid", "operation"]
        "Time from the arrival of a command to its answer, by operation: read, write, flush, other. The count is that of all commands.";
    COMMAND_ERRORS: Counter None "longhaul_target_command_errors" ["subsystem", "nsid", "reason"]
        "Commands that were answered with an error, by reason: medium, reservation, digest, other.";
    IN_FLIGHT: Gauge None "longhaul_target_commands_in_flight" ["subsystem", "nsid"]
        "Commands that have arrived and have no answer yet.";
    CONTROLLERS: Gauge None "longhaul_target_controllers" ["subsystem"]
        "Controllers of the subsystem.";

    HOST_COMMANDS: Counter None "longhaul_target_host_commands" ["host", "operation"]
        "Commands of the host to all namespaces, by operation: read, write, flush, other.";
    HOST_ERRORS: Counter None "longhaul_target_host_command_errors" ["host"]
        "Commands of the host that were answered with an error.";
    HOST_READ: Counter Bytes "longhaul_target_host_read_bytes" ["host"]
        "Bytes that the host has read.";
    HOST_WRITTEN: Counter Bytes "longhaul_target_host_written_bytes" ["host"]
        "Bytes that the host has written.";
    HOST_CONNECTIONS: Gauge None "longhaul_target_host_connections" ["host"]
        "Connections of the host: one for each queue.";
    HOST_RETRANSMITS: Counter None "longhaul_target_host_retransmitted_segments" ["host"]
        "TCP segments that were sent to the host again, as of the scrape before.";
    HOST_ROUND_TRIP: Gauge Seconds "longhaul_target_host_round_trip_seconds" ["host"]
        "Smoothed round trip to the host, the least of its connections, as of the scrape before.";

    CONNECTIONS: Gauge None "longhaul_target_connections" []
        "Connections of all hosts.";
    CONNECTIONS_MAX: Gauge None "longhaul_target_connections_limit" []
        "Connections that there may be (--max-connections, as far as there are descriptors).";
    ACCEPTED: Counter None "longhaul_target_connections_accepted" []
        "Connections that were accepted.";
    REFUSED: Counter None "longhaul_target_connections_refused" ["reason"]
        "Connections that were refused: rate (their address connects too often), limit (there are too many).";
    CONNECT_REFUSED: Counter None "longhaul_target_connects_refused" []
        "Connect commands that were refused: unknown subsystem, host that may not connect, no room.";
    AUTHENTICATION: Counter None "longhaul_target_authentication_failures" []
        "Authentications that failed, and hosts that have no key.";
    DIGEST_ERRORS: Counter None "longhaul_target_digest_errors" ["part"]
        "PDUs that did not match their digest, by part: header, data.";
    PROTOCOL_ERRORS: Counter None "longhaul_target_protocol_errors" []
        "Connections that ended because the host broke the protocol.";
    TIMEOUTS: Counter None "longhaul_target_host_timeouts" []
        "Connections that the target ended because the host was silent, or took too long.";
    MEMORY: Gauge Bytes "longhaul_target_memory_used_bytes" []
        "I/O buffers that are handed out.";
    MEMORY_MAX: Gauge Bytes "longhaul_target_memory_limit_bytes" []
        "Upper bound of the target's memory for I/O (--memory).";

    AUDIT_LINES: Counter None "longhaul_audit_lines" []
        "Lines of the audit log that were written.";
    AUDIT_DROPPED: Counter None "longhaul_audit_dropped_events" []
        "Events that are not in the audit log: its file took no line, or its queue was full.";
    AUDIT_FAILURES: Counter None "longhaul_audit_failures" []
        "Attempts to write the audit log, to make it durable or to open its file that failed.";

    AGENT_SESSIONS: Gauge None "longhaul_agent_sessions" ["direction"]
        "Sessions of the agent that are under way, by what it does: receive, send, onward, mount.";
    AGENT_ENDED: Counter None "longhaul_agent_sessions_ended" ["direction", "result"]
        "Sessions that have ended, by result: done, failed.";
    AGENT_FILES: Counter None "longhaul_agent_files" ["direction"]
        "Files that were written, by the agent or by the other side.";
    AGENT_BYTES: Counter Bytes "longhaul_agent_content_bytes" ["direction"]
        "Bytes of content that the agent wrote, or read and sent; not counted for mounted directories.";

    FS_CALL_TIME: Histogram Seconds "longhaul_filesystem_call_duration_seconds" ["source", "kind"]
        "Time from a call of the kernel to a mounted file system to its answer, by kind: read, write, sync (flush, fsync), look (names, attributes, listings), change (of names and attributes).";
    FS_CALL_ERRORS: Counter None "longhaul_filesystem_call_errors" ["source", "kind"]
        "Calls that failed; that an object does not exist is an answer.";
    FS_CALLS_IN_FLIGHT: Gauge None "longhaul_filesystem_calls_in_flight" ["source"]
        "Calls that have no answer yet.";
    FS_READ: Counter Bytes "longhaul_filesystem_read_bytes" ["source"]
        "Bytes that programs have read through the mount; the kernel answers others from its cache.";
    FS_WRITTEN: Counter Bytes "longhaul_filesystem_written_bytes" ["source"]
        "Bytes that the mount has taken, in memory at least.";
    FS_TROUBLE: Gauge None "longhaul_filesystem_trouble" ["source"]
        "1 while something is wrong with the file system, which longhaul list names, else 0.";

    CATALOG_CLIENTS: Gauge None "longhaul_catalog_clients" []
        "Clients that are connected to the catalog server.";
    CATALOG_REFUSED: Counter None "longhaul_catalog_refused" []
        "Connections that the catalog server refused.";
    CATALOG_WATCHES: Gauge None "longhaul_catalog_watches" []
        "Watches of clients.";
    CATALOG_READS: Counter None "longhaul_catalog_reads" []
        "Questions that were answered.";
    CATALOG_CHANGES: Counter None "longhaul_catalog_changes" []
        "Transactions and changes of leases that were answered.";
    CATALOG_BATCHES: Counter None "longhaul_catalog_batches" []
        "Transactions of the file that these were made in, each of which waits for the disk once.";
    CATALOG_FAILED: Counter None "longhaul_catalog_failed_changes" []
        "Changes that failed, as the file could not be written.";

    PATH_USABLE: Gauge None "longhaul_path_usable" ["device", "address"]
        "1 if I/O goes or can go over the path, 0 while it is lost or the target has the namespace inaccessible.";
    PATH_BYTES: Counter Bytes "longhaul_path_transferred_bytes" ["device", "address", "direction"]
        "Bytes of commands that completed over the path, by direction: read, write.";
    PATH_COMMANDS: Counter None "longhaul_path_commands" ["device", "address", "direction"]
        "Commands that completed over the path.";
    PATH_TIME: Counter Seconds "longhaul_path_command_time_seconds" ["device", "address", "direction"]
        "Time from submission to completion of these commands, added up.";
    PATH_IN_FLIGHT: Gauge None "longhaul_path_commands_in_flight" ["device", "address", "direction"]
        "Commands under way over the path.";
    PATH_ROUND_TRIP: Gauge Seconds "longhaul_path_round_trip_seconds" ["device", "address"]
        "The least round trip that was measured.";
    PATH_DISCONNECTS: Counter None "longhaul_path_disconnects" ["device", "address"]
        "How often the connection was lost, and made again.";

    ARRAY: Info None "longhaul_array" ["array", "uuid", "layout"]
        "An array, or a volume of one namespace, that the process runs.";
    ARRAY_SIZE: Gauge Bytes "longhaul_array_size_bytes" ["array", "uuid"]
        "Size of the array.";
    ARRAY_HEALTH: Gauge None "longhaul_array_health" ["array", "uuid", "state"]
        "1 for the state that the array is in: healthy, degraded, halted, or unreachable (of one namespace).";
    ARRAY_MEMBERS: Gauge None "longhaul_array_members" ["array", "uuid", "condition"]
        "Members by condition: active, offline, failed, rebuild, resync.";
    ARRAY_REBUILD: Gauge Ratio "longhaul_array_rebuild_progress_ratio" ["array", "uuid"]
        "Share of a rebuild or resync that is done; not there without one.";
    ARRAY_SCRUB: Gauge Ratio "longhaul_array_scrub_progress_ratio" ["array", "uuid"]
        "Share of the scrub under way, or the last one, that is done; not there without one.";
    ARRAY_LOST: Gauge Bytes "longhaul_array_lost_bytes" ["array", "uuid"]
        "Bytes that were found to be lost since the array was started.";
    ARRAY_MISMATCHES: Counter None "longhaul_array_mismatched_blocks" ["array", "uuid"]
        "Blocks that did not match their checksums, of all members.";
    ARRAY_REPAIRED: Counter None "longhaul_array_repaired_blocks" ["array", "uuid"]
        "Blocks that were repaired.";
    ARRAY_READ_ERRORS: Counter None "longhaul_array_member_read_errors" ["array", "uuid"]
        "Read errors of members.";
}
