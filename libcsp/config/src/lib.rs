//! Text of configuration files and policies into types: strict, and with every mistake of a file at once.
//!
//! ```text
//!  YAML ─▶ yaml ─┐
//!                ├─▶ Tree ─▶ read ─▶ T ─▶ checks of the caller
//!  JSON ─▶ json ─┘    ▲        │ Mistake: path, kind
//!                     └ repair ┘
//! ```
//! A document is parsed once, into a tree (`tree.rs`). Types are deserialised from that tree alone, so that
//! the derived code of each type is compiled for one deserialiser. serde stops at the first mistake:
//! `collect.rs` repairs it in the tree and reads again.
//!
//! The crate takes text and returns values. It opens no file.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod collect;
pub mod fields;
mod json;
mod names;
mod neutral;
mod positions;
mod problems;
mod read;
mod tree;
mod words;
mod yaml;

pub use fields::{ip_address, number, port, serde_node_id, serde_prefixes};
pub use json::from_json;
pub use names::nearest;
pub use problems::{ConfigError, FILE_LEN_MAX, PROBLEMS_MAX, Problem, Problems, parse, parse_checked};

#[cfg(test)]
mod tests;
