//! The message plane of a proxy worker: messages on their way from publishers to subscribers.
//!
//! ```text
//!   framing ─ publish ─▶ channel ─▶ subscriptions ─▶ queues ─▶ schedule ─ next_delivery ─▶ framing
//!                           └──────── bytes: pool ────────────┘
//! ```
//!
//! Messages go in, deliveries come out. The crate is sans-I/O: it has no clock, socket, thread or framing.
//! Its memory is allocated when the plane is made, a channel added or a peer attached; publishing,
//! subscribing and delivering allocate nothing.
//!
//! | what | where |
//! |---|---|
//! | the interface to the worker | [`MessagePlane`] |
//! | memory of messages, budgets of channels | [`MessagePool`] |
//! | who receives which topic | [`Subscriptions`] |
//! | marks, policies and drops of a receiver | `queue` |
//! | sequence numbers, backlog, last values | `channel`, `cache` |
//! | which channel is served next | [`RoundRobin`] |
//! | what waits for the output link, by information flow | `flows`, [`SharedLink`](csp_quality::SharedLink) |
//! | handlers on the way: contexts, paths | `contexts` |
//! | traces of a channel's next messages | [`TracedMessage`] |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod cache;
mod channel;
mod config;
mod contexts;
mod flows;
mod list;
mod peers;
mod plane;
mod pool;
mod queue;
mod schedule;
mod subscriptions;
mod table;
mod trace;

pub use cache::{CacheConfig, CacheCounters, LastValueKey};
pub use channel::ChannelCounters;
pub use config::{
    CHANNEL_NAME_LEN_MAX, ChannelConfig, ChannelError, ChannelKind, PlaneConfig, PlaneConfigError,
};
pub use contexts::{
    ContextReport, ContextStatus, ContextsConfig, DeployError, FormatStage, GIVEN_BYTES_MAX, HandlerManager,
    HandlerStatus, MakeHandler, OUTLETS_MAX, PathChange, PathCounters, PathEntry, PathError, PathId,
    PathSpec, PathState, PathStatus, Placement, PlacementBounds, RemoteCall, RemoteDone, RemoteError,
    RemoteStage, Rule, STAGES_MAX, Sample, Side, StageMaker, StageObject, StageSpec, StageStatus,
    StageSupply, StateRefusal, Targets, Ticket, Why, check_formats, check_stage,
};
pub use csp_handlers::{FormatId, ParameterError};
pub use csp_quality::FlowId;
pub use flows::{FieldReader, FlowFields};
pub use peers::{PeerId, Role};
pub use plane::{
    AttachError, ChannelId, ChannelStatus, Counters, DeliveredError, Delivery, Feed, MessagePlane,
    PeerStatus, PublishError, Published,
};
pub use pool::{
    Budget, BudgetError, FRAMES_MAX, MessageHandle, MessageInfo, MessagePool, Occupancy, PoolConfig,
    PoolCounters, PoolError, Slices, Usage,
};
pub use queue::{FullQueue, QueueCounters, QueueLimits};
pub use schedule::{RoundRobin, Turn, TurnBudget};
pub use subscriptions::{
    Change, SubscribeError, SubscriptionCounts, Subscriptions, SubscriptionsConfig, TOPIC_LEN_LIMIT,
};
pub use table::HashKey;
pub use trace::{
    CopyState, TRACE_COPIES_MAX, TRACE_MESSAGES_MAX, TRACE_STAGES_MAX, TRACE_TOPIC_LEN_MAX, TRACES_MAX,
    TraceError, TraceId, TraceRequest, TracedCopy, TracedMessage, TracedStage,
};
