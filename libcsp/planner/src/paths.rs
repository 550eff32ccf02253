//! Paths: whether the handlers of a channel fit each other and its formats, what they make of these, and in which order they run.

use std::sync::Arc;

use csp_config::Problems;
use csp_handlers::{CONTEXTS_MAX, FormatId, Handler, MESSAGE_BLOCK_LEN, State, builtin};
use csp_operators::{ChainStage, FROM_JSON, FormatSet, JSON, Optimised};
use csp_policy::{Channel, FullQueue, PathStage, Pattern, SuppliedHandler, UnknownFormat};

use crate::formats::{KnownFormat, format_set};
use crate::handlers;

/// Messages that a MiB has room for at most: each takes a block or more.
const MESSAGES_OF_MIB: u64 = (1 << 20) / MESSAGE_BLOCK_LEN as u64;

/// The formats of a channel's messages behind its path: each with its id there, for each of the channel's.
pub(crate) type Behind = Vec<(u32, KnownFormat)>;

/// Checks the path of a channel with these formats. Returns what they become. A supplied handler leaves them as they are.
pub(crate) fn check(
    channel: &Channel,
    formats: &[KnownFormat],
    supplied: &[SuppliedHandler],
    at: &str,
    problems: &mut Problems,
) -> Behind {
    let set = Arc::new(format_set(formats));
    // The formats that the next handler gets.
    let mut ids: Vec<FormatId> = (1..=formats.len() as u32).map(FormatId).collect();
    let (channel_at, mut made) = (at, Vec::new());
    for (index, stage) in channel.path.iter().enumerate() {
        let at = format!("{at}.path[{index}]");
        if handlers::find(supplied, &stage.handler).is_some() {
            continue;
        }
        let Some(mut handler) = make(&stage.handler, &set) else {
            problems.add(format!("{at}.handler"), unknown(&stage.handler, &set, supplied));
            continue;
        };
        if builtin::make(&stage.handler).is_none() && formats.is_empty() {
            let message = format!("`{}` works on formats; name the channel's in `formats`", stage.handler);
            problems.add(format!("{at}.handler"), message);
            continue;
        }
        if builtin::make(&stage.handler).is_none() && stage.may_be_elsewhere() {
            let at = if stage.place.is_some() { format!("{at}.place") } else { format!("{at}.context") };
            let message = format!(
                "`{}` works on formats, which a context elsewhere does not know; allowed are c0 to c{}",
                stage.handler,
                CONTEXTS_MAX - 1
            );
            problems.add(at, message);
        }
        made.push(handler.needs().new_len_max);
        let mut state = State::new(&handler.needs());
        if !stage.parameters.is_empty()
            && let Err(error) = handler.configure(&stage.parameters, &mut state)
        {
            problems.add_unless(&["formats"], format!("{at}.parameters"), error.to_string());
            continue;
        }
        if stage.handler == FROM_JSON {
            check_from_json(channel, &channel.path[..index], (&ids, formats), &at, problems);
        }
        for (id, format) in ids.iter_mut().zip(formats) {
            if !handler.accepts(*id) {
                let message =
                    format!("`{}` does not fit format {} of the channel", stage.handler, format.name);
                problems.add(&at, message);
            }
            *id = handler.yields(0, *id);
        }
    }
    check_memory(channel, &made, channel_at, problems);
    let behind = |(id, format): (&FormatId, &KnownFormat)| {
        let found = set.get(*id)?;
        let format = KnownFormat {
            name: format.name.clone(),
            schema: found.schema.clone(),
            message: found.name.clone(),
        };
        Some((id.0, format))
    };
    ids.iter().zip(formats).filter_map(behind).collect()
}

