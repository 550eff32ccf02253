//! Messages on the whole data path: one proxy's broker, ZeroMQ peers outside over TCP and inside over
//! channels, byte streams beside them.
//!
//! ```text
//!  outside host ── LAN, network node, tunnel ──▶ ┌───────────────┐ ◀── channel (hairpin) ── programs
//!  client host  ── bytes ──────────────────────▶ │ proxy: broker │ ──── bytes ──▶ processes of the service
//!                                                └───────────────┘
//! ```
//! A run is judged by what peers have received and by the channels' counters: order, doubles, gaps that
//! nothing accounts for, peers that are left waiting, and memory that is left. Channels may have paths of
//! supplied handlers that are swapped meanwhile.

mod handlers;
mod inside;
mod judge;
mod outside;
mod peer;
mod plan;
mod resets;
mod scenario;
mod stamps;
mod swaps;
mod world;
mod zmtp;

pub use handlers::{HandlersPlan, PathPlan, SwapCounters};
pub use judge::MessageReport;
pub use plan::{ChannelPlan, Leaves, PeerPlan, Place, Role};
pub use scenario::{MessageIncident, MessageScenario};
pub use world::MessageWorld;
