//! The accept path under load: clients that come in bursts, one proxy, and processes that are busy, pause, end and die.
//!
//! A run is judged by what clients and processes see, and by the proxy's flight recorder: no client is reset while a
//! process serves, no connection waits beside an idle process, the order of arrival holds, and accept credit adds up.

mod backlog;
mod crowd;
mod judge;
mod scenario;
mod server;
mod world;

pub use judge::AcceptReport;
pub use scenario::AcceptScenario;
pub use world::AcceptWorld;
