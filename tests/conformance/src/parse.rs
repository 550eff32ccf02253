//! Parses scripts. An error names the line and what is allowed there.

mod handshake;
mod segment;
#[cfg(test)]
mod tests;
pub(crate) mod value;

use core::time::Duration;

use csp_tcp::PathError;

pub(crate) use self::segment::flags_text;
use crate::config::Config;
use crate::script::{Call, Check, Line, Operator, Reported, Script, Step, Value, When};

/// An error in a script.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {text}\n  {problem}")]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Text of the line.
    pub text: String,
    /// The error, and what is allowed.
    pub problem: String,
}

/// Parses a script.
///
/// # Errors
/// [`ParseError`] for the first invalid line.
pub fn parse(text: &str) -> Result<Script, ParseError> {
    let mut script = Script { config: Config::default(), lines: Vec::new() };
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
    if !header.iter().any(|line| line.contains("RFC ")) {
        let problem = "a script must begin with comments that describe it and name the RFC and its section";
        let text = text.lines().next().unwrap_or_default().into();
        return Err(ParseError { line: 1, text, problem: problem.into() });
    }
    for (index, raw) in text.lines().enumerate() {
        let content = raw.split('#').next().unwrap_or_default().trim();
        let result = match content.strip_prefix("config ") {
            _ if content.is_empty() => Ok(()),
            Some(_) if !script.lines.is_empty() => {
                Err("config lines must precede the first timed line".into())
            }
            Some(pairs) => configure(&mut script.config, pairs),
            None => timed(content, index + 1).map(|lines| script.lines.extend(lines)),
        };
        result.map_err(|problem| ParseError { line: index + 1, text: raw.into(), problem })?;
    }
    Ok(script)
}

fn configure(config: &mut Config, pairs: &str) -> Result<(), String> {
    for (key, value) in key_values(pairs)? {
        config.set(&key, &value).map_err(|problem| format!("{key}: {problem}"))?;
    }
    Ok(())
}

