//! What crosses the SAN about instances of level 3, as text: the instances that a host runs, calls of their
//! operations, and the answers.
//!
//! ```text
//!   module SHA-256 BYTES-IN-HEX
//!   instance NUMBER NAME MODULE        call          OPERATION         answer      done
//!   set NAME VALUE                                   NAME VALUE                    rows, then KEY tab NOTE (tab NAME=NUMBER)*
//!   output NUMBER INSTANCE-NUMBER                    ...                           bytes, then the bytes
//!   ...                                                                            refused, then why
//! ```
//! Numbers of instances are the network node's. Lines end with a line feed.

use core::fmt::Write as _;

use crate::graph::OUTPUTS_MAX;
use crate::manager::{Manager, ManagerError};
use crate::plugin::Answer;
use crate::settings::{PARAMETERS_MAX, Value};

/// Largest text or answer, in bytes.
pub const REMOTE_LEN_MAX: usize = 16 << 20;
/// Largest number of rows in an answer of a host.
pub const REMOTE_ROWS_MAX: usize = 50_001;
/// Largest number of instances that a host runs for a worker; their numbers are smaller. A text contains at
/// most as many modules.
pub const HOSTED_MAX: usize = 256;
/// Largest number of numbers in a row.
const ROW_NUMBERS_MAX: usize = 32;

/// An instance that a host runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostedInstance {
    /// Its number on the network node.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: String,
    /// All its settings.
    pub settings: Vec<(String, String)>,
    /// Connected outputs, each with the number of the target instance. A target that the host does not run
    /// runs elsewhere.
    pub outputs: Vec<(u8, u32)>,
}

/// Why a text was refused: the number of the first line that violates this format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {0} of a text about plug-ins is wrong")]
pub struct RemoteError(pub usize);

/// A row of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteRow {
    /// The subject.
    pub key: String,
    /// Further text.
    pub note: String,
    /// Numbers with their names.
    pub numbers: Vec<(String, u64)>,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemoteAnswer {
    /// It was done.
    Done,
    /// Rows.
    Rows(Vec<RemoteRow>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// It was refused, with the reason.
    Refused(String),
}

/// Serialises the instances that run in an environment.
///
/// # Errors
/// The environment does not exist.
pub fn write_hosted(manager: &Manager, environment: &str) -> Result<String, ManagerError> {
    let mut text = String::new();
    let connected = manager.connected();
    for (id, name, module, _) in manager.instances().filter(|(.., of)| *of == environment) {
        let _ = writeln!(text, "instance {} {name} {module}", id.0);
        let (_, settings) = manager.settings_of(name)?;
        for (setting, value) in settings.iter() {
            let value = match value {
                Value::Instance(id) => manager.name_of(*id).unwrap_or_default().to_owned(),
                other => escaped(&other.exact()),
            };
            let _ = writeln!(text, "set {setting} {value}");
        }
        for (_, output, to) in connected.iter().filter(|(from, ..)| from == name) {
            let _ = writeln!(text, "output {output} {}", manager.instance(to)?.0);
        }
    }
    Ok(text)
}

/// Parses the output of [`write_hosted`].
///
/// # Errors
/// The number of the first line that is malformed or exceeds a limit: [`HOSTED_MAX`] instances with
/// [`PARAMETERS_MAX`] settings and [`OUTPUTS_MAX`] outputs each.
pub fn read_hosted(text: &str) -> Result<Vec<HostedInstance>, RemoteError> {
    let mut instances: Vec<HostedInstance> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let wrong = RemoteError(at + 1);
        let (word, rest) = line.split_once(' ').ok_or(wrong)?;
        let (first, second) = rest.split_once(' ').ok_or(wrong)?;
        if word == "module" {
            continue;
        }
        if word == "instance" {
            if instances.len() == HOSTED_MAX {
                return Err(wrong);
            }
            let (name, module) = second.split_once(' ').ok_or(wrong)?;
            let id = first.parse().map_err(|_| wrong)?;
            let (name, module) = (name.to_owned(), module.to_owned());
            instances.push(HostedInstance { id, name, module, ..HostedInstance::default() });
            continue;
        }
        let instance = instances.last_mut().ok_or(wrong)?;
        match word {
            "set" if instance.settings.len() == PARAMETERS_MAX => return Err(wrong),
            "output" if instance.outputs.len() == OUTPUTS_MAX => return Err(wrong),
            "set" => instance.settings.push((first.to_owned(), unescaped(second).ok_or(wrong)?)),
            "output" => {
                let (output, to) = (first.parse(), second.parse());
                instance.outputs.push((output.map_err(|_| wrong)?, to.map_err(|_| wrong)?));
            }
            _ => return Err(wrong),
        }
    }
    Ok(instances)
}

/// Serialises a supplied module. It precedes the instances that need it.
pub fn write_module(text: &mut String, module: &str, bytes: &[u8]) {
    let _ = write!(text, "module {module} ");
    text.reserve(2 * bytes.len() + 1);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
}

