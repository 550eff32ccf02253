//! Paths that divide: paths for single formats, and outputs of a handler that lead to other channels.
//!
//! ```text
//!   publishers ─▶ channel ─ path of the message's format ─▶ handler ─▶ split ─┬─▶ the channel's receivers
//!                                                                            ├─▶ handler ─▶ channel `late`
//!                                                                            └─▶ channel `board`
//! ```
//! A channel that outputs lead to is *derived*: nobody publishes to it, and it lives where its source does.

use csp_config::{Problems, nearest};
use csp_handlers::{OUTPUTS_MAX, STAGES_MAX};
use csp_types::options::FullQueue;
use serde::{Deserialize, Serialize};

use crate::Policy;
use crate::channels::{Channel, Pattern, UnknownFormat};
use crate::contexts::number_of;
use crate::framing::Clients;
use crate::paths::PathStage;

/// Most derived channels of a channel.
pub const OUTLETS_MAX: usize = 8;

/// The path of a channel's messages of one format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatPath {
    /// The format, one of the channel's.
    pub format: String,
    /// Handlers that its messages pass, in order.
    pub path: Vec<PathStage>,
}

/// An output of a handler.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageOutput {
    /// What the handler emits here, in its own words; empty: the message itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub emit: String,
    /// Handlers that it passes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<PathStage>,
    /// The channel that gets it; absent: this channel's receivers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

impl Channel {
    /// Returns the channel's paths, each with its format; `None`: all formats.
    pub fn paths(&self) -> impl Iterator<Item = (Option<&str>, &[PathStage])> {
        let all = (!self.path.is_empty()).then_some((None, &self.path[..]));
        all.into_iter().chain(self.paths.iter().map(|path| (Some(path.format.as_str()), &path.path[..])))
    }

    /// Returns the stages of all of its paths, each before those behind it.
    pub fn stages(&self) -> Vec<&PathStage> {
        self.paths().flat_map(|(_, path)| stages(path)).collect()
    }

    /// Returns the names of the derived channels that its paths lead to, each once, in the order of their
    /// numbers.
    pub fn outlets(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in
            self.stages().iter().flat_map(|stage| &stage.outputs).filter_map(|to| to.channel.as_deref())
        {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Policy {
    /// Returns the channel whose paths lead to a derived channel; `None` if it is not derived.
    pub fn source_of(&self, derived: &str) -> Option<&Channel> {
        self.channels.iter().find(|channel| channel.outlets().contains(&derived))
    }
}

/// Returns the stages of a path, each before those behind its outputs.
pub fn stages(path: &[PathStage]) -> Vec<&PathStage> {
    let mut all = Vec::new();
    for stage in path {
        all.push(stage);
        all.extend(stage.outputs.iter().flat_map(|output| stages(&output.path)));
    }
    all
}

/// Changes all stages of a path.
pub(crate) fn for_each_mut(path: &mut [PathStage], change: &mut dyn FnMut(&mut PathStage)) {
    for stage in path {
        change(stage);
        stage.outputs.iter_mut().for_each(|output| for_each_mut(&mut output.path, change));
    }
}

/// Calls `check` with each stage of a channel's paths, and the field at which it stands.
pub(crate) fn each_at(channel: &Channel, at: &str, check: &mut dyn FnMut(&PathStage, &str)) {
    each_of(&channel.path, &format!("{at}.path"), check);
    for (index, path) in channel.paths.iter().enumerate() {
        each_of(&path.path, &format!("{at}.paths[{index}].path"), check);
    }
}

fn each_of(path: &[PathStage], at: &str, check: &mut dyn FnMut(&PathStage, &str)) {
    for (index, stage) in path.iter().enumerate() {
        let at = format!("{at}[{index}]");
        check(stage, &at);
        for (output, known) in stage.outputs.iter().enumerate() {
            each_of(&known.path, &format!("{at}.outputs[{output}].path"), check);
        }
    }
}

/// Checks how the paths of a policy divide, and the channels that they lead to. What handlers do with formats
/// the planner checks.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    for (index, channel) in policy.channels.iter().enumerate() {
        let at = format!("channels[{index}]");
        check_formats(channel, &at, problems);
        check_order(&channel.path, &format!("{at}.path"), problems);
        for (index, path) in channel.paths.iter().enumerate() {
            let at = format!("{at}.paths[{index}].path");
            check_order(&path.path, &at, problems);
            if path.path.is_empty() {
                problems.add(at, "a path has at least one handler; leave the entry out");
            }
        }
        let count = channel.outlets().len();
        if count > OUTLETS_MAX {
            let message =
                format!("outputs lead to {count} channels; allowed are {OUTLETS_MAX} of one channel");
            problems.add(format!("{at}.path"), message);
        }
        each_at(channel, &at, &mut |stage, at| check_stage(policy, channel, stage, at, problems));
    }
    for (index, channel) in policy.channels.iter().enumerate() {
        check_derived(policy, channel, &format!("channels[{index}]"), problems);
    }
}

/// Checks for which formats a channel has paths.
fn check_formats(channel: &Channel, at: &str, problems: &mut Problems) {
    if !channel.paths.is_empty() && !channel.path.is_empty() {
        let message =
            "a channel has a `path` for all of its messages, or `paths` for some of its formats, not both";
        problems.add(format!("{at}.paths"), message);
    }
    for (index, path) in channel.paths.iter().enumerate() {
        let at = format!("{at}.paths[{index}].format");
        let names = || channel.formats.iter().map(String::as_str);
        if !names().any(|name| name == path.format) {
            let near = nearest(&path.format, names());
            let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
            problems.add(at, format!("\"{}\" is none of the channel's `formats`{near}", path.format));
        } else if channel.paths[..index].iter().any(|before| before.format == path.format) {
            problems.add(at, format!("\"{}\" has a path already", path.format));
        }
    }
}

/// Checks how many stages a path has, and that what follows a handler with outputs stands behind these.
fn check_order(path: &[PathStage], at: &str, problems: &mut Problems) {
    let count = stages(path).len();
    if count > STAGES_MAX {
        problems.add(at, format!("{count} handlers are too many; allowed are {STAGES_MAX}"));
    }
    check_ends(path, at, problems);
}

fn check_ends(path: &[PathStage], at: &str, problems: &mut Problems) {
    for (index, stage) in path.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if !stage.outputs.is_empty() && index + 1 < path.len() {
            let message = "what follows a handler with `outputs` stands in the `path` of one of them";
            problems.add(format!("{at}.outputs"), message);
        }
        for (output, known) in stage.outputs.iter().enumerate() {
            check_ends(&known.path, &format!("{at}.outputs[{output}].path"), problems);
        }
    }
}

