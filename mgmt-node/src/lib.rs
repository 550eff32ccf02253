//! The management node: membership, policy generations, cspctl, operations page.
//!
//! Owns the publication of policy (validate, stage, collect acknowledgements, activate) and the cluster-wide
//! views. It refuses to be on the data path: nothing that a client's bytes need depends on it.
#![forbid(unsafe_code)]
// This crate owns sockets and clocks: it is a daemon and a command line.
#![allow(clippy::disallowed_types)]

pub mod acme;
pub mod actions;
mod answers;
pub mod bus;
mod cache_routes;
pub mod cli;
pub mod config;
pub mod daemon;
mod discovery;
pub mod events;
pub mod fanout;
mod guard;
mod handler_routes;
pub mod http_routes;
mod leader;
pub mod limits;
pub mod login;
mod message_routes;
pub mod metrics;
mod modules;
mod outlets;
mod page_routes;
pub mod plugin_routes;
mod policy_view;
pub mod poller;
mod probe;
mod proxy_labels;
mod publish;
pub mod scrape;
pub mod series;
pub mod server;
mod service_metrics;
pub mod tiers;
mod trace_order;
pub mod views;
