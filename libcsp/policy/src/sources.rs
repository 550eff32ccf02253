//! The channels that a query names: references between objects of the policy, found without a parser of SQL.
//!
//! FROM and JOIN are reserved words of the language, and one name follows each. Nothing else of the text is
//! understood here; for a query that is none, the result means nothing.

/// What a query consists of.
#[derive(Debug, PartialEq)]
enum Token<'s> {
    /// A word without quotes.
    Word(&'s str),
    /// A name in double quotes or backticks.
    Quoted(String),
    /// A sign, or anything else that is no name.
    Other(char),
}

/// Returns the channels that a query reads, in the order of the text: of `channel/format` the channel.
pub(crate) fn channels(sql: &str) -> Vec<String> {
    let mut tokens = Tokens { rest: sql }.peekable();
    let (mut channels, mut names_something) = (Vec::new(), false);
    while let Some(token) = tokens.next() {
        let is_clause = matches!(&token, Token::Word(word) if is(word, "FROM") || is(word, "JOIN"));
        if is_clause && !names_something {
            let mut name = String::new();
            while let Some(part) = tokens.next_if(|token| !matches!(token, Token::Other(_))) {
                name += match &part {
                    Token::Word(word) => word,
                    Token::Quoted(text) => text,
                    Token::Other(_) => "",
                };
                match tokens.next_if_eq(&Token::Other('.')) {
                    Some(_) => name.push('.'),
                    None => break,
                }
            }
            channels.push(name.split('/').next().unwrap_or_default().to_owned());
            names_something = false;
        } else {
            // Behind these a reserved word is a name.
            names_something = match token {
                Token::Word(word) => is(word, "AS"),
                Token::Other(sign) => sign == '.',
                Token::Quoted(_) => false,
            };
        }
    }
    channels
}

fn is(word: &str, keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword)
}

struct Tokens<'s> {
    rest: &'s str,
}

impl<'s> Tokens<'s> {
    /// Takes characters as long as they fit.
    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'s str {
        let end = self.rest.find(|character| !fits(character)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Skips space and comments.
    fn skip_space(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if self.rest.starts_with("--") {
                self.take_while(|character| character != '\n');
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                self.rest = comment.find("*/").map_or("", |end| &comment[end + 2..]);
            } else {
                return;
            }
        }
    }

    /// Takes what stands in quotes; a quote within is written twice.
    fn quoted(&mut self, quote: char) -> String {
        let mut text = String::new();
        loop {
            self.rest = self.rest.strip_prefix(quote).unwrap_or(self.rest);
            text += self.take_while(|character| character != quote);
            self.rest = self.rest.strip_prefix(quote).unwrap_or_default();
            if !self.rest.starts_with(quote) {
                return text;
            }
            text.push(quote);
        }
    }
}

impl<'s> Iterator for Tokens<'s> {
    type Item = Token<'s>;

    fn next(&mut self) -> Option<Token<'s>> {
        self.skip_space();
        let first = self.rest.chars().next()?;
        Some(match first {
            '"' | '`' => Token::Quoted(self.quoted(first)),
            '\'' => {
                self.quoted(first);
                Token::Other(first)
            }
            _ if first.is_alphabetic() || first == '_' => {
                Token::Word(self.take_while(|character| character.is_alphanumeric() || character == '_'))
            }
            // A number ends before a letter; the point within it is no part of a name.
            _ if first.is_ascii_digit() => {
                self.take_while(|character| character.is_ascii_alphanumeric() || character == '.');
                Token::Other(first)
            }
            _ => {
                self.rest = &self.rest[first.len_utf8()..];
                Token::Other(first)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::channels;

    #[test]
    fn names_behind_from_and_join_are_found() {
        for (sql, expected) in [
            ("SELECT * FROM ticks", &["ticks"][..]),
            ("select a from b join c on b.x = c.x", &["b", "c"]),
            ("SELECT 'x FROM y', \"from\" FROM \"a-b/late\" AS t JOIN `c``d` ON 1 = 1", &["a-b", "c`d"]),
            ("SELECT x AS from, y AS join FROM a.b.c WHERE z > 1.5 -- FROM d\n/* JOIN e */", &["a.b.c"]),
            ("SELECT f.from FROM f INNER JOIN g AS join ON \"join\".a = f.a", &["f", "g"]),
            ("SELECT * EXCEPT from FROM a", &["FROM"]),
            ("SELECT 'it''s FROM' FROM a;", &["a"]),
            ("", &[]),
            ("FROM", &[""]),
            ("SELECT 'open FROM a", &[]),
            ("/* FROM a", &[]),
        ] {
            assert_eq!(channels(sql), expected, "{sql}");
        }
    }
}
