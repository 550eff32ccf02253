//! Removes secrets from texts that leave the host.
//!
//! What is removed: blocks of PEM other than certificates and revocation lists, values whose names say that
//! they are secret, user names and passwords of URLs, keys of `anonymise`, in texts of this host runs of 32
//! and more hex digits (keys of the SAN), and whatever stands in this host's files of keys.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::doctor::Seen;
use super::values::{is_secret, without_values};

/// What stands in place of a secret.
pub const REMOVED: &str = "(removed)";
/// PEM blocks that are no secrets.
const PUBLIC: [&str; 2] = ["CERTIFICATE", "X509 CRL"];
/// How blocks of PEM begin.
const PEM_BEGIN: &str = "-----BEGIN ";
/// How blocks of PEM end.
const PEM_END: &str = "-----END ";
/// Longest block of PEM of which only the end is there, in bytes: one of 4,096 bits is half as long in a log.
const PEM_LEN_MAX: usize = 16 << 10;
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
    /// A program or a log of this host: hex digits may be keys of the SAN.
    Host,
    /// A configuration file of this host in YAML.
    Yaml,
    /// Another configuration file of this host, with lines `NAME=value`.
    Settings,
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
        let text = without_values(&text, origin);
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

/// Leaves out blocks of PEM that may be secret, also where line ends are written as `\n`. A block without an
/// end may be secret: a public one goes to the next block, another to the end of the text.
fn without_pem(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PEM_BEGIN) {
        let label = label(&rest[at + PEM_BEGIN.len()..]);
        let end = format!("{PEM_END}{label}-----");
        let after = rest[at..].find(&end).map(|found| at + found + end.len());
        let body = at + PEM_BEGIN.len();
        let next = rest[body..].find(PEM_BEGIN).map_or(rest.len(), |found| body + found);
        out.push_str(&without_ends(&rest[..at]));
        let (after, public) = match (PUBLIC.contains(&label), after) {
            (true, Some(after)) if after <= next => (after, true),
            (true, _) => (next, false),
            (false, after) => (after.unwrap_or(rest.len()), false),
        };
        out.push_str(if public { &rest[at..after] } else { REMOVED });
        rest = &rest[after..];
    }
    out + &without_ends(rest)
}

/// Leaves out ends of secret blocks of PEM that begin before the text does, as in a log that was cut.
fn without_ends(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PEM_END) {
        let label = label(&rest[at + PEM_END.len()..]);
        let after = at + PEM_END.len() + label.len();
        let after = after + if rest[after..].starts_with("-----") { 5 } else { 0 };
        match PUBLIC.contains(&label) {
            true => out.push_str(&rest[..after]),
            false => {
                out.push_str(&rest[..rest.floor_char_boundary(at.saturating_sub(PEM_LEN_MAX))]);
                out.push_str(REMOVED);
            }
        }
        rest = &rest[after..];
    }
    out + rest
}

/// What a line of PEM names, from behind its first word on.
fn label(text: &str) -> &str {
    let line = text.split(['\n', '\\']).next().unwrap_or_default();
    line.split("-----").next().unwrap_or_default()
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
        match run - at >= least && (origin != Origin::Api || named) {
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
    fn private_keys_are_removed_and_certificates_stay() {
        let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        check(certificate, certificate);
        let key = |label: &str| format!("-----BEGIN {label}-----\nMC4C\n-----END {label}-----\n");
        check(&(certificate.to_owned() + &key("PRIVATE KEY")), &format!("{certificate}(removed)\n"));
        check(&key("EC PRIVATE KEY").replace('\n', "\\n"), "(removed)\\n");
        check("x -----BEGIN PRIVATE KEY-----\nMC4C", "x (removed)");
    }

    #[test]
    fn blocks_without_a_beginning_or_an_end_are_secret() {
        let open = "-----BEGIN CERTIFICATE-----\nMIIB\n";
        let certificate = format!("{open}-----END CERTIFICATE-----\n");
        let key = "-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n";
        check(&format!("{open}{key}"), "(removed)(removed)\n");
        check(&format!("{open}{key}{certificate}"), &format!("(removed)(removed)\n{certificate}"));
        check(&format!("{open}{certificate}"), &format!("(removed){certificate}"));
        check(open, "(removed)");
        check(
            &format!("MC4C\n-----END PRIVATE KEY-----\nx {certificate}"),
            &format!("(removed)\nx {certificate}"),
        );
        check("x\n-----END CERTIFICATE-----\n", "x\n-----END CERTIFICATE-----\n");
        let long = "é".repeat(PEM_LEN_MAX);
        assert!(Secrets::default().text(&format!("{long}x-----END X"), Origin::Host).ends_with("é(removed)"));
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
            "--token é",
            "é?token=é&é",
            "token: '\\",
            "token: [\n\n",
            "-----END ",
        ] {
            for origin in [Origin::Host, Origin::Api, Origin::Yaml, Origin::Settings] {
                let _ = Secrets::default().text(text, origin);
            }
        }
    }
}
