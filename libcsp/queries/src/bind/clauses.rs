//! The clauses of a query.

use super::expressions::{Binder, Bound};
use super::literals::{comparable, wrong_type};
use super::outputs::{self, Outputs};
use crate::columns::Columns;
use crate::derive;
use crate::error::{Position, QueryError, QueryProblem};
use crate::plan::{Catalog, Expr, Join, Kind, Output, PASSES_MAX, Plan, Source, Window};
use crate::syntax::{Ast, Binary, JoinClause, Node, Statement, Table, WindowClause};

pub(crate) fn plan(statement: Statement, catalog: &dyn Catalog, schema_id: u16) -> Result<Plan, QueryError> {
    // Each clause is named here, so that one that is read and not bound does not compile.
    let Statement { select, from, join, filter, group_by, having, window } = statement;
    let mut sources = vec![source(&from, catalog)?];
    if let Some(join) = &join {
        let second = source(&join.table, catalog)?;
        if second.alias == sources[0].alias {
            let problem = QueryProblem::Duplicate { what: "channels", name: second.alias };
            return Err(QueryError::new(join.table.at, problem));
        }
        sources.push(second);
    }
    let has_timed_window = matches!(window, Some(WindowClause::Time { .. }));
    let mut binder = Binder::new(Columns { sources, columns: Vec::new() }, has_timed_window);
    let join = match &join {
        Some(JoinClause { table: _, on, within_us }) => {
            Some(Join { keys: keys(on, &mut binder)?, within_us: *within_us })
        }
        None => None,
    };
    let filter = filter.as_ref().map(|filter| binder.truth(filter, "WHERE")).transpose()?;
    let grouped = group_by.iter().map(|node| group_key(node, &mut binder)).collect::<Result<Vec<_>, _>>()?;
    binder.aggregates_allowed(window.is_some());
    let mut outputs = Vec::new();
    for item in &select {
        outputs::add(item, &mut binder, &mut outputs)?;
    }
    let having = having_of(having.as_ref(), &grouped, window.is_some(), &mut binder)?;
    let window = window.map(|window| match window {
        WindowClause::Time { length_us, every_us } => Window::Time { length_us, every_us },
        WindowClause::Rows { count } => Window::Rows { count },
    });
    check_grouping(&binder, &outputs, &grouped, window.is_some(), &group_by)?;
    check_names(&outputs)?;
    let (columns, aggregates) = binder.into_parts();
    let outputs: Vec<Output> = outputs.into_iter().map(|(output, _)| output).collect();
    let derived = derive::derive(&outputs, &columns, schema_id)
        .map_err(|problem| QueryError::new(Position::START, QueryProblem::Format(problem)))?;
    let Columns { sources, columns } = columns;
    let group_by = grouped;
    let plan =
        Plan { sources, join, columns, filter, window, group_by, having, aggregates, outputs, derived };
    check_passes(&plan)?;
    Ok(plan)
}

/// Bounds how often a row's groups are passed for its variable data.
fn check_passes(plan: &Plan) -> Result<(), QueryError> {
    let is_behind = |column: &usize| {
        let column = &plan.columns[*column];
        column.is_behind_entries(&plan.sources[column.source])
    };
    let arguments = plan.aggregates.iter().filter_map(|aggregate| aggregate.argument.as_ref());
    let outputs = plan.outputs.iter().map(|output| &output.expr);
    let exprs = plan.filter.iter().chain(&plan.group_by).chain(&plan.having).chain(arguments).chain(outputs);
    let mut columns = Vec::new();
    exprs.for_each(|expr| columns_of(expr, &mut columns));
    if columns.iter().filter(|column| is_behind(column)).count() > PASSES_MAX {
        let what = "places where variable data behind groups is read";
        return Err(QueryError::new(Position::START, QueryProblem::TooMany { what, max: PASSES_MAX }));
    }
    Ok(())
}

fn columns_of(expr: &Expr, columns: &mut Vec<usize>) {
    match expr {
        Expr::Column(column) => columns.push(*column),
        _ => expr.children().for_each(|inner| columns_of(inner, columns)),
    }
}

