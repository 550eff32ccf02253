//! How many connections, and how fast: the real daemons in namespaces under load that a test can judge.
//!
//! ```text
//!  csp-load × 8 ── LAN ── network-node ── proxy-node ── csp-echo × 8 under csp-run
//!  (client host, an address each)                       (app host, a pool member each)
//! ```
//! A process has 20,000 descriptors at most on many machines: clients and servers are therefore several. The servers
//! use the socket interface as any program does and know nothing of CSP. [`scale`] lays it all out and measures.
#![allow(clippy::disallowed_types, reason = "runs real processes on real time")]
#![forbid(unsafe_code)]

pub mod echo;
pub mod load;
pub mod memory;
pub mod report;
pub mod san;
pub mod scale;

/// Bytes of a request, and of its answer.
pub const REQUEST_LEN: usize = 64;
