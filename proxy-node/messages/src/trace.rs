//! Traces: they record the outcomes of a channel's next messages.
//!
//! ```text
//!   arm ─▶ publish: arrived, looked up ─▶ a copy for each receiver: queued, or dropped at once
//!                                                  └─▶ written, dropped later, or its receiver has left
//! ```
//! A trace is armed by a question and expires by itself. While none is armed, a call of the data path looks
//! at one flag. The memory is allocated when a trace is armed. The time of a turn is the same for all of its
//! calls, so that times come from a clock that the caller passes in; it is read for traced messages alone.

use csp_types::Instant;
use thiserror::Error;

use crate::peers::PeerId;
use crate::plane::ChannelId;
use crate::pool::FRAMES_MAX;

/// Traces that can be armed at once.
pub const TRACES_MAX: usize = 4;
/// Messages of a trace.
pub const TRACE_MESSAGES_MAX: usize = 32;
/// Receivers of a message that a trace follows; further ones are counted.
pub const TRACE_COPIES_MAX: usize = 64;
/// Handlers of a message's path that a trace records.
pub const TRACE_STAGES_MAX: usize = 16;
/// Number of copies for queries whose handlers a trace records, for each message.
pub const TRACE_FED_MAX: usize = 8;
/// Bytes of a message's topic that a trace keeps.
pub const TRACE_TOPIC_LEN_MAX: usize = 64;

/// Selects the messages of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceRequest<'a> {
    /// Number of messages, 1 to [`TRACE_MESSAGES_MAX`].
    pub messages: usize,
    /// Only messages whose topics begin with these bytes, at most [`TRACE_TOPIC_LEN_MAX`].
    pub topic: &'a [u8],
    /// When the trace ends, unless it is ended before.
    pub until: Instant,
    /// Returns the present time.
    pub clock: fn() -> Instant,
}

/// Identifies a trace until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceId {
    slot: u8,
    generation: u32,
}

/// Why a trace is not armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TraceError {
    /// The channel was removed, or is another worker's.
    #[error("the worker does not have the channel")]
    UnknownChannel,
    /// As many traces are armed as may be.
    #[error("{TRACES_MAX} traces are armed, and no more can be")]
    TooMany,
    /// The topic is too long.
    #[error("a trace's topic has at most {TRACE_TOPIC_LEN_MAX} bytes")]
    Topic,
}

/// State of a receiver's copy of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyState {
    /// It waits in the receiver's queue, or has been written in part.
    Waiting,
    /// The message waits in the queue of its information flow for the output link or a context.
    InFlow,
    /// It was written to the receiver's connection; contains the number of bytes.
    Written(u32),
    /// The receiver's queue was full: this message was dropped.
    DroppedNewest,
    /// The receiver's queue was full: this message made room for a later one.
    DroppedOldest,
    /// The receiver took nothing, and memory was short.
    DroppedStalled,
    /// Memory was short.
    DroppedMemory,
    /// The queue of the message's information flow had no room for it, or dropped it for a later one.
    DroppedFlow,
    /// The first queue of the channel's path had no room for it, or dropped it for a later one; or the path
    /// has ended.
    DroppedPath,
    /// The framing of the receiver's connection cannot carry it.
    Unwritable,
    /// The receiver has left.
    Left,
    /// A handler of the channel's path has emitted nothing for the message.
    Consumed,
}

impl CopyState {
    /// Returns whether something is still to become of the copy.
    fn waits(self) -> bool {
        matches!(self, CopyState::Waiting | CopyState::InFlow)
    }
}

/// A handler that a message has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedStage {
    /// Number of the context.
    pub context: u16,
    /// Name of the handler; of a handler of another channel, which got a copy, behind that channel's name:
    /// `late/query`.
    pub handler: String,
    /// When the handler got the message.
    pub at: Instant,
    /// When it was done.
    pub done: Instant,
    /// Messages emitted by the stage.
    pub emitted: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A receiver's copy of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TracedCopy {
    /// The receiver.
    pub peer: PeerId,
    /// State of the copy.
    pub state: CopyState,
    /// When that was; of a copy that waits, when it was queued.
    pub at: Instant,
    /// The copy was written in the present visit of the receiver's connection. The end of the visit sets its
    /// time.
    unflushed: bool,
}

