//! Continual queries: a subset of SQL over channels (`docs/queries.md`).
//!
//! The crate is sans-I/O. It parses a query, checks it against the formats of the channels it names, and
//! returns a [`Plan`]: what comes from where, typed expressions over located fields, and the derived format
//! of the result. It evaluates the expressions of a plan over messages and writes results; what is kept
//! between messages (windows, the waiting side of a join) belongs to the operators that run a plan.
//!
//! ```text
//!  SQL ─▶ syntax ─▶ bind (names, types) ─▶ Plan ─▶ derive: format of the result
//!                                           └────▶ Plan::accepts, Plan::emit over Records
//! ```
//!
//! **Bounds.** A query has [`QUERY_LEN_MAX`] bytes and [`TOKENS_MAX`] tokens; expressions are nested
//! [`NESTING_MAX`] deep, and a plan has [`NODES_MAX`] of their nodes. Each token is read once. A row costs a
//! step for each node, and for each of [`LIKES_MAX`] LIKE as many as its text has bytes.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod bind;
mod columns;
mod compile;
mod convert;
mod derive;
mod emit;
mod error;
mod evaluate;
mod explain;
mod functions;
mod like;
mod plan;
mod syntax;
mod union;

pub use compile::{Code, Computed, Condition, How, Image, Move, Relation, Store};
pub use derive::{Derived, ROW};
pub use emit::{APART_MAX, Apart, EmitError, Part};
pub use error::{Position, QueryError, QueryProblem};
pub use evaluate::{Datum, Text};
pub use explain::PlanStep;
pub use functions::{ACCUMULATOR_LEN, Accumulator, SHORT_TEXT_MAX, Sample, ShortText};
pub use like::{PATTERN_PARTS_MAX, Pattern, WILD_LEN_MAX};
pub use plan::{
    Aggregate, AggregateFunction, Cast, Catalog, Column, ColumnPlace, Comparison, Expr, Join, Kind,
    LIKES_MAX, Literal, NODES_MAX, Operator, Output, PASSES_MAX, Plan, Source, Window,
};
pub use syntax::{DURATION_DAYS_MAX, HOPS_MAX, NESTING_MAX, QUERY_LEN_MAX, ROWS_MAX, TOKENS_MAX};
pub use union::Union;