/// Parses the supplied modules of a text, each with its name.
///
/// # Errors
/// The number of the first line that is malformed, or exceeds [`HOSTED_MAX`] modules.
pub fn read_modules(text: &str) -> Result<Vec<(&str, Vec<u8>)>, RemoteError> {
    let lines = text.lines().enumerate().filter_map(|(at, line)| Some((at, line.strip_prefix("module ")?)));
    lines
        .enumerate()
        .map(|(count, (at, line))| {
            let read = |line: &'_ str| Some((line.find(' ')?, hex(line.split_once(' ')?.1)?));
            let (end, bytes) = read(line).filter(|_| count < HOSTED_MAX).ok_or(RemoteError(at + 1))?;
            Ok((&line[..end], bytes))
        })
        .collect()
}

/// Parses bytes of two hex digits each.
fn hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
}

/// An operation with its arguments by name.
pub type CallText<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// Serialises a call.
pub fn write_call(operation: &str, arguments: &[(&str, &str)]) -> String {
    let mut text = format!("{}\n", one_line(operation));
    for (name, value) in arguments {
        let _ = writeln!(text, "{} {}", one_line(name), one_line(value));
    }
    text
}

/// Parses the output of [`write_call`]: the operation, and its arguments.
///
/// # Errors
/// The number of the first line that is malformed, or exceeds [`PARAMETERS_MAX`] arguments.
pub fn read_call(text: &str) -> Result<CallText<'_>, RemoteError> {
    let mut lines = text.lines();
    let operation = lines.next().ok_or(RemoteError(1))?;
    let mut arguments = Vec::new();
    for (at, line) in lines.enumerate() {
        let argument = line.split_once(' ').filter(|_| at < PARAMETERS_MAX);
        arguments.push(argument.ok_or(RemoteError(at + 2))?);
    }
    Ok((operation, arguments))
}

/// Serialises an answer.
pub fn write_answer(answer: Result<Answer, String>) -> Vec<u8> {
    let rows = match answer {
        Ok(Answer::Done) => return b"done\n".to_vec(),
        Ok(Answer::Bytes(bytes)) => return [b"bytes\n", &bytes[..]].concat(),
        Err(reason) => return format!("refused\n{}", one_line(&reason)).into_bytes(),
        Ok(Answer::Rows(rows)) => rows,
    };
    let mut text = String::from("rows\n");
    for row in rows.iter().take(REMOTE_ROWS_MAX) {
        let _ = write!(text, "{}\t{}", one_line(&row.key), one_line(&row.note));
        for (name, number) in &row.numbers {
            let _ = write!(text, "\t{name}={number}");
        }
        text.push('\n');
    }
    text.into_bytes()
}

/// Parses the output of [`write_answer`].
///
/// # Errors
/// The number of the first line that is malformed.
pub fn read_answer(bytes: &[u8]) -> Result<RemoteAnswer, RemoteError> {
    let at = bytes.iter().position(|byte| *byte == b'\n').ok_or(RemoteError(1))?;
    let (word, rest) = (&bytes[..at], &bytes[at + 1..]);
    if word == b"bytes" {
        return Ok(RemoteAnswer::Bytes(rest.to_vec()));
    }
    let text = core::str::from_utf8(rest).map_err(|_| RemoteError(2))?;
    match word {
        b"done" => Ok(RemoteAnswer::Done),
        b"refused" => Ok(RemoteAnswer::Refused(one_line(text))),
        b"rows" => {
            let lines = || text.lines().take(REMOTE_ROWS_MAX);
            let mut rows = Vec::with_capacity(lines().count());
            for (at, line) in lines().enumerate() {
                rows.push(read_row(line).ok_or(RemoteError(at + 2))?);
            }
            Ok(RemoteAnswer::Rows(rows))
        }
        _ => Err(RemoteError(1)),
    }
}

fn read_row(line: &str) -> Option<RemoteRow> {
    let mut parts = line.split('\t');
    let (key, note) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let number = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    // One more than allowed is read, so that an excess is noticed.
    let numbers: Vec<_> = parts.take(ROW_NUMBERS_MAX + 1).map(number).collect::<Option<_>>()?;
    (numbers.len() <= ROW_NUMBERS_MAX).then_some(RemoteRow { key, note, numbers })
}

/// Escapes a text so that it fits on one line; [`unescaped`] reverses this.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescaped(line: &str) -> Option<String> {
    let (mut text, mut chars) = (String::with_capacity(line.len()), line.chars());
    while let Some(char) = chars.next() {
        text.push(match char {
            '\\' => match chars.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            other => other,
        });
    }
    Some(text)
}

