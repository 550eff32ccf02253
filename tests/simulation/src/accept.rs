//! The accept path under load: bursts of clients, one proxy, and processes that are busy, pause, end and die.
//!
//! A run is judged by the results of clients and processes, and by the proxy's flight recorder: no client is
//! reset while a process serves, no connection waits while a process is idle, the order of arrival is kept,
//! and accept credit adds up.

mod backlog;
mod crowd;
mod judge;
mod scenario;
mod server;
mod world;

pub use judge::AcceptReport;
pub use scenario::AcceptScenario;
pub use world::AcceptWorld;
