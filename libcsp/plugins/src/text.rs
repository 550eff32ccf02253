//! The text of rules, as `cspctl rule add` and lists have it: words in the manner of tc(8).
//!
//! ```text
//!   RULE       = NAME [prio NUMBER] CONDITION... plugin INSTANCE [fallback pass|drop]
//!   CONDITION  = src NETWORK | dst NETWORK | sport PORTS | dport PORTS | proto PROTOCOL | ip 4|6
//!              | dev NUMBER | ingress | egress | flags FLAGS[/FLAGS] | dscp NUMBER
//!   PORTS      = NUMBER | NUMBER-NUMBER
//!   PROTOCOL   = tcp | udp | icmp | icmp6 | sctp | NUMBER
//!   FLAGS      = FLAG[,FLAG...] | none      FLAG = fin | syn | rst | psh | ack | urg | ece | cwr
//! ```
//!
//! `flags syn/syn,ack` compares SYN and ACK and requires that SYN alone is set; without a slash the flags
//! named are required and no others compared.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use csp_classify::multifield::{Direction, Match, PortRange, RuleError, TcpFlags};
use csp_types::Prefix;

use crate::packet::Fallback;
use crate::settings::{nearest, parse_prefix};

const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
const PROTOCOLS: [(&str, u8); 7] =
    [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmp6", 58), ("sctp", 132), ("esp", 50), ("gre", 47)];
const WORDS: [&str; 14] = [
    "prio", "src", "dst", "sport", "dport", "proto", "ip", "dev", "ingress", "egress", "flags", "dscp",
    "plugin", "fallback",
];

/// Priority of a rule whose text has none.
pub const PRIORITY_DEFAULT: u32 = 1000;

/// A rule as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleText {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: u32,
    /// Conditions that a packet must meet.
    pub fields: Match,
    /// The name of the instance.
    pub instance: String,
    /// Fate of matching packets while the instance's environment does not run.
    pub fallback: Fallback,
}

/// Why a text is not a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TextError {
    /// A word that the syntax does not allow.
    #[error("{word:?} (word {at}) is not expected here; {hint}")]
    Word {
        /// The word.
        word: String,
        /// Its position in the text, from 1.
        at: usize,
        /// What is allowed.
        hint: String,
    },
    /// A value that the condition does not allow.
    #[error("{name} {text}: expected {expected}")]
    Value {
        /// The condition.
        name: &'static str,
        /// The text given.
        text: String,
        /// What is allowed.
        expected: String,
    },
    /// The text ends before a required value.
    #[error("{0} at the end of the text needs a value: {1}")]
    End(&'static str, &'static str),
    /// A condition is given more than once.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A mandatory part of the rule is missing.
    #[error(
        "{0} is missing; a rule is: NAME [prio NUMBER] CONDITION... plugin INSTANCE [fallback pass|drop]"
    )]
    Missing(&'static str),
    /// A network's address family contradicts `ip`.
    #[error(
        "ip {version} contradicts {network}, which is an IPv{family} network; leave `ip {version}` out, or give an IPv{version} network"
    )]
    Family {
        /// The value of `ip`, 4 or 6.
        version: u8,
        /// The network.
        network: String,
        /// Address family of the network, 4 or 6.
        family: u8,
    },
    /// The conditions contradict each other: no packet meets them.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// Parses a rule.
pub fn parse_rule(words: &[&str]) -> Result<RuleText, TextError> {
    let (name, rest) = words.split_first().ok_or(TextError::Missing("the name"))?;
    if WORDS.contains(name) {
        let hint = "the first word is the rule's name".into();
        return Err(TextError::Word { word: (*name).into(), at: 1, hint });
    }
    let mut parser = Parser { words: rest, at: 2, fields: Match::ANY, ip: None, rest: Rest::default() };
    parser.run(true)?;
    let Rest { priority, instance, fallback } = core::mem::take(&mut parser.rest);
    Ok(RuleText {
        name: (*name).into(),
        priority: priority.unwrap_or(PRIORITY_DEFAULT),
        fields: parser.finish()?,
        instance: instance.ok_or(TextError::Missing("plugin INSTANCE"))?,
        fallback: fallback.unwrap_or_default(),
    })
}

