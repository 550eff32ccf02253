//! Paths: whether the handlers of a channel fit each other and its formats, where they lead, what they make
//! of these, and in which order they run.

use std::sync::Arc;

use csp_config::Problems;
use csp_handlers::{CONTEXTS_MAX, FormatId, Handler, MESSAGE_BLOCK_LEN, State, builtin};
use csp_operators::{ChainStage, FROM_JSON, FormatSet, JSON, Optimised, Split};
use csp_policy::{Channel, PathStage, SuppliedHandler, UnknownFormat};

use crate::formats::{KnownFormat, format_set};
use crate::handlers;

/// Messages that a MiB has room for at most: each takes a block or more.
const MESSAGES_OF_MIB: u64 = (1 << 20) / MESSAGE_BLOCK_LEN as u64;

/// The formats of messages behind a path: each with its id there and the name of the channel's format.
pub(crate) type Behind = Vec<(u32, KnownFormat)>;

/// Where the paths of a channel lead.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// What the channel's receivers get.
    pub receivers: Behind,
    /// What derived channels get, by their names.
    pub channels: Vec<(String, Behind)>,
    /// KiB of state, by context.
    pub state_kib: Vec<(String, u64)>,
}

impl Ends {
    fn add(&mut self, to: Option<&str>, id: FormatId, format: KnownFormat) {
        let behind = match to {
            None => &mut self.receivers,
            Some(name) => match self.channels.iter().position(|(known, _)| known == name) {
                Some(at) => &mut self.channels[at].1,
                None => {
                    self.channels.push((name.to_owned(), Vec::new()));
                    let last = self.channels.len() - 1;
                    &mut self.channels[last].1
                }
            },
        };
        if !behind.iter().any(|(known, _)| *known == id.0) {
            behind.push((id.0, format));
        }
    }
}

/// Checks the paths of a channel with these formats. Returns what the formats become, and where. A supplied
/// handler leaves them as they are.
pub(crate) fn check(
    channel: &Channel,
    formats: &[KnownFormat],
    supplied: &[SuppliedHandler],
    at: &str,
    problems: &mut Problems,
) -> Ends {
    let set = Arc::new(format_set(formats));
    let (mut ends, mut longest) = (Ends::default(), Vec::new());
    let has_path = |name: &str| channel.paths.iter().any(|path| path.format == name);
    for (id, format) in (1..).map(FormatId).zip(formats) {
        if channel.path.is_empty() && !has_path(&format.name) {
            ends.add(None, id, format.clone());
        }
    }
    for (index, (format, path)) in channel.paths().enumerate() {
        let field = if format.is_none() { format!("{at}.path") } else { format!("{at}.paths[{index}].path") };
        let ids = ids_of(formats, format);
        let mut walk = Check {
            channel,
            formats,
            set: &set,
            supplied,
            format,
            problems,
            ends: &mut ends,
            made: Vec::new(),
        };
        walk.chain(path, &ids, (&mut Vec::new(), None), &field);
        let made = walk.made;
        if blocks_of(&made) >= blocks_of(&longest) {
            longest = made;
        }
    }
    check_memory(channel, &longest, at, problems);
    ends
}

/// Returns the ids of a channel's formats, or of the one of a path, each with its place among the formats.
fn ids_of(formats: &[KnownFormat], of: Option<&str>) -> Vec<(usize, FormatId)> {
    let known = formats.iter().enumerate().filter(|(_, format)| of.is_none_or(|name| format.name == name));
    known.map(|(at, _)| (at, FormatId(at as u32 + 1))).collect()
}

/// A walk along a path.
struct Check<'a> {
    channel: &'a Channel,
    formats: &'a [KnownFormat],
    set: &'a Arc<FormatSet>,
    supplied: &'a [SuppliedHandler],
    /// The format of the path's messages; `None`: all.
    format: Option<&'a str>,
    problems: &'a mut Problems,
    ends: &'a mut Ends,
    /// The longest message that each handler makes, in bytes.
    made: Vec<u32>,
}

