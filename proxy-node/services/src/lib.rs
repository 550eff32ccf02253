//! Services of the proxy itself ([`LocalServices`](csp_proxy_core::service::local)); sans-I/O. Clients'
//! streams end there.
//!
//! [`MessageBroker`] is the first: a broker between publishers and subscribers that speak ZMTP or send
//! messages behind a header with their length. It also cuts the streams between clients and unmodified
//! servers into messages (`streams`, [`Between`](csp_proxy_core::service::between::Between)).
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod messages;
mod streams;

pub use messages::{
    Asked, AskedError, AutoPlace, BroughtFormat, ChannelFeed, ChannelFormats, ChannelKeys, ChannelPath,
    ChannelPolicy, ChannelSnapshot, ChannelSpec, ContextNotice, ContextSpec, ContextsSnapshot,
    ElsewhereSnapshot, FieldReader, FlowFields, FormatAsked, FormatText, GATHER_TIME, HandlerAsked,
    HandlerBounds, HandlerJob, HandlerRules, Header, MadeHandler, MessageBroker, MessagesConfig,
    MessagesPolicy, MoveNotice, Moved, PATIENCE, PathStage, PeerName, PeerSnapshot, PeersPage, PeersQuery,
    PlanJob, Planned, PrefixedPort, Presence, QueryAsked, QueryPlan, QueryPlanner, QueryRefused,
    RECEIVERS_TIME, RETRY, Refusals, RequestCounters, RequestNotice, RequestPlace, RequestSpec,
    RequestedSnapshot, Rights, SENDERS_TIME, STABLE, STRANGER_TIME, SpecError, StagePlace, TracedSnapshot,
    View, Wanted,
};
pub use streams::{Identity, MessageHook, StreamCounters, StreamSpec};
