//! The application node: the agent that connects processes to the cluster, and the launcher `csp-run`.
//!
//! [`agent`] admits processes and keeps their state; [`relay`] carries processes' messages to proxies of
//! other hosts; [`daemon`] connects both to the control plane and the admin endpoint; [`launch`] starts
//! programs with the socket filter. Processes connect to the proxies of their own host without the agent.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "daemon and launcher own clocks and sockets")]

pub mod agent;
pub mod config;
pub mod custody;
pub mod daemon;
pub mod launch;
pub mod relay;
