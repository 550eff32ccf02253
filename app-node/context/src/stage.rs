//! A stage of a path: its handler, the handler's state, and the messages that wait for room or for the
//! handler.

use std::collections::VecDeque;
use std::sync::Arc;

use csp_handlers::{
    Call, FormatId, Handler, Message, ParameterError, Profile, Reported, ReportedTimes, Standing, State, Stop,
};
use csp_sandbox::Report;
use csp_types::Instant;
use csp_wire::context::{Place, Record};

use crate::emitter::Emitter;
use crate::request::Pending;

/// Every `MEASURE_EVERY`th call is timed.
const MEASURE_EVERY: u64 = 16;

/// The clock that measures calls. `None`: calls are not measured.
pub(crate) type Clock = Option<fn() -> Instant>;

/// The start time of a call, and the clock that measures it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub now: Instant,
    pub clock: Clock,
}

/// A message of a call as it has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub message: Message,
    /// The frames' lengths in bytes.
    pub frames: &'a [u32],
    pub bytes: &'a [u8],
}

/// A message of a call, stored until its handler has finished.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub message: Message,
    pub frames: Vec<u32>,
    pub bytes: Vec<u8>,
}

/// Outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The handler has finished the message, and the proxy was notified.
    Done,
    /// The call must be repeated when there is room.
    Waits,
}

#[derive(Debug)]
pub(crate) struct Stage {
    pub name: String,
    pub parameters: String,
    /// `None` if the handler is being built, does not exist, or rejects its parameters. Its messages wait.
    handler: Option<Box<dyn Handler>>,
    /// The pending request for the handler.
    pub pending: Option<Pending>,
    /// Counters of a supplied handler.
    report: Option<Arc<Report>>,
    /// Why there is no handler.
    pub refused: Option<String>,
    state: State,
    /// Bytes of records that may be emitted.
    room: i64,
    /// Number of emits of the interrupted call with the oldest message.
    skip: u32,
    pub waiting: VecDeque<Waiting>,
    pub waiting_bytes: usize,
    pub profile: Profile,
    /// Numbers of calls, and of stops of its module, in the last report to the proxy.
    pub reported: (u64, u64),
    pub invalid: u64,
}

impl Stage {
    /// Returns a stage with this handler, whose parameters are not set yet.
    pub fn new(name: &str, handler: Option<Box<dyn Handler>>, room: u64) -> Self {
        let state = handler.as_ref().map_or_else(State::default, |handler| State::new(&handler.needs()));
        Stage {
            name: name.to_owned(),
            parameters: String::new(),
            handler,
            pending: None,
            report: None,
            refused: None,
            state,
            room: i64::try_from(room).unwrap_or(i64::MAX),
            skip: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            profile: Profile::default(),
            reported: (0, 0),
            invalid: 0,
        }
    }

    /// Returns a stage whose handler is being built with these parameters.
    pub fn pending(name: &str, parameters: &str, pending: Pending, room: u64) -> Self {
        let (parameters, pending) = (parameters.to_owned(), Some(pending));
        Stage { parameters, pending, ..Stage::new(name, None, room) }
    }

    /// Sets the stage's handler, which has its parameters.
    pub fn begin(&mut self, handler: Box<dyn Handler>, report: Arc<Report>) {
        self.state = State::new(&handler.needs());
        (self.handler, self.report, self.pending) = (Some(handler), Some(report), None);
    }

    /// Sets the handler's parameters. A handler that rejects its first parameters processes nothing.
    pub fn configure(&mut self, parameters: &str, first: bool) -> Result<(), ParameterError> {
        if self.pending.is_some() {
            parameters.clone_into(&mut self.parameters);
            return Ok(());
        }
        let Some(handler) = &mut self.handler else { return Ok(()) };
        // A handler without parameters keeps its defaults.
        if !(first && parameters.is_empty())
            && let Err(error) = handler.configure(parameters, &mut self.state)
        {
            if first {
                self.handler = None;
            }
            return Err(error);
        }
        parameters.clone_into(&mut self.parameters);
        Ok(())
    }

    /// Returns the report for the proxy if calls or stops were counted since the last report.
    pub fn report(&mut self) -> Option<Reported> {
        let stops = self.stops();
        let counted = (self.profile.messages, stops);
        if std::mem::replace(&mut self.reported, counted) == counted {
            return None;
        }
        Some(self.reported())
    }

