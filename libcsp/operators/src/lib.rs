//! Built-in operators over formats: handlers that read and make messages of known layout
//! (`docs/message-operators.md`).
//!
//! The crate is sans-I/O. It owns the operators, their bounded state and counters, and the formats that they
//! derive. It parses no policy, keeps no channel, and has no clock: time comes with the messages and ticks.
//!
//! ```text
//!   FormatSet ─┬─▶ make("select", …).configure("delay > 10") ─┐
//!              └─ formats that operators derive ◀──────────────┤
//!   Plan ──────────▶ Query::new(plan, inputs, output, limits) ─┴─▶ Handler ─▶ path of a channel
//! ```
//!
//! **Which frame.** Of a message of one frame that frame has the format; of several the second, behind the
//! topic. Rows of a single message keep its topic and further frames.
//!
//! **Memory.** All of it is allocated when an operator is made or configured. What outlives a message lies in
//! the handler's [`State`](csp_handlers::State), and so outlives a change of the path.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod anonymise;
mod bind;
mod cells;
mod chain;
mod choice;
mod commute;
mod counters;
mod formats;
mod hide;
mod input;
mod json;
mod map;
mod merge;
mod parameters;
mod query;
mod ranges;
mod row;
mod select;
mod special;
mod split;
mod translate;

use std::sync::Arc;

use csp_handlers::Handler;

pub use anonymise::Anonymise;
pub use bind::MESSAGE;
pub use chain::{ChainError, ChainStage, Optimised, check, optimise};
pub use choice::{Choice, Medians, Rules, SAMPLES, Turn, Version};
pub use counters::Counters;
pub use formats::{DERIVED_FIRST, DERIVED_MAX, Format, FormatError, FormatSet, Invalid, JSON};
pub use input::{SLICES_MAX, body_frame};
pub use json::{FromJson, ToJson};
pub use merge::{MERGE_STATE, Merge};
pub use query::{AGGREGATES_MAX, ARRIVAL_GRACE, Limits, Query, QuerySetupError, Time, Unit};
pub use ranges::{FieldRange, field_load, ranges};
pub use row::ROW_LEN_MAX;
pub use select::{Project, Sample, Select};
pub use special::{Program, Request, Specialiser, StandingRef, Verdict};
pub use split::Split;
pub use translate::Translate;

/// Name of the operator that makes messages of the channel's formats of JSON texts. As the first operator of
/// a path it gets messages of unknown format.
pub const FROM_JSON: &str = "from-json";

/// The names of the operators that [`make`] makes.
pub const NAMES: &[&str] = &[
    "select",
    "project",
    "sample",
    "merge",
    "translate",
    "split",
    "customise",
    "to-json",
    FROM_JSON,
    "anonymise",
];

/// Makes an operator for the formats of a channel. Its parameters are set by [`Handler::configure`].
#[must_use]
pub fn make(name: &str, formats: &Arc<FormatSet>) -> Option<Box<dyn Handler>> {
    Some(match name {
        "select" => Box::new(Select::new(formats)),
        "project" => Box::new(Project::new(formats)),
        "sample" => Box::new(Sample::new()),
        "translate" => Box::new(Translate::new(formats)),
        "split" | "customise" => Box::new(Split::new(formats)),
        "to-json" => Box::new(ToJson::new(formats)),
        FROM_JSON => Box::new(FromJson::new(formats)),
        "anonymise" => Box::new(Anonymise::new(formats)),
        "merge" => Box::new(Merge::new(formats)),
        _ => return None,
    })
}
