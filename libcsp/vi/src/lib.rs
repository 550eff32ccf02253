//! Virtual Interfaces: connected endpoints with posted descriptors and completion queues (CSP §3, VI
//! Architecture).
//!
//! [`Provider`] is the interface that all tiers use. Its implementations are `shm` (one host), `verbs` (hosts
//! with RDMA), `tcp` and `ucx` (hosts without RDMA) and `memory` (one process, deterministic). A provider
//! belongs to one thread.
//!
//! A provider moves bytes and reports connection events. It does **not** declare a silent peer dead, count
//! credits or interpret messages: liveness and flow control belong to `csp-transport`.

mod clock;
pub mod kernel;
mod lingering;
pub mod memory;
mod open;
mod pair;
mod place;
mod provider;
mod receives;
mod region;
mod regions;
mod reports;
pub mod shm;
mod slots;
mod sockaddr;
pub mod tcp;
pub mod ucx;
pub mod verbs;
mod wait;

pub use open::ProviderKind;
pub use pair::Pair;
pub use place::Place;
pub use provider::{
    Armed, BufferId, Completion, ConnectRequest, Counters, DEPTH_RANGE, Event, MESSAGE_LEN_MAX, PIECES_MAX,
    PRIVATE_DATA_LEN_MAX, Provider, RequestId, ViAddress, ViConfig, ViError, ViId, Wake,
};
pub use region::{Backing, Memory, Piece, RegionId};
pub use wait::WaitSet;
