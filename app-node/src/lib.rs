//! The application node: the agent that gives processes their place in the cluster, and the launcher `csp-run`.
//!
//! [`agent`] knows who may attach and what each process does; [`relay`] carries processes' messages to proxies of other
//! hosts; [`daemon`] joins them with the control plane and the admin endpoint; [`launch`] starts programs with the socket
//! filter. To proxies of their own host processes speak themselves.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "daemon and launcher own clocks and sockets")]

pub mod agent;
pub mod config;
pub mod custody;
pub mod daemon;
pub mod launch;
pub mod relay;
