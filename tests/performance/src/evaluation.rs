//! What the papers measured of messages in transit, measured here in process: Morphing's chains and merges,
//! C-CORE's continual queries.
//!
//! ```text
//!  [Flights], seeded ─▶ [World]: the proxy's message plane, its contexts, real operators ─▶ subscribers
//!                          └─ driven as fast as it goes, or at a rate ─▶ [Figure] ─▶ text, Markdown, SVG
//! ```
//! One thread does everything, so that a time is all of what the plane spends: publishing (the copy into its
//! pool), handlers, queues, delivery. Sockets and TCP are measured by `csp-messages-bench`.

mod alone;
mod chains;
mod figure;
mod flights;
mod merges;
mod peers;
mod queries;
mod world;

use std::time::Duration;

pub use chains::columns;
pub use figure::{Bar, Figure, chart};
pub use flights::{Flights, Lengths};
pub use peers::{Peer, figure as beside_peers};

/// Measures everything; each measurement takes `time`. `progress` is called with what is measured next.
pub fn run(time: Duration, progress: &dyn Fn(&str)) -> Vec<Figure> {
    progress("Morphing, Figure 3: chains of two handlers");
    let chains = chains::figure(time);
    progress("Morphing, Figure 4: merges of two, three and four streams");
    let merges = merges::figure(time);
    progress("C-CORE, Table 1: continual queries, two streams in, three out");
    let queries = queries::figure(time);
    vec![chains, merges, queries]
}