    /// Returns the counters of the stage.
    pub fn reported(&self) -> Reported {
        let timing = &self.profile.timing;
        let times = ReportedTimes {
            measured: timing.measured,
            mean: timing.mean(),
            p50: timing.quantile(500),
            p99: timing.quantile(990),
            max: timing.max,
        };
        let counted = self.report.as_ref().map(|report| report.reported()).unwrap_or_default();
        let standing = if self.refused.is_some() { Standing::Refused } else { counted.standing };
        Reported { standing, times, ..counted }
    }

    /// Returns whether there were calls, or stops of the module, since the last report to the proxy.
    pub fn is_unreported(&self) -> bool {
        self.reported != (self.profile.messages, self.stops())
    }

    /// Returns how often its module was stopped.
    pub fn stops(&self) -> u64 {
        self.handler.as_ref().map_or(0, |handler| handler.usage().stops)
    }

    /// Returns whether there is a handler.
    pub fn runs(&self) -> bool {
        self.handler.is_some()
    }

    /// Records that the proxy has processed records of this length.
    pub fn give_room(&mut self, bytes: u64) {
        self.room = self.room.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Calls the handler with a new message, if no stored one precedes it.
    pub fn call(
        &mut self,
        moment: Moment,
        place: Place,
        incoming: Incoming<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        if !self.waiting.is_empty() {
            return Outcome::Waits;
        }
        self.run(moment, place, incoming, out)
    }

    /// Stores a message.
    pub fn keep(&mut self, Incoming { message, frames, bytes }: Incoming<'_>) {
        self.waiting_bytes += bytes.len();
        self.waiting.push_back(Waiting { message, frames: frames.to_vec(), bytes: bytes.to_vec() });
    }

    /// Calls the handler with stored messages while there is room. Returns the total length of the processed
    /// messages, in bytes.
    pub fn resume(&mut self, moment: Moment, place: Place, out: &mut Vec<u8>) -> usize {
        let before = self.waiting_bytes;
        while let Some(first) = self.waiting.pop_front() {
            let Waiting { message, frames, bytes } = &first;
            if self.run(moment, place, Incoming { message: *message, frames, bytes }, out) == Outcome::Waits {
                self.waiting.push_front(first);
                break;
            }
            self.waiting_bytes -= first.bytes.len();
        }
        before - self.waiting_bytes
    }

    fn run(
        &mut self,
        Moment { now, clock }: Moment,
        place: Place,
        Incoming { message, frames, bytes }: Incoming<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let Stage { handler, state, room, skip, profile, .. } = self;
        let Some(handler) = handler else { return Outcome::Waits };
        let mut port =
            Emitter { place, bytes, frames, out, room, skip: *skip, calls: 0, full: false, invalid: 0 };
        let clock = clock.filter(|_| profile.messages % MEASURE_EVERY == 0);
        let begin = clock.map(|clock| clock());
        let done = handler.on_message(&mut Call::new(message, now, state, &mut port));
        if let (Some(begin), Some(clock)) = (begin, clock) {
            profile.timing.record(clock().saturating_since(begin));
        }
        let Emitter { calls, full, invalid, .. } = port;
        self.invalid += invalid;
        profile.emitted += u64::from(calls.saturating_sub(*skip));
        if full && done != Ok(()) {
            profile.full += 1;
            *skip = calls;
            return Outcome::Waits;
        }
        *skip = 0;
        profile.messages += 1;
        profile.bytes += u64::from(message.len);
        profile.faults += u64::from(done.is_err());
        // A handler that asks for room although it has room would ask forever.
        let fault = matches!(done, Err(Stop::Fault(_) | Stop::Full));
        let mut head = [0; csp_wire::context::RECORD_HEADER_LEN];
        let ended = fault && handler.is_ended();
        if let Ok(len) = (Record::Done { place, fault, ended }).emit_head(None, &mut head) {
            out.extend_from_slice(&head[..len]);
        }
        Outcome::Done
    }
}

/// Describes a message to its handler.
pub(crate) fn message(format: u32, sequence: u64, arrived: Instant, frames: &[u32], len: usize) -> Message {
    let (len, frames) = (len as u32, frames.len() as u8);
    Message { format: FormatId(format), sequence, arrived, len, frames }
}
