//! Continual queries: a subset of SQL over channels (`docs/queries.md`).
//!
//! The crate is sans-I/O. It parses a query, checks it against the formats of the channels it names, and returns a [`Plan`]: what
//! comes from where, typed expressions over located fields, and the derived format of the result. It evaluates the
//! expressions of a plan over messages and writes results; what is kept between messages (windows, the waiting side of a
//! join) belongs to the operators that run a plan.
//!
//! ```text
//!  SQL ─▶ syntax ─▶ bind (names, types) ─▶ Plan ─▶ derive: format of the result
//!                                           └────▶ Plan::accepts, Plan::emit over Records
//! ```
//!
//! **Bounds.** A query has [`QUERY_LEN_MAX`] bytes and [`TOKENS_MAX`] tokens; expressions are nested [`NESTING_MAX`] deep.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod bind;
mod columns;
mod compile;
mod derive;
mod emit;
mod error;
mod evaluate;
mod explain;
mod functions;
mod plan;
mod syntax;
mod union;

pub use compile::{Code, Computed, Condition, How, Image, Move, Relation, Store};
pub use derive::{Derived, ROW};
pub use emit::{APART_MAX, Apart, EmitError, Part};
pub use error::{Position, QueryError, QueryProblem};
pub use evaluate::{Datum, Text};
pub use explain::PlanStep;
pub use functions::{ACCUMULATOR_LEN, Accumulator, Sample};
pub use plan::{
    Aggregate, AggregateFunction, Catalog, Column, ColumnPlace, Comparison, Expr, Join, Kind, Literal,
    Operator, Output, Plan, Source, Window,
};
pub use syntax::{NESTING_MAX, QUERY_LEN_MAX, TOKENS_MAX};
pub use union::Union;
