//! The shell that all daemons share: what surrounds their own work.
//!
//! ```text
//!  program   arguments, configuration file, exit code
//!     │
//!  shell     the control thread: registration, membership, policy, admin endpoint, signals ─▶ Event ─▶ the daemon
//!     │ Mailbox                                                   ▲ SnapshotCell, Reply
//!  thread    a data thread around a DataWorker: turns while there is work, waits when there is none
//!     └ query  the admin endpoint's questions that data threads answer
//! ```
//! Owned here: threads, clocks and signals of the daemons. Refused: what only one tier knows. The management node takes
//! [`program`], errors and signals from here and has a control thread of its own.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "the shell owns clocks, sockets and threads")]

pub mod clock;
mod error;
pub mod program;
pub mod query;
mod shell;
mod thread;

pub use error::DaemonError;
pub use shell::{Event, Shell, ShellOptions, StopSignals, init_logging};
pub use thread::{DataThread, DataWorker};
