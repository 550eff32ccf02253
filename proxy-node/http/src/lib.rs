#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

pub mod body;
pub mod exchange;
mod fault;
pub mod forward;
pub mod head;
pub mod limits;
pub mod name;
pub mod route;

pub use fault::{Fault, Refusal};
pub use limits::Limits;