fn key_values(text: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |word: &str| {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is not key=value"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split_whitespace().map(pair).collect()
}

/// Parses a timed line. A handshake written as one word becomes several lines.
fn timed(content: &str, number: usize) -> Result<Vec<Line>, String> {
    let (time, mut rest) = first_word(content);
    let time = time.strip_prefix('+').ok_or(
        "a line is `config key=value …`, a # comment, or begins with the time since the line before: +0.010",
    )?;
    let after = match time.split_once("..") {
        Some((from, to)) => When::Between(value::duration(from)?, value::duration(to)?),
        None => When::Exactly(value::duration(time)?),
    };
    let mut peer = 1;
    if let (word, after_word) = first_word(rest)
        && let Some(name) = word.strip_prefix('@')
    {
        peer = name.parse().map_err(|_| format!("`{word}` is not a connection such as @2"))?;
        rest = after_word;
    }
    if let (verb @ ("accept" | "open"), arguments) = first_word(rest)
        && let When::Exactly(after) = after
    {
        return handshake::expand(
            verb == "accept",
            arguments,
            Line { number, text: content.into(), after: When::Exactly(after), peer, step: Step::Quiet },
        );
    }
    let step = step(rest)?;
    if matches!(after, When::Between(..)) && !matches!(step, Step::Expect(_)) {
        return Err("a time FROM..TO is allowed only for an expected segment (`>`)".into());
    }
    Ok(vec![Line { number, text: content.into(), after, peer, step }])
}

fn step(text: &str) -> Result<Step, String> {
    let (word, rest) = first_word(text);
    match word {
        "<" => segment::segment(rest, true).map(Step::Arrive),
        ">" => segment::segment(rest, false).map(Step::Expect),
        "!" => event(rest).map(Step::Event),
        "?" => check(rest).map(Step::Check),
        "quiet" if rest.is_empty() => Ok(Step::Quiet),
        _ => call(word, rest).map(Step::Call),
    }
}

fn call(word: &str, rest: &str) -> Result<Call, String> {
    let (arguments, result) = match rest.split_once("->") {
        Some((arguments, result)) => (arguments.trim(), Some(result.trim())),
        None => (rest, None),
    };
    let count = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number of bytes"));
    Ok(match (word, arguments) {
        ("listen", "") => Call::Listen { again: false },
        ("unlisten", "") => Call::Unlisten,
        ("connect", "") => Call::Connect(result.map(value::word)),
        ("write", n) => Call::Write(count(n)?, result.map_or_else(|| count(n), count)?),
        ("read", "all") => Call::Read(usize::MAX, result.map(count).transpose()?),
        ("read", n) => Call::Read(count(n)?, Some(result.map_or_else(|| count(n), count)?)),
        ("shutdown", "") => Call::Shutdown,
        ("close", "") => Call::Close,
        ("reset", "") => Call::Reset,
        ("abort", "") => Call::Abort,
        ("set", pairs) => Call::Options(key_values(pairs)?),
        ("icmp", error) => path_error(error, result)?,
        _ => {
            return Err(format!(
                "`{word} {rest}`: expected < and > with a segment, ! event, ? figure, quiet, accept, open, listen, \
                 unlisten, connect, write N, read N|all, shutdown, close, reset, abort, set key=value, icmp"
            ));
        }
    })
}

/// Parses `too_big mtu N seq S` or `unreachable seq S`, with `-> ignored` if the engine must ignore it.
fn path_error(text: &str, result: Option<&str>) -> Result<Call, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (error, seq) = match words.as_slice() {
        ["too_big", "mtu", mtu, "seq", seq] => {
            let mtu = mtu.parse().map_err(|_| format!("`{mtu}` is no MTU"))?;
            (PathError::PacketTooBig { mtu }, seq)
        }
        ["unreachable", "seq", seq] => (PathError::Unreachable, seq),
        _ => return Err("expected `icmp too_big mtu N seq S` and `icmp unreachable seq S`".into()),
    };
    match result {
        None | Some("ignored") => Ok(Call::PathError(error, value::sequence(seq)?, result.is_none())),
        Some(other) => Err(format!("`-> {other}`: only `-> ignored`")),
    }
}

fn event(text: &str) -> Result<Reported, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    Ok(match words.as_slice() {
        ["established"] => Reported::Established,
        ["readable"] => Reported::Readable(None),
        ["readable", n] => {
            Reported::Readable(Some(n.parse().map_err(|_| format!("`{n}` is not a number of bytes"))?))
        }
        ["writable"] => Reported::Writable,
        ["peer_finished"] => Reported::PeerFinished,
        ["closed"] => Reported::Closed,
        ["reset"] => Reported::Reset,
        ["broken", reason] => Reported::Broken(value::word(reason)),
        ["failed", reason] => Reported::Failed(value::word(reason)),
        ["none"] => Reported::None,
        _ => {
            return Err(format!(
                "event `{text}`: expected established, readable [N], writable, peer_finished, closed, \
                 failed REASON, none"
            ));
        }
    })
}

fn check(text: &str) -> Result<Check, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, operator, text] = words.as_slice() else {
        return Err("a check is `? figure == value`, with == != < <= > >= or `in low..high`".into());
    };
    let mut value = value::value(text);
    let operator = match *operator {
        "==" => Operator::Equal,
        "!=" => Operator::Unequal,
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        "in" => {
            let bounds = text.split_once("..").map(|(low, high)| (value::value(low), value::value(high)));
            let Some((low @ Value::Number(_), Value::Number(high))) = bounds else {
                return Err(format!("`{text}` is not of the form low..high"));
            };
            value = low;
            Operator::Within(high)
        }
        other => return Err(format!("`{other}`: expected == != < <= > >= in")),
    };
    Ok(Check { name: (*name).into(), operator, value })
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim()))
}

/// No time between two lines.
const AT_ONCE: When = When::Exactly(Duration::ZERO);
