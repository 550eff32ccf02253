//! The clauses of a query.

use sqlparser::ast::{BinaryOperator, Expr as Ast, SelectItem, SelectItemQualifiedWildcardKind, Spanned};
use sqlparser::tokenizer::Span;

use super::expressions::{Binder, comparable, wrong_type};
use crate::columns::Columns;
use crate::derive;
use crate::error::{QueryError, QueryProblem};
use crate::plan::{Catalog, Expr, Join, Kind, Output, Plan, Source, Window};
use crate::syntax::{Statement, Table, WindowClause};

pub(crate) fn plan(statement: Statement, catalog: &dyn Catalog, schema_id: u16) -> Result<Plan, QueryError> {
    let mut sources = vec![source(&statement.from, catalog)?];
    if let Some(join) = &statement.join {
        let second = source(&join.table, catalog)?;
        if second.alias == sources[0].alias {
            let problem = QueryProblem::Duplicate { what: "channels", name: second.alias };
            return Err(QueryError::at(join.table.span, problem));
        }
        sources.push(second);
    }
    let mut binder = Binder::new(Columns { sources, columns: Vec::new() });
    let join = match &statement.join {
        Some(clause) => Some(Join { keys: keys(&clause.on, &mut binder)?, within_us: clause.within_us }),
        None => None,
    };
    let filter = statement.filter.as_ref().map(|filter| binder.truth(filter, "WHERE")).transpose()?;
    let mut group_by = Vec::new();
    for expr in &statement.group_by {
        let (bound, kind) = binder.expression(expr)?;
        if matches!(kind, Kind::Opaque(_)) {
            return Err(wrong_type(expr.span(), "GROUP BY", "a number, text or an enumeration", &kind));
        }
        group_by.push(bound);
    }
    binder.aggregates_allowed(statement.window.is_some());
    let mut outputs = Vec::new();
    for item in &statement.select {
        add_outputs(item, &mut binder, &mut outputs)?;
    }
    let window = statement.window.as_ref().map(|window| match *window {
        WindowClause::Time { length_us } => Window::Time { length_us },
        WindowClause::Rows { count } => Window::Rows { count },
    });
    check_grouping(&binder, &outputs, &group_by, window.is_some(), &statement)?;
    check_names(&outputs)?;
    let (columns, aggregates) = binder.into_parts();
    let outputs: Vec<Output> = outputs.into_iter().map(|(output, _)| output).collect();
    let derived = derive::derive(&outputs, &columns, schema_id)
        .map_err(|problem| QueryError::new(crate::Position::START, QueryProblem::Format(problem)))?;
    let Columns { sources, columns } = columns;
    Ok(Plan { sources, join, columns, filter, window, group_by, aggregates, outputs, derived })
}

fn source(table: &Table, catalog: &dyn Catalog) -> Result<Source, QueryError> {
    let format = catalog.format(&table.channel).filter(|(schema, message)| schema.message(message).is_some());
    let Some((schema, message)) = format else {
        let channels = catalog.channels();
        let nearest = csp_formats::nearest(&table.channel, channels.iter().map(String::as_str));
        let problem = QueryProblem::Unknown { what: "channel", name: table.channel.clone(), nearest };
        return Err(QueryError::at(table.span, problem));
    };
    let alias = table.alias.clone().unwrap_or_else(|| table.channel.clone());
    Ok(Source { channel: table.channel.clone(), alias, schema, message })
}

/// The pairs of columns that a join compares.
fn keys(on: &Ast, binder: &mut Binder) -> Result<Vec<(usize, usize)>, QueryError> {
    match on {
        Ast::Nested(inner) => keys(inner, binder),
        Ast::BinaryOp { left, op: BinaryOperator::And, right } => {
            let mut all = keys(left, binder)?;
            all.extend(keys(right, binder)?);
            Ok(all)
        }
        Ast::BinaryOp { left, op: BinaryOperator::Eq, right } => {
            let (first, first_kind) = binder.expression(left)?;
            let (second, second_kind) = binder.expression(right)?;
            let (Expr::Column(first), Expr::Column(second)) = (first, second) else {
                return Err(QueryError::at(on.span(), QueryProblem::JoinCondition));
            };
            if !comparable(&first_kind, &second_kind) {
                let expected = match (&first_kind, &second_kind) {
                    (Kind::Enum(_), Kind::Enum(_)) => "values that both channels have alike",
                    _ => first_kind.name(),
                };
                return Err(wrong_type(right.span(), "=", expected, &second_kind));
            }
            match (binder.source_of(first), binder.source_of(second)) {
                (0, 1) => Ok(vec![(first, second)]),
                (1, 0) => Ok(vec![(second, first)]),
                _ => Err(QueryError::at(on.span(), QueryProblem::JoinCondition)),
            }
        }
        _ => Err(QueryError::at(on.span(), QueryProblem::JoinCondition)),
    }
}

