//! Names of columns: found in one of the sources, read once each.

use csp_formats::{Field, Presence, Primitive, Target, Type, nearest};

use crate::error::{Position, QueryError, QueryProblem};
use crate::plan::{Column, ColumnPlace, Kind, Source};

/// The sources, and the columns that have been named so far.
#[derive(Debug)]
pub(crate) struct Columns {
    pub sources: Vec<Source>,
    pub columns: Vec<Column>,
}

impl Columns {
    /// The column that an expression names: `path` or `source.path`.
    pub(crate) fn named(&mut self, parts: &[String], at: Position) -> Result<usize, QueryError> {
        let path = parts.join(".");
        // A source's name comes first, if there is something behind it.
        if let Some((first, rest)) = path.split_once('.')
            && let Some(source) = self.sources.iter().position(|source| source.alias == first)
        {
            let rest = rest.to_owned();
            return self
                .column(source, &rest, at)?
                .ok_or_else(|| self.unknown(&rest, at, source..source + 1));
        }
        let mut found = None;
        for source in 0..self.sources.len() {
            if self.sources[source].format().locate(&path).is_err() {
                continue;
            }
            if let Some(first) = found.replace(source) {
                let alias = |source: usize| self.sources[source].alias.clone();
                let problem =
                    QueryProblem::Ambiguous { name: path, first: alias(first), second: alias(source) };
                return Err(QueryError::new(at, problem));
            }
        }
        let all = 0..self.sources.len();
        match found {
            Some(source) => self.column(source, &path, at)?.ok_or_else(|| self.unknown(&path, at, all)),
            None => Err(self.unknown(&path, at, all)),
        }
    }

    /// Whether an expression can name a column so.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.sources.iter().any(|source| source.format().locate(path).is_ok())
    }

    /// The column of a source; `None` if its message has nothing of that path.
    pub(crate) fn column(
        &mut self,
        source: usize,
        path: &str,
        at: Position,
    ) -> Result<Option<usize>, QueryError> {
        let known = self.columns.iter().position(|column| column.source == source && column.path == path);
        if known.is_some() {
            return Ok(known);
        }
        let format = self.sources[source].format();
        let Ok(location) = format.locate(path) else { return Ok(None) };
        if !location.groups.is_empty() {
            let what =
                format!("a field within the group of \"{path}\" (the group as a whole can be selected)");
            return Err(QueryError::new(at, QueryProblem::Unsupported { what }));
        }
        let (place, kind) = match location.target {
            Target::Field(field) => {
                let kind = kind(&field);
                (ColumnPlace::Field(field), kind)
            }
            Target::Data(index) => match format.block.data[index].charset {
                Some(charset) => (ColumnPlace::Data(index), Kind::Text(charset)),
                None => (ColumnPlace::Data(index), Kind::Opaque("binary data")),
            },
            Target::Group(index) => (ColumnPlace::Group(index), Kind::Opaque("a group")),
        };
        self.columns.push(Column { source, path: path.to_owned(), place, kind });
        Ok(Some(self.columns.len() - 1))
    }

    fn unknown(&self, path: &str, at: Position, sources: core::ops::Range<usize>) -> QueryError {
        // The nearest name at the part where the path went wrong, as the format has it.
        let errors: Vec<_> =
            self.sources[sources].iter().filter_map(|source| source.format().locate(path).err()).collect();
        let furthest = errors.iter().map(|error| error.position).max().unwrap_or_default();
        let near: Vec<String> = errors
            .iter()
            .filter(|error| error.position == furthest)
            .filter_map(|error| Some(format!("{}{}", &path[..error.position], error.nearest.as_ref()?)))
            .collect();
        let nearest = nearest(path, near.iter().map(String::as_str));
        QueryError::new(at, QueryProblem::Unknown { what: "column", name: path.to_owned(), nearest })
    }
}

/// The type of a field.
fn kind(field: &Field) -> Kind {
    match &field.kind {
        Type::Enum(kind) => Kind::Enum(kind.clone()),
        Type::Set(kind) => Kind::Set(kind.clone()),
        Type::Composite(_) => Kind::Opaque("a composite"),
        Type::Encoded(encoded) => match (encoded.primitive, encoded.charset) {
            (Primitive::Char, charset) => Kind::Text(charset.unwrap_or(csp_formats::Charset::Ascii)),
            _ if encoded.is_array() && field.presence != Presence::Constant => Kind::Opaque("an array"),
            (Primitive::Float | Primitive::Double, _) => Kind::Float,
            _ => Kind::Integer,
        },
    }
}