impl<'a> Check<'a> {
    /// Checks handlers one after the other, behind `before`, which lead to receivers or to a channel.
    fn chain(
        &mut self,
        path: &'a [PathStage],
        ids: &[(usize, FormatId)],
        (before, to): (&mut Vec<&'a PathStage>, Option<&str>),
        at: &str,
    ) {
        let (mut ids, had) = (ids.to_vec(), before.len());
        for (index, stage) in path.iter().enumerate() {
            let at = format!("{at}[{index}]");
            let handler = self.stage(stage, &ids, before, &at);
            before.push(stage);
            let yields = |output: u8| -> Vec<(usize, FormatId)> {
                let of = |id| handler.as_ref().map_or(id, |handler| handler.yields(output, id));
                ids.iter().map(|(format, id)| (*format, of(*id))).collect()
            };
            if !stage.outputs.is_empty() {
                for (output, known) in (0..=u8::MAX).zip(&stage.outputs) {
                    let at = format!("{at}.outputs[{output}].path");
                    self.chain(&known.path, &yields(output), (before, known.channel.as_deref()), &at);
                }
                before.truncate(had);
                return;
            }
            ids = yields(0);
        }
        for (format, id) in ids {
            if let (Some(found), Some(format)) = (self.set.get(id), self.formats.get(format)) {
                let (schema, message) = (found.schema.clone(), found.name.clone());
                self.ends.add(to, id, KnownFormat { name: format.name.clone(), schema, message });
            }
        }
        before.truncate(had);
    }

    /// Checks a handler. Returns it with its parameters; `None` if it is wrong, or leaves formats alone.
    fn stage(
        &mut self,
        stage: &PathStage,
        ids: &[(usize, FormatId)],
        before: &[&PathStage],
        at: &str,
    ) -> Option<Box<dyn Handler>> {
        let name = stage.handler.as_str();
        if handlers::find(self.supplied, name).is_some() {
            if !stage.outputs.is_empty() {
                let message = format!("`{name}` has one output; `outputs` are for {}", dividing());
                self.problems.add(format!("{at}.outputs"), message);
            }
            return None;
        }
        let Some(mut handler) = make(name, self.set) else {
            self.problems.add(format!("{at}.handler"), unknown(name, self.supplied));
            return None;
        };
        let is_operator = builtin::make(name).is_none();
        if is_operator && self.formats.is_empty() {
            let message = format!("`{name}` works on formats; name the channel's in `formats`");
            self.problems.add(format!("{at}.handler"), message);
            return None;
        }
        if is_operator && stage.may_be_elsewhere() {
            let at = if stage.place.is_some() { format!("{at}.place") } else { format!("{at}.context") };
            let message = format!(
                "`{name}` works on formats, which a context elsewhere does not know; allowed are c0 to c{}",
                CONTEXTS_MAX - 1
            );
            self.problems.add(at, message);
        }
        let needs = handler.needs();
        if !self.check_outputs(stage, needs.outputs, at) {
            return None;
        }
        self.made.push(needs.new_len_max);
        let kib = u64::from(needs.state).div_ceil(1 << 10);
        self.ends.state_kib.push((stage.context.clone(), kib));
        let (mut state, parameters) = (State::new(&needs), parameters(stage));
        if !parameters.is_empty()
            && let Err(error) = handler.configure(&parameters, &mut state)
        {
            let field = if stage.outputs.is_empty() { "parameters" } else { "outputs" };
            self.problems.add_unless(&["formats"], format!("{at}.{field}"), error.to_string());
            return None;
        }
        if name == FROM_JSON {
            self.check_from_json(stage, ids, before, at);
        }
        for (format, id) in ids {
            if !handler.accepts(*id) {
                let format = self.formats.get(*format).map_or("", |format| &format.name);
                self.problems.add(at, format!("`{name}` does not fit format {format} of the channel"));
            }
        }
        Some(handler)
    }

    /// Checks that a handler with so many outputs says where each leads. Returns whether it does.
    fn check_outputs(&mut self, stage: &PathStage, outputs: u8, at: &str) -> bool {
        let name = stage.handler.as_str();
        let wrong = match (outputs > 1, stage.outputs.is_empty()) {
            (true, true) => {
                let message = format!("`{name}` has several outputs: say in `outputs` where each leads");
                Some((format!("{at}.handler"), message))
            }
            (false, false) => {
                let message = format!("`{name}` has one output; `outputs` are for {}", dividing());
                Some((format!("{at}.outputs"), message))
            }
            _ => None,
        };
        let is_whole = builtin::make(name).is_some();
        let mut right = wrong.is_none();
        if let Some((at, message)) = wrong {
            self.problems.add(at, message);
        }
        for (index, output) in stage.outputs.iter().enumerate() {
            let message = match Split::parts(&output.emit) {
                _ if is_whole && !output.emit.is_empty() => format!("`{name}` emits the message itself"),
                1 => continue,
                _ => "a semicolon ends what an output gets: write another output".to_owned(),
            };
            right = false;
            self.problems.add(format!("{at}.outputs[{index}].emit"), message);
        }
        right
    }

    /// Checks that JSON texts reach the stage that reads them: the first operator, or one behind `to-json`.
    fn check_from_json(
        &mut self,
        stage: &PathStage,
        ids: &[(usize, FormatId)],
        before: &[&PathStage],
        at: &str,
    ) {
        if !ids.is_empty() && ids.iter().all(|(_, id)| *id == JSON) {
            return;
        }
        if self.format.is_some() {
            let message = "`from-json` reads messages of none of the channel's formats, which take no path of a format: put it into `path`";
            self.problems.add(format!("{at}.handler"), message);
        }
        let operator = before.iter().find(|stage| csp_operators::NAMES.contains(&&*stage.handler));
        if let Some(operator) = operator {
            let message = format!(
                "`from-json` reads messages of none of the channel's formats, which pass `{}` by before it: put `from-json` first",
                operator.handler
            );
            self.problems.add(format!("{at}.handler"), message);
        }
        if self.channel.unknown == UnknownFormat::Drop {
            let message = "`from-json` reads messages of none of the channel's formats, which `unknown: drop` drops before it: leave `unknown` out";
            self.problems.add(format!("{at}.handler"), message);
        }
        let [first, .., last] = self.formats else { return };
        if stage.parameters.trim().is_empty() {
            let message = format!(
                "the channel has several formats: name the message that a text has, such as {} or {}",
                first.message, last.message
            );
            self.problems.add(format!("{at}.parameters"), message);
        }
    }
}

/// Returns the parameters of a stage's handler: those of one with outputs say what each of these gets.
pub fn parameters(stage: &PathStage) -> String {
    let emit = |output: &csp_policy::StageOutput| match output.emit.as_str() {
        "" => "whole".to_owned(),
        emit => emit.to_owned(),
    };
    match stage.outputs.len() {
        0 => stage.parameters.clone(),
        outputs if builtin::make(&stage.handler).is_some() => outputs.to_string(),
        _ => stage.outputs.iter().map(emit).collect::<Vec<_>>().join("; "),
    }
}

/// A path as it runs.
#[derive(Clone, Debug)]
pub struct PathPlan {
    /// The format of its messages, by its place among the channel's; `None`: all.
    pub format: Option<usize>,
    /// The stages in the order in which they run; each leads to later ones.
    pub stages: Vec<PlannedStage>,
    /// What was done with the order, and what not and why.
    pub notes: Vec<String>,
}

/// A stage of a path as it runs.
#[derive(Clone, Debug)]
pub struct PlannedStage {
    /// The stage, with all of its parameters and without its outputs.
    pub stage: PathStage,
    /// Where each of its outputs leads; at least one.
    pub outputs: Vec<PlannedOutput>,
}

/// An output of a stage.
#[derive(Clone, Debug)]
pub struct PlannedOutput {
    /// What it gets, in the handler's words, if the handler has several outputs.
    pub emit: String,
    /// Where it leads.
    pub to: Destination,
    /// What becomes of each of the path's formats. JSON is none.
    pub yields: Vec<KnownFormat>,
}

/// Where an output leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// To a later stage.
    Stage(usize),
    /// To the channel's receivers.
    Receivers,
    /// To a derived channel, by its place among [`Channel::outlets`].
    Channel(usize),
}

