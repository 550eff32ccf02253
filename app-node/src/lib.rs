//! The application node: the agent that gives processes their place in the cluster, and the launcher `csp-run`.
//!
//! [`agent`] knows who may attach and what each process does; [`daemon`] joins it with the control plane and the admin
//! endpoint; [`launch`] starts programs with the socket filter. No application data passes through this node's daemon:
//! processes speak to the proxies themselves.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "daemon and launcher own clocks and sockets")]

pub mod agent;
pub mod config;
pub mod daemon;
pub mod launch;
