//! Unmodified programs with the filter, the real agent in a thread, and a scripted proxy over shared memory.
//!
//! Each test has its own agent, proxy and folder; all need root only where nginx changes its user.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "test code owns clocks and sockets"
)]

mod agent;
mod bypasses;
mod carried;
mod clients;
mod exports;
mod handover;
mod loopback;
mod nginx;
mod programs;
mod proxy;
mod python;
mod restrictions;
mod sealed;
mod stage;
