//! Settings of instances and arguments of operations: declared parameters, and the values parsed by their
//! declarations.

use core::fmt;
use std::sync::Arc;

use csp_classify::multifield::InstanceId;
use csp_types::{Duration, Prefix};

use crate::text::parse_match;

/// The duration that never ends.
pub const FOREVER: Duration = Duration::MAX;

/// Most parameters of a module or an operation.
pub const PARAMETERS_MAX: usize = 8;

/// The type of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An integer with an optional suffix k, M or G (powers of 1,000), within inclusive bounds.
    Number(u64, u64),
    /// A duration greater than 0 with a unit (ns, us, ms, s, min or h), or `forever`, which is [`FOREVER`].
    Duration,
    /// A network, or a single address.
    Prefix,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// Conditions as in rules.
    Conditions,
    /// The name of an instance.
    Instance,
}

/// A declared parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its default. Without one the parameter is required. An empty default means absent.
    pub default: Option<&'static str>,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A duration.
    Duration(Duration),
    /// A network.
    Prefix(Prefix),
    /// A text.
    Text(Arc<str>),
    /// An instance.
    Instance(InstanceId),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Duration(FOREVER) => f.write_str("forever"),
            Value::Duration(duration) => write!(f, "{duration:?}"),
            Value::Prefix(prefix) => write!(f, "{prefix}"),
            Value::Text(text) => f.write_str(text),
            Value::Instance(id) => write!(f, "#{}", id.0),
        }
    }
}

impl Value {
    /// Returns a text that parses to the same value without loss: durations in nanoseconds, or `forever`.
    pub fn exact(&self) -> String {
        match self {
            Value::Duration(duration) if *duration != FOREVER => format!("{}ns", duration.as_nanos()),
            other => other.to_string(),
        }
    }
}

/// Why a setting or argument was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingError {
    /// No parameter has this name.
    #[error("there is no parameter {name}; {}", known(.parameters, .name))]
    Unknown {
        /// The name given.
        name: String,
        /// The existing parameters.
        parameters: &'static [Parameter],
    },
    /// It was given more than once.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A required parameter is missing.
    #[error("{0} is required")]
    Missing(&'static str),
    /// The text is not a valid value of the parameter.
    #[error("{name}={text}: expected {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// The text given.
        text: String,
        /// What is allowed.
        expected: String,
    },
}

fn known(parameters: &[Parameter], name: &str) -> String {
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    if names.is_empty() {
        return "there are none".into();
    }
    match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    }
}

/// Returns the candidate of which `name` may be a misspelling.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|candidate| (strsim::jaro(name, candidate), candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.7).map(|(_, candidate)| candidate)
}

/// Values by parameter name. Allocates for texts only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    values: [Option<(&'static str, Value)>; PARAMETERS_MAX],
}

impl Settings {
    /// Parses texts by the declared parameters and fills in defaults. `instance` resolves the name of an
    /// instance.
    pub fn parse(
        parameters: &'static [Parameter],
        given: &[(&str, &str)],
        instance: impl Fn(&str) -> Option<InstanceId>,
    ) -> Result<Self, SettingError> {
        let mut settings = Settings::default();
        for (name, text) in given {
            let parameter = parameters.iter().find(|parameter| parameter.name == *name);
            let unknown = || SettingError::Unknown { name: (*name).into(), parameters };
            let parameter = parameter.ok_or_else(unknown)?;
            if settings.value(parameter.name).is_some() {
                return Err(SettingError::Twice(parameter.name));
            }
            settings.put(parameter.name, parse_value(parameter, text, &instance)?);
        }
        for parameter in parameters {
            match parameter.default {
                _ if settings.value(parameter.name).is_some() => {}
                None => return Err(SettingError::Missing(parameter.name)),
                Some("") => {}
                Some(text) => settings.put(parameter.name, parse_value(parameter, text, &instance)?),
            }
        }
        Ok(settings)
    }

    /// Adds a value. Values beyond [`PARAMETERS_MAX`] are ignored; no declaration has as many.
    pub fn put(&mut self, name: &'static str, value: Value) {
        if let Some(slot) = self.values.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some((name, value));
        }
    }

    /// Returns the value of a parameter.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().flatten().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns all values.
    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, Value)> {
        self.values.iter().flatten()
    }

    /// Returns a number; 0 if it is absent.
    pub fn number(&self, name: &str) -> u64 {
        match self.value(name) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        }
    }

    /// Returns a duration; zero if it is absent.
    pub fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Some(Value::Duration(duration)) => *duration,
            _ => Duration::ZERO,
        }
    }

    /// Returns a network.
    pub fn prefix(&self, name: &str) -> Option<Prefix> {
        match self.value(name) {
            Some(Value::Prefix(prefix)) => Some(*prefix),
            _ => None,
        }
    }

    /// Returns a text; empty if it is absent.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Returns an instance.
    pub fn instance(&self, name: &str) -> Option<InstanceId> {
        match self.value(name) {
            Some(Value::Instance(id)) => Some(*id),
            _ => None,
        }
    }
}

fn parse_value(
    parameter: &Parameter,
    text: &str,
    instance: impl Fn(&str) -> Option<InstanceId>,
) -> Result<Value, SettingError> {
    let value = match parameter.kind {
        Kind::Number(low, high) => {
            let number = parse_number(text).filter(|number| (low..=high).contains(number));
            number
                .map(Value::Number)
                .ok_or_else(|| format!("a number from {low} to {high}, such as {low} or 10k"))
        }
        Kind::Duration => parse_duration(text).map(Value::Duration).ok_or_else(|| {
            "a time greater than 0 with its unit (ns, us, ms, s, min, h), such as 60s, or forever".into()
        }),
        Kind::Prefix => parse_prefix(text).map(Value::Prefix),
        Kind::Choice(words) => {
            let known = words.contains(&text).then(|| Value::Text(text.into()));
            known.ok_or_else(|| format!("one of {}", words.join(", ")))
        }
        Kind::Text => Ok(Value::Text(text.into())),
        Kind::Conditions => {
            let words: Vec<&str> = text.split_whitespace().collect();
            parse_match(&words).map(|_| Value::Text(text.into())).map_err(|error| error.to_string())
        }
        Kind::Instance => {
            instance(text).map(Value::Instance).ok_or_else(|| "the name of an instance that exists".into())
        }
    };
    value.map_err(|expected| SettingError::Value { name: parameter.name, text: text.into(), expected })
}

/// Parses an integer with an optional suffix k, M or G.
pub fn parse_number(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Parses a duration greater than 0 with a unit, or `forever`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "forever" {
        return Some(FOREVER);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let nanos = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let nanos = number.parse::<u64>().ok()?.checked_mul(nanos).filter(|nanos| *nanos > 0)?;
    Some(Duration::from_nanos(nanos))
}

/// Parses a network. An address without length stands for itself only.
pub(crate) fn parse_prefix(text: &str) -> Result<Prefix, String> {
    let prefix = match text.parse::<core::net::IpAddr>() {
        Ok(address) => Prefix::new(address, if address.is_ipv4() { 32 } else { 128 }),
        Err(_) => text.parse(),
    };
    prefix.map_err(|error| match error {
        csp_types::PrefixError::Syntax(_) => {
            "a network such as 10.0.0.0/8 or 2001:db8::/32, or an address".into()
        }
        other => other.to_string(),
    })
}
