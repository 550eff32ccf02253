//! Expressions, by precedence: each token is read once.

use super::Reader;
use super::tokens::TokenKind;
use super::tree::{Arguments, Ast, Binary, CastTo, Node, Unary};
use crate::error::{QueryError, QueryProblem};

/// Expressions within each other.
pub const NESTING_MAX: usize = 40;

// How strongly operators bind.
const OR: u8 = 1;
const AND: u8 = 2;
const NOT: u8 = 3;
const COMPARE: u8 = 4;
const SUM: u8 = 5;
const PRODUCT: u8 = 6;
const SIGN: u8 = 7;

/// Words that begin no expression.
const RESERVED: [&str; 15] = [
    "FROM", "WHERE", "AND", "OR", "IN", "LIKE", "BETWEEN", "IS", "AS", "WHEN", "THEN", "ELSE", "SELECT",
    "JOIN", "BY",
];

/// Operators that SQL has and the language has not.
const REFUSED: [&str; 9] = ["ILIKE", "SIMILAR", "RLIKE", "REGEXP", "GLOB", "COLLATE", "ESCAPE", "XOR", "DIV"];

/// What SQL has behind a function's arguments.
const BEHIND_CALLS: [&str; 4] = ["OVER", "FILTER", "RESPECT", "IGNORE"];

impl Reader {
    pub(super) fn expression(&mut self) -> Result<Node, QueryError> {
        self.binding(0)
    }

    /// An expression within another.
    fn nested(&mut self, power: u8) -> Result<Node, QueryError> {
        if self.depth == NESTING_MAX {
            let problem = QueryProblem::TooMany { what: "expressions within each other", max: NESTING_MAX };
            return Err(QueryError::new(self.at(), problem));
        }
        self.depth += 1;
        let node = self.binding(power);
        self.depth -= 1;
        node
    }

    /// An expression of operators that bind more strongly than `power`.
    fn binding(&mut self, power: u8) -> Result<Node, QueryError> {
        let mut left = self.prefix()?;
        loop {
            let at = left.at;
            let kind = if let Some((operator, own)) = self.operator() {
                if own <= power {
                    return Ok(left);
                }
                self.next();
                let right = self.binding(own)?;
                Ast::Binary(operator, Box::new(left), Box::new(right))
            } else if power < COMPARE && self.is_test() {
                self.test(left)?
            } else {
                if let Some(word) = REFUSED.iter().find(|word| self.is_word(word)) {
                    return Err(self.unsupported(word));
                }
                return Ok(left);
            };
            left = Node { kind, at };
        }
    }

    /// The binary operator that is next, and how strongly it binds.
    fn operator(&self) -> Option<(Binary, u8)> {
        Some(match self.peek() {
            TokenKind::Sign(sign) => match *sign {
                "=" | "==" => (Binary::Equal, COMPARE),
                "<>" | "!=" => (Binary::NotEqual, COMPARE),
                "<" => (Binary::Less, COMPARE),
                "<=" => (Binary::LessOrEqual, COMPARE),
                ">" => (Binary::Greater, COMPARE),
                ">=" => (Binary::GreaterOrEqual, COMPARE),
                "+" => (Binary::Add, SUM),
                "-" => (Binary::Subtract, SUM),
                "*" => (Binary::Multiply, PRODUCT),
                "/" => (Binary::Divide, PRODUCT),
                "%" => (Binary::Remainder, PRODUCT),
                _ => return None,
            },
            _ if self.is_word("OR") => (Binary::Or, OR),
            _ if self.is_word("AND") => (Binary::And, AND),
            _ => return None,
        })
    }

    /// Whether IS, BETWEEN, IN or LIKE follows, or NOT with one of the latter.
    fn is_test(&self) -> bool {
        ["IS", "BETWEEN", "IN", "LIKE", "NOT"].iter().any(|word| self.is_word(word))
    }

    fn test(&mut self, value: Node) -> Result<Ast, QueryError> {
        let value = Box::new(value);
        if self.word("IS") {
            let negated = self.word("NOT");
            if self.word("NULL") {
                return Ok(Ast::IsNull { value, negated });
            }
            return match self.peek() {
                TokenKind::Word { text, quoted: false } => {
                    Err(self.unsupported(&format!("IS {}", text.to_ascii_uppercase())))
                }
                _ => Err(self.expected("NULL")),
            };
        }
        let negated = self.word("NOT");
        if self.word("BETWEEN") {
            let low = Box::new(self.binding(COMPARE)?);
            self.expect("AND")?;
            let high = Box::new(self.binding(COMPARE)?);
            return Ok(Ast::Between { value, low, high, negated });
        }
        if self.word("IN") {
            self.expect_sign("(")?;
            let list = self.list()?;
            return Ok(Ast::In { value, list, negated });
        }
        if self.word("LIKE") {
            let pattern = Box::new(self.binding(COMPARE)?);
            return Ok(Ast::Like { value, pattern, negated });
        }
        Err(self.expected("BETWEEN, IN or LIKE"))
    }

