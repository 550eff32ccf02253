//! Which neighbours of a chain can change places, or become one.

use std::sync::Arc;

use csp_formats::Presence;
use csp_handlers::FormatId;
use csp_queries::{ColumnPlace, Expr, Plan};

use crate::bind;
use crate::chain::ChainStage;
use crate::formats::{Format, FormatSet};
use crate::parameters::{after_word, parts};

/// What is done with two neighbours.
pub(crate) enum Step {
    /// They stay, as they are.
    Keep,
    /// They stay though the second reduces; why.
    Because(String),
    /// They give way to other stages.
    Replace(Vec<ChainStage>, String),
}

/// What two neighbours become; `input` is the format of what enters the first.
pub(crate) fn pair(
    first: &ChainStage,
    second: &ChainStage,
    formats: &Arc<FormatSet>,
    input: FormatId,
) -> Step {
    let Some(format) = formats.get(input) else { return Step::Keep };
    match (first.handler.as_str(), second.handler.as_str()) {
        ("select", "select") => both(first, second),
        ("sample", "sample") => product(first, second),
        ("project", "project") => projections(first, second, formats, &format),
        ("forward", "select" | "project" | "sample") => swap(first, second, "forward changes nothing"),
        ("duplicate", "select" | "project") => swap(first, second, "copies are alike"),
        ("project" | "anonymise" | "translate", "sample") => {
            swap(first, second, "which messages are left out does not depend on their content")
        }
        ("to-json", "sample") => swap(first, second, "what is left out need not be printed"),
        ("project", "select") => select_past_project(first, second, formats, &format),
        ("anonymise", "select") => select_past_anonymise(first, second, &format),
        ("translate", "select") => select_past_translate(first, second, &format),
        ("anonymise", "project") => project_past_anonymise(first, second, formats, &format),
        ("sample" | "drop-every", "select") => Step::Because(format!(
            "{} stays before {}: of other messages others would be left out",
            name(first),
            name(second)
        )),
        _ => Step::Keep,
    }
}

fn name(stage: &ChainStage) -> String {
    format!("{} ({})", stage.handler, stage.given + 1)
}

fn swap(first: &ChainStage, second: &ChainStage, why: &str) -> Step {
    let note = format!("{} moves before {}: {why}", name(second), name(first));
    Step::Replace(vec![second.clone(), first.clone()], note)
}

/// Two conditions become one.
fn both(first: &ChainStage, second: &ChainStage) -> Step {
    if first.parameters.trim().is_empty() || second.parameters.trim().is_empty() {
        return Step::Keep;
    }
    let parameters = format!("({}) AND ({})", first.parameters.trim(), second.parameters.trim());
    let note = format!("{} and {} become one select", name(first), name(second));
    Step::Replace(vec![ChainStage { parameters, ..first.clone() }], note)
}

/// Two samples become one: both emit the first of every so many.
fn product(first: &ChainStage, second: &ChainStage) -> Step {
    let every = |stage: &ChainStage| match stage.parameters.trim() {
        "" => Some(1),
        number => number.parse::<u64>().ok(),
    };
    let Some(every) = every(first).zip(every(second)).and_then(|(first, second)| first.checked_mul(second))
    else {
        return Step::Keep;
    };
    let note = format!("{} and {} become one sample of every {every}", name(first), name(second));
    Step::Replace(vec![ChainStage { parameters: every.to_string(), ..first.clone() }], note)
}

/// The columns of a plan's result that are columns of the message under the same name, and so the same
/// values.
fn passes(plan: &Plan, path: &str) -> bool {
    plan.outputs.iter().any(|output| match &output.expr {
        Expr::Column(column) => output.name == path && plan.columns[*column].path == path,
        _ => false,
    })
}

/// The paths that a plan reads.
fn reads(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.columns.iter().map(|column| column.path.as_str())
}

/// The column of a path: `price` for `price.mantissa`.
fn root(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

fn select_past_project(
    first: &ChainStage,
    second: &ChainStage,
    formats: &FormatSet,
    format: &Format,
) -> Step {
    let Ok(bound) = bind::projection(formats, format, &first.parameters) else { return Step::Keep };
    let Some(row) = formats.get(bound.output) else { return Step::Keep };
    let Ok(condition) = bind::condition(&row, &second.parameters) else { return Step::Keep };
    match reads(&condition).find(|path| !passes(&bound.plan, root(path))) {
        Some(path) => Step::Because(format!(
            "{} stays behind {}: \"{path}\" is no column of the message under that name",
            name(second),
            name(first)
        )),
        None => swap(first, second, "messages that are not wanted need no projection"),
    }
}

/// What an anonymise stage hides, with how.
fn hidden(stage: &ChainStage) -> Vec<(&str, &str)> {
    let path = |part| {
        let rest = ["hash", "mask", "drop"].iter().find_map(|word| after_word(part, word))?;
        Some((rest.split_whitespace().next()?, part))
    };
    parts(&stage.parameters, ',').into_iter().filter_map(path).collect()
}

fn overlaps(path: &str, hidden: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'))
    };
    within(path, hidden) || within(hidden, path)
}

fn select_past_anonymise(first: &ChainStage, second: &ChainStage, format: &Format) -> Step {
    let Ok(condition) = bind::condition(format, &second.parameters) else { return Step::Keep };
    let hides = hidden(first);
    let hides = |path: &str| hides.iter().any(|(hidden, _)| overlaps(path, hidden));
    match reads(&condition).find(|path| hides(path)) {
        Some(path) => Step::Because(format!(
            "{} stays behind {}: it compares what was made of \"{path}\"",
            name(second),
            name(first)
        )),
        None => swap(first, second, "it reads nothing that is hidden"),
    }
}

