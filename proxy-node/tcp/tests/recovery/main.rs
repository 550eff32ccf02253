//! Loss recovery in virtual time: how much goodput losses, late and lost acknowledgements, and reordering cost.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[path = "../common/mod.rs"]
mod common;
mod episodes;
mod goodput;
