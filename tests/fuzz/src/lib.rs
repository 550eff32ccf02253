//! Properties that must hold for any input. Parsers of csp-wire: they return, an error names a field and an offset
//! within the bytes, and a value that was parsed, emitted and parsed again is the same.
//!
//! The TCP engine, for any segments and calls: it terminates, stays within its bounds and releases all resources.
//!
//! The VI providers: no bytes or memory contents of a peer cause an out-of-bounds access.
//!
//! The framings of messages: one outcome for any slices, within the bounds.
//!
//! Formats: what is read from a message does not depend on its slices, and is written and read again alike.
//!
//! Queries: a plan is within its bounds, and its programs yield what it yields; a pattern is matched in as many steps as it may take.
//!
//! The targets in `fuzz_targets/` only call these functions, so that a finding can be replayed in a plain test.
#![forbid(unsafe_code)]

mod context;
mod formats;
mod lan;
mod queries;
mod ring;
mod san;
mod stack;
mod vi;
mod zmtp;

pub use context::context;
pub use formats::{formats_message, formats_schema};
pub use lan::{arp, ethernet, icmp, ipv4, ipv6, tcp};
pub use queries::{queries_like, queries_sql};
pub use ring::shm_ring;
pub use san::{agent, channel, link, tunnel};
pub use stack::{tcp_options, tcp_stack};
pub use vi::{shm_rendezvous, ucx_frame, verbs_frame};
pub use zmtp::zmtp;

use csp_wire::WireError;

/// Checks the error of a parser for `bytes`.
fn check_error(error: WireError, bytes: &[u8]) {
    assert!(!error.what().is_empty());
    assert!(error.offset() <= bytes.len(), "{error:?} points behind {} bytes", bytes.len());
    assert!(
        !matches!(error, WireError::NoSpace { .. } | WireError::TooLarge { .. }),
        "{error:?} from a parser"
    );
}
