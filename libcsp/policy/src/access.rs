//! Who may listen and connect: the policy's `access` rules.

use std::fmt;
use std::str::FromStr;

use csp_types::grant::{CONNECT_MAX, Grant, LISTEN_MAX, Ports, Target};
use csp_types::{Prefix, ProgramName};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use csp_config::{Problems, serde_prefixes};

/// Most access rules of a policy.
pub const ACCESS_MAX: usize = 256;
/// Most users, groups or programs that one of them lists.
pub const SUBJECTS_MAX: usize = 64;

/// What processes of some users, groups and programs may listen on and connect to. Of several rules that fit
/// a process the first one counts; where none fits, and in what a rule leaves out, a process may what the
/// kernel of its host would let it: listen on any port from 1024 on (as root on every port) in the host's
/// network namespace, and connect to every egress destination.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// User ids; absent: every user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<u32>>,
    /// Primary group ids; absent: every group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<u32>>,
    /// Names of programs, as `cspctl processes` shows them; absent: every program. Users name their own
    /// programs as they like: a rule protects by its users and groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<String>>,
    /// Ports that they may listen on, those below 1024 too; absent: as without a rule, empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<Vec<PortRange>>,
    /// Where they may connect, of the egress destinations; absent: everywhere, empty: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<Vec<AccessTarget>>,
    /// Whether processes of several users that have such a rule may listen on one port at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// Networks, and ports there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessTarget {
    /// The networks; at least one.
    #[serde(with = "serde_prefixes")]
    pub to: Vec<Prefix>,
    /// The ports; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortRange>>,
}

/// A port, or ports from a first to a last one: `80`, `8000-8999`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange(pub Ports);

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ports { first, last } = self.0;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(PortRange(Ports { first, last })),
            _ => Err(format!(
                "{text:?} is no port or range of ports; allowed is 80 or 8000-8999, from 1 to 65535"
            )),
        }
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Ports { first, last } if first == last => serializer.serialize_u16(first),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;
        impl Visitor<'_> for NumberOrText {
            type Value = PortRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port such as 80 or a range such as 8000-8999")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<PortRange, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PortRange, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PortRange, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NumberOrText)
    }
}

/// A process as access rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its user.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// Its program.
    pub program: &'a ProgramName,
}

impl AccessRule {
    /// The rule for a process among `rules`, if one fits it.
    pub fn of<'a>(rules: &'a [AccessRule], subject: &Subject<'_>) -> Option<&'a AccessRule> {
        rules.iter().find(|rule| {
            rule.users.as_ref().is_none_or(|users| users.contains(&subject.uid))
                && rule.groups.as_ref().is_none_or(|groups| groups.contains(&subject.gid))
                && rule
                    .programs
                    .as_ref()
                    .is_none_or(|all| all.iter().any(|name| name.as_bytes() == subject.program.as_bytes()))
        })
    }

    /// What a process may do for which `rule` counts, and which the kernel would let listen on the ports
    /// `kernel`.
    pub fn grant(rule: Option<&AccessRule>, kernel: Option<Ports>) -> Grant {
        let listen: Vec<Ports> = match rule.and_then(|rule| rule.listen.as_ref()) {
            Some(listed) => listed.iter().map(|range| range.0).collect(),
            None => kernel.into_iter().collect(),
        };
        let shared = rule.is_some_and(|rule| rule.shared);
        match rule.and_then(|rule| rule.connect.as_ref()) {
            Some(listed) => Grant::new(listen, listed.iter().flat_map(AccessTarget::targets)),
            None => Grant::new(listen, Target::everywhere()),
        }
        .shared(shared)
    }

    pub(super) fn check(&self, at: &str, problems: &mut Problems) {
        let mut count = |field: &str, found: Option<usize>, max: usize| {
            if let Some(found) = found.filter(|found| *found > max) {
                problems
                    .add(format!("{at}.{field}"), format!("has {found} entries; allowed are up to {max}"));
            }
        };
        count("users", self.users.as_ref().map(Vec::len), SUBJECTS_MAX);
        count("groups", self.groups.as_ref().map(Vec::len), SUBJECTS_MAX);
        count("programs", self.programs.as_ref().map(Vec::len), SUBJECTS_MAX);
        count("listen", self.listen.as_ref().map(Vec::len), LISTEN_MAX);
        let targets = self.connect.as_ref().map(|all| all.iter().flat_map(AccessTarget::targets).count());
        if let Some(found) = targets.filter(|found| *found > CONNECT_MAX) {
            let message = format!("has {found} pairs of network and ports; allowed are up to {CONNECT_MAX}");
            problems.add(format!("{at}.connect"), message);
        }
        for (index, target) in self.connect.iter().flatten().enumerate() {
            if target.to.is_empty() {
                problems.add(
                    format!("{at}.connect[{index}].to"),
                    "has no network; at least one is needed".to_owned(),
                );
            }
        }
        for (index, name) in self.programs.iter().flatten().enumerate() {
            if let Err(error) = name.parse::<ProgramName>() {
                let message = format!("{name:?} is no program's name: {error}");
                problems.add(format!("{at}.programs[{index}]"), message);
            }
        }
    }

