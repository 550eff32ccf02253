//! The JSON bodies of the daemons' admin endpoints and of the management node's API.
//!
//! The daemon that answers a route serializes these types, and every reader (the management node's fan-out,
//! `cspctl`, tests) deserializes the same types. Names and units of fields are documented here and nowhere
//! else.
//!
//! | daemon | route | body |
//! |---|---|---|
//! | every | `/readyz` | [`Readiness`] |
//! | every | `/v1/node` | the node's registration, `csp_control::NodeRecord` |
//! | every | `/v1/events` | [`events::Push`] |
//! | network node, proxy node, app node | `/v1/trace?label=` | list of [`TraceEntry`] |
//! | network node, proxy node, app node | `/v1/trace/recent` | list of [`RecentFlow`] |
//! | network node | `/v1/flows`, `/v1/tunnels` | lists of [`network::Flow`], [`network::Tunnel`] |
//! | network node | `/v1/plugins`, `/v1/plugins/{instance}/{operation}` | [`plugins::Plugins`], [`plugins::CallAnswer`] |
//! | proxy node | `/v1/flows`, `/v1/services` | lists of [`proxy::Flow`], [`proxy::Service`] |
//! | proxy node | `/v1/cache`, `/v1/cache/objects`, `/v1/cache/purge` | [`cache::CacheStatus`], list of [`cache::CacheObject`], [`cache::Purged`] |
//! | proxy node | `/v1/contexts` | [`contexts::Contexts`] |
//! | proxy node | `/v1/quality` | [`quality::Quality`] |
//! | proxy node | `/v1/handlers` | [`handlers::Handlers`] |
//! | proxy node | `/v1/channels` | list of [`proxy::Channel`] |
//! | proxy node | `/v1/subscriptions`, `/v1/messages/trace` | [`messages::Subscriptions`], [`messages::MessageTrace`] |
//! | proxy node, management node | `/v1/certificates` | [`certificates::StoredCertificates`] |
//! | app node | `/v1/processes`, `/v1/proxies` | lists of [`app::Process`], [`app::Proxy`] |
//! | app node | `/v1/sockets`, `/v1/flows` | lists of [`app::Socket`] |
//! | management node | `/api/v1/…` | [`mgmt`] |
//!
//! A reader ignores fields that it does not know, so that a later release can add some. A field is neither
//! renamed nor removed, and a field that is added has a default. A body in which a field is missing or has
//! another type is refused as a whole: the reader reports it instead of showing a figure that no daemon
//! wrote.
//!
//! Owned here: shapes, and the conversions of recorded events. Refused: clocks, sockets, threads.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

pub mod app;
pub mod cache;
pub mod certificates;
pub mod connections;
pub mod contexts;
pub mod events;
pub mod handlers;
pub mod http;
pub mod label;
pub mod messages;
pub mod metrics;
pub mod mgmt;
pub mod network;
pub mod plugins;
pub mod proxy;
pub mod quality;
mod readiness;
mod text;
pub mod time;
pub mod topic;
mod trace;

pub use readiness::{Condition, ConditionState, Readiness};
pub use text::{TEXT_LEN_MAX, Text};
pub use trace::{RecentFlow, Tier, TraceEntry, flag_bits, flag_letters};
