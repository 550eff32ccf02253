//! The shm provider's ring under loom: every interleaving of a sender and a receiver in the C11 memory model,
//! up to a bound on the number of preemptions.
//!
//! The ring's own source is compiled here, over an arena of loom's atomics instead of mapped memory. Loom
//! reports a payload that is read while it is written, messages out of order, and a receiver that sleeps
//! while a message waits.
#![cfg(test)]
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod layout;
#[allow(dead_code, unreachable_pub, reason = "the model uses a part of it")]
#[path = "../../../libcsp/vi/src/shm/ring.rs"]
mod ring;
mod shm_ring;
mod sync;
