//! The columns of the result.

use csp_formats::nearest;

use super::expressions::{Binder, Bound};
use super::literals::wrong_type;
use crate::error::{Position, QueryError, QueryProblem};
use crate::plan::{Aggregate, Expr, Kind, Output};
use crate::syntax::{Exceptions, Item, Path};

/// Columns of the result, each with its place in the query.
pub(super) type Outputs = Vec<(Output, Position)>;

/// Adds the columns that an item of the SELECT list makes.
pub(super) fn add(item: &Item, binder: &mut Binder, outputs: &mut Outputs) -> Result<(), QueryError> {
    match item {
        Item::Expression { value, alias } => {
            let bound = binder.bound(value)?;
            if matches!(bound.kind, Kind::Null) {
                return Err(wrong_type(value.at, "SELECT", "a value with a type", &bound.kind));
            }
            let name = alias.clone().unwrap_or_else(|| binder.name_of(&bound.expr, outputs.len()));
            binder.output(name, bound, outputs)
        }
        Item::All { of, but, at } => {
            let sources = match of {
                Some(name) => {
                    let source = binder.source_named(name, *at)?;
                    source..source + 1
                }
                None => 0..binder.sources(),
            };
            All::new(sources, but, *at, binder)?.add(binder, outputs)
        }
    }
}

/// What `*` stands for: columns of sources, and what is different from them.
struct All<'s> {
    columns: Vec<(usize, String)>,
    left_out: Vec<usize>,
    replaced: Vec<(usize, &'s crate::syntax::Node)>,
    renamed: Vec<(usize, &'s str)>,
    at: Position,
}

impl<'s> All<'s> {
    fn new(
        sources: core::ops::Range<usize>,
        but: &'s Exceptions,
        at: Position,
        binder: &mut Binder,
    ) -> Result<Self, QueryError> {
        let Exceptions { left_out, replaced, renamed } = but;
        let columns: Vec<(usize, String)> = sources
            .flat_map(|source| binder.members(source).into_iter().map(move |member| (source, member)))
            .collect();
        binder.spend(columns.len(), at)?;
        let mut all = All { columns, left_out: Vec::new(), replaced: Vec::new(), renamed: Vec::new(), at };
        for path in left_out {
            all.left_out.extend(all.find(path, binder)?);
        }
        for (node, path) in replaced {
            let found = all.one(path, binder)?;
            all.replaced.push((found, node));
        }
        for (path, name) in renamed {
            let found = all.one(path, binder)?;
            all.renamed.push((found, name));
        }
        Ok(all)
    }

    /// The columns of a name: in each source, if it does not name one.
    fn find(&self, path: &Path, binder: &Binder) -> Result<Vec<usize>, QueryError> {
        let (source, name) = match &path.parts[..] {
            [source, name @ ..] if !name.is_empty() => {
                (binder.source_named(source, path.at).ok(), name.join("."))
            }
            parts => (None, parts.join(".")),
        };
        let name = if source.is_none() { path.parts.join(".") } else { name };
        let columns = self.columns.iter().enumerate();
        let found: Vec<usize> = columns
            .filter(|(_, (of, member))| *member == name && source.is_none_or(|source| source == *of))
            .map(|(at, _)| at)
            .collect();
        if found.is_empty() {
            let nearest = nearest(&name, self.columns.iter().map(|(_, member)| member.as_str()));
            return Err(QueryError::new(path.at, QueryProblem::Unknown { what: "column", name, nearest }));
        }
        Ok(found)
    }

    /// The only column of a name, which is not left out, replaced or renamed already.
    fn one(&self, path: &Path, binder: &Binder) -> Result<usize, QueryError> {
        let found = self.find(path, binder)?;
        let is_taken = self.left_out.contains(&found[0])
            || self.renamed.iter().any(|(at, _)| *at == found[0])
            || self.replaced.iter().any(|(at, _)| *at == found[0]);
        if found.len() > 1 || is_taken {
            let what = format!("\"{}\", which is named twice behind *,", path.parts.join("."));
            return Err(QueryError::new(path.at, QueryProblem::Unsupported { what }));
        }
        Ok(found[0])
    }

    fn add(self, binder: &mut Binder, outputs: &mut Outputs) -> Result<(), QueryError> {
        if self.left_out.len() >= self.columns.len() {
            let what = "a SELECT list without columns".to_owned();
            return Err(QueryError::new(self.at, QueryProblem::Unsupported { what }));
        }
        for (at, (source, path)) in self.columns.iter().enumerate() {
            if self.left_out.contains(&at) {
                continue;
            }
            let renamed = self.renamed.iter().find(|(column, _)| *column == at);
            let name = renamed.map_or_else(|| path.clone(), |(_, name)| (*name).to_owned());
            let bound = match self.replaced.iter().find(|(column, _)| *column == at) {
                Some((_, node)) => binder.bound(node)?,
                None => {
                    let (expr, kind) = binder.column(*source, path, self.at)?;
                    Bound { expr, kind, at: self.at }
                }
            };
            if matches!(bound.kind, Kind::Null) {
                return Err(wrong_type(bound.at, "SELECT", "a value with a type", &bound.kind));
            }
            binder.output(name, bound, outputs)?;
        }
        Ok(())
    }
}

impl Binder {
    fn output(&mut self, name: String, bound: Bound, outputs: &mut Outputs) -> Result<(), QueryError> {
        let Bound { expr, kind, at } = bound;
        let like = if let Expr::Column(column) = expr { Some(column) } else { None };
        let mut text_len = 0;
        if let (Kind::Text(_), None) = (&kind, like) {
            text_len = self.text_len(&expr).ok_or_else(|| {
                let (operation, expected) = (format!("\"{name}\""), "text of a fixed length".to_owned());
                QueryError::new(
                    at,
                    QueryProblem::Type { operation, expected, found: "text of any length".to_owned() },
                )
            })?;
        }
        outputs.push((Output { name, expr, kind, like, text_len }, at));
        Ok(())
    }

    /// What a column of the result is called without AS.
    fn name_of(&self, expr: &Expr, index: usize) -> String {
        let own = |column: usize| self.path_of(column).rsplit('.').next().unwrap_or_default().to_owned();
        match expr {
            Expr::Column(column) => own(*column),
            Expr::Aggregate(aggregate) => {
                let Aggregate { function, argument } = &self.aggregates[*aggregate];
                match argument {
                    Some(Expr::Column(column)) => {
                        format!("{}_{}", function.name().to_lowercase(), own(*column))
                    }
                    _ => function.name().to_lowercase(),
                }
            }
            _ => format!("column{}", index + 1),
        }
    }
}
