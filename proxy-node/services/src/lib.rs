//! Services of the proxy itself, at which clients' streams end ([`LocalServices`](csp_proxy_core::service::local)); sans-I/O.
//!
//! [`MessageBroker`] is the first: a broker between publishers and subscribers that speak ZMTP.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod messages;

pub use messages::{
    ChannelPath, ChannelSnapshot, ChannelSpec, ContextsSnapshot, MessageBroker, MessagesConfig, PathStage,
    SpecError,
};
