//! Rows of several channels that are equal in some columns, side by side: the plan of merged streams.

use csp_formats::Message;

use crate::bind::comparable;
use crate::columns::Columns;
use crate::derive;
use crate::error::{Position, QueryError, QueryProblem};
use crate::plan::{Expr, Output, Plan, Source};

/// A plan whose result has the keys once, and then all other members of each source.
#[derive(Debug)]
pub struct Union {
    /// The plan; it has no join, since it says nothing about which rows meet.
    pub plan: Plan,
    /// The columns of the keys, for each source.
    pub keys: Vec<Vec<usize>>,
}

impl Union {
    /// Lays messages of several sources side by side. A name that two of them have is preceded by the
    /// source's alias.
    ///
    /// # Errors
    /// A source lacks a key, has it in another type, or the result has no format.
    pub fn new(sources: Vec<Source>, keys: &[&str], schema_id: u16) -> Result<Self, QueryError> {
        let mut columns = Columns { sources, columns: Vec::new() };
        let mut outputs: Vec<Output> = Vec::new();
        let mut of_sources = Vec::with_capacity(columns.sources.len());
        for source in 0..columns.sources.len() {
            let own =
                keys.iter().map(|key| key_of(&mut columns, source, key)).collect::<Result<Vec<_>, _>>()?;
            if source == 0 {
                outputs
                    .extend(keys.iter().zip(&own).map(|(key, column)| output(&columns, *column, last(key))));
            }
            of_sources.push(own);
        }
        for (own, key) in of_sources.iter().flat_map(|own| own.iter().zip(keys)) {
            let (first, kind) =
                (&columns.columns[of_sources[0][position(keys, key)]].kind, &columns.columns[*own].kind);
            if !comparable(first, kind) {
                let (expected, found) = (first.name().to_owned(), kind.name().to_owned());
                let operation = format!("the key \"{key}\"");
                return Err(QueryError::new(
                    Position::START,
                    QueryProblem::Type { operation, expected, found },
                ));
            }
        }
        for source in 0..columns.sources.len() {
            for path in members(columns.sources[source].format()) {
                if keys.contains(&path.as_str()) {
                    continue;
                }
                let Some(column) = columns.column(source, &path, Position::START)? else { continue };
                let is_taken = outputs.iter().any(|output| output.name == path);
                let name = if is_taken { format!("{}_{path}", columns.sources[source].alias) } else { path };
                outputs.push(output(&columns, column, &name));
            }
        }
        let derived = derive::derive(&outputs, &columns, schema_id)
            .map_err(|problem| QueryError::new(Position::START, QueryProblem::Format(problem)))?;
        let Columns { sources, columns } = columns;
        let plan = Plan {
            sources,
            join: None,
            columns,
            filter: None,
            having: None,
            window: None,
            group_by: Vec::new(),
            aggregates: Vec::new(),
            outputs,
            derived,
        };
        Ok(Union { plan, keys: of_sources })
    }
}

fn position(keys: &[&str], key: &str) -> usize {
    keys.iter().position(|known| *known == key).unwrap_or(0)
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn output(columns: &Columns, column: usize, name: &str) -> Output {
    let kind = columns.columns[column].kind.clone();
    Output { name: name.to_owned(), expr: Expr::Column(column), kind, like: Some(column), text_len: 0 }
}

fn key_of(columns: &mut Columns, source: usize, key: &str) -> Result<usize, QueryError> {
    columns.column(source, key, Position::START)?.ok_or_else(|| {
        let format = columns.sources[source].format();
        let names = members(format);
        let nearest = csp_formats::nearest(key, names.iter().map(String::as_str));
        QueryError::new(
            Position::START,
            QueryProblem::Unknown { what: "column", name: key.to_owned(), nearest },
        )
    })
}

fn members(format: &Message) -> Vec<String> {
    let block = &format.block;
    let fields = block.fields.iter().map(|field| field.name.to_string());
    let groups = block.groups.iter().map(|group| group.name.to_string());
    fields.chain(groups).chain(block.data.iter().map(|data| data.name.to_string())).collect()
}
