//! Packet scripts that say what csp-tcp does, and their runner: one engine, a scripted peer, virtual time.
//!
//! The language is described in `tests/conformance/README.md`. A script is parsed into a [`Script`] ([`parse`]) and
//! played against a fresh engine ([`run`]); nothing depends on the machine's clock, so a run always ends alike.
#![forbid(unsafe_code)]

mod check;
mod config;
mod host;
mod matching;
mod parse;
mod run;
mod script;

pub use parse::{ParseError, parse};
pub use run::{Failure, run};
pub use script::Script;

/// Byte `position` of every stream: what each side writes, so that whoever reads can tell that nothing is missing,
/// doubled or out of place.
pub(crate) fn stream_byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