/// Plans the paths of a valid channel: their stages in the order in which they run, reductions first where
/// that changes nothing of what comes out.
pub fn plan_paths(channel: &Channel, formats: &[KnownFormat], set: &Arc<FormatSet>) -> Vec<PathPlan> {
    let plan = |(format, path): (Option<&str>, &[PathStage])| {
        let ids = ids_of(formats, format);
        let plan = PathPlan {
            format: format.and_then(|_| ids.first().map(|(at, _)| *at)),
            stages: Vec::new(),
            notes: Vec::new(),
        };
        let mut planning = Planning { channel, formats, set, plan };
        planning.chain(path, &ids, Destination::Receivers);
        planning.plan
    };
    channel.paths().map(plan).collect()
}

struct Planning<'a> {
    channel: &'a Channel,
    formats: &'a [KnownFormat],
    set: &'a Arc<FormatSet>,
    plan: PathPlan,
}

impl Planning<'_> {
    /// Adds handlers one after the other that lead to `end`. Returns where what precedes them leads.
    fn chain(&mut self, path: &[PathStage], ids: &[(usize, FormatId)], end: Destination) -> Destination {
        let Some(last) = path.last() else { return end };
        let (chain, divides) = match last.outputs.is_empty() {
            true => (path, None),
            false => (&path[..path.len() - 1], Some(last)),
        };
        let (first, mut ids) = (self.plan.stages.len(), ids.to_vec());
        let stages = self.ordered(chain, &ids);
        let count = stages.len();
        for (at, stage) in stages.into_iter().enumerate() {
            let to =
                if at + 1 < count || divides.is_some() { Destination::Stage(first + at + 1) } else { end };
            ids = self.yields(&stage, 0, &ids);
            let outputs = vec![self.output(String::new(), to, &ids)];
            self.plan.stages.push(PlannedStage { stage, outputs });
        }
        if let Some(last) = divides {
            self.divide(last, &ids);
        }
        if self.plan.stages.len() == first { end } else { Destination::Stage(first) }
    }

    /// Adds a stage with several outputs, and what stands behind these.
    fn divide(&mut self, last: &PathStage, ids: &[(usize, FormatId)]) {
        let stage = PathStage { parameters: parameters(last), outputs: Vec::new(), ..last.clone() };
        let at = self.plan.stages.len();
        self.plan.stages.push(PlannedStage { stage, outputs: Vec::new() });
        for (number, output) in (0..=u8::MAX).zip(&last.outputs) {
            let outlets = self.channel.outlets();
            let outlet =
                output.channel.as_ref().and_then(|name| outlets.iter().position(|known| known == name));
            let end = outlet.map_or(Destination::Receivers, Destination::Channel);
            let stage = self.plan.stages[at].stage.clone();
            let ids = self.yields(&stage, number, ids);
            let to = self.chain(&output.path, &ids, end);
            let output = self.output(output.emit.clone(), to, &ids);
            self.plan.stages[at].outputs.push(output);
        }
    }

    /// Returns handlers in the order in which they run.
    fn ordered(&mut self, chain: &[PathStage], ids: &[(usize, FormatId)]) -> Vec<PathStage> {
        let given: Vec<(&str, &str)> =
            chain.iter().map(|stage| (stage.handler.as_str(), stage.parameters.as_str())).collect();
        if given.is_empty() {
            return Vec::new();
        }
        let stages = ChainStage::list(&given);
        let order = match ids {
            [(_, id)] => csp_operators::optimise(&stages, self.set, *id),
            [] => Optimised { stages, notes: Vec::new() },
            _ => Optimised {
                stages,
                notes: vec!["the order stays: the channel has several formats".to_owned()],
            },
        };
        self.plan.notes.extend(order.notes);
        let stage =
            |known: ChainStage| PathStage { parameters: known.parameters, ..chain[known.given].clone() };
        order.stages.into_iter().map(stage).collect()
    }

    fn yields(&self, stage: &PathStage, output: u8, ids: &[(usize, FormatId)]) -> Vec<(usize, FormatId)> {
        let Some(mut handler) = make(&stage.handler, self.set) else { return ids.to_vec() };
        let mut state = State::new(&handler.needs());
        let _ = handler.configure(&stage.parameters, &mut state); // checked with the policy
        ids.iter().map(|(format, id)| (*format, handler.yields(output, *id))).collect()
    }

    fn output(&self, emit: String, to: Destination, ids: &[(usize, FormatId)]) -> PlannedOutput {
        let format = |(format, id): &(usize, FormatId)| {
            let (found, known) = (self.set.get(*id)?, self.formats.get(*format)?);
            let (schema, message) = (found.schema.clone(), found.name.clone());
            Some(KnownFormat { name: known.name.clone(), schema, message })
        };
        PlannedOutput { emit, to, yields: ids.iter().filter_map(format).collect() }
    }
}

