//! Events of the cluster without their transport: what a node keeps of its own, and what a management node
//! keeps of all.
//!
//! ```text
//!  node nn-1                                      every management node
//!  [Journal] 1 2 3 4 5 ──── Push 4 5 ──────────▶  [Collector]
//!     ▲  the last 8,192     ◀─── known: 5 ─────     nn-1: known 5       arrivals: 1 2 3 … in one order
//!     │                                             pn-1: known 17          │
//!   What                                                                    ▼ read(Cursor, Filter)
//!                                                 requests, pages, subscribers: after "nn-1 5, pn-1 12"
//! ```
//! - **A node pushes to every management node**, each from where that one is, so that the death of one loses
//!   nothing. A management node that starts anew says that it knows nothing, and is told what nodes still
//!   have.
//! - **Sequence numbers have no gaps.** What a journal has given up is named in the next push
//!   ([`Push::first`](csp_api::events::Push::first)), counted, and reported to whoever reads on from before.
//! - **A cursor** names the last event of each origin that its holder has, so that it holds at any management
//!   node. For the one that made it, it also says where to go on, so that reading costs what is new.
//!
//! Owned here: order, numbers, bounds. Refused: clocks, sockets, threads.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod collector;
mod cursor;
mod journal;

pub use collector::{Admitted, Collector, Filter, Read};
pub use cursor::{CURSOR_LEN_MAX, Cursor};
pub use journal::Journal;

#[cfg(test)]
mod tests;
