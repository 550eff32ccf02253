//! The clauses of a query, those that SQL does not have included (WITHIN, WINDOW).

use super::Reader;
use super::tokens::TokenKind;
use super::tree::{Exceptions, Item, JoinClause, Statement, Table, WindowClause};
use crate::error::{Position, QueryError, QueryProblem};

/// Longest time of a query, in days: a hundred years.
pub const DURATION_DAYS_MAX: u64 = 36_525;
/// Most rows of a window of rows.
pub const ROWS_MAX: u64 = 1_000_000_000;
/// Most windows of one length that a row goes into.
pub const HOPS_MAX: u64 = 64;

/// Words that end a table's name or an item, so that none of them is an alias.
const CLAUSES: [&str; 25] = [
    "FROM",
    "AS",
    "JOIN",
    "INNER",
    "LEFT",
    "RIGHT",
    "FULL",
    "CROSS",
    "NATURAL",
    "ON",
    "WITHIN",
    "WHERE",
    "GROUP",
    "WINDOW",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "USING",
    "FETCH",
    "QUALIFY",
    "FOR",
];

const MICROS_OF_DAY: u64 = 86_400_000_000;
const UNITS: [(&str, u64); 6] = [
    ("MICROSECOND", 1),
    ("MILLISECOND", 1_000),
    ("SECOND", 1_000_000),
    ("MINUTE", 60_000_000),
    ("HOUR", 3_600_000_000),
    ("DAY", MICROS_OF_DAY),
];

impl Reader {
    pub(super) fn statement(&mut self) -> Result<Statement, QueryError> {
        self.expect("SELECT")?;
        if self.is_word("DISTINCT") {
            return Err(self.unsupported("DISTINCT"));
        }
        let mut select = vec![self.item()?];
        while self.sign(",") {
            select.push(self.item()?);
        }
        self.expect("FROM")?;
        let from = self.table()?;
        let join = self.join()?;
        let filter = if self.word("WHERE") { Some(self.expression()?) } else { None };
        let mut group_by = Vec::new();
        if self.word("GROUP") {
            self.expect("BY")?;
            group_by.push(self.expression()?);
            while self.sign(",") {
                group_by.push(self.expression()?);
            }
        }
        let mut having = if self.word("HAVING") { Some(self.expression()?) } else { None };
        let window = if self.word("WINDOW") { Some(self.window()?) } else { None };
        if having.is_none() && self.word("HAVING") {
            having = Some(self.expression()?);
        }
        while self.sign(";") {}
        self.end()?;
        Ok(Statement { select, from, join, filter, group_by, having, window })
    }

    fn item(&mut self) -> Result<Item, QueryError> {
        let at = self.at();
        if self.sign("*") {
            return Ok(Item::All { of: None, but: self.exceptions()?, at });
        }
        // `channel.*`; a channel's name can have points.
        if let Some(len) = self.all_of() {
            let mut name = self.name()?;
            while self.next + 1 < len {
                self.next();
                name = format!("{name}.{}", self.name()?);
            }
            self.next();
            self.next();
            return Ok(Item::All { of: Some(name), but: self.exceptions()?, at });
        }
        let value = self.expression()?;
        Ok(Item::Expression { value, alias: self.alias()? })
    }

    /// The number of the token behind the name in `name.*`; `None`: something else is next.
    fn all_of(&self) -> Option<usize> {
        let mut at = self.next;
        loop {
            let kind = |at: usize| self.tokens.get(at).map(|token| &token.kind);
            if !matches!(kind(at)?, TokenKind::Word { .. }) || kind(at + 1)? != &TokenKind::Sign(".") {
                return None;
            }
            if kind(at + 2)? == &TokenKind::Sign("*") {
                return Some(at + 1);
            }
            at += 2;
        }
    }

    /// EXCEPT, EXCLUDE, REPLACE and RENAME behind `*`, each once at most.
    fn exceptions(&mut self) -> Result<Exceptions, QueryError> {
        let mut but = Exceptions::default();
        if self.word("EXCEPT") || self.word("EXCLUDE") {
            but.left_out = self.listed(Self::path)?;
        }
        if self.word("REPLACE") {
            but.replaced = self.listed(|reader| {
                let value = reader.expression()?;
                reader.expect("AS")?;
                Ok((value, reader.path()?))
            })?;
        }
        if self.word("RENAME") {
            but.renamed = self.listed(|reader| {
                let path = reader.path()?;
                reader.expect("AS")?;
                Ok((path, reader.name()?))
            })?;
        }
        // The list ends here, or goes on.
        if !(self.is_sign(",") || self.is_word("FROM") || self.peek() == &TokenKind::End) {
            return Err(self.unsupported(&format!("{} behind *", self.peek())));
        }
        Ok(but)
    }

    /// One of something, or several in brackets.
    fn listed<T>(&mut self, one: impl Fn(&mut Self) -> Result<T, QueryError>) -> Result<Vec<T>, QueryError> {
        if !self.sign("(") {
            return Ok(vec![one(self)?]);
        }
        let mut all = vec![one(self)?];
        while self.sign(",") {
            all.push(one(self)?);
        }
        self.expect_sign(")")?;
        Ok(all)
    }

