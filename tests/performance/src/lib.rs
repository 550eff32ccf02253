//! Performance: the [bench](mod@bench) beside other proxies, the scale test, what one thing costs at a time.
//!
//! The scale test: the number and the rate of connections, with the real daemons in namespaces under load.
//!
//! ```text
//!  csp-load × 8 ── LAN ── network-node ── proxy-node ── csp-echo × 8 under csp-run
//!  (client host, an address each)                       (app host, a pool member each)
//! ```
//! On many machines a process can have at most 20,000 descriptors; therefore there are several clients and
//! servers. The servers use the socket interface as any program does. [`scale`] creates everything and
//! measures.
#![allow(clippy::disallowed_types, reason = "runs real processes on real time")]
#![forbid(unsafe_code)]

pub mod bench;
pub mod echo;
pub mod evaluation;
pub mod load;
pub mod memory;
pub mod report;
pub mod san;
pub mod scale;
pub mod through_tcp;

/// Length of a request, and of its response, in bytes.
pub const REQUEST_LEN: usize = 64;