fn source(table: &Table, catalog: &dyn Catalog) -> Result<Source, QueryError> {
    let Table { channel, alias, at } = table;
    let format = catalog.format(channel).filter(|(schema, message)| schema.message(message).is_some());
    let Some((schema, message)) = format else {
        let channels = catalog.channels();
        let nearest = csp_formats::nearest(channel, channels.iter().map(String::as_str));
        let problem = QueryProblem::Unknown { what: "channel", name: channel.clone(), nearest };
        return Err(QueryError::new(*at, problem));
    };
    let alias = alias.clone().unwrap_or_else(|| channel.clone());
    Ok(Source { channel: channel.clone(), alias, schema, message })
}

fn group_key(node: &Node, binder: &mut Binder) -> Result<Expr, QueryError> {
    let (bound, kind) = binder.expression(node)?;
    match kind {
        Kind::Opaque(_) => Err(wrong_type(node.at, "GROUP BY", "a number, text or an enumeration", &kind)),
        _ => Ok(bound),
    }
}

/// The condition on the result of a group.
fn having_of(
    node: Option<&Node>,
    grouped: &[Expr],
    window: bool,
    binder: &mut Binder,
) -> Result<Option<Expr>, QueryError> {
    let Some(node) = node else { return Ok(None) };
    if !window {
        let what = "HAVING without WINDOW (WHERE is a condition on rows)".to_owned();
        return Err(QueryError::new(node.at, QueryProblem::Unsupported { what }));
    }
    let having = binder.truth(node, "HAVING")?;
    if let Some(column) = ungrouped(&having, grouped) {
        let name = binder.path_of(column).to_owned();
        return Err(QueryError::new(node.at, QueryProblem::NotGrouped { name }));
    }
    Ok(Some(having))
}

/// The pairs of columns that a join compares.
fn keys(on: &Node, binder: &mut Binder) -> Result<Vec<(usize, usize)>, QueryError> {
    let no_keys = || QueryError::new(on.at, QueryProblem::JoinCondition);
    match &on.kind {
        Ast::Binary(Binary::And, left, right) => {
            let mut all = keys(left, binder)?;
            all.extend(keys(right, binder)?);
            Ok(all)
        }
        Ast::Binary(Binary::Equal, left, right) => {
            let (left, right) = (binder.bound(left)?, binder.bound(right)?);
            let (Bound { expr: Expr::Column(first), .. }, Bound { expr: Expr::Column(second), .. }) =
                (&left, &right)
            else {
                return Err(no_keys());
            };
            if !comparable(&left.kind, &right.kind) {
                let expected = match (&left.kind, &right.kind) {
                    (Kind::Enum(_), Kind::Enum(_)) => "values that both channels have alike",
                    _ => left.kind.name(),
                };
                return Err(wrong_type(right.at, "=", expected, &right.kind));
            }
            match (binder.source_of(*first), binder.source_of(*second)) {
                (0, 1) => Ok(vec![(*first, *second)]),
                (1, 0) => Ok(vec![(*second, *first)]),
                _ => Err(no_keys()),
            }
        }
        _ => Err(no_keys()),
    }
}

/// Beside aggregates only what is grouped by has one value for each result.
fn check_grouping(
    binder: &Binder,
    outputs: &Outputs,
    grouped: &[Expr],
    window: bool,
    group_by: &[Node],
) -> Result<(), QueryError> {
    if !window {
        return match group_by.first() {
            Some(node) => {
                let what = "GROUP BY without WINDOW (a window says when a group is complete)".to_owned();
                Err(QueryError::new(node.at, QueryProblem::Unsupported { what }))
            }
            None => Ok(()),
        };
    }
    for (output, at) in outputs {
        if let Some(column) = ungrouped(&output.expr, grouped) {
            let name = binder.path_of(column).to_owned();
            return Err(QueryError::new(*at, QueryProblem::NotGrouped { name }));
        }
    }
    Ok(())
}

/// A column in an expression that stands neither in a grouped expression nor in an aggregate.
fn ungrouped(expr: &Expr, grouped: &[Expr]) -> Option<usize> {
    if grouped.contains(expr) {
        return None;
    }
    match expr {
        Expr::Column(column) => Some(*column),
        _ => expr.children().find_map(|inner| ungrouped(inner, grouped)),
    }
}

fn check_names(outputs: &Outputs) -> Result<(), QueryError> {
    let mut names = std::collections::HashSet::new();
    for (output, at) in outputs {
        if !names.insert(&*output.name) {
            let problem =
                QueryProblem::Duplicate { what: "columns of the result", name: output.name.clone() };
            return Err(QueryError::new(*at, problem));
        }
    }
    Ok(())
}
