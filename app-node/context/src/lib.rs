//! Contexts that are not slots of a proxy worker: g-contexts (CSP, Fig. 3). The daemon `csp-context` runs
//! handlers for proxy workers.
//!
//! ```text
//!  proxy worker ── TCP, carried over the SAN by csp-run ──▶ csp-context: one thread for each connection
//!     STAGE, CALL, ROOM, PART                                 [session] handlers, their state, what waits for room
//!     ◀── SAME, FRAMES, RANGE, NEW, DONE, WANT, REPORT            │ request      ▲ result
//!                                                             [builder] checks, compiles and starts supplied modules
//! ```
//! A proxy worker connects to the daemon as it connects clients to servers of a pool, and speaks
//! [`csp_wire::context`]. The daemon is an ordinary program: it has one listening socket, and the socket
//! filter gives it its streams.
//!
//! | what | where |
//! |---|---|
//! | one connection, sans-I/O | [`session`] |
//! | the handlers that there are | [`library`] |
//! | supplied ones: requested, built | [`request`], [`builder`] |
//! | sockets, threads, signals | [`daemon`] |
//! | packet plug-ins of level 3, a mode of its own | [`packets`], `csp-plugin-host` |
#![forbid(unsafe_code)]

pub mod builder;
pub mod daemon;
mod emitter;
pub mod library;
pub mod packets;
mod reports;
pub mod request;
pub mod session;
mod stage;