    /// A name behind AS, or without it where no clause begins.
    fn alias(&mut self) -> Result<Option<String>, QueryError> {
        let named = self.word("AS");
        let free = match self.peek() {
            TokenKind::Word { quoted: true, .. } => true,
            TokenKind::Word { text, .. } => !CLAUSES.iter().any(|clause| text.eq_ignore_ascii_case(clause)),
            _ => false,
        };
        if named || free { self.name().map(Some) } else { Ok(None) }
    }

    fn table(&mut self) -> Result<Table, QueryError> {
        let path = self.path()?;
        let alias = self.alias()?;
        if self.is_sign(",") {
            return Err(self.unsupported("more than one channel without JOIN"));
        }
        Ok(Table { channel: path.parts.join("."), alias, at: path.at })
    }

    fn join(&mut self) -> Result<Option<JoinClause>, QueryError> {
        for outer in ["LEFT", "RIGHT", "FULL", "CROSS", "NATURAL"] {
            if self.is_word(outer) {
                return Err(self.unsupported("a join other than the inner one"));
            }
        }
        let inner = self.word("INNER");
        if !self.word("JOIN") {
            return if inner { Err(self.expected("JOIN")) } else { Ok(None) };
        }
        let table = self.table()?;
        self.expect("ON")?;
        let on = self.expression()?;
        self.expect("WITHIN")?;
        let within_us = self.duration()?;
        if self.is_word("JOIN") || self.is_word("INNER") {
            return Err(self.unsupported("a join of more than two channels"));
        }
        Ok(Some(JoinClause { table, on, within_us }))
    }

    fn window(&mut self) -> Result<WindowClause, QueryError> {
        if let (TokenKind::Number(digits), TokenKind::Word { text, .. }) = (self.peek(), self.second())
            && ["ROW", "ROWS"].iter().any(|word| text.eq_ignore_ascii_case(word))
        {
            let count = digits.parse().ok().filter(|count| (1..=ROWS_MAX).contains(count));
            let problem = QueryProblem::Syntax(format!("expected a number of rows from 1 to {ROWS_MAX}"));
            let count = count.ok_or_else(|| QueryError::new(self.at(), problem))?;
            self.next();
            self.next();
            return Ok(WindowClause::Rows { count });
        }
        let length_us = self.duration()?;
        let every_at = self.at();
        let every_us = if self.word("EVERY") { self.duration()? } else { length_us };
        if every_us > length_us || !length_us.is_multiple_of(every_us) || length_us / every_us > HOPS_MAX {
            let problem = format!(
                "expected EVERY with a part of the window's length: a half, a third … a {HOPS_MAX}th"
            );
            return Err(QueryError::new(every_at, QueryProblem::Syntax(problem)));
        }
        Ok(WindowClause::Time { length_us, every_us })
    }

    /// `INTERVAL '5' MINUTE`, `5 MINUTES`, `INTERVAL '5 minutes'`; in microseconds, above 0.
    fn duration(&mut self) -> Result<u64, QueryError> {
        self.word("INTERVAL");
        let at = self.at();
        match self.next() {
            TokenKind::Number(digits) => self.units(&digits, at),
            TokenKind::Text(text) => match text.trim().split_once(' ') {
                Some((digits, unit)) => duration(digits, unit.trim(), at),
                None => self.units(text.trim(), at),
            },
            _ => Err(no_duration(at)),
        }
    }

    /// The unit that follows a number.
    fn units(&mut self, digits: &str, at: Position) -> Result<u64, QueryError> {
        match self.next() {
            TokenKind::Word { text, .. } => duration(digits, &text, at),
            _ => Err(no_duration(at)),
        }
    }

    fn end(&mut self) -> Result<(), QueryError> {
        match self.peek() {
            TokenKind::End => Ok(()),
            TokenKind::Word { text, .. }
                if CLAUSES.iter().any(|clause| text.eq_ignore_ascii_case(clause)) =>
            {
                Err(self.unsupported(&format!("{} here", text.to_ascii_uppercase())))
            }
            _ => Err(self.expected("the end of the query")),
        }
    }
}

fn duration(digits: &str, unit: &str, at: Position) -> Result<u64, QueryError> {
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix('S').unwrap_or(&unit);
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, scale)| scale);
    let number = digits.parse::<u64>().ok().filter(|&number| number > 0);
    let micros = scale.zip(number).map(|(scale, number)| number.saturating_mul(scale));
    micros.filter(|micros| *micros <= DURATION_DAYS_MAX * MICROS_OF_DAY).ok_or_else(|| no_duration(at))
}

fn no_duration(at: Position) -> QueryError {
    let problem = format!(
        "expected a time such as INTERVAL '5' MINUTE: a whole number above 0 and MICROSECOND, MILLISECOND, SECOND, MINUTE, HOUR \
         or DAY, at most {DURATION_DAYS_MAX} days"
    );
    QueryError::new(at, QueryProblem::Syntax(problem))
}

const _: () = assert!(DURATION_DAYS_MAX * MICROS_OF_DAY <= i64::MAX as u64 / 1_000);
