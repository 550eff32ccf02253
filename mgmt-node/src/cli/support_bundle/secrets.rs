//! Removes secrets from texts that leave the host.
//!
//! What is removed: blocks of PEM other than certificates and revocation lists, values whose names say that
//! they are secret, user names and passwords of URLs, keys of `anonymise`, in texts of this host runs of 32
//! and more hex digits (keys of the SAN), and whatever stands in this host's files of keys.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::doctor::Seen;

/// What stands in place of a secret.
const REMOVED: &str = "(removed)";
/// PEM blocks that are no secrets.
const PUBLIC: [&str; 2] = ["CERTIFICATE", "X509 CRL"];
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
/// Longest end of a name behind its secret part, in characters.
const NAME_LEN_MAX: usize = 64;
/// Shortest run of hex digits that is taken for a key.
const HEX_LEN_MIN: usize = 32;
/// Shortest piece of a file of keys that is looked for elsewhere.
const PIECE_LEN_MIN: usize = 16;
/// Most pieces of files of keys.
const PIECES_MAX: usize = 256;
/// Longest file of keys that is read, in bytes.
const KEYS_LEN_MAX: u64 = 1 << 20;

/// Where a text comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A file or a program of this host: hex digits may be keys of the SAN.
    Host,
    /// The API of a node: hex digits are hashes of policies and modules.
    Api,
}

/// What is removed beside what looks like a secret.
#[derive(Debug, Default)]
pub struct Secrets {
    /// Pieces of this host's files of keys.
    pieces: Vec<String>,
}

impl Secrets {
    /// Reads the files of keys of this host, as far as the caller may.
    pub fn of(seen: &Seen) -> Secrets {
        let folders = identities(seen).into_iter();
        let mut files: Vec<PathBuf> = folders.map(|folder| folder.join(csp_identity::KEY)).collect();
        files.extend(below(seen, Path::new("/etc/csp/curve")));
        for daemon in &seen.daemons {
            files.extend(daemon.key_files(&seen.host));
            files.extend(daemon.curve_keys().into_iter().flat_map(|folder| below(seen, &folder)));
        }
        let keys = below(seen, Path::new("/etc/csp")).into_iter();
        files.extend(keys.filter(|path| path.extension().is_some_and(|ending| ending == "key")));
        let mut pieces = Vec::new();
        for text in files.iter().filter_map(|path| seen.host.bytes(path, KEYS_LEN_MAX)) {
            pieces.extend(pieces_of(&String::from_utf8_lossy(&text)));
        }
        pieces.truncate(PIECES_MAX);
        Secrets { pieces }
    }

    /// A text without its secrets.
    pub fn text(&self, text: &str, origin: Origin) -> String {
        let text = without_pem(text);
        let text = without_values(&text);
        let text = without_users(&text);
        let mut text = without_hex(&text, origin);
        for piece in &self.pieces {
            if text.contains(piece.as_str()) {
                text = text.replace(piece.as_str(), REMOVED);
            }
        }
        text
    }

    /// A document without its secrets.
    pub fn json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text, Origin::Api)),
            Value::Array(list) => Value::Array(list.into_iter().map(|value| self.json(value)).collect()),
            Value::Object(map) => {
                let of = |(name, value): (String, Value)| {
                    let secret = is_secret(&name) && (value.is_string() || value.is_array());
                    let value = if secret { Value::from(REMOVED) } else { self.json(value) };
                    (self.text(&name, Origin::Api), value)
                };
                Value::Object(map.into_iter().map(of).collect())
            }
            other => other,
        }
    }
}

/// The folders of identities: those of the configuration and all below `/etc/csp`, since a configuration that
/// is broken names none.
pub fn identities(seen: &Seen) -> BTreeSet<PathBuf> {
    let named = seen.daemons.iter().filter_map(|daemon| daemon.identity(&seen.host));
    let own = seen.identity().map(Path::to_owned);
    let found = below(seen, Path::new("/etc/csp")).into_iter();
    let found = found.filter(|path| seen.host.exists(path.join(csp_identity::CERTIFICATE)));
    named.chain(own).chain(found).collect()
}

fn below(seen: &Seen, folder: &Path) -> Vec<PathBuf> {
    seen.host.names(folder).iter().map(|name| folder.join(name)).collect()
}

/// The words of a file of keys that may be keys. What its public parts are is left.
fn pieces_of(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with("-----") && !line.contains("public-key"));
    let words = lines.flat_map(|line| line.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')));
    words.filter(|word| word.len() >= PIECE_LEN_MIN).map(str::to_owned).collect()
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|part| name.contains(part))
}

