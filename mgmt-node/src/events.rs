//! The events of the cluster: what nodes push, what this node records, and who reads them.
//!
//! ```text
//!  nodes ── POST /v1/events ──▶ [hub] ◀── this node's own
//!                                │ ▲
//!    GET /api/v1/events ◀────────┘ └── [announce] nodes join, leave, are late: while this node leads
//! ```

mod announce;
mod hub;
mod routes;
mod schema;

pub use announce::announce;
pub use hub::{Hub, Pusher};
pub use routes::{Reader, routes};
pub use schema::schema;
