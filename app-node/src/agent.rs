//! The agent, without control plane and admin endpoint: attaching processes, the directory that they receive,
//! and their state.

pub mod directory;
pub mod helper;
pub mod kernel;
pub mod processes;
mod receive;
pub mod server;

pub use directory::{Choice, Directory, ProxyEntry};
pub use processes::{PageCopy, ProcessInfo, Processes};
pub use server::{AgentError, AgentOptions, serve};