/// Leaves out blocks of PEM that may be secret, also where line ends are written as `\n`. A block without an
/// end goes to the end of the text.
fn without_pem(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let label = rest[at + BEGIN.len()..].split("-----").next().unwrap_or_default();
        let end = format!("-----END {label}-----");
        let after = rest[at..].find(&end).map_or(rest.len(), |found| at + found + end.len());
        out.push_str(&rest[..at]);
        match PUBLIC.contains(&label) {
            true => out.push_str(&rest[at..after]),
            false => out.push_str(REMOVED),
        }
        rest = &rest[after..];
    }
    out + rest
}

/// Removes values with secret names, line by line, and of YAML what stands deeper below such a name.
fn without_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Indentation of a name whose value stands in the lines below.
    let mut below: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches([' ', '-']).len();
        if below.is_some_and(|of| indent > of || line.trim().is_empty()) {
            continue;
        }
        below = None;
        let (kept, continues) = without_values_of(line);
        out.push_str(&kept);
        if continues {
            out.push_str(&format!("{}{REMOVED}\n", " ".repeat(indent + 2)));
            below = Some(indent);
        }
    }
    out
}

/// One line without its secret values, and whether the value of its last name stands in the lines below.
fn without_values_of(line: &str) -> (String, bool) {
    // Only ASCII letters change, so that places agree.
    let body = line.trim_end();
    let lower = body.to_ascii_lowercase();
    let mut names: Vec<usize> =
        NAMES.iter().flat_map(|name| lower.match_indices(name).map(|(at, found)| at + found.len())).collect();
    names.sort_unstable();
    let (mut out, mut done) = (String::new(), 0);
    for name in names {
        // What stands in a value that is removed is no name.
        let Some((value, len)) = (name >= done).then(|| value_of(body, name)).flatten() else { continue };
        out.push_str(&line[done..value]);
        let Some(len) = len else {
            out.push_str(&line[value..]);
            return (out, true);
        };
        out.push_str(REMOVED);
        done = value + len;
    }
    out.push_str(&line[done..]);
    (out, false)
}

/// Finds the value of the name with a secret part that ends at `part`: its place and length. Without a length
/// it stands in the lines below.
fn value_of(line: &str, part: usize) -> Option<(usize, Option<usize>)> {
    // The rest of the name, such as `-key` of `secret-key`, and a closing quote.
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let rest = line[part..].chars().take(NAME_LEN_MAX).take_while(|c| in_name(*c)).count();
    let mut at = part + rest;
    at += line[at..].bytes().take_while(|byte| matches!(byte, b'"' | b'\'' | b'\\')).count();
    at += line[at..].bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let sign = line.as_bytes().get(at).copied().filter(|byte| matches!(byte, b':' | b'='))?;
    at += 1;
    at += line[at..].bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let value = &line[at..];
    let below = value.is_empty() || (sign == b':' && value.starts_with(['|', '>']));
    match below {
        // `name =` without a value has none below either.
        true => (sign == b':').then_some((at, None)),
        false => Some((at, Some(value_len(value, sign)))),
    }
}

/// How long a value is: to its closing quote, of `name=value` to the next blank or separator, else to the end
/// of the line.
fn value_len(value: &str, sign: u8) -> usize {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    if let Some(quote) = quote {
        let mut escaped = false;
        for (at, c) in value.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => return at + 1,
                _ => {}
            }
        }
        return value.len();
    }
    let ends = |c: char| c.is_whitespace() || matches!(c, '&' | ',' | ';' | '"' | '\'');
    if sign == b'=' { value.find(ends).unwrap_or(value.len()) } else { value.len() }
}

/// Removes what stands before `@` in the authority of URLs.
fn without_users(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '?' | '#' | '<' | '>' | '`');
        let authority = &after[..after.find(ends).unwrap_or(after.len())];
        let user = authority.rfind('@');
        if user.is_some() {
            out.push_str(REMOVED);
        }
        rest = &after[user.unwrap_or(0)..];
    }
    out + rest
}

/// Removes long runs of hex digits: of this host's texts all, of the API's those that follow the word `key`.
fn without_hex(text: &str, origin: Origin) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let run = rest[at..].find(|c: char| !c.is_ascii_hexdigit()).map_or(rest.len(), |len| at + len);
        out.push_str(&rest[..at]);
        let named = ends_with_key(out.trim_end_matches(' '));
        let least = if named { PIECE_LEN_MIN } else { HEX_LEN_MIN };
        match run - at >= least && (origin == Origin::Host || named) {
            true => out.push_str(REMOVED),
            false => out.push_str(&rest[at..run]),
        }
        rest = &rest[run..];
    }
    out + rest
}

