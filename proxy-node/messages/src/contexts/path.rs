//! A path: the stages that messages of a channel pass on their way to its receivers.

use csp_handlers::{FormatId, Handler, ReportedTimes, State};
use csp_types::{Duration, Instant};

use super::handler_manager::StageMaker;
use super::profiles::Profiles;
use crate::plane::ChannelId;
use crate::queue::{Queue, QueueLimits};

pub use csp_handlers::STAGES_MAX;

/// Names a path until it is replaced and empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId {
    /// Index of the path's slot.
    pub index: u16,
    /// How often the slot was used before.
    pub generation: u16,
}

/// Most outlets of a path.
pub const OUTLETS_MAX: usize = 8;

/// Destinations of one output of a handler: later stages, the channel's receivers, outlets to other channels,
/// or several of these. Messages to an output without destinations are discarded.
///
/// | bits | destination |
/// |---|---|
/// | 0 to 7 | stage |
/// | 8 | the channel's receivers |
/// | 16 to 23 | outlet |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Targets(u32);

/// The bit of the first outlet.
const OUTLET_FIRST: usize = 16;
const _: () = assert!(STAGES_MAX < OUTLET_FIRST && OUTLET_FIRST + OUTLETS_MAX <= 32);

impl Targets {
    /// Nowhere.
    pub const NONE: Targets = Targets(0);
    /// The channel's receivers.
    pub const RECEIVERS: Targets = Targets(1 << STAGES_MAX);

    /// The queue of a stage.
    pub fn stage(stage: usize) -> Self {
        Targets(if stage < STAGES_MAX { 1 << stage } else { 0 })
    }

    /// The channel that is the path's outlet with this number ([`PathSpec::outlets`]).
    pub fn outlet(outlet: usize) -> Self {
        Targets(if outlet < OUTLETS_MAX { 1 << (OUTLET_FIRST + outlet) } else { 0 })
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Targets) -> Self {
        Targets(self.0 | other.0)
    }

    /// Returns whether the channel's receivers are among them.
    pub fn delivers(self) -> bool {
        self.0 & Targets::RECEIVERS.0 != 0
    }

    /// Returns the stages among them.
    pub fn stages(self) -> impl Iterator<Item = usize> {
        let mut left = self.0 & (Targets::RECEIVERS.0 - 1);
        std::iter::from_fn(move || {
            let stage = left.checked_ilog2()? as usize;
            left &= !(1 << stage);
            Some(stage)
        })
    }

    /// Returns the outlets among them.
    pub fn outlets(self) -> impl Iterator<Item = u8> {
        let mut left = self.0 >> OUTLET_FIRST;
        std::iter::from_fn(move || {
            let outlet = left.checked_ilog2()?;
            left &= !(1 << outlet);
            Some(outlet as u8)
        })
    }

    /// Returns how many they are.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// A stage of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageSpec {
    /// Name of the handler.
    pub handler: String,
    /// Number of the context.
    pub context: u16,
    /// Makes the handler; `None`: its name is enough.
    pub maker: Option<StageMaker>,
    /// The handler's parameters.
    pub parameters: String,
    /// Destinations of each output; the handler has as many outputs.
    pub outputs: Vec<Targets>,
}

/// Which messages enter a path of all formats. All others go directly to the receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathEntry {
    /// All messages.
    #[default]
    All,
    /// Messages of the channel's formats.
    Known,
    /// Messages of the channel's formats, and those of unknown format, which an operator of the path
    /// converts. Those of formats that publishers have brought do not enter.
    KnownOrUnknown,
}

impl PathEntry {
    /// Returns whether messages of a format enter.
    pub const fn takes(self, format: FormatId) -> bool {
        match self {
            PathEntry::All => true,
            PathEntry::Known => format.0 != FormatId::UNKNOWN.0 && !format.is_brought(),
            PathEntry::KnownOrUnknown => !format.is_brought(),
        }
    }
}

/// A path as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathSpec {
    /// The channel.
    pub channel: ChannelId,
    /// The format; `None`: all that have no path of their own.
    pub format: Option<FormatId>,
    /// Which messages enter the path, if it is the path of all formats.
    pub entry: PathEntry,
    /// The stages. Messages go from a stage to later ones.
    pub stages: Vec<StageSpec>,
    /// Other channels that outputs of its stages lead to, in the order of their numbers. Each has a path of
    /// all formats, and does not lead back to this one.
    pub outlets: Vec<ChannelId>,
    /// Marks of each queue; `in_flight` is not used.
    pub queue: QueueLimits,
    /// A message that a handler gives up goes on as it is, to the handler's first output, instead of being
    /// dropped.
    pub passes_faults: bool,
    /// Handlers continue with the state of the replaced path's same stage, if that stage has the same
    /// handler.
    pub keeps_state: bool,
}

