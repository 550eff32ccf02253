//! The language: from text to a tree, in time and memory proportional to the text.
//!
//! ```text
//!  text ─▶ tokens: no others than the language has, at most TOKENS_MAX ─▶ clauses, expressions ─▶ tree
//! ```

mod clauses;
mod expressions;
mod tokens;
mod tree;

use crate::error::{Position, QueryError, QueryProblem};
pub use clauses::{DURATION_DAYS_MAX, HOPS_MAX, ROWS_MAX};
pub use expressions::NESTING_MAX;
pub use tokens::{QUERY_LEN_MAX, TOKENS_MAX};
use tokens::{Token, TokenKind};
pub(crate) use tree::{
    Arguments, Ast, Binary, CastTo, Exceptions, Item, JoinClause, Node, Path, Statement, Table, Unary,
    WindowClause,
};

/// Reads a query.
pub(crate) fn statement(sql: &str) -> Result<Statement, QueryError> {
    Reader { tokens: tokens::tokens(sql)?, next: 0, depth: 0 }.statement()
}

/// The tokens of a query, of which `next` is the next.
struct Reader {
    /// The last is the end, which is never passed.
    tokens: Vec<Token>,
    next: usize,
    /// Expressions that are being read, each within the one before it.
    depth: usize,
}

impl Reader {
    fn token(&self, ahead: usize) -> &Token {
        let at = (self.next + ahead).min(self.tokens.len() - 1);
        &self.tokens[at]
    }

    fn peek(&self) -> &TokenKind {
        &self.token(0).kind
    }

    /// The token behind the next.
    fn second(&self) -> &TokenKind {
        &self.token(1).kind
    }

    fn at(&self) -> Position {
        self.token(0).at
    }

    fn next(&mut self) -> TokenKind {
        let kind = self.peek().clone();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        kind
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Word { text, quoted: false } if text.eq_ignore_ascii_case(word))
    }

    /// Consumes a word if it is the next.
    fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), TokenKind::Sign(found) if *found == sign)
    }

    /// Consumes a sign if it is the next.
    fn sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), QueryError> {
        if self.word(word) { Ok(()) } else { Err(self.expected(word)) }
    }

    fn expect_sign(&mut self, sign: &str) -> Result<(), QueryError> {
        if self.sign(sign) { Ok(()) } else { Err(self.expected(sign)) }
    }

    /// A name without points.
    fn name(&mut self) -> Result<String, QueryError> {
        match self.peek().clone() {
            TokenKind::Word { text, .. } => {
                self.next();
                Ok(text)
            }
            _ => Err(self.expected("a name")),
        }
    }

    /// A name with points.
    fn path(&mut self) -> Result<Path, QueryError> {
        let at = self.at();
        let mut parts = vec![self.name()?];
        while self.sign(".") {
            parts.push(self.name()?);
        }
        Ok(Path { parts, at })
    }

    fn expected(&self, what: &str) -> QueryError {
        QueryError::new(self.at(), QueryProblem::Syntax(format!("expected {what}, found {}", self.peek())))
    }

    fn unsupported(&self, what: &str) -> QueryError {
        QueryError::new(self.at(), QueryProblem::Unsupported { what: what.to_owned() })
    }
}
