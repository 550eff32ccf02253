//! The clauses of a query. Expressions and tokens are sqlparser's; clauses that SQL does not have (WITHIN, windows of rows) and the
//! refusal of what is not supported are read here.

use sqlparser::ast::{Expr, Ident, SelectItem};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Span, Token, Tokenizer};

use crate::error::{Position, QueryError, QueryProblem};

/// Longest query, in bytes.
pub const QUERY_LEN_MAX: usize = 16 << 10;
/// Words, numbers and signs of a query.
pub const TOKENS_MAX: usize = 1024;
/// Expressions within each other.
pub const NESTING_MAX: usize = 40;

/// A query as it is written.
pub(crate) struct Statement {
    pub select: Vec<SelectItem>,
    pub from: Table,
    pub join: Option<JoinClause>,
    pub filter: Option<Expr>,
    pub group_by: Vec<Expr>,
    pub window: Option<WindowClause>,
}

pub(crate) struct Table {
    pub channel: String,
    pub alias: Option<String>,
    pub span: Span,
}

pub(crate) struct JoinClause {
    pub table: Table,
    pub on: Expr,
    pub within_us: u64,
}

pub(crate) enum WindowClause {
    Time { length_us: u64 },
    Rows { count: u64 },
}

/// Words that end a table's name, so that none of them is an alias.
const CLAUSES: [&str; 20] = [
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
];

const UNITS: [(&str, u64); 6] = [
    ("MICROSECOND", 1),
    ("MILLISECOND", 1_000),
    ("SECOND", 1_000_000),
    ("MINUTE", 60_000_000),
    ("HOUR", 3_600_000_000),
    ("DAY", 86_400_000_000),
];

/// Reads a query.
pub(crate) fn statement(sql: &str) -> Result<Statement, QueryError> {
    if sql.len() > QUERY_LEN_MAX {
        let problem = QueryProblem::TooMany { what: "bytes", max: QUERY_LEN_MAX };
        return Err(QueryError::new(Position::START, problem));
    }
    let dialect = GenericDialect {};
    let tokens = Tokenizer::new(&dialect, sql)
        .tokenize_with_location()
        .map_err(|error| syntax(&format!("{}{}", error.message, error.location)))?;
    let mut words = tokens.iter().filter(|token| !matches!(token.token, Token::Whitespace(_)));
    if let Some(token) = words.nth(TOKENS_MAX) {
        return Err(QueryError::at(
            token.span,
            QueryProblem::TooMany { what: "words and signs", max: TOKENS_MAX },
        ));
    }
    let parser = Parser::new(&dialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens);
    Reader { parser }.statement().map_err(|error| at_end(error, sql))
}

/// The end of a query has no position in its tokens.
fn at_end(mut error: QueryError, sql: &str) -> QueryError {
    if let QueryProblem::Syntax(message) = &mut error.problem
        && message.ends_with("EOF")
    {
        *message = message.replace("EOF", "the end of the query");
        let line = sql.lines().last().unwrap_or_default();
        let (lines, columns) = (sql.lines().count().max(1), line.chars().count() + 1);
        error.position = Position { line: lines as u64, column: columns as u64 };
    }
    error
}

struct Reader<'a> {
    parser: Parser<'a>,
}

