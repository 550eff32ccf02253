//! The user-level TCP engine (RFC 9293) of a proxy worker. Connections are indexed by flow label.
//!
//! The engine is sans-I/O: the caller passes in segments, bytes and the current time; the engine returns
//! segments and events. It owns connection state, payload memory and timers, all allocated by [`Stack::new`].
//! It has no clock, opens no sockets, and neither reads nor writes IP headers and checksums.
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
//! | lookup of a segment's connection | `stack/demux`, `tuple_map`, `stack/listener`, `timewait` |
//! | opening: half-open table, cookies, initial sequence numbers | `listen`, `cookies`, `isn`, `input/handshake` |
//! | acceptability of segments: window, RST, PAWS | `input/validate`, `replies` |
//! | acknowledgements, loss detection and recovery | `input/ack`, `recovery` (flight, RACK, PRR, F-RTO, undo) |
//! | congestion window, pacing, ECN | `congestion` (NewReno, CUBIC, HyStart++), `output/pacing`, `ecn` |
//! | received data, stored where it arrived if possible | `input/data`, `reassembly`, `ranges`, `chain`, `blocks` |
//! | written data and transmission | `stack/bytes`, `sendqueue`, `output`, `transmitqueue` |
//! | receive window and memory | `output/window`, `blocks` |
//! | timers and round-trip times | `timers` (the wheel), `timeouts`, `rtt` |
//! | path MTU and ICMP errors | `path_mtu`, `path_cache`, `stack/path` |
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
mod reset;
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
    Arrival, ConnectError, ConnectionInfo, DropReason, Event, FailReason, Figures, ListenError, Occupancy,
    PathError, State, Transmit,
};
pub use blocks::{Buffer, Direction, REGION_BLOCKS};
pub use chain::Slices;
pub use config::{CongestionControl, ConnectionOptions, StackConfig};
pub use cookies::SynCookies;
pub use counters::Counters;
pub use ecn::EcnMode;
pub use sendqueue::send_memory;
pub use stack::Stack;
pub use stack::held::HeldBytes;
pub use transmitqueue::HELD_MAX;

/// Most ranges of out-of-order data that the engine records for one connection. Each range may hold a payload
/// block of its own, whatever its length.
pub const RANGES_PER_SET: usize = 32;

/// Smallest MSS in bytes that the engine uses. A peer that announces a smaller one is treated as if it had
/// announced this, so that it cannot make the engine send segments that are mostly headers.
pub const MSS_MIN: u16 = 88;