/// Parses conditions.
pub fn parse_match(words: &[&str]) -> Result<Match, TextError> {
    let mut parser = Parser { words, at: 1, fields: Match::ANY, ip: None, rest: Rest::default() };
    parser.run(false)?;
    parser.finish()
}

#[derive(Default)]
struct Rest {
    priority: Option<u32>,
    instance: Option<String>,
    fallback: Option<Fallback>,
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    fields: Match,
    ip: Option<u8>,
    rest: Rest,
}

fn wrong<T>(name: &'static str, text: &str, expected: impl Into<String>) -> Result<T, TextError> {
    Err(TextError::Value { name, text: text.into(), expected: expected.into() })
}

fn once<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), TextError> {
    if slot.is_some() {
        return Err(TextError::Twice(name));
    }
    *slot = Some(value);
    Ok(())
}

fn number<T: TryFrom<u64>>(name: &'static str, text: &str, most: u64) -> Result<T, TextError> {
    let number =
        text.parse::<u64>().ok().filter(|number| *number <= most).and_then(|number| T::try_from(number).ok());
    number.map_or_else(|| wrong(name, text, format!("a number from 0 to {most}")), Ok)
}

fn network(name: &'static str, text: &str) -> Result<Prefix, TextError> {
    parse_prefix(text).or_else(|expected| wrong(name, text, expected))
}

fn ports(name: &'static str, text: &str) -> Result<PortRange, TextError> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let range = low.parse().ok().zip(high.parse().ok()).and_then(|(low, high)| PortRange::new(low, high));
    range.map_or_else(|| wrong(name, text, "a port or a range of ports, such as 80 or 1024-65535"), Ok)
}

fn protocol(text: &str) -> Result<u8, TextError> {
    let known = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    known.or_else(|| text.parse().ok()).map_or_else(
        || {
            let names: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
            wrong("proto", text, format!("{} or a number from 0 to 255", names.join(", ")))
        },
        Ok,
    )
}

fn flag_bits(text: &str) -> Option<u8> {
    if text == "none" {
        return Some(0);
    }
    text.split(',')
        .try_fold(0, |bits, name| FLAGS.iter().position(|flag| *flag == name).map(|at| bits | 1 << at))
}

fn flags(text: &str) -> Result<TcpFlags, TextError> {
    let (value, mask) = text.split_once('/').unwrap_or((text, text));
    let flags = flag_bits(value).zip(flag_bits(mask)).map(|(value, mask)| TcpFlags { value, mask });
    flags.filter(|flags| flags.mask != 0 && flags.value & !flags.mask == 0).map_or_else(
        || {
            let names = FLAGS.join(", ");
            wrong(
                "flags",
                text,
                format!(
                    "flags required, and after a slash those compared, such as syn/syn,ack; flags are {names}"
                ),
            )
        },
        Ok,
    )
}

