//! An application's end of the cluster. [`AppSide`] provides its sockets over channels to proxies,
//! [`session`] the exchange between the process and its host's agent, [`Page`] the counters and sockets that
//! the process shows to the agent, [`options`] the treatment of socket options.
//!
//! The socket filter, the C API, the agent's custody and the simulation are shells around it. The crate has
//! no thread, clock or descriptor of its own, and prints nothing, since it runs inside unmodified programs.
#![forbid(unsafe_code)]

pub mod options;
mod page;
pub mod session;
mod side;

pub use csp_vi::Place;
pub use page::{Page, PageMemory};

pub use side::{
    Accepted, AppConfig, AppCounters, AppError, AppSide, CHANNELS_MAX, Directions, FlowId, FlowInfo,
    FlowPhase, HandOver, Handle, LeftFlow, ListenerId, PAUSE_MAX, ProxyTarget, Readiness, errno,
};