impl PathSpec {
    /// Returns a path of handlers in sequence, each with its context and parameters. Each emits to its first
    /// output.
    pub fn chain(channel: ChannelId, stages: &[(&str, u16, &str)]) -> Self {
        let stage = |(at, (handler, context, parameters)): (usize, &(&str, u16, &str))| StageSpec {
            handler: (*handler).to_owned(),
            context: *context,
            maker: None,
            parameters: (*parameters).to_owned(),
            outputs: vec![if at + 1 < stages.len() { Targets::stage(at + 1) } else { Targets::RECEIVERS }],
        };
        PathSpec {
            channel,
            format: None,
            entry: PathEntry::All,
            stages: stages.iter().enumerate().map(stage).collect(),
            outlets: Vec::new(),
            queue: QueueLimits { messages: 256, bytes: 1 << 20, in_flight: 0 },
            passes_faults: false,
            keeps_state: true,
        }
    }
}

/// A path of a channel after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathChange {
    /// One that stays as it is.
    Keep(PathId),
    /// One that is activated.
    New(PathSpec),
}

/// Messages of a path since it was activated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathCounters {
    /// Put into the queue of the first stage.
    pub entered: u64,
    /// Not put into it, because it was full.
    pub dropped_newest: u64,
    /// Removed from it, because it was full.
    pub dropped_oldest: u64,
    /// Messages not put into the path, or not made by a handler, because the pool had no room.
    pub dropped_memory: u64,
    /// Messages dropped because a handler had given them up, or had ended the path.
    pub dropped_faults: u64,
    /// Messages lost because a handler ignored that its emit had no room.
    pub dropped_ignored: u64,
    /// Emitted to an output that the handler does not have, too long, or not as long as its frames.
    pub dropped_invalid: u64,
    /// Given to the channel's receivers.
    pub delivered: u64,
    /// Removed with the path's channel.
    pub lost: u64,
}

/// A handler's timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    pub period: Duration,
    pub next: Instant,
    /// The period has passed, and the handler was not called yet.
    pub due: bool,
}

#[derive(Debug)]
pub(super) struct Stage {
    /// Number of the handler at the manager.
    pub number: usize,
    pub handler: Box<dyn Handler>,
    pub state: State,
    pub context: u16,
    pub outputs: Vec<Targets>,
    pub new_len_max: u32,
    pub timer: Option<Timer>,
    /// Number of emits of the interrupted call with the message at the front of the queue.
    pub skip: u32,
    /// Number of messages at the front of the queue that were passed to a remote context.
    pub given: u32,
    /// Bytes of these.
    pub given_bytes: u64,
    /// Emits of a remote context for the first of these messages since it was passed on.
    pub remote_calls: u32,
    /// The same for an interrupted call of the timer.
    pub skip_tick: u32,
    /// Blocks that stages after this one need to go on.
    pub reserve: u32,
    pub profiles: Profiles,
    /// Times of calls that a remote context has measured.
    pub times: Option<ReportedTimes>,
    /// Why a remote context does not run the stage.
    pub refused: Option<String>,
    /// The handler has refused the state of its predecessor.
    pub state_refused: bool,
}

#[derive(Debug)]
pub(super) struct Path {
    pub spec: PathSpec,
    pub stages: Vec<Stage>,
    /// The queue before each stage.
    pub queues: Vec<Queue>,
    /// Replaced paths that are not empty yet: until then, messages only wait here.
    pub after: Vec<u16>,
    /// The paths that wait for this one.
    pub then: Vec<u16>,
    /// Replaced: no message enters it any more.
    pub retired: bool,
    /// Takes the place of a path that was removed, until that is empty.
    pub transient: bool,
    /// A handler has ended it: messages go no further.
    pub ended: bool,
    /// Stages that wait, by bit: for a later stage; for receivers; for memory.
    pub waits_for_stage: u16,
    pub waits_for_receivers: u16,
    pub waits_for_memory: u16,
    /// Number of blocks that a stage waits for.
    pub wanted: u32,
    /// Blocks that must be free beside a message that enters, so that it can pass the path.
    pub reserve: u32,
    pub counters: PathCounters,
}

impl Path {
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// Returns the waiting stages, and clears their record.
    pub fn take_waiting(&mut self) -> Targets {
        let stages = u32::from(self.waits_for_stage | self.waits_for_receivers | self.waits_for_memory);
        (self.waits_for_stage, self.waits_for_receivers, self.waits_for_memory) = (0, 0, 0);
        Targets(stages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_stages_and_receivers() {
        let targets = Targets::stage(2).and(Targets::RECEIVERS).and(Targets::stage(7));
        assert_eq!(
            (targets.stages().collect::<Vec<_>>(), targets.delivers(), targets.count()),
            (vec![7, 2], true, 3)
        );
        assert_eq!(Targets::stage(STAGES_MAX), Targets::NONE);
        let outlets = Targets::outlet(0).and(Targets::outlet(7)).and(targets);
        assert_eq!((outlets.outlets().collect::<Vec<_>>(), outlets.count()), (vec![7, 0], 5));
        assert_eq!(outlets.stages().collect::<Vec<_>>(), [7, 2]);
        assert_eq!(Targets::outlet(OUTLETS_MAX), Targets::NONE);
        assert!(targets.outlets().next().is_none());
        assert!(!Targets::stage(0).delivers() && Targets::RECEIVERS.stages().next().is_none());
    }
}