    /// The rule in a line.
    pub(super) fn summary(&self) -> String {
        fn list<T: ToString>(what: &str, all: Option<&Vec<T>>) -> String {
            let text = |all: &Vec<T>| all.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
            all.map_or_else(String::new, |all| format!(" {what} [{}]", text(all)))
        }
        let targets =
            self.connect.as_ref().map(|all| all.iter().map(AccessTarget::summary).collect::<Vec<_>>());
        let shared = if self.shared { " shared" } else { "" };
        [
            list("users", self.users.as_ref()),
            list("groups", self.groups.as_ref()),
            list("programs", self.programs.as_ref()),
            list("listen", self.listen.as_ref()),
            list("connect", targets.as_ref()),
        ]
        .concat()
            + shared
    }
}

impl AccessTarget {
    fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        let all = [PortRange(Ports { first: 1, last: u16::MAX })];
        let ports = self.ports.clone().unwrap_or_else(|| all.to_vec());
        self.to.iter().flat_map(move |network| {
            let pair = |range: PortRange| Target { network: *network, ports: range.0 };
            ports.clone().into_iter().map(pair)
        })
    }

    fn summary(&self) -> String {
        let to: Vec<String> = self.to.iter().map(ToString::to_string).collect();
        let ports = self.ports.as_ref().map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
        to.join(" ") + &ports.map_or_else(String::new, |ports| format!(" ports {}", ports.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    const GOOD: &str = "\
apiVersion: csp/v1
access:
  - {users: [33], programs: [nginx], listen: [80, 8000-8999], connect: []}
  - {groups: [100], connect: [{to: [10.0.0.0/8], ports: [443]}], shared: true}
";

    fn grant(rules: &[AccessRule], uid: u32, gid: u32, program: &str) -> Grant {
        let rule = AccessRule::of(rules, &Subject { uid, gid, program: &program.parse().unwrap() });
        AccessRule::grant(rule, Some(Ports::UNPRIVILEGED))
    }

    #[test]
    fn the_first_rule_that_fits_decides_and_the_kernel_where_it_says_nothing() {
        let policy = Policy::parse_yaml(GOOD, "p.yaml").unwrap();
        let again = Policy::from_json(&policy.to_json(), "etcd").unwrap();
        assert_eq!(policy, again);
        let outside = "10.1.2.3".parse().unwrap();
        let nginx = grant(&policy.access, 33, 100, "nginx");
        assert!(nginx.listens(80) && nginx.listens(8500) && !nginx.listens(9000));
        assert!(!nginx.connects(outside, 443) && !nginx.is_shared());
        let group = grant(&policy.access, 34, 100, "nginx");
        assert!(group.listens(9000) && !group.listens(80) && group.is_shared());
        assert!(group.connects(outside, 443) && !group.connects(outside, 80));
        let other = grant(&policy.access, 34, 34, "nginx");
        assert!(other.listens(9000) && !other.listens(80) && other.connects(outside, 80));
        let elsewhere = AccessRule::grant(None, None);
        assert!(!elsewhere.listens(9000), "a process of another network namespace");
    }

    #[test]
    fn wrong_rules_are_refused_with_what_would_be_right() {
        let refused = |from: &str, to: &str| {
            assert!(GOOD.contains(from));
            Policy::parse_yaml(&GOOD.replacen(from, to, 1), "p.yaml").unwrap_err().to_string()
        };
        for (from, to, expected) in [
            ("80,", "0,", "is no port or range of ports; allowed is 80 or 8000-8999"),
            ("8000-8999", "8999-8000", "\"8999-8000\" is no port or range of ports"),
            (
                "listen: [80, 8000-8999]",
                "listen: [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
                "allowed are up to 16",
            ),
            (
                "ports: [443]",
                "ports: [1,2,3,4,5,6,7,8,9]",
                "has 9 pairs of network and ports; allowed are up to 8",
            ),
            ("[10.0.0.0/8]", "[]", "at least one is needed"),
            ("[nginx]", "[bin/nginx]", "is no program's name"),
            ("shared", "share", "unknown field `share`"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn differences_are_shown_by_rule() {
        let policy = Policy::parse_yaml(GOOD, "p.yaml").unwrap();
        let expected = [
            "+ access users [33] programs [nginx] listen [80, 8000-8999] connect []",
            "+ access groups [100] connect [10.0.0.0/8 ports 443] shared",
        ];
        assert_eq!(Policy::empty().diff(&policy), expected);
    }
}
