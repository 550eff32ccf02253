//! The user-level TCP engine (RFC 9293) of a proxy worker: flow labels index its connections.
//!
//! Sans-I/O: segments, bytes and the time go in, segments and events come out. It owns connection state, payload
//! memory and timers, all allocated by [`Stack::new`]; it refuses clocks, sockets, IP headers and checksums.
//!
//! ```text
//!   on_segment ─▶ input ─▶ Tcb ─▶ output ─▶ poll_transmit
//!                           ▲ ▼
//!        read_with, write, close … poll_event
//! ```
//!
//! Where to look:
//!
//! | what | where |
//! |---|---|
//! | a segment finds its connection: label, else 4-tuple, else listener or TIME-WAIT | `stack/demux`, `tuple_map`, `stack/listener`, `timewait` |
//! | connections begin: half-open table, cookies, initial sequence numbers | `listen`, `cookies`, `isn`, `input/handshake` |
//! | what a segment may do: acceptability, RST, PAWS | `input/validate`, `replies` |
//! | what it acknowledges, and what that tells of loss | `input/ack`, `recovery` (flight, RACK, PRR, F-RTO, undo) |
//! | how much may be in flight, and when it leaves | `congestion` (NewReno, CUBIC, HyStart++), `output/pacing`, `ecn` |
//! | bytes in, in the buffers they arrived in | `input/data`, `reassembly`, `ranges`, `chain`, `blocks` |
//! | bytes out | `stack/bytes`, `sendqueue`, `output`, `transmitqueue` |
//! | windows and memory | `output/window`, `blocks` |
//! | time | `timers` (the wheel), `timeouts`, `rtt` |
//! | the path's size, and ICMP | `path_mtu`, `path_cache`, `stack/path` |
//! | the state of one connection | `tcb` |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod api;
mod blocks;
mod chain;
mod config;
mod congestion;
mod cookies;
mod counters;
mod ecn;
mod info;
mod input;
mod isn;
mod list;
mod listen;
mod output;
mod path_cache;
mod path_mtu;
mod ranges;
mod reassembly;
mod recovery;
mod replies;
mod rtt;
mod sendqueue;
mod seq;
mod stack;
mod tcb;
mod timeouts;
mod timers;
mod timewait;
mod transmitqueue;
mod tuple_map;

pub use api::{
    Arrival, ConnectError, ConnectionInfo, DropReason, Event, FailReason, ListenError, Occupancy, PathError,
    State, Transmit,
};
pub use blocks::{Buffer, Direction};
pub use chain::Slices;
pub use config::{CongestionControl, ConnectionOptions, StackConfig};
pub use cookies::SynCookies;
pub use counters::Counters;
pub use ecn::EcnMode;
pub use sendqueue::send_memory;
pub use stack::Stack;
pub use transmitqueue::HELD_MAX;

/// How many ranges of data out of order a connection remembers; each may hold a block of its own, whatever its length.
pub const RANGES_PER_SET: usize = 32;

/// Smallest MSS that is believed and used, in bytes: smaller ones would let a peer make us send headers only.
pub const MSS_MIN: u16 = 88;
