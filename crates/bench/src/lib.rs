//! Workloads, content verification and one result schema (fio's).