/// A message that a trace has recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedMessage {
    /// Its channel.
    pub channel: ChannelId,
    /// Number of the message in its channel.
    pub sequence: u64,
    /// The peer that sent it.
    pub publisher: PeerId,
    /// The first bytes of its topic.
    pub topic: Vec<u8>,
    lens: [u32; FRAMES_MAX],
    frames: u8,
    /// When it arrived.
    pub arrived: Instant,
    /// When the receivers that subscribe to its topic were found; equal to `arrived` on a push/pull channel.
    pub looked_up: Instant,
    /// Receivers of the channel at that time.
    pub receivers: u32,
    /// Those of them that subscribe to its topic; on a push/pull channel 0.
    pub matched: u32,
    /// Copies of the first [`TRACE_COPIES_MAX`] of these receivers; on a push/pull channel of the puller that
    /// has got it.
    pub copies: Vec<TracedCopy>,
    /// Handlers of the channel's path that the message, or a message made from it, has passed; the first
    /// [`TRACE_STAGES_MAX`].
    pub stages: Vec<TracedStage>,
    /// It was pushed: one puller gets it.
    pub pushed: bool,
    /// Its copies for channels that get it from this one: the channel and the number there.
    fed: Vec<(u16, u64)>,
    /// The traces that have recorded it, a bit each.
    traces: u8,
}

impl TracedMessage {
    fn spare() -> Self {
        let channel = ChannelId { index: 0, generation: 0 };
        TracedMessage {
            channel,
            sequence: 0,
            publisher: PeerId { index: 0, generation: 0 },
            topic: Vec::with_capacity(TRACE_TOPIC_LEN_MAX),
            lens: [0; FRAMES_MAX],
            frames: 0,
            arrived: Instant::ZERO,
            looked_up: Instant::ZERO,
            receivers: 0,
            matched: 0,
            copies: Vec::with_capacity(TRACE_COPIES_MAX),
            stages: Vec::new(),
            pushed: false,
            fed: Vec::new(),
            traces: 0,
        }
    }

    /// Returns whether the message has sequence number `sequence` in the channel `slot`: `Some(false)` for
    /// the message itself, `Some(true)` for a copy fed to that channel.
    fn is(&self, slot: u16, sequence: u64) -> Option<bool> {
        let own = self.sequence == sequence && self.channel.index == slot;
        let fed = self.fed.contains(&(slot, sequence));
        (own || fed).then_some(fed)
    }

    /// Lengths of the frames in bytes.
    pub fn frames(&self) -> &[u32] {
        &self.lens[..usize::from(self.frames)]
    }

    /// Returns whether nothing more becomes of any copy that the trace follows.
    pub fn is_settled(&self) -> bool {
        let waits = |copy: &TracedCopy| copy.state.waits() || copy.unflushed;
        let is_offered = self.pushed && self.copies.is_empty();
        !is_offered && !self.copies.iter().any(waits)
    }
}

#[derive(Debug)]
struct Armed {
    generation: u32,
    channel: ChannelId,
    topic: Vec<u8>,
    /// Messages still to be recorded.
    left: usize,
    until: Instant,
}

/// All traces of a worker.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    armed: bool,
    clock: Option<fn() -> Instant>,
    generation: u32,
    slots: [Option<Armed>; TRACES_MAX],
    spare: Vec<TracedMessage>,
    messages: Vec<TracedMessage>,
}

impl Traces {
    /// Returns whether a trace is armed.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Returns the present time by the clock of the traces.
    pub fn now(&self) -> Instant {
        self.clock.map_or(Instant::ZERO, |clock| clock())
    }

    pub fn arm(
        &mut self,
        now: Instant,
        channel: ChannelId,
        request: TraceRequest<'_>,
    ) -> Result<TraceId, TraceError> {
        self.expire(now);
        if request.topic.len() > TRACE_TOPIC_LEN_MAX {
            return Err(TraceError::Topic);
        }
        let slot = self.slots.iter().position(Option::is_none).ok_or(TraceError::TooMany)?;
        self.generation = self.generation.wrapping_add(1);
        let left = request.messages.clamp(1, TRACE_MESSAGES_MAX);
        let needed = left + self.slots.iter().flatten().map(|armed| armed.left).sum::<usize>();
        self.spare.resize_with(needed.max(self.spare.len()), TracedMessage::spare);
        self.messages.reserve(needed);
        let (generation, topic) = (self.generation, request.topic.to_vec());
        self.slots[slot] = Some(Armed { generation, channel, topic, left, until: request.until });
        (self.armed, self.clock) = (true, Some(request.clock));
        Ok(TraceId { slot: slot as u8, generation })
    }

