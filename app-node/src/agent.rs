//! The agent's knowledge, without control plane or admin endpoint: who may attach, what they are told, what they do.

pub mod directory;
pub mod helper;
pub mod kernel;
pub mod processes;
mod receive;
pub mod server;
mod strangers;

pub use directory::{Choice, Directory, ProxyEntry};
pub use processes::{PageCopy, ProcessInfo, Processes};
pub use server::{AgentError, AgentOptions, serve};
