//! What a handler is.

use csp_types::Duration;
use thiserror::Error;

use crate::call::{Call, Full, Tick};
use crate::losses::Losses;
use crate::reported::Reported;
use crate::state::State;

/// Most outputs of a handler.
pub const OUTPUTS_MAX: u8 = 8;

/// Identifies a format in its channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FormatId(pub u32);

impl FormatId {
    /// The format of bytes of which none is known.
    pub const UNKNOWN: FormatId = FormatId(0);
    /// The first id of formats that publishers have brought to a channel. Ids from 1 on are the policy's;
    /// from twice this on they are those that operators derive.
    pub const BROUGHT_FIRST: FormatId = FormatId(1 << 15);
    /// Stands for all formats, the unknown one included, where messages of one can be named. No message has
    /// it.
    pub const ANY: FormatId = FormatId(u32::MAX);

    /// Returns whether a publisher has brought the format: the handlers of the channel's path were not made
    /// for it.
    pub const fn is_brought(self) -> bool {
        self.0 >> 15 == 1
    }
}

/// What a handler needs, by which its path is checked before it is activated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Bytes of the state block.
    pub state: u32,
    /// Most bytes that the handler may ask for beside it.
    pub more_max: u32,
    /// Outputs, from 0 on; at most [`OUTPUTS_MAX`].
    pub outputs: u8,
    /// Length in bytes of the longest message that the handler makes, parts of messages included; 0: it makes
    /// none. Longer ones are refused.
    pub new_len_max: u32,
    /// How often [`Handler::on_timer`] is called.
    pub period: Option<Duration>,
    /// The version of the state's layout: a handler continues with state of the same one. `None`: with none
    /// but its own.
    pub layout: Option<u32>,
}

impl Default for Needs {
    /// No state, one output, no new messages, no timer, layout 0.
    fn default() -> Self {
        Needs { state: 0, more_max: 0, outputs: 1, new_len_max: 0, period: None, layout: Some(0) }
    }
}

/// What a handler has used beside time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Fuel of all calls, about an instruction each; 0: it is not counted.
    pub fuel: u64,
    /// Bytes of memory that are reserved for it, beside its state.
    pub memory: u64,
    /// How often it was stopped.
    pub stops: u64,
}

impl Usage {
    /// Adds what another stage has used.
    pub fn add(&mut self, other: Usage) {
        self.fuel = self.fuel.saturating_add(other.fuel);
        self.memory = self.memory.saturating_add(other.memory);
        self.stops = self.stops.saturating_add(other.stops);
    }
}

/// Why a call ended before the handler was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Stop {
    /// An output had no room. The handler has changed no state in this call; it is called again with the same
    /// message or timer, and what it has emitted before is not emitted a second time.
    #[error("an output has no room")]
    Full,
    /// The handler cannot process the message; contains why.
    #[error("{0}")]
    Fault(&'static str),
}

impl From<Full> for Stop {
    fn from(_: Full) -> Self {
        Stop::Full
    }
}

/// Parameters that a handler refuses; contains what is wrong with them.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct ParameterError(pub String);

/// Code that processes messages. One value serves one stage of one path; what is to outlive a replacement of
/// the code is in the state.
pub trait Handler: std::fmt::Debug + Send {
    /// Returns what the handler needs; always the same.
    fn needs(&self) -> Needs;

    /// Returns whether the handler processes messages of a format.
    fn accepts(&self, format: FormatId) -> bool {
        let _ = format;
        true
    }

    /// Returns the format of what the handler emits to an output if its messages have the format `input`.
    fn yields(&self, output: u8, input: FormatId) -> FormatId {
        let _ = output;
        input
    }

    /// Sets parameters: before the first message, and at any time between two.
    ///
    /// # Errors
    /// When they are not valid; the former ones then stay in force.
    fn configure(&mut self, parameters: &str, state: &mut State) -> Result<(), ParameterError>;

    /// Returns state that lies in memory of the handler's own, with the version of its layout, for a handler
    /// that takes its place. `None`: all of its state is in the [`State`], or is not for others.
    fn hand_over(&mut self, state: &mut State) -> Option<(u32, &[u8])> {
        let _ = state;
        None
    }

    /// Takes over state that the handler whose place it takes has handed over, before its first message.
    /// Returns whether it does.
    fn take_over(&mut self, layout: u32, bytes: &[u8]) -> bool {
        let _ = (layout, bytes);
        false
    }

    /// Returns what the handler has used beside time.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Returns what the handler was given and has not used, as its state says.
    fn losses(&self, state: &State) -> Losses {
        let _ = state;
        Losses::default()
    }

    /// Returns whether the handler has given up a message and will give up all later ones: its path is to
    /// end, and nothing passes by it.
    fn is_ended(&self) -> bool {
        false
    }

    /// Returns whether the handler has state that it declares to keep when another one takes its place. Such
    /// a handler is not moved to another program by itself.
    fn keeps_state(&self) -> bool {
        let needs = self.needs();
        needs.layout.is_some() && (needs.state > 0 || needs.more_max > 0)
    }

    /// Records what the stage of this handler has counted in another program, where its calls are made.
    fn on_report(&mut self, report: &Reported) {
        let _ = report;
    }

    /// Processes a message.
    ///
    /// # Errors
    /// [`Stop::Full`] to be called again with it, [`Stop::Fault`] to give it up.
    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop>;

    /// Processes the end of a period.
    ///
    /// # Errors
    /// As [`on_message`](Self::on_message).
    fn on_timer(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        let _ = tick;
        Ok(())
    }
}
