//! Attacks by hostile peers and third parties, by theme: each with the defence, a bound, and a test that can
//! fail.
//!
//! | attack | defence | test |
//! |---|---|---|
//! | any segment in any state | every field is checked before it is used | `random` |
//! | blind RST, SYN, data, ACK | RFC 5961; challenge ACKs throttled per connection | `blind` |
//! | blind data | a good SEQ and a good ACK, both (RFC 5961 §5); nothing else is kept | `injected` |
//! | false and forged timestamps | bounds on the timeout; only segments in sequence update TS.Recent | `stamps` |
//! | SYN flood | a bounded half-open table, then SYN cookies | `flood`, `cookies` |
//! | optimistic and divided ACKs | ACKs of unsent data are refused, growth counts bytes | `games` |
//! | tiny, shrinking and closed windows, tiny MSS | silly-window rules, an MSS floor, an end when memory is short | `games` |
//! | SACKs of arbitrary ranges, reneging | bounded range sets; SACKed data is retransmitted | `games` |
//! | holes of one byte, slow readers | shares of a fixed pool; in-order data has precedence | `holding` |
//! | lingering in TIME-WAIT and closing states | fixed tables, oldest evicted; every state has a timer | `holding` |
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[path = "../common/mod.rs"]
mod common;

mod blind;
mod cookies;
mod flood;
mod games;
mod holding;
mod injected;
mod peer;
mod random;
mod stamps;