    /// Returns the messages of a trace; `None` if it has ended.
    pub fn of(&self, id: TraceId) -> Option<impl Iterator<Item = &TracedMessage>> {
        let armed = self.slots.get(usize::from(id.slot))?.as_ref();
        armed.filter(|armed| armed.generation == id.generation)?;
        let is_of = move |message: &&TracedMessage| message.traces & 1 << id.slot != 0;
        Some(self.messages.iter().filter(is_of))
    }

    /// Ends a trace; does nothing if it has ended.
    pub fn end(&mut self, id: TraceId) {
        if self.of(id).is_some() {
            self.release(usize::from(id.slot));
        }
    }

    fn release(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.messages.iter_mut().for_each(|message| message.traces &= !(1 << slot));
        self.messages.retain(|message| message.traces != 0);
        self.armed = self.slots.iter().any(Option::is_some);
        if !self.armed {
            (self.spare, self.messages) = (Vec::new(), Vec::new());
        }
    }

    fn expire(&mut self, now: Instant) {
        for slot in 0..TRACES_MAX {
            if self.slots[slot].as_ref().is_some_and(|armed| armed.until <= now) {
                self.release(slot);
            }
        }
    }

    /// Begins to record a message if a trace waits for one like it. Returns whether one does.
    #[cold]
    pub fn arrived(&mut self, now: Instant, arrival: TracedArrival<'_>) -> bool {
        self.expire(now);
        let TracedArrival { channel, publisher, topic, frames, receivers, pushed } = arrival;
        let mut traces = 0;
        for (slot, armed) in self.slots.iter_mut().enumerate() {
            let Some(armed) = armed.as_mut().filter(|armed| armed.left > 0 && armed.channel == channel)
            else {
                continue;
            };
            traces |= u8::from(topic.starts_with(&armed.topic)) << slot;
        }
        let Some(mut message) = (if traces == 0 { None } else { self.spare.pop() }) else { return false };
        message.topic.extend_from_slice(&topic[..topic.len().min(TRACE_TOPIC_LEN_MAX)]);
        for (to, len) in message.lens.iter_mut().zip(frames) {
            *to = *len;
        }
        message.frames = frames.len().min(FRAMES_MAX) as u8;
        (message.channel, message.publisher) = (channel, publisher);
        (message.receivers, message.pushed, message.traces) = (receivers, pushed, traces);
        message.arrived = self.now();
        message.looked_up = message.arrived;
        self.messages.push(message);
        true
    }

    /// Records the subscribers of the message that is being published.
    pub fn found(&mut self, peer: PeerId) {
        let Some(message) = self.messages.last_mut() else { return };
        message.matched += 1;
        if message.copies.len() < TRACE_COPIES_MAX {
            let at = message.arrived;
            message.copies.push(TracedCopy { peer, state: CopyState::Waiting, at, unflushed: false });
        }
    }

    /// Records that all subscribers have been found.
    pub fn looked_up(&mut self) {
        let now = self.now();
        if let Some(message) = self.messages.last_mut() {
            message.looked_up = now;
        }
    }

    /// Records that the message has this number, and what `state` says of each subscriber.
    pub fn published(&mut self, sequence: u64, state: impl Fn(PeerId) -> CopyState) {
        let now = self.now();
        let Some(message) = self.messages.last_mut() else { return };
        message.sequence = sequence;
        for copy in &mut message.copies {
            (copy.state, copy.at) = (state(copy.peer), now);
        }
        for (slot, armed) in self.slots.iter_mut().enumerate() {
            if let Some(armed) = armed.as_mut().filter(|_| message.traces & 1 << slot != 0) {
                armed.left -= 1;
            }
        }
    }

    /// Takes back a message that was not published.
    pub fn withdraw(&mut self) {
        if let Some(mut message) = self.messages.pop() {
            message.topic.clear();
            message.copies.clear();
            message.stages.clear();
            message.fed.clear();
            message.matched = 0;
            self.spare.push(message);
        }
    }

