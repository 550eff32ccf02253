#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

pub mod conditions;
pub mod control;
pub mod date;
pub mod fields;
pub mod freshness;
mod hash;
pub mod key;
mod object;
mod shard;
mod store;
mod vary;

pub use object::{Draft, Object};
pub use store::{Ask, FILL_MS_MAX, Fill, Found, Listed, Purge, Status, Store, VARIANTS_MAX};
