//! The conformance suite: each test body runs for every provider.
//!
//! `memory`, `shm`, `tcp`, `ucx`, `verbs` and a `Pair` run the same tests (`verbs` only with the address of
//! an RDMA device in `CSP_VI_VERBS`, see `make test-rdma`). Tests of the death of a process run for the
//! providers that connect processes (shm, tcp, ucx, verbs). The child process is this test program again,
//! with its role in the environment.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "tests own deadlines and may panic")]

#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/bodies.rs"]
mod bodies;
#[path = "conformance/endings.rs"]
mod endings;
#[path = "conformance/filled.rs"]
mod filled;
#[path = "conformance/processes.rs"]
mod processes;
#[path = "conformance/registered.rs"]
mod registered;
#[path = "conformance/unconfirmed.rs"]
mod unconfirmed;

/// Defines one test per body, for one provider.
macro_rules! suite {
    (verbs: $($module:ident :: $body:ident),* $(,)?) => {
        mod verbs {
            $(#[test]
            #[ignore = "needs an RDMA device: make test-rdma"]
            fn $body() {
                crate::$module::$body(&crate::bench::Bench::new("verbs"));
            })*
        }
    };
    ($kind:ident: $($module:ident :: $body:ident),* $(,)?) => {
        mod $kind {
            $(#[test]
            fn $body() {
                crate::$module::$body(&crate::bench::Bench::new(stringify!($kind)));
            })*
        }
    };
}

macro_rules! in_process {
    ($kind:tt $(, $module:ident :: $body:ident)* $(,)?) => {
        suite!($kind:
            bodies::both_sides_learn_of_the_connection,
            bodies::rejection_and_absence_are_reported,
            bodies::differing_message_lengths_are_refused_to_both,
            bodies::messages_arrive_whole_and_in_order,
            bodies::the_longest_messages_arrive_whole,
            bodies::both_directions_flow_at_once,
            bodies::vis_are_independent,
            bodies::too_long_a_message_is_refused_before_it_is_sent,
            bodies::full_comes_exactly_at_the_posted_receives_and_goes,
            bodies::buffers_come_back_in_any_order,
            bodies::signalled_sends_complete_in_order,
            bodies::unknown_ids_are_refused,
            bodies::a_clean_end_follows_the_last_message,
            bodies::many_ends_at_once_are_clean,
            bodies::both_sides_may_end_at_once,
            bodies::a_dropped_provider_is_an_unclean_end,
            endings::an_aborted_vi_ends_uncleanly,
            endings::a_vi_can_be_aborted_at_any_time,
            bodies::a_connector_that_gives_up_leaves_no_vi_behind,
            bodies::no_wake_is_lost,
            bodies::out_of_bounds_configurations_are_refused
            $(, $module::$body)*
        );
    };
}

/// Adds the tests of registered memory, for the providers that support it.
macro_rules! whole {
    ($kind:tt $(, $module:ident :: $body:ident)* $(,)?) => {
        in_process!(
            $kind,
            registered::messages_leave_from_registered_memory,
            registered::memory_stays_as_long_as_it_is_in_use,
            registered::invalid_pieces_are_refused
            $(, $module::$body)*
        );
    };
}

whole!(
    memory,
    filled::messages_are_made_in_place,
    unconfirmed::unconfirmed_messages_are_listed_oldest_first,
    unconfirmed::the_list_of_unconfirmed_messages_is_bounded,
    registered::messages_arrive_in_the_callers_memory_in_the_order_posted,
    registered::full_comes_exactly_at_the_callers_buffers,
);
whole!(
    shm,
    filled::messages_are_made_in_place,
    unconfirmed::unconfirmed_messages_are_listed_oldest_first,
    unconfirmed::the_list_of_unconfirmed_messages_is_bounded,
    processes::another_user_may_connect,
    processes::what_a_killed_process_sent_still_arrives,
    processes::the_death_of_a_peer_wakes_a_waiting_process,
    processes::a_connector_killed_at_any_moment_is_survived,
);
whole!(
    tcp,
    unconfirmed::unconfirmed_messages_are_listed_oldest_first,
    unconfirmed::the_list_of_unconfirmed_messages_is_bounded,
    endings::lost_messages_are_not_reported_as_sent,
    processes::what_a_killed_process_sent_still_arrives,
    processes::the_death_of_a_peer_wakes_a_waiting_process,
    processes::a_connector_killed_at_any_moment_is_survived,
    registered::messages_arrive_in_the_callers_memory_in_the_order_posted,
    registered::full_comes_exactly_at_the_callers_buffers,
);
whole!(
    ucx,
    unconfirmed::unconfirmed_messages_are_listed_oldest_first,
    unconfirmed::the_list_of_unconfirmed_messages_is_bounded,
    endings::lost_messages_are_not_reported_as_sent,
    processes::what_a_killed_process_sent_still_arrives,
    processes::the_death_of_a_peer_wakes_a_waiting_process,
    processes::a_connector_killed_at_any_moment_is_survived,
    registered::messages_arrive_in_the_callers_memory_in_the_order_posted,
    registered::full_comes_exactly_at_the_callers_buffers,
);
whole!(
    verbs,
    unconfirmed::unconfirmed_messages_are_listed_oldest_first,
    unconfirmed::the_list_of_unconfirmed_messages_is_bounded,
    processes::what_a_killed_process_sent_still_arrives,
    processes::the_death_of_a_peer_wakes_a_waiting_process,
    processes::a_connector_killed_at_any_moment_is_survived,
    registered::messages_arrive_in_the_callers_memory_in_the_order_posted,
    registered::full_comes_exactly_at_the_callers_buffers,
);
// A pair of providers, with the VIs on either of its sides.
in_process!(pair_near, filled::messages_are_made_in_place);
in_process!(pair_far);