    fn prefix(&mut self) -> Result<Node, QueryError> {
        let at = self.at();
        let kind = match self.peek().clone() {
            TokenKind::Number(digits) => {
                self.next();
                Ast::Number(digits)
            }
            TokenKind::Text(text) => {
                self.next();
                Ast::Text(text)
            }
            TokenKind::Sign("(") => {
                self.next();
                let inner = self.nested(0)?;
                self.expect_sign(")")?;
                inner.kind
            }
            TokenKind::Sign(sign @ ("-" | "+")) => {
                self.next();
                let unary = if sign == "-" { Unary::Minus } else { Unary::Plus };
                Ast::Unary(unary, Box::new(self.nested(SIGN)?))
            }
            TokenKind::Word { text, quoted: false } => self.word_expression(&text)?,
            TokenKind::Word { quoted: true, .. } => Ast::Name(self.path()?.parts),
            TokenKind::Sign(_) | TokenKind::End => return Err(self.expected("an expression")),
        };
        Ok(Node { kind, at })
    }

    /// An expression that begins with a word without quotes.
    fn word_expression(&mut self, word: &str) -> Result<Ast, QueryError> {
        if RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(word)) {
            return Err(self.expected("an expression"));
        }
        if self.is_call() {
            self.next();
            self.next();
            return if word.eq_ignore_ascii_case("CAST") { self.cast() } else { self.call(word) };
        }
        if self.word("NULL") {
            return Ok(Ast::Null);
        }
        if self.word("TRUE") {
            return Ok(Ast::Boolean(true));
        }
        if self.word("FALSE") {
            return Ok(Ast::Boolean(false));
        }
        if self.word("NOT") {
            return Ok(Ast::Unary(Unary::Not, Box::new(self.nested(NOT)?)));
        }
        if self.word("CASE") {
            return self.case();
        }
        let parts = self.path()?.parts;
        if self.is_sign("(") {
            return Err(self.unsupported(&format!("the function {}", parts.join("."))));
        }
        Ok(Ast::Name(parts))
    }

    /// Whether a word with an opening bracket behind it is next. `NOT (`, `CASE (` and literals are none.
    fn is_call(&self) -> bool {
        let is_open = self.tokens.get(self.next + 1).is_some_and(|token| token.kind == TokenKind::Sign("("));
        is_open && !["NOT", "CASE", "NULL", "TRUE", "FALSE"].iter().any(|word| self.is_word(word))
    }

    /// A function behind its opening bracket.
    fn call(&mut self, name: &str) -> Result<Ast, QueryError> {
        let name = name.to_owned();
        let arguments = if self.sign("*") {
            self.expect_sign(")")?;
            Arguments::All
        } else if self.sign(")") {
            Arguments::List(Vec::new())
        } else {
            for word in ["DISTINCT", "ALL"] {
                // A column can have this name.
                if self.is_word(word)
                    && matches!(self.second(), TokenKind::Word { .. } | TokenKind::Number(_))
                {
                    return Err(self.unsupported(&format!("{name}({word} …)")));
                }
            }
            Arguments::List(self.list()?)
        };
        let within = self.is_word("WITHIN")
            && matches!(self.second(), TokenKind::Word { text, .. } if text.eq_ignore_ascii_case("GROUP"));
        if within {
            return Err(self.unsupported("WITHIN GROUP"));
        }
        if let Some(word) = BEHIND_CALLS.iter().find(|word| self.is_word(word)) {
            return Err(self.unsupported(&format!("{word} behind {name}")));
        }
        Ok(Ast::Call { name, arguments })
    }

    /// Expressions between commas, and the closing bracket.
    fn list(&mut self) -> Result<Vec<Node>, QueryError> {
        let mut list = vec![self.nested(0)?];
        while self.sign(",") {
            list.push(self.nested(0)?);
        }
        if self.is_word("ORDER") {
            return Err(self.unsupported("ORDER BY within brackets"));
        }
        self.expect_sign(")")?;
        Ok(list)
    }

    fn case(&mut self) -> Result<Ast, QueryError> {
        let operand = if self.is_word("WHEN") { None } else { Some(Box::new(self.nested(0)?)) };
        let mut arms = Vec::new();
        while self.word("WHEN") {
            let condition = self.nested(0)?;
            self.expect("THEN")?;
            arms.push((condition, self.nested(0)?));
        }
        if arms.is_empty() {
            return Err(self.expected("WHEN"));
        }
        let otherwise = if self.word("ELSE") { Some(Box::new(self.nested(0)?)) } else { None };
        self.expect("END")?;
        Ok(Ast::Case { operand, arms, otherwise })
    }

    /// `CAST(value AS type)` behind the opening bracket.
    fn cast(&mut self) -> Result<Ast, QueryError> {
        let value = Box::new(self.nested(0)?);
        self.expect("AS")?;
        let at = self.at();
        let TokenKind::Word { text, .. } = self.next() else {
            return Err(QueryError::new(at, QueryProblem::Syntax("expected a type".to_owned())));
        };
        let to = match text.to_ascii_uppercase().as_str() {
            "INTEGER" | "INT" | "BIGINT" | "SMALLINT" | "TINYINT" => CastTo::Integer,
            "FLOAT" | "REAL" => CastTo::Float,
            "DOUBLE" => {
                self.word("PRECISION");
                CastTo::Float
            }
            _ => {
                let what = format!("CAST to {text} (BIGINT and DOUBLE are)");
                return Err(QueryError::new(at, QueryProblem::Unsupported { what }));
            }
        };
        self.expect_sign(")")?;
        Ok(Ast::Cast { value, to })
    }
}
