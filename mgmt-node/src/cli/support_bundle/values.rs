//! Removes values whose names say that they are secret.
//!
//! It errs on the side of removing: what may be the rest of such a value goes as well.

use super::secrets::{Origin, REMOVED};

/// Names of secrets, or parts of such names, in lower case.
const NAMES: [&str; 15] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "private_key",
    "private-key",
    "privatekey",
    "private key",
    "api_key",
    "api-key",
    "apikey",
    "authorization",
    "cookie",
    "setcredential",
];
/// First words of values of two words, in lower case.
const SCHEMES: [&str; 4] = ["basic", "bearer", "digest", "token"];
/// Longest end of a name behind its secret part, in characters.
const NAME_LEN_MAX: usize = 64;

/// Returns whether a name is that of a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|part| name.contains(part))
}

/// Removes values with secret names, line by line, and the lines in which such a value may go on.
pub fn without_values(text: &str, origin: Origin) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest: Option<Rest> = None;
    for line in text.split_inclusive('\n') {
        if rest.as_mut().is_some_and(|rest| rest.covers(line)) {
            continue;
        }
        let (kept, more) = without_values_of(line, origin);
        out.push_str(&kept);
        rest = more;
    }
    out
}

/// One line without its secret values, and what its last value may have in the lines that follow.
fn without_values_of(line: &str, origin: Origin) -> (String, Option<Rest>) {
    // Only ASCII letters change, so that places agree.
    let body = line.trim_end();
    let lower = body.to_ascii_lowercase();
    let mut names: Vec<usize> =
        NAMES.iter().flat_map(|name| lower.match_indices(name).map(|(at, found)| at + found.len())).collect();
    names.sort_unstable();
    let (mut out, mut done) = (String::new(), 0);
    let mut rest = None;
    for name in names {
        // What stands in a value that is removed is no name.
        let Some(value) = (name >= done).then(|| Value::of(body, name, origin)).flatten() else { continue };
        out.push_str(&line[done..value.at]);
        // A name alone has its value below.
        if body[..value.at].ends_with(':') {
            out.push(' ');
        }
        out.push_str(REMOVED);
        done = value.end;
        rest = value.goes_on.then(|| Rest::of(body, value.sign, origin));
    }
    out.push_str(&line[done..]);
    (out, rest)
}

/// What stands between a name and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    /// `name: value`
    Colon,
    /// `name=value`
    Equals,
    /// `--name value`
    Blank,
}

/// Where a value is in its line.
struct Value {
    sign: Sign,
    at: usize,
    end: usize,
    /// Whether the next lines may belong to it.
    goes_on: bool,
}

impl Value {
    /// Finds the value of the name with a secret part that ends at `part`.
    fn of(line: &str, part: usize, origin: Origin) -> Option<Value> {
        // The rest of the name, such as `-key` of `secret-key`, and a closing quote.
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let rest = line[part..].chars().take(NAME_LEN_MAX).take_while(|c| in_name(*c)).count();
        let start = line[..part].rfind(|c| !in_name(c)).map_or(0, |at| line.ceil_char_boundary(at + 1));
        let mut at = part + rest;
        at += line[at..].bytes().take_while(|byte| matches!(byte, b'"' | b'\'' | b'\\')).count();
        let blanks = |at: usize| line[at..].bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let gap = blanks(at);
        at += gap;
        let sign = match line.as_bytes().get(at).copied() {
            Some(b':') => Sign::Colon,
            Some(b'=') => Sign::Equals,
            Some(_) if gap > 0 && line[start..].starts_with("--") => Sign::Blank,
            _ => return None,
        };
        if sign != Sign::Blank {
            at += 1;
            at += blanks(at);
        }
        let (end, goes_on) = match (sign, closing(&line[at..])) {
            // `name =` without a value has none below either.
            (Sign::Equals | Sign::Blank, _) if at == line.len() => return None,
            (Sign::Colon, Some(len)) if origin != Origin::Settings => (at + len, false),
            (Sign::Colon, _) => (line.len(), true),
            _ if matches!(origin, Origin::Yaml | Origin::Settings) => (line.len(), true),
            (_, Some(len)) => (at + len, false),
            (_, None) => {
                let query = line[..start].ends_with(['?', '&']);
                (at + word_len(&line[..at], &line[at..], query), false)
            }
        };
        Some(Value { sign, at, end, goes_on })
    }
}