impl Reader<'_> {
    fn statement(&mut self) -> Result<Statement, QueryError> {
        self.expect("SELECT")?;
        if self.word("DISTINCT") {
            return Err(self.unsupported("DISTINCT"));
        }
        let mut select = vec![self.parser.parse_select_item().map_err(parser_error)?];
        while self.parser.consume_token(&Token::Comma) {
            select.push(self.parser.parse_select_item().map_err(parser_error)?);
        }
        self.expect("FROM")?;
        let from = self.table()?;
        let join = self.join()?;
        let filter = if self.word("WHERE") { Some(self.expression()?) } else { None };
        let mut group_by = Vec::new();
        if self.word("GROUP") {
            self.expect("BY")?;
            group_by.push(self.expression()?);
            while self.parser.consume_token(&Token::Comma) {
                group_by.push(self.expression()?);
            }
        }
        let window = if self.word("WINDOW") { Some(self.window()?) } else { None };
        while self.parser.consume_token(&Token::SemiColon) {}
        self.end()?;
        Ok(Statement { select, from, join, filter, group_by, window })
    }

    fn table(&mut self) -> Result<Table, QueryError> {
        let span = self.parser.peek_token().span;
        let mut channel = self.identifier()?.value;
        while self.parser.consume_token(&Token::Period) {
            channel = format!("{channel}.{}", self.identifier()?.value);
        }
        let named = self.word("AS");
        let next = self.parser.peek_token().token;
        let free = matches!(&next, Token::Word(word)
            if word.quote_style.is_some() || !CLAUSES.iter().any(|clause| word.value.eq_ignore_ascii_case(clause)));
        let alias = if named || free { Some(self.identifier()?.value) } else { None };
        if matches!(self.parser.peek_token().token, Token::Comma) {
            return Err(self.unsupported("more than one channel without JOIN"));
        }
        Ok(Table { channel, alias, span })
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
        if let Token::Number(digits, _) = self.parser.peek_token().token {
            let position = self.position();
            self.parser.next_token();
            if self.word("ROWS") || self.word("ROW") {
                let count = digits.parse().ok().filter(|&count| count > 0);
                let problem = QueryProblem::Syntax("expected a number of rows above 0".to_owned());
                return Ok(WindowClause::Rows {
                    count: count.ok_or_else(|| QueryError::new(position, problem))?,
                });
            }
            return Ok(WindowClause::Time { length_us: self.units(&digits, position)? });
        }
        Ok(WindowClause::Time { length_us: self.duration()? })
    }

    /// `INTERVAL '5' MINUTE`, `5 MINUTES`, `INTERVAL '5 minutes'`; in microseconds, above 0.
    fn duration(&mut self) -> Result<u64, QueryError> {
        self.word("INTERVAL");
        let position = self.position();
        match self.parser.next_token().token {
            Token::Number(digits, _) => self.units(&digits, position),
            Token::SingleQuotedString(text) => match text.trim().split_once(' ') {
                Some((digits, unit)) => duration(digits, unit.trim(), position),
                None => self.units(text.trim(), position),
            },
            _ => Err(QueryError::new(position, QueryProblem::Syntax(DURATION.to_owned()))),
        }
    }

    /// The unit that follows a number.
    fn units(&mut self, digits: &str, position: Position) -> Result<u64, QueryError> {
        match self.parser.next_token().token {
            Token::Word(unit) => duration(digits, &unit.value, position),
            _ => Err(QueryError::new(position, QueryProblem::Syntax(DURATION.to_owned()))),
        }
    }

    fn end(&mut self) -> Result<(), QueryError> {
        let next = self.parser.peek_token();
        match &next.token {
            Token::EOF => Ok(()),
            Token::Word(word) if CLAUSES.iter().any(|clause| word.value.eq_ignore_ascii_case(clause)) => {
                Err(self.unsupported(&format!("{} here", word.value.to_ascii_uppercase())))
            }
            _ => Err(self.expected("the end of the query")),
        }
    }

    fn expression(&mut self) -> Result<Expr, QueryError> {
        self.parser.parse_expr().map_err(parser_error)
    }

    fn identifier(&mut self) -> Result<Ident, QueryError> {
        self.parser.parse_identifier().map_err(parser_error)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.parser.peek_token_ref().token, Token::Word(found)
            if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
    }

    /// Consumes a word if it is the next.
    fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.parser.next_token();
        }
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), QueryError> {
        if self.word(word) { Ok(()) } else { Err(self.expected(word)) }
    }

    fn position(&self) -> Position {
        Position::of(self.parser.peek_token_ref().span)
    }

    fn expected(&self, what: &str) -> QueryError {
        let found = &self.parser.peek_token_ref().token;
        QueryError::new(self.position(), QueryProblem::Syntax(format!("expected {what}, found {found}")))
    }

    fn unsupported(&self, what: &str) -> QueryError {
        QueryError::new(self.position(), QueryProblem::Unsupported { what: what.to_owned() })
    }
}

const DURATION: &str = "expected a time such as INTERVAL '5' MINUTE: a whole number above 0 and MICROSECOND, MILLISECOND, \
                        SECOND, MINUTE, HOUR or DAY";

fn duration(digits: &str, unit: &str, position: Position) -> Result<u64, QueryError> {
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix('S').unwrap_or(&unit);
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, scale)| scale);
    let number = digits.parse::<u64>().ok().filter(|&number| number > 0);
    let found = scale.zip(number).and_then(|(scale, number)| number.checked_mul(scale));
    found.ok_or_else(|| QueryError::new(position, QueryProblem::Syntax(DURATION.to_owned())))
}

fn parser_error(error: ParserError) -> QueryError {
    match error {
        ParserError::ParserError(message) | ParserError::TokenizerError(message) => syntax(&message),
        ParserError::RecursionLimitExceeded => {
            let problem = QueryProblem::TooMany { what: "expressions within each other", max: NESTING_MAX };
            QueryError::new(Position::START, problem)
        }
    }
}

/// sqlparser appends the position to its messages.
fn syntax(message: &str) -> QueryError {
    let (text, place) = message.split_once(" at Line: ").unwrap_or((message, ""));
    let mut numbers = place.split(", Column: ").map(|number| number.trim().parse().unwrap_or(0));
    let position = match (numbers.next(), numbers.next()) {
        (Some(line), Some(column)) if line > 0 => Position { line, column },
        _ => Position::START,
    };
    let mut text = text.to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    QueryError::new(position, QueryProblem::Syntax(text))
}
