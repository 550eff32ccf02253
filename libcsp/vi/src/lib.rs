//! Virtual Interfaces: connected endpoints with posted descriptors and completion queues (CSP §3, VI Architecture).
//!
//! [`Provider`] is the one interface that the tiers use; `shm` (one host), `verbs` (between hosts with RDMA), `ucx`
//! (between hosts without) and `memory` (in-process, deterministic) implement it. A provider belongs to one thread.
//!
//! A provider moves bytes and tells of connections. It does **not** decide that a peer is dead for being silent,
//! count credits, or look into messages: liveness and flow control belong to `csp-transport`.

mod clock;
pub mod kernel;
pub mod memory;
mod open;
mod pair;
mod provider;
mod region;
mod regions;
pub mod shm;
mod slots;
pub mod ucx;
pub mod verbs;
mod wait;

pub use open::ProviderKind;
pub use pair::Pair;
pub use provider::{
    Armed, BufferId, Completion, ConnectRequest, Counters, DEPTH_RANGE, Event, MESSAGE_LEN_MAX, PIECES_MAX,
    PRIVATE_DATA_LEN_MAX, Provider, RequestId, ViAddress, ViConfig, ViError, ViId, Wake,
};
pub use region::{Backing, Memory, Piece, RegionId};
pub use wait::WaitSet;
