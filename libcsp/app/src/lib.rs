//! What an application's end of the cluster is: [`AppSide`], its sockets over channels to proxies; [`session`], what the process
//! and its host's agent exchange; [`Page`], what the agent sees of the process.
//!
//! The socket filter, the C API, the agent's custody and the simulation are shells around it. The crate has no thread, clock or
//! descriptor of its own, and prints nothing: it runs inside unmodified programs.
#![forbid(unsafe_code)]

mod page;
pub mod session;
mod side;

pub use page::{Page, PageMemory};

pub use side::{
    Accepted, AppConfig, AppCounters, AppError, AppSide, CHANNELS_MAX, Directions, FlowId, FlowInfo,
    FlowPhase, HandOver, Handle, LeftFlow, ListenerId, PAUSE_MAX, ProxyTarget, Readiness, errno,
};
