//! Handlers of messages in transit: what a handler is given, what it may do, and what is known of its cost.
//!
//! ```text
//!   message, timer or parameters ─▶ [ Handler, State ] ─ emit ─▶ output 0, 1, …
//! ```
//!
//! A handler runs inside a *context*, which calls it with one message at a time and routes what it emits.
//! This crate has the interface only: it is sans-I/O, keeps no queue and stores no message.
//!
//! | what | where |
//! |---|---|
//! | the interface | [`Handler`], [`Needs`] |
//! | a message with what a handler may do about it | [`Call`], [`Tick`], [`Port`] |
//! | what a handler emits | [`Emit`], [`Piece`] |
//! | memory that outlives a call | [`State`] |
//! | what a handler costs | [`Profile`], [`Usage`], [`Quantiles`] |
//! | what a handler has lost | [`Losses`] |
//! | what is known of one that runs in another program | [`Reported`] |
//! | handlers without formats | [`builtin`] |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

/// Contexts of a proxy worker: `c0` and so on.
pub const CONTEXTS_MAX: u16 = 8;
/// Contexts in other programs, which all workers share: `g0` and so on.
pub const G_CONTEXTS_MAX: u16 = 8;
/// Most handlers of a path.
pub const STAGES_MAX: usize = 8;
/// Paths of channels at a proxy worker, those of queries and of places for queries on request included.
pub const PATHS_MAX: u16 = 64;
/// Length of the blocks in which a proxy worker stores messages, in bytes. Each message takes at least one.
pub const MESSAGE_BLOCK_LEN: u32 = 2048;
/// Memory of a proxy worker for messages, in bytes.
pub const MESSAGE_POOL_LEN: u64 = 64 << 20;

pub mod builtin;
mod call;
mod handler;
mod losses;
mod profile;
mod quantiles;
mod reported;
mod state;

pub use call::{Call, Emit, Full, Message, Piece, Place, Port, Slices, Tick};
pub use handler::{FormatId, Handler, Needs, OUTPUTS_MAX, ParameterError, Stop, Usage};
pub use losses::Losses;
pub use profile::{Profile, Timing};
pub use quantiles::Quantiles;
pub use reported::{Reported, ReportedTimes, Standing};
pub use state::{NoMemory, State};