fn select_past_translate(first: &ChainStage, second: &ChainStage, format: &Format) -> Step {
    let because =
        |why: String| Step::Because(format!("{} stays behind {}: {why}", name(second), name(first)));
    // Nulls become the values that are given.
    if first.parameters.to_ascii_lowercase().contains(" default ") {
        return because("values are given for what is missing".to_owned());
    }
    match bind::condition(format, &second.parameters) {
        Ok(_) => swap(first, second, "fields of the same name have the same values"),
        Err(error) => because(error),
    }
}

/// A projection of a projection reads the message itself, if the first passes on all that it reads.
fn projections(first: &ChainStage, second: &ChainStage, formats: &FormatSet, format: &Format) -> Step {
    let Ok(inner) = bind::projection(formats, format, &first.parameters) else { return Step::Keep };
    let Some(row) = formats.get(inner.output) else { return Step::Keep };
    let Ok(outer) = bind::projection(formats, &row, &second.parameters) else {
        return Step::Keep;
    };
    let everything = second.parameters.contains('*');
    if everything || reads(&outer.plan).any(|path| !passes(&inner.plan, root(path))) {
        return narrowed(first, second, &inner.plan, &outer.plan);
    }
    let note = format!("{} is left out: {} reads only columns that it passes on", name(first), name(second));
    Step::Replace(vec![second.clone()], note)
}

/// A projection that only leaves columns of the one before it out is done by that one: what is not asked for
/// need not be computed.
fn narrowed(first: &ChainStage, second: &ChainStage, inner: &Plan, outer: &Plan) -> Step {
    let items = parts(&first.parameters, ',');
    // Also with exceptions behind it.
    let all = |item: &&str| item.starts_with('*') || item.contains(".*");
    if items.len() != inner.outputs.len() || items.iter().any(all) {
        return Step::Keep;
    }
    let item = |output: &csp_queries::Output| match &output.expr {
        Expr::Column(column) if outer.columns[*column].path == output.name => {
            let at = inner.outputs.iter().position(|known| known.name == output.name)?;
            items.get(at).map(|item| item.trim())
        }
        _ => None,
    };
    let Some(kept) = outer.outputs.iter().map(item).collect::<Option<Vec<_>>>() else { return Step::Keep };
    let note = format!("{} makes only what {} leaves, and the latter is left out", name(first), name(second));
    Step::Replace(vec![ChainStage { parameters: kept.join(", "), ..first.clone() }], note)
}

/// Columns that are projected away need not be hidden.
fn project_past_anonymise(
    first: &ChainStage,
    second: &ChainStage,
    formats: &FormatSet,
    format: &Format,
) -> Step {
    let Ok(bound) = bind::projection(formats, format, &second.parameters) else { return Step::Keep };
    let plan = &bound.plan;
    let because = |path: &str, why: &str| {
        Step::Because(format!("{} stays behind {}: \"{path}\" {why}", name(second), name(first)))
    };
    let hides = hidden(first);
    let mut rest: Vec<&str> = parts(&first.parameters, ',');
    for (path, part) in &hides {
        if !reads(plan).any(|read| overlaps(read, path)) {
            rest.retain(|known| known != part);
            continue;
        }
        if !plan.outputs.iter().all(|output| reads_alone(plan, &output.expr, path))
            || !passes(plan, root(path))
        {
            return because(path, "is hidden, and the projection makes something else of it");
        }
        // A column that some writers do not know is optional in rows: dropped it would be null, and not zero.
        let is_kept = plan.columns.iter().all(|column| match &column.place {
            ColumnPlace::Field(field) if column.path == root(path) => {
                field.since_version == 0 && field.presence != Presence::Constant
            }
            _ => true,
        });
        if !is_kept {
            return because(path, "is of another presence in the projection");
        }
    }
    let hides_something = rest.iter().any(|part| after_word(part, "key").is_none());
    if !hides_something {
        let note = format!("{} is left out: {} has no column that it hides", name(first), name(second));
        return Step::Replace(vec![second.clone()], note);
    }
    let anonymise = ChainStage { parameters: rest.join(", "), ..first.clone() };
    let note =
        format!("{} moves before {}: what is projected away need not be hidden", name(second), name(first));
    Step::Replace(vec![second.clone(), anonymise], note)
}

/// Whether an output is a hidden column itself under its name, or does not read it.
fn reads_alone(plan: &Plan, expr: &Expr, hidden: &str) -> bool {
    match expr {
        Expr::Column(column) => {
            let path = &plan.columns[*column].path;
            !overlaps(path, hidden) || (path == root(hidden) && passes(plan, path) && is_once(plan, path))
        }
        _ => expr.children().all(|inner| none(plan, inner, hidden)),
    }
}

/// Whether an expression reads nothing of a hidden column.
fn none(plan: &Plan, expr: &Expr, hidden: &str) -> bool {
    match expr {
        Expr::Column(column) => !overlaps(&plan.columns[*column].path, hidden),
        _ => reads_alone(plan, expr, hidden),
    }
}

/// Whether a column is one output only: under another name it would not be hidden.
fn is_once(plan: &Plan, path: &str) -> bool {
    let is_of = |expr: &Expr| matches!(expr, Expr::Column(column) if plan.columns[*column].path == path);
    plan.outputs.iter().filter(|output| is_of(&output.expr)).count() == 1
}
