//! Loss recovery in virtual time: the cost in goodput of losses, late and lost acknowledgements, and
//! reordering.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[path = "../common/mod.rs"]
mod common;
mod episodes;
mod goodput;
