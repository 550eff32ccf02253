//! The shell that all daemons share: everything around a daemon's own work.
//!
//! ```text
//!  program   arguments, configuration file, exit code
//!     │
//!  shell     the control thread: registration, membership, policy, admin endpoint, signals ─▶ Event ─▶ the daemon
//!     │ Mailbox                                                   ▲ SnapshotCell, Reply
//!  thread    a data thread around a DataWorker: turns while there is work, waits while there is none
//!     └ query  questions of the admin endpoint that data threads answer
//! ```
//! Owned here: threads, clocks and signals of the daemons. Code for one tier only does not belong here. The
//! management node uses [`program`], errors and signals from here and has a control thread of its own.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "the shell owns clocks, sockets and threads")]

pub mod background;
pub mod clock;
mod control_status;
mod error;
pub mod events;
pub mod identity;
pub mod issued;
pub mod jitter;
mod keys;
pub mod private_file;
pub mod privileges;
pub mod program;
pub mod query;
mod service_manager;
mod shell;
pub mod syslog;
mod thread;
pub mod trial;

pub use control_status::{control_metrics, set_state};
pub use error::DaemonError;
pub use events::Events;
pub use keys::KeyFile;
pub use service_manager::ServiceManager;
pub use shell::{Event, Shell, ShellOptions, StopSignals, init_logging};
pub use thread::{Cpus, DataThread, DataWorker, Progress, SharedThreads, Threads};