/// Checks the outputs of a stage.
fn check_stage(policy: &Policy, channel: &Channel, stage: &PathStage, at: &str, problems: &mut Problems) {
    if stage.outputs.is_empty() {
        return;
    }
    if stage.outputs.len() > usize::from(OUTPUTS_MAX) {
        let message = format!("has {} entries; allowed are 1 to {OUTPUTS_MAX}", stage.outputs.len());
        problems.add(format!("{at}.outputs"), message);
    }
    if !stage.parameters.is_empty() {
        let message = "each output says in `emit` what it gets: a handler with `outputs` has no `parameters`";
        problems.add(format!("{at}.parameters"), message);
    }
    if stage.place.is_some() || number_of(&stage.context).is_some() {
        let field = if stage.place.is_some() { "place" } else { "context" };
        let message = "a handler with `outputs` runs in a context of the proxy worker, c0 to c7";
        problems.add(format!("{at}.{field}"), message);
    }
    for (index, output) in stage.outputs.iter().enumerate() {
        let Some(name) = &output.channel else { continue };
        let at = format!("{at}.outputs[{index}].channel");
        let names = || policy.channels.iter().map(|known| known.name.as_str());
        let source = policy.source_of(name).map(|source| source.name.as_str());
        let message = match source {
            _ if *name == channel.name => {
                "leave `channel` out: the output goes to this channel's receivers".to_owned()
            }
            _ if !names().any(|known| known == name) => {
                let near = nearest(name, names());
                let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
                format!("there is no channel \"{name}\"{near}")
            }
            Some(source) if source != channel.name => {
                format!("outputs of {source} lead to {name} already; those of one channel can")
            }
            _ => continue,
        };
        problems.add(at, message);
    }
}

/// Checks that nothing of a derived channel contradicts where its messages come from.
fn check_derived(policy: &Policy, channel: &Channel, at: &str, problems: &mut Problems) {
    let Some(source) = policy.source_of(&channel.name).filter(|source| source.name != channel.name) else {
        return;
    };
    let from = format!("its messages are what outputs of {} emit", source.name);
    let mut refuse = |is_there: bool, field: &str, why: &str| {
        if is_there {
            problems.add(format!("{at}.{field}"), format!("{from}: {why}"));
        }
    };
    refuse(!channel.path.is_empty(), "path", "what they pass stands in the `path` of the output");
    refuse(!channel.paths.is_empty(), "paths", "what they pass stands in the `path` of the output");
    refuse(!channel.formats.is_empty(), "formats", "it has the formats of these");
    refuse(channel.unknown == UnknownFormat::Drop, "unknown", "nobody else publishes here");
    refuse(!channel.pool.is_empty(), "pool", "it has no servers");
    refuse(channel.time.is_some(), "time", "it has the time of its source");
    refuse(channel.requests.is_some(), "requests", "programs ask at its source");
    refuse(channel.pattern == Pattern::Push, "pattern", "it holds back nobody; allowed is publish");
    let blocks = channel.queue.full == FullQueue::Block;
    refuse(blocks, "queue.full", "it holds back nobody; allowed are drop-newest, drop-oldest");
    // Clients of a length-prefixed port that does not say what they do receive here.
    let publishes = |clients: Option<Clients>| matches!(clients, Some(Clients::Publish | Clients::Both));
    refuse(publishes(channel.clients), "clients", "nobody publishes here");
    refuse(channel.listen.iter().any(|port| publishes(port.clients)), "listen", "nobody publishes here");
    if source.curve.is_some() && channel.curve.is_none() {
        problems.add(at, format!("{from}, which has keys, and needs `curve` itself"));
    }
    if channel.message_kib < source.message_kib {
        let message = format!(
            "{} has messages of up to {} KiB, and longer ones than {} would be dropped here",
            source.name, source.message_kib, channel.message_kib
        );
        problems.add(format!("{at}.message_kib"), message);
    }
}

#[cfg(test)]
mod tests;