/// Makes a handler of a path.
fn make(name: &str, formats: &Arc<FormatSet>) -> Option<Box<dyn Handler>> {
    builtin::make(name).or_else(|| csp_operators::make(name, formats))
}

/// Returns whether a handler has several outputs.
pub fn divides(name: &str) -> bool {
    make(name, &Arc::default()).is_some_and(|handler| handler.needs().outputs > 1)
}

/// The names of the handlers with several outputs.
fn dividing() -> String {
    let names = builtin::NAMES.iter().chain(csp_operators::NAMES).copied();
    let divides =
        |name: &&str| make(name, &Arc::default()).is_some_and(|handler| handler.needs().outputs > 1);
    names.filter(divides).collect::<Vec<_>>().join(", ")
}

/// Whether a handler of this name is built in.
pub(crate) fn is_built_in(name: &str) -> bool {
    builtin::NAMES.iter().chain(csp_operators::NAMES).any(|known| *known == name)
}

pub(crate) fn unknown(name: &str, supplied: &[SuppliedHandler]) -> String {
    let names = builtin::NAMES.iter().chain(csp_operators::NAMES);
    let names = names.copied();
    // A supplied one of a built-in one's name is refused by itself.
    let supplied = supplied.iter().map(|handler| handler.name.as_str()).filter(|name| !is_built_in(name));
    let names: Vec<&str> = names.chain(supplied).collect();
    format!("`{name}` is not known; allowed are {}", names.join(", "))
}