fn ends_with_key(text: &str) -> bool {
    let end = &text.as_bytes()[text.len().saturating_sub(3)..];
    end.eq_ignore_ascii_case(b"key")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f";

    fn check(text: &str, expected: &str) {
        assert_eq!(Secrets::default().text(text, Origin::Host), expected, "{text}");
    }

    #[test]
    fn values_with_secret_names_are_removed_and_others_stay() {
        check("password: hunter2 and more\nid: nn-1\n", "password: (removed)\nid: nn-1\n");
        check("{\"apiToken\": \"a\\\"b\", \"id\": 1}", "{\"apiToken\": (removed), \"id\": 1}");
        check("GET /x?token=abc&limit=3 cookie=x; y", "GET /x?token=(removed)&limit=3 cookie=(removed); y");
        check("Authorization: Bearer abc.def", "Authorization: (removed)");
        check(
            "    secret-key = \"Z85\"\n    public-key = \"Z85\"\n",
            "    secret-key = (removed)\n    public-key = \"Z85\"\n",
        );
        let unchanged = "cluster_key_file: /etc/csp/cluster.key\ncurve_keys: /etc/csp/curve\nreason=\"token\"} 3\nno password\n";
        check(unchanged, unchanged);
    }

    #[test]
    fn values_below_their_name_are_removed() {
        check("a:\n  secret: |\n    one\n\n    two\n  b: 1\n", "a:\n  secret: |\n    (removed)\n  b: 1\n");
        check("tokens:\n  - one\n  - two\nb: 1\n", "tokens:\n  (removed)\nb: 1\n");
        check("password =\nnext = 1\n", "password =\nnext = 1\n");
    }

    #[test]
    fn private_keys_are_removed_and_certificates_stay() {
        let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        check(certificate, certificate);
        let key = |label: &str| format!("-----BEGIN {label}-----\nMC4C\n-----END {label}-----\n");
        check(&(certificate.to_owned() + &key("PRIVATE KEY")), &format!("{certificate}(removed)\n"));
        check(&key("EC PRIVATE KEY").replace('\n', "\\n"), "(removed)\\n");
        check("x -----BEGIN PRIVATE KEY-----\nMC4C", "x (removed)");
    }

    #[test]
    fn users_of_urls_are_removed() {
        check("[\"https://root:x@y@10.77.0.4:2379\"]", "[\"https://(removed)@10.77.0.4:2379\"]");
        check("http://10.77.0.4:9104/a@b is a page", "http://10.77.0.4:9104/a@b is a page");
    }

    #[test]
    fn keys_of_the_san_and_of_anonymise_are_removed_and_hashes_of_the_api_stay() {
        check(&format!("1 cluster {KEY}{KEY}\n"), "1 cluster (removed)\n");
        check("generation 3, 0001020304", "generation 3, 0001020304");
        let api = Secrets::default().text(&format!("hash a, key {KEY}; sha256 {KEY}"), Origin::Api);
        assert_eq!(api, format!("hash a, key (removed); sha256 {KEY}"));
    }

    #[test]
    fn what_stands_in_a_file_of_keys_is_removed_wherever_it_is() {
        let z85 = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
        let text = format!("public-key = \"{KEY}\"\nsecret-key = \"{z85}\"\n");
        assert_eq!(pieces_of(&text), ["secret-key", z85][1..]);
        let secrets = Secrets { pieces: vec![z85.to_owned()] };
        assert_eq!(secrets.text(&format!("it is {z85}."), Origin::Api), "it is (removed).");
    }

    #[test]
    fn documents_lose_secrets_at_any_depth() {
        let value = serde_json::json!({"a": [{"password": "x", "tokens": 3, "url": "https://u:p@h/"}], "secret": {"b": "c"}});
        let expected = serde_json::json!({"a": [{"password": "(removed)", "tokens": 3, "url": "https://(removed)@h/"}], "secret": {"b": "c"}});
        assert_eq!(Secrets::default().json(value), expected);
    }

    #[test]
    fn any_text_is_worked_off() {
        for text in [
            "",
            "://",
            "-----BEGIN ",
            "secret",
            "secret:",
            "é: secret=é",
            "password: 'a",
            "token=\"",
            "key ",
            "İsecret: x",
        ] {
            let _ = Secrets::default().text(text, Origin::Host);
        }
    }
}