/// Replaces control characters, which would end a line or a column.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Row;

    #[test]
    fn calls_and_answers_are_read_as_they_were_written() {
        let call = write_call("add", &[("prefix", "10.0.0.0/8"), ("from", "a b\nc")]);
        assert_eq!(read_call(&call), Ok(("add", vec![("prefix", "10.0.0.0/8"), ("from", "a b c")])));
        assert_eq!(read_call(""), Err(RemoteError(1)));
        assert_eq!(read_call("add\nprefix\n"), Err(RemoteError(2)));
        let row = Row { key: "k".into(), note: "web\tshop".into(), numbers: vec![("n", 7), ("m", u64::MAX)] };
        let RemoteAnswer::Rows(rows) = read_answer(&write_answer(Ok(Answer::Rows(vec![row])))).unwrap()
        else {
            panic!()
        };
        let numbers = vec![("n".to_owned(), 7), ("m".to_owned(), u64::MAX)];
        assert_eq!(rows, [RemoteRow { key: "k".into(), note: "web shop".into(), numbers }]);
        let file = vec![0xff, b'\n', 0];
        assert_eq!(
            read_answer(&write_answer(Ok(Answer::Bytes(file.clone())))),
            Ok(RemoteAnswer::Bytes(file))
        );
        assert_eq!(read_answer(&write_answer(Ok(Answer::Done))), Ok(RemoteAnswer::Done));
        let refused = RemoteAnswer::Refused("no room".into());
        assert_eq!(read_answer(&write_answer(Err("no room".into()))), Ok(refused));
        for bad in [&b""[..], b"done", b"x\n", b"rows\nkey\n", b"rows\nk\t\tn=x\n", b"refused\n\xff"] {
            assert!(read_answer(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn settings_keep_every_character() {
        for text in ["", "one", "of\nseveral\r\nlines\n", "a\\nb\\", "tab\tand \u{7f} and ü", "\\\n\\n"] {
            let line = escaped(text);
            assert_eq!(line.lines().count(), usize::from(!text.is_empty()), "{line}");
            assert_eq!(unescaped(&line).as_deref(), Some(text));
        }
        assert_eq!((unescaped("a\\"), unescaped("\\t")), (None, None));
    }

    #[test]
    fn modules_are_read_as_they_were_written() {
        let mut text = String::new();
        write_module(&mut text, "ab12", &[0, 0xff, 0x1c]);
        text.push_str("instance 3 a ab12\n");
        assert_eq!(text, "module ab12 00ff1c\ninstance 3 a ab12\n");
        assert_eq!(read_modules(&text), Ok(vec![("ab12", vec![0, 0xff, 0x1c])]));
        assert_eq!(read_hosted(&text).unwrap().len(), 1);
        for bad in ["module ab", "module ab 0", "module ab 0g", "module ab 00ff1"] {
            assert_eq!(read_modules(&format!("{text}{bad}\n")), Err(RemoteError(3)), "{bad}");
        }
    }

    /// Regression: a line of two bytes became an argument of 32; numbers of a row, settings, outputs and
    /// instances likewise.
    #[test]
    fn a_text_of_short_lines_takes_no_more_memory_than_a_long_one() {
        let instance = "instance 0 a b\n";
        assert_eq!(read_hosted(&instance.repeat(HOSTED_MAX)).map(|read| read.len()), Ok(HOSTED_MAX));
        assert_eq!(read_hosted(&instance.repeat(HOSTED_MAX + 1)), Err(RemoteError(HOSTED_MAX + 1)));
        for (line, most) in [("set  \n", PARAMETERS_MAX), ("output 0 0\n", OUTPUTS_MAX)] {
            assert!(read_hosted(&format!("{instance}{}", line.repeat(most))).is_ok(), "{line}");
            let beyond = format!("{instance}{}", line.repeat(most + 1));
            assert_eq!(read_hosted(&beyond), Err(RemoteError(most + 2)), "{line}");
        }
        assert_eq!(read_modules(&"module a \n".repeat(HOSTED_MAX + 1)), Err(RemoteError(HOSTED_MAX + 1)));
        assert!(read_call(&format!("add\n{}", " \n".repeat(PARAMETERS_MAX))).is_ok());
        let beyond = format!("add\n{}", " \n".repeat(PARAMETERS_MAX + 1));
        assert_eq!(read_call(&beyond), Err(RemoteError(PARAMETERS_MAX + 2)));
        let row = |numbers: usize| format!("rows\nkey\t{}\n", "\tn=1".repeat(numbers)).into_bytes();
        assert!(read_answer(&row(ROW_NUMBERS_MAX)).is_ok());
        assert_eq!(read_answer(&row(ROW_NUMBERS_MAX + 1)), Err(RemoteError(2)));
    }

    #[test]
    fn what_is_no_list_of_instances_is_refused_with_its_line() {
        let good = "instance 3 a dscp\nset dscp 46\noutput 0 9\ninstance 9 b no-op\n";
        let read = read_hosted(good).unwrap();
        assert_eq!((read.len(), read[0].id, &read[0].outputs[..]), (2, 3, &[(0, 9)][..]));
        assert_eq!(read[0].settings, [("dscp".to_owned(), "46".to_owned())]);
        for (bad, line) in [
            ("set a b\n", 1),
            ("instance x a b\n", 1),
            ("instance 1 a\n", 1),
            ("instance 1 a b\noutput 300 1\n", 2),
            ("instance 1 a b\nremove 1 2\n", 2),
        ] {
            assert_eq!(read_hosted(bad), Err(RemoteError(line)), "{bad}");
        }
    }
}