/// Notes a path whose handlers make more than the guarantee of a channel that holds back has room for: a
/// message that has entered must be able to go on. `made`: each handler's longest message, in bytes.
fn check_memory(channel: &Channel, made: &[u32], at: &str, problems: &mut Problems) {
    let holds_back = channel.holds_back();
    let made = blocks_of(made);
    let needed = blocks(u64::from(channel.message_kib) << 10) + made;
    let has = u64::from(channel.memory.guaranteed_mib) * MESSAGES_OF_MIB;
    if holds_back && made > 0 && needed > has {
        let message = format!(
            "the longest message and what the path makes of it need {} KiB of guaranteed memory, and the channel has {} MiB: write \
             `memory: {{guaranteed_mib: {}}}`, or a shorter `message_kib`",
            needed * u64::from(MESSAGE_BLOCK_LEN >> 10),
            channel.memory.guaranteed_mib,
            needed.div_ceil(MESSAGES_OF_MIB)
        );
        problems.add_unless(
            &[&format!("{at}.memory"), &format!("{at}.message_kib")],
            format!("{at}.{}", if channel.path.is_empty() { "paths" } else { "path" }),
            message,
        );
    }
}

/// Blocks of a message of so many bytes.
fn blocks(len: u64) -> u64 {
    len.div_ceil(MESSAGE_BLOCK_LEN.into()).max(1)
}

/// Blocks of one message of each handler that makes some.
fn blocks_of(made: &[u32]) -> u64 {
    made.iter().filter(|len| **len > 0).map(|len| blocks((*len).into())).sum()
}
