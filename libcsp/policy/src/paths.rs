//! Paths: the handlers that messages of a channel pass, one after the other. How paths divide is in
//! [`branches`](crate::branches).

use csp_config::Problems;
use csp_handlers::CONTEXTS_MAX;
use serde::{Deserialize, Serialize};

use crate::Policy;
use crate::branches::{self, FormatPath, StageOutput};
use crate::channels::Channel;
use crate::contexts::number_of;

/// A handler of a channel's path, and where it runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathStage {
    /// Name of a built-in handler, or of one of the policy's `handlers`.
    pub handler: String,
    /// The context that runs it: `c0` to `c7` of the proxy worker, or one of the policy's `contexts`.
    #[serde(default = "first_context")]
    pub context: String,
    /// The proxy finds the context by what it measures, instead of `context`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<StagePlacement>,
    /// What the handler is to do, in its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parameters: String,
    /// Where each of its outputs leads, for a handler with several; it is the last of its list then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<StageOutput>,
}

/// How the proxy places a stage by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagePlacement {
    /// Contexts that it may use, in the order of preference: at least one of the worker and one of another
    /// program.
    pub auto: Vec<String>,
    /// Time in microseconds within which 99 of 100 calls of a supplied handler end that may run in the
    /// worker.
    #[serde(default = "p99_us")]
    pub p99_us: u32,
    /// Measured calls on which a decision rests: one of 16 calls is measured.
    #[serde(default = "placement_calls")]
    pub calls: u32,
    /// Seconds for which a measurement has to stand before the stage is moved.
    #[serde(default = "hold_s")]
    pub hold_s: u32,
    /// What it costs the worker to have a message processed by another program, in nanoseconds: for handlers
    /// that are not supplied.
    #[serde(default = "crossing_ns")]
    pub crossing_ns: u32,
    /// The same of each KiB of the message.
    #[serde(default = "crossing_kib_ns")]
    pub crossing_kib_ns: u32,
}

fn p99_us() -> u32 {
    50
}

fn placement_calls() -> u32 {
    200
}

fn hold_s() -> u32 {
    10
}

fn crossing_ns() -> u32 {
    700
}

fn crossing_kib_ns() -> u32 {
    400
}

impl StagePlacement {
    /// Returns the numbers of the contexts, those of the policy's `contexts` after the worker's own.
    pub fn numbers(&self) -> Vec<u16> {
        self.auto.iter().filter_map(|name| number(name)).collect()
    }

    fn check(&self, context: &str, at: &str, problems: &mut Problems) {
        if context != first_context() {
            problems.add(format!("{at}.context"), "a stage has a `context`, or a `place`, not both");
        }
        for (index, name) in self.auto.iter().enumerate() {
            let at = format!("{at}.place.auto[{index}]");
            if number(name).is_none() {
                problems.add(
                    at,
                    format!(
                        "`{name}` is no context; there are c0 to c{}, and those of `contexts`",
                        CONTEXTS_MAX - 1
                    ),
                );
            } else if self.auto[..index].contains(name) {
                problems.add(at, format!("`{name}` is in this list already"));
            }
        }
        let has = |of: fn(&str) -> Option<u16>| self.auto.iter().any(|name| of(name).is_some());
        if !(has(context_of) && has(number_of)) {
            let message = "a stage is placed between a context of the worker, such as c0, and one of `contexts`, such as g0; name one of each";
            problems.add(format!("{at}.place.auto"), message);
        }
        let bounds = [
            ("p99_us", self.p99_us, 1, 1_000_000),
            ("calls", self.calls, 1, 100_000),
            ("hold_s", self.hold_s, 1, 3_600),
            ("crossing_ns", self.crossing_ns, 1, 1_000_000),
            ("crossing_kib_ns", self.crossing_kib_ns, 0, 1_000_000),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                problems.add(format!("{at}.place.{name}"), format!("{value} is not from {least} to {most}"));
            }
        }
    }
}

/// Returns the number of a context, those of other programs after the worker's own.
fn number(name: &str) -> Option<u16> {
    number_of(name).map(|number| CONTEXTS_MAX + number).or_else(|| context_of(name))
}

/// What becomes of a message that a handler of a path gives up: it faults on it, or waits to be started
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GivenUp {
    /// It is dropped and counted.
    #[default]
    Drop,
    /// It goes on as it is, past the handler. A handler that has ended the path lets none pass.
    Pass,
}