impl<'a> Parser<'a> {
    fn value(&mut self, name: &'static str, what: &'static str) -> Result<&'a str, TextError> {
        let (value, rest) = self.words.split_first().ok_or(TextError::End(name, what))?;
        self.words = rest;
        self.at += 1;
        Ok(value)
    }

    fn run(&mut self, whole_rule: bool) -> Result<(), TextError> {
        while let Some((word, rest)) = self.words.split_first() {
            self.words = rest;
            let known = self.condition(word)? || (whole_rule && self.binding(word)?);
            if !known {
                let hint = match nearest(word, WORDS) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("words are {}", WORDS.join(", ")),
                };
                return Err(TextError::Word { word: (*word).into(), at: self.at, hint });
            }
            self.at += 1;
        }
        Ok(())
    }

    fn condition(&mut self, word: &str) -> Result<bool, TextError> {
        match word {
            "src" => {
                let text = self.value("src", "a network")?;
                once(&mut self.fields.source, "src", network("src", text)?)?;
            }
            "dst" => {
                let text = self.value("dst", "a network")?;
                once(&mut self.fields.destination, "dst", network("dst", text)?)?;
            }
            "sport" => self.fields.source_ports = ports("sport", self.value("sport", "ports")?)?,
            "dport" => self.fields.destination_ports = ports("dport", self.value("dport", "ports")?)?,
            "proto" => {
                let text = self.value("proto", "a protocol")?;
                once(&mut self.fields.protocol, "proto", protocol(text)?)?;
            }
            "ip" => {
                let text = self.value("ip", "4 or 6")?;
                let version = match text {
                    "4" => 4,
                    "6" => 6,
                    other => return wrong("ip", other, "4 or 6"),
                };
                once(&mut self.ip, "ip", version)?;
            }
            "dev" => {
                let text = self.value("dev", "an interface number")?;
                once(&mut self.fields.interface, "dev", number("dev", text, 65_535)?)?;
            }
            "ingress" => once(&mut self.fields.direction, "the direction", Direction::Ingress)?,
            "egress" => once(&mut self.fields.direction, "the direction", Direction::Egress)?,
            "flags" => {
                let text = self.value("flags", "TCP flags")?;
                once(&mut self.fields.tcp_flags, "flags", flags(text)?)?;
            }
            "dscp" => {
                let text = self.value("dscp", "a number")?;
                once(&mut self.fields.dscp, "dscp", number("dscp", text, 63)?)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn binding(&mut self, word: &str) -> Result<bool, TextError> {
        match word {
            "prio" => {
                let text = self.value("prio", "a number")?;
                let most = csp_classify::multifield::PRIORITY_MAX.into();
                once(&mut self.rest.priority, "prio", number("prio", text, most)?)?;
            }
            "plugin" => {
                let text = self.value("plugin", "the name of an instance")?;
                once(&mut self.rest.instance, "plugin", text.into())?;
            }
            "fallback" => {
                let fallback = match self.value("fallback", "pass or drop")? {
                    "pass" => Fallback::Pass,
                    "drop" => Fallback::Drop,
                    other => return wrong("fallback", other, "pass or drop"),
                };
                once(&mut self.rest.fallback, "fallback", fallback)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// An address family without networks stands for all of its addresses.
    fn finish(self) -> Result<Match, TextError> {
        let Parser { mut fields, ip, .. } = self;
        if let Some(version) = ip {
            let all: IpAddr = match version {
                4 => Ipv4Addr::UNSPECIFIED.into(),
                _ => Ipv6Addr::UNSPECIFIED.into(),
            };
            let given = fields.source.or(fields.destination);
            if given.is_some_and(|given| given.address().is_ipv4() != all.is_ipv4()) {
                let network = given.map(|given| given.to_string()).unwrap_or_default();
                let family = if all.is_ipv4() { 6 } else { 4 };
                return Err(TextError::Family { version, network, family });
            }
            if given.is_none() {
                fields.source = Prefix::new(all, 0).ok();
            }
        }
        fields.check()?;
        Ok(fields)
    }
}

/// Formats conditions as text that [`parse_match`] accepts.
pub struct MatchText<'a>(pub &'a Match);

impl fmt::Display for MatchText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.0;
        let mut words: Vec<String> = Vec::new();
        words.extend(fields.source.map(|prefix| format!("src {prefix}")));
        words.extend(fields.destination.map(|prefix| format!("dst {prefix}")));
        words.extend(fields.protocol.map(|protocol| {
            match PROTOCOLS.iter().find(|(_, number)| *number == protocol) {
                Some((name, _)) => format!("proto {name}"),
                None => format!("proto {protocol}"),
            }
        }));
        for (name, range) in [("sport", fields.source_ports), ("dport", fields.destination_ports)] {
            match (range.is_any(), range.low() == range.high()) {
                (true, _) => {}
                (false, true) => words.push(format!("{name} {}", range.low())),
                (false, false) => words.push(format!("{name} {}-{}", range.low(), range.high())),
            }
        }
        words.extend(fields.interface.map(|interface| format!("dev {interface}")));
        words.extend(fields.direction.map(|direction| {
            String::from(if direction == Direction::Ingress { "ingress" } else { "egress" })
        }));
        words.extend(
            fields.tcp_flags.map(|flags| format!("flags {}/{}", names(flags.value), names(flags.mask))),
        );
        words.extend(fields.dscp.map(|dscp| format!("dscp {dscp}")));
        f.write_str(&words.join(" "))
    }
}

fn names(bits: u8) -> String {
    let set: Vec<&str> =
        FLAGS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".into() } else { set.join(",") }
}
