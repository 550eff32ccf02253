//! The attached host of packet plug-ins (level 3; PromethOS NP's external control processor): it runs
//! instances for the workers of network nodes, and returns each packet with a verdict.
//!
//! ```text
//!  network worker ── link over the SAN: CONFIGURE, PACKET, CALL ──▶ HostWorker ── Session, one for each link
//!                 ◀── PASS, DROP, TRANSMIT, ENTER, COPY, COUNTS ──               manager and graph of csp-plugins
//! ```
//! A session has instances of its own, like a worker of level 2. The network node configures them. Links are
//! accepted from network nodes that prove that they belong to the cluster. Time is an argument; the
//! surrounding thread waits.
//!
//! | what | where |
//! |---|---|
//! | one link's instances and packets, sans-I/O | [`Session`] |
//! | all links of a thread | [`HostWorker`] |
#![forbid(unsafe_code)]

mod session;
mod worker;

pub use session::{Session, SessionConfig, SessionCounters, SessionError, Sink};
pub use worker::{HostCounters, HostNotice, HostWorker};
