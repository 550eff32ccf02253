//! What hostile peers and strangers do, by theme: each with the defence, a bound, and a test that can fail.
//!
//! | attack | defence | test |
//! |---|---|---|
//! | any segment in any state | every field is checked before it is used | `random` |
//! | blind RST, SYN, data, ACK | RFC 5961; challenge ACKs throttled per connection | `blind` |
//! | SYN flood | a bounded half-open table, then SYN cookies | `flood` |
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[path = "../common/mod.rs"]
mod common;

mod blind;
mod flood;
mod random;
