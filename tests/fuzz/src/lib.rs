//! What must hold of every parser of csp-wire, whatever the bytes: it returns, an error names a field and points into
//! the bytes, and what it took means the same after it was emitted and parsed again.
//!
//! And of the TCP engine, whatever the segments and calls: it comes to an end, keeps its bounds and gives everything back.
//!
//! And of the VI providers: no peer's bytes or memory bring them out of bounds.
//!
//! The targets in `fuzz_targets/` call these functions and nothing else, so that a finding replays in a plain test.
#![forbid(unsafe_code)]

mod lan;
mod ring;
mod san;
mod stack;
mod vi;

pub use lan::{arp, ethernet, icmp, ipv4, ipv6, tcp};
pub use ring::shm_ring;
pub use san::{agent, channel, link, tunnel};
pub use stack::{tcp_options, tcp_stack};
pub use vi::{shm_rendezvous, ucx_frame, verbs_frame};

use csp_wire::WireError;

/// Checks an error of a parser that was given `bytes`.
fn check_error(error: WireError, bytes: &[u8]) {
    assert!(!error.what().is_empty());
    assert!(error.offset() <= bytes.len(), "{error:?} points behind {} bytes", bytes.len());
    assert!(
        !matches!(error, WireError::NoSpace { .. } | WireError::TooLarge { .. }),
        "{error:?} from a parser"
    );
}
