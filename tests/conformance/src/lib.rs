//! Packet scripts that specify csp-tcp, and their runner: one engine, a scripted peer, virtual time.
//!
//! `tests/conformance/README.md` describes the language. [`parse`] turns a script into a [`Script`], and
//! [`run`] runs it on a new engine. Nothing depends on the machine's clock, so every run has the same result.
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

/// Returns byte `position` of every stream. Both sides write these bytes, so that a reader detects missing,
/// duplicated and misplaced bytes.
pub(crate) fn stream_byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
