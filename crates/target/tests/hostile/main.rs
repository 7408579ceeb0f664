//! Hosts that break the protocol, on real sockets: each gets the TermReq or
//! the status that the specification names, and costs only its own
//! connection. Others do verified I/O all the while, and in the end the
//! target is as good as new.

#![allow(unreachable_pub, reason = "modules of one test")]

mod client;
mod connect;
mod data;
mod durable;
mod faults;
mod floods;
mod headers;
mod neighbours;
mod reservations;
mod resources;
mod rig;

/// Each test on each engine.
macro_rules! on_each_engine {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod epoll {
            $(#[test] fn $name() { crate::$module::$name(longhaul_engine::EngineKind::Epoll) })*
        }
        mod uring {
            $(#[test] fn $name() { crate::$module::$name(longhaul_engine::EngineKind::Uring) })*
        }
    };
}

on_each_engine! {
    headers::before_icreq,
    headers::after_icreq,
    headers::bad_header_digest,
    headers::termreq_from_the_host,
    data::h2cdata_without_an_r2t,
    data::too_much_in_the_capsule,
    data::bad_data_digest_fails_the_command_alone,
    data::statuses_that_cost_a_command,
    data::more_commands_than_entries,
    connect::admin_queue,
    connect::io_queue,
    connect::hosts_that_are_not_allowed,
    connect::first_command_that_is_no_connect,
    connect::before_enable_and_after_reset,
    connect::a_host_without_a_name_that_reuses_identifiers,
    resources::a_thousand_idle_connections,
    resources::a_thousand_ends_within_a_pdu,
    resources::half_a_header_for_ever,
    resources::reads_that_are_never_taken,
    resources::writes_that_never_send_their_data,
    resources::compares_that_fill_the_memory,
    resources::log_pages_that_are_never_taken,
    faults::panics_in_a_back_end,
    faults::first_commands_for_many_namespaces,
    durable::a_failed_flush_is_heard_by_every_controller_that_has_written,
    durable::a_shutdown_whose_flush_fails_does_not_complete,
    durable::a_medium_without_room_is_told_as_such,
    durable::data_that_differs_is_no_media_error,
    neighbours::data_in_the_capsule_that_does_not_come,
    neighbours::r2ts_that_are_not_answered,
    neighbours::a_byte_now_and_then,
    neighbours::an_r2t_that_is_passed_over,
    neighbours::half_a_capsule_for_ever,
    neighbours::a_controller_that_is_never_enabled,
    neighbours::identify_that_is_never_read,
    neighbours::zeroes_for_ever,
    neighbours::verify_for_ever,
    neighbours::more_connections_than_there_may_be,
    reservations::a_preempted_writer_changes_nothing_any_more,
    reservations::data_that_comes_after_a_reservation_is_refused,
    reservations::registrants_are_reported_and_notified,
    reservations::persistent_reservations_outlive_the_target,
    floods::identify_without_end,
    floods::aborts_without_end,
    floods::event_requests_without_end,
    floods::descriptors_of_4_gib,
    floods::reads_beyond_the_end_without_end,
    floods::descriptors_of_an_unknown_kind_without_end,
    floods::fabrics_commands_without_end,
    floods::half_open_connections_without_end,
    floods::refused_connects_without_end,
    floods::connections_that_come_and_go,
    floods::reads_that_are_taken_byte_by_byte,
}