impl PathStage {
    /// Returns the number of the context, those of the policy's `contexts` after the worker's own; `None` if
    /// there is none of this name.
    pub fn context_number(&self) -> Option<u16> {
        number(&self.context)
    }

    /// Returns whether a context that is another program may run it.
    pub fn may_be_elsewhere(&self) -> bool {
        number_of(&self.context).is_some() || self.place.is_some()
    }
}

pub(crate) fn first_context() -> String {
    "c0".to_owned()
}

/// Returns the number of the context of a name.
pub(crate) fn context_of(name: &str) -> Option<u16> {
    let number = name.strip_prefix('c').filter(|digits| digits.len() == 1)?.parse().ok();
    number.filter(|number| *number < CONTEXTS_MAX)
}

/// Checks the paths of a policy: where they may be, and the contexts of their stages. What handlers do with
/// formats the planner checks.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    for (index, channel) in policy.channels.iter().enumerate() {
        check_path(channel, &format!("channels[{index}]"), problems);
    }
    check_contexts(policy, problems);
}

fn check_path(channel: &Channel, at: &str, problems: &mut Problems) {
    let has_path = channel.paths().next().is_some();
    if has_path && !channel.pool.is_empty() {
        let field = if channel.path.is_empty() { "paths" } else { "path" };
        problems.add(
            format!("{at}.{field}"),
            "a channel with a pool has no path: its messages stay in their streams",
        );
    }
    if !has_path && channel.given_up != GivenUp::Drop {
        let message = "a channel without a path has no handlers that give messages up";
        problems.add(format!("{at}.given_up"), message);
    }
    branches::each_at(channel, at, &mut |stage, at| {
        if stage.context_number().is_none() {
            let message = format!(
                "`{}` is no context; there are c0 to c{}, and those of `contexts`",
                stage.context,
                CONTEXTS_MAX - 1
            );
            problems.add(format!("{at}.context"), message);
        }
        if let Some(place) = &stage.place {
            place.check(&stage.context, at, problems);
        }
    });
}

/// Checks that paths name no context elsewhere that the policy does not have.
fn check_contexts(policy: &Policy, problems: &mut Problems) {
    for (channel, known) in policy.channels.iter().enumerate() {
        branches::each_at(known, &format!("channels[{channel}]"), &mut |stage, at| {
            let mut check = |name: &String, at: String| {
                let is_known = policy.contexts.iter().any(|context| context.name == *name);
                if number_of(name).is_some() && !is_known {
                    problems.add(at, format!("`{name}` is not among the policy's contexts"));
                }
            };
            check(&stage.context, format!("{at}.context"));
            let auto = stage.place.iter().flat_map(|place| &place.auto).enumerate();
            auto.for_each(|(index, name)| check(name, format!("{at}.place.auto[{index}]")));
        });
    }
}

/// Says what a channel's paths are; nothing for none.
pub(crate) fn summary(path: &[PathStage], paths: &[FormatPath], given_up: GivenUp) -> String {
    let passes = if given_up == GivenUp::Pass { ", given up messages pass" } else { "" };
    let of_formats = paths.iter().map(|path| format!(", path of {} {}", path.format, summary_of(&path.path)));
    match path {
        [] if paths.is_empty() => String::new(),
        [] => format!("{}{passes}", of_formats.collect::<String>()),
        path => format!(", path {}{passes}", summary_of(path)),
    }
}

fn summary_of(path: &[PathStage]) -> String {
    path.iter().map(stage_summary).collect::<Vec<_>>().join(", ")
}

