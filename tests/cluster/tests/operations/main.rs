//! What operators have beside cspctl, on a running cluster: `make test-operations`.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

mod browser;
mod dead_member;
mod metrics;
mod page;
mod prometheus;