    /// Records the outcome of a waiting copy.
    #[cold]
    pub fn settle(&mut self, slot: u16, sequence: u64, peer: PeerId, state: CopyState) {
        let now = self.now();
        let is_it = |m: &&mut TracedMessage| m.sequence == sequence && m.channel.index == slot;
        for message in self.messages.iter_mut().filter(is_it) {
            let unflushed = matches!(state, CopyState::Written(_));
            let waits = |copy: &&mut TracedCopy| copy.peer == peer && copy.state.waits();
            let was_given = matches!(state, CopyState::Written(_) | CopyState::Unwritable);
            let first_of_pushed = message.pushed && message.copies.is_empty() && was_given;
            let settled = TracedCopy { peer, state, at: now, unflushed };
            if first_of_pushed {
                // Which puller gets a pushed message is known when it has got it.
                message.copies.push(settled);
            } else if let Some(copy) = message.copies.iter_mut().find(waits) {
                *copy = settled;
            }
        }
    }

    /// Records that a handler has finished a message, or a message made from it. `at` is when the handler
    /// received it; the present time is when it finished.
    #[cold]
    pub fn passed(&mut self, (slot, name): (u16, &str), sequence: u64, mut stage: TracedStage) {
        stage.done = self.now();
        for message in &mut self.messages {
            let Some(fed) = message.is(slot, sequence) else { continue };
            if !fed && stage.emitted == 0 && message.stages.iter().all(|before| before.emitted <= 1) {
                let waiting = message.copies.iter_mut().filter(|copy| copy.state.waits());
                waiting.for_each(|copy| (copy.state, copy.at) = (CopyState::Consumed, stage.done));
            }
            if message.stages.len() < TRACE_STAGES_MAX {
                let mut stage = stage.clone();
                if fed {
                    stage.handler = format!("{name}/{}", stage.handler);
                }
                message.stages.push(stage);
            }
        }
    }

    /// Records that a copy of a message was fed to another channel, and its sequence number there.
    #[cold]
    pub fn fed(&mut self, slot: u16, sequence: u64, copy: (u16, u64)) {
        let is_it = |m: &&mut TracedMessage| m.is(slot, sequence).is_some() && m.fed.len() < TRACE_FED_MAX;
        self.messages.iter_mut().filter(is_it).for_each(|message| message.fed.push(copy));
    }

    /// Records that bytes written for a receiver are in its connection now.
    #[cold]
    pub fn flushed(&mut self, peer: PeerId) {
        let now = self.now();
        let copies = self.messages.iter_mut().flat_map(|message| &mut message.copies);
        for copy in copies.filter(|copy| copy.unflushed && copy.peer == peer) {
            (copy.at, copy.unflushed) = (now, false);
        }
    }

    /// Records the outcomes of the copies of a message that waited in its flow's queue.
    #[cold]
    pub fn left_flow(&mut self, slot: u16, sequence: u64, state: impl Fn(PeerId) -> CopyState) {
        let now = self.now();
        let is_it = |m: &&mut TracedMessage| m.sequence == sequence && m.channel.index == slot;
        let copies = self.messages.iter_mut().filter(is_it).flat_map(|message| &mut message.copies);
        for copy in copies.filter(|copy| copy.state == CopyState::InFlow) {
            (copy.state, copy.at) = (state(copy.peer), now);
        }
    }

    /// Records that a message was removed from the first queue of its channel's path.
    #[cold]
    pub fn left_path(&mut self, slot: u16, sequence: u64) {
        self.check(slot, |_, number, _| (number == sequence).then_some(CopyState::DroppedPath));
    }

    /// Calls `state` with each waiting copy of a channel (receiver, sequence number, state) and records the
    /// returned state.
    #[cold]
    pub fn check(&mut self, slot: u16, state: impl Fn(PeerId, u64, CopyState) -> Option<CopyState>) {
        let now = self.now();
        for message in self.messages.iter_mut().filter(|message| message.channel.index == slot) {
            let sequence = message.sequence;
            for copy in message.copies.iter_mut().filter(|copy| copy.state.waits()) {
                if let Some(state) = state(copy.peer, sequence, copy.state) {
                    (copy.state, copy.at) = (state, now);
                }
            }
        }
    }
}

/// A message that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedArrival<'a> {
    pub channel: ChannelId,
    pub publisher: PeerId,
    /// As many bytes of the topic as a trace's topic may have, or more.
    pub topic: &'a [u8],
    pub frames: &'a [u32],
    /// Receivers of the channel.
    pub receivers: u32,
    /// One of them gets it.
    pub pushed: bool,
}