/// Checks that JSON texts reach the stage that reads them: the path's first operator, or one behind `to-json`.
fn check_from_json(
    channel: &Channel,
    before: &[PathStage],
    (ids, formats): (&[FormatId], &[KnownFormat]),
    at: &str,
    problems: &mut Problems,
) {
    if !ids.is_empty() && ids.iter().all(|id| *id == JSON) {
        return;
    }
    let operator = before.iter().find(|stage| csp_operators::NAMES.contains(&&*stage.handler));
    if let Some(operator) = operator {
        let message = format!(
            "`from-json` reads messages of none of the channel's formats, which pass `{}` by before it: put `from-json` first",
            operator.handler
        );
        problems.add(format!("{at}.handler"), message);
    }
    if channel.unknown == UnknownFormat::Drop {
        let message = "`from-json` reads messages of none of the channel's formats, which `unknown: drop` drops before it: leave `unknown` out";
        problems.add(format!("{at}.handler"), message);
    }
    let [first, .., last] = formats else { return };
    if channel.path.get(before.len()).is_some_and(|stage| stage.parameters.trim().is_empty()) {
        let message = format!(
            "the channel has several formats: name the message that a text has, such as {} or {}",
            first.message, last.message
        );
        problems.add(format!("{at}.parameters"), message);
    }
}

/// Returns what the stages of a valid path make of the channel's formats: of each stage, of each format, in their order. JSON is none.
pub fn path_formats(channel: &Channel, formats: &[KnownFormat]) -> Vec<Vec<KnownFormat>> {
    let (mut channel, stages) = (channel.clone(), channel.path.len());
    let mut all = Vec::new();
    for count in (1..=stages).rev() {
        channel.path.truncate(count);
        let behind = check(&channel, formats, &[], "", &mut Problems::default());
        all.push(behind.into_iter().map(|(_, format)| format).collect());
    }
    all.reverse();
    all
}

/// Returns the stages of a valid path in the order in which they run, and why: reductions first, where that changes nothing of what
/// comes out.
pub fn path_order(channel: &Channel, formats: &Arc<FormatSet>) -> Optimised {
    let stages: Vec<(&str, &str)> =
        channel.path.iter().map(|stage| (stage.handler.as_str(), stage.parameters.as_str())).collect();
    let stages = ChainStage::list(&stages);
    match channel.formats.len() {
        1 => csp_operators::optimise(&stages, formats, FormatId(1)),
        0 => Optimised { stages, notes: Vec::new() },
        // What is the same for one format need not be for another.
        _ => Optimised { stages, notes: vec!["the order stays: the channel has several formats".to_owned()] },
    }
}

/// Makes a handler of a path.
fn make(name: &str, formats: &Arc<FormatSet>) -> Option<Box<dyn Handler>> {
    let made = builtin::make(name).or_else(|| csp_operators::make(name, formats));
    made.filter(|handler| handler.needs().outputs == 1)
}

/// Whether a handler of this name is built in.
pub(crate) fn is_built_in(name: &str) -> bool {
    builtin::NAMES.iter().chain(csp_operators::NAMES).any(|known| *known == name)
}

pub(crate) fn unknown(name: &str, formats: &Arc<FormatSet>, supplied: &[SuppliedHandler]) -> String {
    let names = builtin::NAMES.iter().chain(csp_operators::NAMES);
    let names = names.copied().filter(|name| make(name, formats).is_some());
    // A supplied one of a built-in one's name is refused by itself.
    let supplied = supplied.iter().map(|handler| handler.name.as_str()).filter(|name| !is_built_in(name));
    let names: Vec<&str> = names.chain(supplied).collect();
    let why = match is_built_in(name) {
        true => "has several outputs, and a path of the policy has one",
        false => "is not known",
    };
    format!("`{name}` {why}; allowed are {}", names.join(", "))
}

/// Notes a path whose handlers make more than the channel's guarantee has room for, if the channel holds publishers back: a message that
/// has entered must be able to go on. `made`: the longest message that each handler makes, in bytes.
fn check_memory(channel: &Channel, made: &[u32], at: &str, problems: &mut Problems) {
    let blocks = |len: u64| len.div_ceil(MESSAGE_BLOCK_LEN.into()).max(1);
    let holds_back = channel.pattern == Pattern::Push || channel.queue.full == FullQueue::Block;
    let made: u64 = made.iter().filter(|len| **len > 0).map(|len| blocks((*len).into())).sum();
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
            format!("{at}.path"),
            message,
        );
    }
}