fn stage_summary(stage: &PathStage) -> String {
    let context = match &stage.place {
        Some(place) => format!("one of {}", place.auto.join(" ")),
        None => stage.context.clone(),
    };
    let output = |output: &StageOutput| {
        let emit = if output.emit.is_empty() { "the message" } else { &output.emit };
        let passes =
            if output.path.is_empty() { String::new() } else { format!(", {}", summary_of(&output.path)) };
        let to =
            output.channel.as_ref().map_or_else(|| "receivers".to_owned(), |name| format!("channel {name}"));
        format!("[{emit}{passes} to {to}]")
    };
    let outputs: String = stage.outputs.iter().map(|known| format!(" {}", output(known))).collect();
    match stage.parameters.as_str() {
        "" => format!("{} on {context}{outputs}", stage.handler),
        parameters => format!("{} {parameters} on {context}{outputs}", stage.handler),
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const PATHS: &str = include_str!("../fixtures/paths.yaml");

    #[test]
    fn a_path_names_handlers_and_contexts() {
        let policy = Policy::parse_yaml(PATHS, "p.yaml").unwrap();
        let contexts: Vec<_> = policy.channels[0].path.iter().map(super::PathStage::context_number).collect();
        assert_eq!(contexts, [Some(0), Some(3)]);
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        let before = PATHS.split("    path:").next().unwrap();
        let before = Policy::parse_yaml(before, "p.yaml").unwrap();
        assert!(!before.to_json().contains("path"), "the hash of a policy without paths stays");
        let diff = before.diff(&policy).join(" ");
        assert!(diff.ends_with("MiB, path forward on c0, drop-every 10 on c3"), "{diff}");
        let passing = Policy::parse_yaml(&format!("{PATHS}    given_up: pass\n"), "p.yaml").unwrap();
        assert_eq!(passing.channels[0].given_up, super::GivenUp::Pass);
        let diff = policy.diff(&passing).join(" ");
        assert!(diff.ends_with("drop-every 10 on c3, given up messages pass"), "{diff}");
    }

    #[test]
    fn a_stage_may_be_placed_by_the_proxy() {
        let placed =
            PATHS.replace("{handler: forward}", "{handler: forward, place: {auto: [c1, g0], hold_s: 5}}");
        let text = format!("{placed}contexts:\n  - {{name: g0, pool: [{{node: an-1, port: 7100}}]}}\n");
        let policy = Policy::parse_yaml(&text, "p.yaml").unwrap();
        let stage = &policy.channels[0].path[0];
        let place = stage.place.as_ref().unwrap();
        assert_eq!((place.numbers(), place.p99_us, place.hold_s), (vec![1, 8], 50, 5));
        assert!(stage.may_be_elsewhere());
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        let diff = Policy::parse_yaml(PATHS, "p.yaml").unwrap().diff(&policy).join(" ");
        assert!(diff.contains("path forward on one of c1 g0, drop-every 10 on c3"), "{diff}");
        for (from, to, expected) in [
            (
                "auto: [c1, g0]",
                "auto: [c1, c2]",
                "channels[0].path[0].place.auto: a stage is placed between a context of the worker",
            ),
            (
                "auto: [c1, g0]",
                "auto: [c1, g1]",
                "channels[0].path[0].place.auto[1]: `g1` is not among the policy's contexts",
            ),
            (
                "auto: [c1, g0]",
                "auto: [c1, g0, c1]",
                "channels[0].path[0].place.auto[2]: `c1` is in this list already",
            ),
            ("auto: [c1, g0]", "auto: [c1, g0, x]", "channels[0].path[0].place.auto[2]: `x` is no context"),
            ("hold_s: 5", "hold_s: 0", "channels[0].path[0].place.hold_s: 0 is not from 1 to 3600"),
            (
                "place: {",
                "context: g0, place: {",
                "channels[0].path[0].context: a stage has a `context`, or a `place`, not both",
            ),
        ] {
            let error = Policy::parse_yaml(&text.replacen(from, to, 1), "p.yaml").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn a_wrong_path_is_refused() {
        let many = format!("[{}]", ["{handler: forward}"; 9].join(", "));
        let cases = [
            (
                "context: c3",
                "context: c8",
                "8:40: channels[0].path[1].context: `c8` is no context; there are c0 to c7, and those of `contexts`",
            ),
            (
                "\n      - {handler: forward}\n      - {handler: drop-every, context: c3, parameters: \"10\"}",
                &format!(" {many}"),
                "6:11: channels[0].path: 9 handlers are too many; allowed are 8",
            ),
        ];
        let path = &PATHS[PATHS.find("    path:").unwrap()..];
        let nothing =
            "6:15: channels[0].given_up: a channel without a path has no handlers that give messages up";
        let cases = cases.into_iter().chain([(path, "    given_up: pass\n", nothing)]);
        for (from, to, expected) in cases {
            let error = Policy::parse_yaml(&PATHS.replacen(from, to, 1), "p.yaml").unwrap_err();
            assert_eq!(error.to_string(), format!("p.yaml:{expected}"));
        }
    }
}
