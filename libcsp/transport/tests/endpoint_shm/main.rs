//! The suite of `endpoint` over the shm provider: real shared memory and sockets, still in virtual time.

#![allow(dead_code, reason = "parts of the harness serve the memory provider only")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// Whether the harness uses the shm provider.
pub const OVER_SHM: bool = true;

#[path = "../endpoint/channel.rs"]
mod channel;
#[path = "../endpoint/credit.rs"]
mod credit;
#[path = "../endpoint/handshake.rs"]
mod handshake;
#[path = "../endpoint/harness.rs"]
mod harness;
#[path = "../endpoint/hostile.rs"]
mod hostile;
#[path = "../endpoint/tunnel.rs"]
mod tunnel;
mod user;
