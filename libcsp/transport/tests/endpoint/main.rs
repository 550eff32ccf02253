//! Behaviour of endpoints, tunnel batches and channels over the memory provider, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// Whether the harness uses the shm provider.
pub const OVER_SHM: bool = false;

mod authentication;
mod channel;
mod credit;
mod faults;
mod handshake;
mod harness;
mod hostile;
mod liveness;
mod resume;
mod resume_hostile;
mod share;
mod tunnel;
