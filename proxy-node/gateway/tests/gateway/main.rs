//! The gateway between TCP clients and processes of a pool, with the core of the proxy.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod answers;
mod bodies;
mod cache;
mod cache_hostile;
mod calls;
mod certificates;
mod compress;
mod filters;
mod frames;
mod grpc;
mod hostile;
mod http;
mod http2;
mod kept;
mod members;
mod policy;
mod programs;
mod random;
mod retries;
mod secure;
mod servers;
mod stored;
mod stored_random;
mod times;
mod towards;
mod tunnels;
mod unread;
mod versions;
mod watches;
#[allow(dead_code, reason = "the harness of the core's tests, of which some is used here")]
#[path = "../../../core/tests/upstream/world.rs"]
mod world;