/// The columns of the result that an item of the SELECT list makes, each with its place in the query.
fn add_outputs(
    item: &SelectItem,
    binder: &mut Binder,
    outputs: &mut Vec<(Output, Span)>,
) -> Result<(), QueryError> {
    let (expr, alias) = match item {
        SelectItem::UnnamedExpr(expr) => (expr, None),
        SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias.value.clone())),
        SelectItem::Wildcard(_) => {
            for source in 0..binder.sources() {
                add_all(source, item.span(), binder, outputs)?;
            }
            return Ok(());
        }
        SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
            let name = name.to_string();
            let source = binder.source_named(&name, item.span())?;
            return add_all(source, item.span(), binder, outputs);
        }
        _ => {
            let what = format!("\"{item}\"");
            return Err(QueryError::at(item.span(), QueryProblem::Unsupported { what }));
        }
    };
    let (bound, kind) = binder.expression(expr)?;
    if matches!(kind, Kind::Null) {
        return Err(wrong_type(expr.span(), "SELECT", "a value with a type", &kind));
    }
    let like = if let Expr::Column(column) = bound { Some(column) } else { None };
    let name = alias.unwrap_or_else(|| binder.name_of(&bound, outputs.len()));
    outputs.push((Output { name, expr: bound, kind, like }, expr.span()));
    Ok(())
}

/// All fields, groups and data of a source.
fn add_all(
    source: usize,
    span: Span,
    binder: &mut Binder,
    outputs: &mut Vec<(Output, Span)>,
) -> Result<(), QueryError> {
    for path in binder.members(source) {
        let (bound, kind) = binder.column(source, &path, span)?;
        let like = if let Expr::Column(column) = bound { Some(column) } else { None };
        outputs.push((Output { name: path, expr: bound, kind, like }, span));
    }
    Ok(())
}

/// Beside aggregates only what is grouped by has one value for each result.
fn check_grouping(
    binder: &Binder,
    outputs: &[(Output, Span)],
    group_by: &[Expr],
    window: bool,
    statement: &Statement,
) -> Result<(), QueryError> {
    if !window {
        return match statement.group_by.first() {
            Some(expr) => {
                let what = "GROUP BY without WINDOW (a window says when a group is complete)".to_owned();
                Err(QueryError::at(expr.span(), QueryProblem::Unsupported { what }))
            }
            None => Ok(()),
        };
    }
    for (output, span) in outputs {
        if let Some(column) = ungrouped(&output.expr, group_by) {
            let name = binder.path_of(column).to_owned();
            return Err(QueryError::at(*span, QueryProblem::NotGrouped { name }));
        }
    }
    Ok(())
}

/// A column in an expression that stands neither in a grouped expression nor in an aggregate.
fn ungrouped(expr: &Expr, group_by: &[Expr]) -> Option<usize> {
    if group_by.contains(expr) {
        return None;
    }
    match expr {
        Expr::Column(column) => Some(*column),
        Expr::Literal(_) | Expr::Aggregate(_) => None,
        Expr::Not(inner) | Expr::IsNull(inner) | Expr::Has(inner, _) | Expr::Like(inner, _) => {
            ungrouped(inner, group_by)
        }
        Expr::Arithmetic(_, left, right)
        | Expr::Compare(_, left, right)
        | Expr::And(left, right)
        | Expr::Or(left, right) => ungrouped(left, group_by).or_else(|| ungrouped(right, group_by)),
    }
}

fn check_names(outputs: &[(Output, Span)]) -> Result<(), QueryError> {
    let mut names = std::collections::HashSet::new();
    for (output, span) in outputs {
        if !names.insert(&*output.name) {
            let problem =
                QueryProblem::Duplicate { what: "columns of the result", name: output.name.clone() };
            return Err(QueryError::at(*span, problem));
        }
    }
    Ok(())
}
