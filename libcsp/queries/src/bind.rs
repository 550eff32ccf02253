//! Names and types: from the clauses of a query to a plan.

mod clauses;
mod expressions;

pub(crate) use clauses::plan;
pub(crate) use expressions::comparable;