/// Returns the length of a value in quotes; `None` if it does not begin with one or none closes it.
fn closing(value: &str) -> Option<usize> {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut chars = value.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        let doubled = quote == '\'' && chars.peek().is_some_and(|(_, next)| *next == quote);
        match c {
            '\\' => drop(chars.next()),
            // YAML writes an apostrophe in quotes twice.
            c if c == quote && doubled => drop(chars.next()),
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the length of a value in a log: to the next blank, to a quote that was opened before, in the query
/// of a URL to the next `&`. A value such as `Bearer …` has two words.
fn word_len(before: &str, value: &str, query: bool) -> usize {
    let open = |c: char| before.matches(c).count() % 2 == 1;
    let ends = |c: char| c.is_whitespace() || (query && c == '&') || (matches!(c, '"' | '\'') && open(c));
    let len = value.find(ends).unwrap_or(value.len());
    let scheme = SCHEMES.iter().any(|scheme| value[..len].eq_ignore_ascii_case(scheme));
    match value[len..].strip_prefix(' ') {
        Some(second) if scheme => len + 1 + second.find(ends).unwrap_or(second.len()),
        _ => len,
    }
}

/// What the lines after a value have of it.
struct Rest {
    /// Indentation of the line that begins it.
    indent: usize,
    /// Whether that line is a comment.
    comment: bool,
    /// Whether deeper lines belong to the value: not below `NAME=value`.
    nested: bool,
    /// Whether every line belongs to it that begins nothing else.
    yaml: bool,
    open: Open,
}

impl Rest {
    fn of(line: &str, sign: Sign, origin: Origin) -> Rest {
        let comment = is_comment(line);
        let mut open = Open { brackets: origin == Origin::Yaml, ..Open::default() };
        if !comment && matches!(origin, Origin::Yaml | Origin::Settings) {
            open.read(line);
        }
        let nested = sign == Sign::Colon || origin == Origin::Yaml;
        Rest {
            indent: indent(line, comment),
            comment,
            nested,
            yaml: nested && !comment && origin == Origin::Yaml,
            open,
        }
    }

    /// Returns whether a line belongs to the value.
    fn covers(&mut self, line: &str) -> bool {
        if self.comment && !is_comment(line) {
            return false;
        }
        if self.open.is_open() {
            self.open.read(line.trim_end());
            return true;
        }
        let blank = line.trim().is_empty();
        self.nested
            && (blank || indent(line, self.comment) > self.indent || (self.yaml && !begins(line.trim())))
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// The place of a line's first word: a `-` of YAML counts as a blank, and of a comment the `#`.
fn indent(line: &str, comment: bool) -> usize {
    let blank = |c: char| matches!(c, ' ' | '\t' | '-') || (comment && c == '#');
    line.len() - line.trim_start_matches(blank).len()
}

/// Returns whether a line of YAML begins something, so that no value of before goes on in it.
fn begins(line: &str) -> bool {
    let in_key = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '"' | '\'');
    let key = line.trim_start_matches('{').split_once(':');
    let is_key = key.is_some_and(|(key, after)| {
        !key.is_empty() && key.chars().all(in_key) && (after.is_empty() || after.starts_with([' ', '\t']))
    });
    is_key || line == "---" || line.starts_with("- ") || line.starts_with('#')
}

/// What is open at the end of a line: a quote, brackets, a `\` that joins the next line.
#[derive(Default)]
struct Open {
    /// Whether brackets count, as in YAML.
    brackets: bool,
    quote: Option<char>,
    depth: usize,
    joined: bool,
}

impl Open {
    fn is_open(&self) -> bool {
        self.quote.is_some() || self.depth > 0 || self.joined
    }

    fn read(&mut self, line: &str) {
        let begins = |before: char| before.is_whitespace() || "=:[{,('\"".contains(before);
        let mut before = ' ';
        let mut chars = line.chars().peekable();
        self.joined = line.ends_with('\\');
        while let Some(c) = chars.next() {
            match (self.quote, c) {
                (Some(_), '\\') => {
                    chars.next();
                }
                (Some('\''), '\'') if chars.peek() == Some(&'\'') => {
                    chars.next();
                }
                (Some(quote), c) if c == quote => self.quote = None,
                (Some(_), _) => {}
                // An apostrophe or a bracket in a word opens nothing.
                (None, '"' | '\'') if begins(before) => self.quote = Some(c),
                (None, '[' | '{') if self.brackets && begins(before) => self.depth += 1,
                (None, ']' | '}') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            before = c;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_as(origin: Origin, text: &str, expected: &str) {
        assert_eq!(without_values(text, origin), expected, "{text}");
    }

    #[test]
    fn values_with_secret_names_are_removed_and_others_stay() {
        let check = |text: &str, expected: &str| check_as(Origin::Host, text, expected);
        check("password: hunter2 and more\nid: nn-1\n", "password: (removed)\nid: nn-1\n");
        check("{\"apiToken\": \"a\\\"b\", \"id\": 1}", "{\"apiToken\": (removed), \"id\": 1}");
        check("GET /x?token=abc&limit=3 cookie=x; y", "GET /x?token=(removed)&limit=3 cookie=(removed) y");
        check("Authorization: Bearer abc.def", "Authorization: (removed)");
        check(
            "    secret-key = \"Z85\"\n    public-key = \"Z85\"\n",
            "    secret-key = (removed)\n    public-key = \"Z85\"\n",
        );
        let unchanged = "cluster_key_file: /etc/csp/cluster.key\ncurve_keys: /etc/csp/curve\nreason=\"token\"} 3\nno password\n";
        check(unchanged, unchanged);
        check_as(Origin::Yaml, unchanged, unchanged);
    }

    #[test]
    fn values_in_logs_end_at_blanks_and_in_queries_at_separators() {
        let check = |text: &str, expected: &str| check_as(Origin::Host, text, expected);
        check("authorization=Bearer abc id=1", "authorization=(removed) id=1");
        check("password=x7,Kp&9z; id=1", "password=(removed) id=1");
        check("x=\"y\" token=ab\"cd id=1", "x=\"y\" token=(removed) id=1");
        check("{\"text\": \"token=abc\"}", "{\"text\": \"token=(removed)\"}");
        check("exec x --password abc --id 1", "exec x --password (removed) --id 1");
        check("&token=a&b=c", "&token=(removed)&b=c");
    }

    #[test]
    fn values_in_files_go_to_the_end_of_their_line() {
        let check = |text: &str, expected: &str| check_as(Origin::Settings, text, expected);
        check("ETCD_PASSWORD=x7,Kp&9z\nA=1\n", "ETCD_PASSWORD=(removed)\nA=1\n");
        check(
            "Environment=\"X_PASSWORD=correct horse battery\"\nA=1\n",
            "Environment=\"X_PASSWORD=(removed)\nA=1\n",
        );
        check("HEADER=authorization=Bearer abc\nA=1\n", "HEADER=authorization=(removed)\nA=1\n");
        check("ExecStart=x --token a b\n[Service]\n", "ExecStart=x --token (removed)\n[Service]\n");
        check("password =\nnext = 1\n", "password =\nnext = 1\n");
        check("TOKEN='a'\"b\nc\"d\nA=1\n", "TOKEN=(removed)\nA=1\n");
        check("Environment=TOKEN=a \\\n  b \\\n  c\nA=1\n", "Environment=TOKEN=(removed)\nA=1\n");
        check("# don't: set TOKEN=a\nA='1'\n", "# don't: set TOKEN=(removed)\nA='1'\n");
        check_as(Origin::Yaml, "url: /x?token=a;b&c d\nid: 1\n", "url: /x?token=(removed)\nid: 1\n");
    }

    #[test]
    fn values_of_several_lines_are_removed_whole() {
        let removed = |text: &str| {
            for (before, after) in [("a:\n", "b: 1\n"), ("", "# b\n"), ("", "\"b\": [c]\n")] {
                let name = text.split_once(':').unwrap().0;
                let expected = format!("{before}{name}: (removed)\n{after}");
                check_as(Origin::Yaml, &format!("{before}{text}{after}"), &expected);
            }
        };
        removed("password: \"abc\n  def\"\n");
        removed("password: \"abc\ndef: x\"\n");
        removed("password: 'it''s\n\ndef'\n");
        removed("tokens: [one,\n  two]\n");
        removed("tokens: [one,\ntwo: \"]\",\n]\n");
        removed("tokens: {\n  a: one\n}\n");
        removed("password: abc\n  def\n");
        removed("secret: # why\n  value\n");
        removed("secret: !!str |\n  one\n\n  two\n");
        removed("  secret: |\n    one\n\n    two\n");
        removed("tokens:\n  - one\n  - two\n");
        removed("tokens:\n- one\n- two\n");
        removed("password: a[b{c\n");
        removed("private_key: >-\n one\n");
        check_as(
            Origin::Yaml,
            "- token: a\n  b\n- token: c\n  id: 1\n",
            "- token: (removed)\n- token: (removed)\n  id: 1\n",
        );
        check_as(Origin::Yaml, "x:\n  {a: 1, token: b\n  c,\n  d: 1}\n", "x:\n  {a: 1, token: (removed)\n");
        check_as(
            Origin::Yaml,
            "x: {a: 1,\n  token: b\n  c}\ny: 1\n",
            "x: {a: 1,\n  token: (removed)\ny: 1\n",
        );
        check_as(Origin::Yaml, "# token: |\n#   a\n# id: 1\n", "# token: (removed)\n# id: 1\n");
    }

    #[test]
    fn lines_of_logs_that_are_indented_deeper_belong_to_the_value() {
        let text = "at 1: token: abc\n      def\nat 2: x\n  y\n";
        check_as(Origin::Host, text, "at 1: token: (removed)\nat 2: x\n  y\n");
    }
}
