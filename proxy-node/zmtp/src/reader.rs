//! The frames of a stream in clear text: everything of a NULL peer, and the handshake of a CURVE peer.
//!
//! ```text
//!                ┌────────────── frame complete ──────────────┐
//!                ▼                                            │
//!  flags ──▶ [Header] ── COMMAND ──────────▶ [Command] ───────┤ Unit::Command
//!                │                                            │
//!                ├─ one frame, peers subscribe ─▶ [First] ────┤
//!                │                    0 or 1 │     │ else     │
//!                │                           ▼     │          │
//!                │                       [Topic] ──┼──────────┤ Unit::Topic
//!                │                                 ▼          │
//!                └─ else ──────────────────────▶ [Body] ──────┘ Unit::Message or Unit::Refused, if MORE is not set
//! ```
//! Bodies are passed over where they lie. Commands and topics are copied to the command buffer.

use crate::command::{CommandBuffer, TOPIC_COMMAND_LEN};
use crate::config::Config;
use crate::cursor::Cursor;
use crate::error::{Excess, ZmtpError};
use crate::frame::{HeaderReader, Received};
use crate::message::Assembly;

/// What a frame completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// A command is in the command buffer.
    Command,
    /// The topic of a subscription in the form of ZMTP 3.0 is in the command buffer.
    Topic { subscribe: bool },
    /// A message is complete.
    Message,
    /// A message that is refused has ended.
    Refused,
}

/// What the peer may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    /// Commands of a handshake.
    Commands,
    /// Commands and messages.
    All,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Header,
    Command,
    First(Received),
    Topic { subscribe: bool },
    Body { left: u64, more: bool },
}

/// Reads frames, whatever the slices that they arrive in.
#[derive(Clone, Debug)]
pub(crate) struct FrameReader {
    header: HeaderReader,
    step: Step,
}

/// Most bytes of a command's body: of a subscription or of any other.
pub(crate) fn command_room(config: &Config) -> usize {
    config.command_len_max.max(config.topic_len_max.saturating_add(TOPIC_COMMAND_LEN))
}

impl FrameReader {
    pub fn new() -> Self {
        FrameReader { header: HeaderReader::default(), step: Step::Header }
    }

    /// Reads until a unit is complete; `None`: more bytes are needed.
    pub fn next<'a, I>(
        &mut self,
        input: &mut Cursor<'a, I>,
        config: &Config,
        allowed: Allowed,
        command: &mut CommandBuffer,
        message: &mut Assembly,
    ) -> Result<Option<Unit>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        loop {
            match self.step {
                Step::Header => {
                    let Some(header) = self.header.read(input)? else { return Ok(None) };
                    self.step = begin(header, config, allowed, command, message)?;
                }
                Step::Command | Step::Topic { .. } if !command.fill(input) => return Ok(None),
                Step::Command => return Ok(Some(self.complete(Unit::Command))),
                Step::Topic { subscribe } => return Ok(Some(self.complete(Unit::Topic { subscribe }))),
                Step::First(header) => {
                    let Some(first) = input.byte() else { return Ok(None) };
                    self.step = first_byte(first, header, config, command, message)?;
                }
                Step::Body { left, more } => {
                    let left = left - input.skip(left);
                    self.step = Step::Body { left, more };
                    if left > 0 {
                        return Ok(None);
                    }
                    self.step = Step::Header;
                    if !more {
                        message.complete(input.position());
                        let is_refused = message.refused().is_some();
                        return Ok(Some(if is_refused { Unit::Refused } else { Unit::Message }));
                    }
                }
            }
        }
    }

    fn complete(&mut self, unit: Unit) -> Unit {
        self.step = Step::Header;
        unit
    }

    /// Bytes that a frame's header or its body certainly lacks; at least one.
    pub fn lacks(&self, command: &CommandBuffer) -> u64 {
        match self.step {
            Step::Header => self.header.lacks() as u64,
            Step::Command | Step::Topic { .. } => command.lacks().max(1) as u64,
            Step::First(header) => header.body_len.max(1),
            Step::Body { left, .. } => left.max(1),
        }
    }

    /// Where the frame of a message starts that has begun, at position `position`, but is not yet part of the
    /// message.
    pub fn pending_start(&self, position: u64) -> Option<u64> {
        match self.step {
            Step::Header => (self.header.have() > 0).then(|| position - self.header.have() as u64),
            Step::First(header) => Some(header.at),
            _ => None,
        }
    }
}

/// Decides what the frame with this header is.
fn begin(
    header: Received,
    config: &Config,
    allowed: Allowed,
    command: &mut CommandBuffer,
    message: &mut Assembly,
) -> Result<Step, ZmtpError> {
    if header.is_command() {
        let most = command.len_max();
        let body_len = usize::try_from(header.body_len).unwrap_or(usize::MAX);
        if body_len > most {
            let (what, found) = (Excess::Command, header.body_len);
            return Err(ZmtpError::TooLong { what, at: header.at, found, most });
        }
        command.begin(body_len);
        return Ok(Step::Command);
    }
    if allowed == Allowed::Commands {
        return Err(ZmtpError::Unexpected { what: "message before the end of the handshake", at: header.at });
    }
    let single = message.is_empty() && !header.has_more();
    if single && header.body_len > 0 && config.local.is_publisher() {
        return Ok(Step::First(header));
    }
    body(header, header.body_len, config, message)
}

/// Decides by the first byte whether a message is a subscription (23/ZMTP, "The Publish-Subscribe Pattern").
fn first_byte(
    first: u8,
    header: Received,
    config: &Config,
    command: &mut CommandBuffer,
    message: &mut Assembly,
) -> Result<Step, ZmtpError> {
    let left = header.body_len - 1;
    if first > 1 {
        return body(header, left, config, message);
    }
    let most = config.topic_len_max;
    let topic_len = usize::try_from(left).unwrap_or(usize::MAX);
    if topic_len > most {
        return Err(ZmtpError::TooLong { what: Excess::Topic, at: header.at, found: left, most });
    }
    command.begin(topic_len);
    Ok(Step::Topic { subscribe: first == 1 })
}

/// Adds a frame to the message, or passes it over; `left` bytes of its body are not read yet.
fn body(header: Received, left: u64, config: &Config, message: &mut Assembly) -> Result<Step, ZmtpError> {
    if message.admit(header.at, header.body_len, config.local.refuses_alone())? {
        message.push_received(header);
    }
    Ok(Step::Body { left, more: header.has_more() })
}
