//! Words, numbers, texts and signs of a query. What the language does not have is no token: it is refused
//! here, before anything is parsed.

use crate::error::{Position, QueryError, QueryProblem};

/// Longest query, in bytes.
pub const QUERY_LEN_MAX: usize = 16 << 10;
/// Words, numbers and signs of a query.
pub const TOKENS_MAX: usize = 1024;

/// A token and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub kind: TokenKind,
    pub at: Position,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    /// A name or a keyword; in double quotes or backticks it is a name.
    Word {
        text: String,
        quoted: bool,
    },
    /// Digits, with a fraction or an exponent.
    Number(String),
    /// Text in single quotes.
    Text(String),
    Sign(&'static str),
    End,
}

/// Signs, the longer ones first.
const SIGNS: [&str; 18] =
    ["<>", "!=", "<=", ">=", "==", "<", ">", "=", "+", "-", "*", "/", "%", "(", ")", ",", ".", ";"];

impl core::fmt::Display for TokenKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            TokenKind::Word { text, quoted: false } | TokenKind::Number(text) => f.write_str(text),
            TokenKind::Word { text, quoted: true } => write!(f, "\"{text}\""),
            TokenKind::Text(text) => write!(f, "'{text}'"),
            TokenKind::Sign(sign) => f.write_str(sign),
            TokenKind::End => f.write_str("the end of the query"),
        }
    }
}

/// The tokens of a query; the last is its end.
pub(crate) fn tokens(sql: &str) -> Result<Vec<Token>, QueryError> {
    if sql.len() > QUERY_LEN_MAX {
        let problem = QueryProblem::TooMany { what: "bytes", max: QUERY_LEN_MAX };
        return Err(QueryError::new(Position::START, problem));
    }
    let mut reader = Reader { rest: sql, at: Position::START };
    let mut tokens = Vec::new();
    loop {
        reader.skip_space()?;
        let at = reader.at;
        if reader.rest.is_empty() {
            tokens.push(Token { kind: TokenKind::End, at });
            return Ok(tokens);
        }
        if tokens.len() == TOKENS_MAX {
            let problem = QueryProblem::TooMany { what: "words and signs", max: TOKENS_MAX };
            return Err(QueryError::new(at, problem));
        }
        tokens.push(Token { kind: reader.token()?, at });
    }
}

struct Reader<'s> {
    rest: &'s str,
    at: Position,
}

impl<'s> Reader<'s> {
    /// Takes the next `len` bytes, which end between two characters.
    fn take(&mut self, len: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(len);
        for character in taken.chars() {
            if character == '\n' {
                self.at = Position { line: self.at.line + 1, column: 1 };
            } else {
                self.at.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    /// Takes characters as long as they fit.
    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'s str {
        self.take(self.rest.find(|character| !fits(character)).unwrap_or(self.rest.len()))
    }

    fn error(&self, message: impl Into<String>) -> QueryError {
        QueryError::new(self.at, QueryProblem::Syntax(message.into()))
    }

    /// Skips space and comments.
    fn skip_space(&mut self) -> Result<(), QueryError> {
        loop {
            self.take_while(char::is_whitespace);
            if self.rest.starts_with("--") {
                self.take_while(|character| character != '\n');
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest[2..].find("*/") else {
                    return Err(self.error("the comment has no end"));
                };
                self.take(end + 4);
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<TokenKind, QueryError> {
        let mut characters = self.rest.chars();
        let (first, second) = (characters.next().unwrap_or_default(), characters.next());
        match first {
            '\'' => return self.quoted('\'').map(TokenKind::Text),
            '"' | '`' => {
                let text = self.quoted(first)?;
                return Ok(TokenKind::Word { text, quoted: true });
            }
            '0'..='9' => return self.number(),
            '.' if second.is_some_and(|digit| digit.is_ascii_digit()) => return self.number(),
            _ if first.is_alphabetic() || first == '_' => {
                let text = self.take_while(|character| character.is_alphanumeric() || character == '_');
                return Ok(TokenKind::Word { text: text.to_owned(), quoted: false });
            }
            _ => (),
        }
        let Some(sign) = SIGNS.iter().find(|sign| self.rest.starts_with(**sign)) else {
            let problem = QueryProblem::Unsupported { what: format!("the sign {}", first.escape_debug()) };
            return Err(QueryError::new(self.at, problem));
        };
        self.take(sign.len());
        Ok(TokenKind::Sign(sign))
    }

    /// What stands in quotes; a quote within is written twice.
    fn quoted(&mut self, quote: char) -> Result<String, QueryError> {
        let begin = self.at;
        let mut text = String::new();
        self.take(1);
        loop {
            text += self.take_while(|character| character != quote);
            if self.rest.is_empty() {
                let problem = QueryProblem::Syntax(format!("the text has no closing {quote}"));
                return Err(QueryError::new(begin, problem));
            }
            self.take(1);
            if !self.rest.starts_with(quote) {
                return Ok(text);
            }
            self.take(1);
            text.push(quote);
        }
    }

    fn number(&mut self) -> Result<TokenKind, QueryError> {
        let digits = |character: char| character.is_ascii_digit();
        let whole = self.rest;
        let mut len = self.take_while(digits).len();
        if self.rest.starts_with('.') {
            len += self.take(1).len() + self.take_while(digits).len();
        }
        let exponent =
            self.rest.strip_prefix(['e', 'E']).map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
        if let Some(rest) = exponent
            && rest.starts_with(digits)
        {
            len += self.take(self.rest.len() - rest.len()).len() + self.take_while(digits).len();
        }
        if self.rest.starts_with(|character: char| character.is_alphabetic() || character == '_') {
            return Err(self.error("a letter follows a number without a space"));
        }
        Ok(TokenKind::Number(whole[..len].to_owned()))
    }
}
