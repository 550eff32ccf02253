//! Names and types: from the tree of a query to a plan.

mod clauses;
mod expressions;
mod functions;
mod literals;
mod outputs;

pub(crate) use clauses::plan;
pub(crate) use literals::comparable;
