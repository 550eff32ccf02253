#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod budget;
mod chunk;
mod client;
mod error;
mod frames;
mod head;
mod inbox;
pub mod limits;
mod link;
mod malformed;
mod pipe;
mod preface;
mod server;
mod stream;
mod wake;

pub use budget::Flood;
pub use client::{ClientConnection, ClientEvent};
pub use error::{Cause, Reason, SendError};
pub use limits::Limits;
pub use malformed::{Malformed, Remedy};
pub use preface::{PREFACE, Speaks, speaks};
pub use server::{Event, ServerConnection};
