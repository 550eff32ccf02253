//! One connection of a proxy worker: bytes in, calls of handlers, bytes out. It has no clock and no socket.
//!
//! ```text
//!   bytes ─▶ records ─▶ stage ─▶ handler ─ emits ─▶ records ─▶ bytes
//!                         └ no room, or no handler yet: the message waits here
//!
//!   STAGE with a module ─▶ request ─▶ [builder] ─▶ built: the handler;  or missing ─▶ WANT ─▶ PART, … ─▶ request with its bytes
//! ```
//! What the proxy sends is bounded by the credit that HELLO grants and by [`Limits`]; the session ends when
//! the proxy exceeds them, or sends something other than its records. A stage whose handler is missing or
//! refuses its parameters does not answer: its path waits at the proxy. Other paths continue.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use csp_handlers::{Needs, Profile, STAGES_MAX};
use csp_types::{Duration, Instant};
use csp_wire::WireError;
use csp_wire::context::{FRAMES_MAX, Hash, Message, Place, RECORD_HEADER_LEN, Record, Supply};
use thiserror::Error;

use crate::library::Make;
use crate::reports;
use crate::request::{BuildRequest, BuildResult, Objects, Pending};
use crate::stage::{self, Clock, Incoming, Moment, Outcome, Stage};

/// Interval between reports of a stage. Stops are reported at once.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Limits of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Unanswered calls of a stage.
    pub calls: u32,
    /// Stages at once.
    pub stages: usize,
    /// Bytes of messages that wait for room.
    pub waiting_bytes: usize,
    /// Longest record in bytes.
    pub record_len: usize,
    /// Bytes of a handler's state.
    pub state_bytes: u64,
    /// Total length of the modules and formats being received.
    pub object_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            calls: 64,
            stages: 64 * STAGES_MAX,
            waiting_bytes: 256 << 20,
            record_len: csp_wire::context::RECORD_LEN_MAX,
            state_bytes: 16 << 20,
            object_bytes: 64 << 20,
        }
    }
}

/// Number of measured calls of a stage after which each report halves the weight of earlier calls.
const AGED_FROM: u32 = 400;

/// Why a session ends.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SessionError {
    /// The bytes are not records.
    #[error("the proxy sent what is no record: {0}")]
    Wire(#[from] WireError),
    /// A record arrived before HELLO, or HELLO arrived twice.
    #[error("HELLO is the first record, and comes once")]
    Greeting,
    /// A record that only a context sends.
    #[error("the proxy sent a record that only a context sends")]
    Direction,
    /// A record about a stage that STAGE has not described.
    #[error("the proxy sent a record about a stage that it has not described: path {}, stage {}", .0.path, .0.stage)]
    UnknownStage(Place),
    /// A record that is longer than permitted; contains its length.
    #[error("a record of {0} bytes is longer than permitted")]
    TooLong(usize),
    /// More unanswered calls of a stage than its credit.
    #[error("the proxy exceeded the credit of {0} calls of a stage")]
    Credit(u32),
    /// More stages than permitted.
    #[error("the proxy described more than {0} stages")]
    Stages(usize),
    /// More bytes wait for room than permitted.
    #[error("more than {0} bytes of messages wait for room at the proxy")]
    Waiting(usize),
    /// A received module or list of formats is invalid; with the reason.
    #[error("what the proxy sent of a module or of formats {0}")]
    Object(&'static str),
}

/// An event for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEvent {
    /// A stage runs a handler with these parameters.
    Runs {
        /// Name of the handler.
        handler: String,
        /// Its parameters.
        parameters: String,
    },
    /// The handler does not exist, or needs more memory than permitted. Its messages wait at the proxy.
    NoHandler {
        /// The name.
        handler: String,
    },
    /// A handler rejects its parameters. If it has no former ones, its messages wait at the proxy.
    Refused {
        /// Name of the handler.
        handler: String,
        /// The reason.
        error: String,
    },
}

/// Events that are kept until they are fetched.
const EVENTS_MAX: usize = 64;

/// The session of one connection.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    make: Make,
    /// Whether HELLO has arrived. The proxy uses no more credit than was granted.
    greeted: bool,
    /// The beginning of a record that has not arrived as a whole.
    input: Vec<u8>,
    stages: HashMap<Place, Stage>,
    waiting_bytes: usize,
    /// Calls of stages that have ended.
    past: Profile,
    events: Vec<SessionEvent>,
    clock: Clock,
    objects: Objects,
    requests: Vec<BuildRequest>,
    serial: u64,
    /// When the last reports were sent.
    reported: Instant,
}

impl Session {
    /// Creates a session that creates built-in handlers with `make`.
    pub fn new(limits: Limits, make: Make) -> Self {
        Session {
            limits,
            make,
            greeted: false,
            input: Vec::new(),
            stages: HashMap::new(),
            waiting_bytes: 0,
            past: Profile::default(),
            events: Vec::new(),
            clock: None,
            objects: Objects::default(),
            requests: Vec::new(),
            serial: 0,
            reported: Instant::ZERO,
        }
    }

    /// Sets the clock that measures some calls of handlers.
    pub fn set_clock(&mut self, clock: fn() -> Instant) {
        self.clock = Some(clock);
    }

    /// Processes received bytes, and appends the output to `out`.
    ///
    /// # Errors
    /// When the proxy has violated the protocol or a bound: the caller closes the connection.
    pub fn receive(&mut self, now: Instant, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        // Whole records are processed where they arrived; what is left over is copied.
        while !bytes.is_empty() {
            if self.input.is_empty() {
                let used = self.records(now, bytes, out)?;
                bytes = &bytes[used..];
                self.check_len(bytes)?;
                self.input.extend_from_slice(bytes);
                break;
            }
            // Up to the end of the record that has begun.
            let wanted = Record::len_at(&self.input).unwrap_or(4).max(4).saturating_sub(self.input.len());
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.input.extend_from_slice(taken);
            bytes = rest;
            self.check_len(&self.input)?;
            let input = std::mem::take(&mut self.input);
            let used = self.records(now, &input, out)?;
            self.input = input;
            self.input.drain(..used);
        }
        self.on_timeout(now, out);
        Ok(())
    }

    /// Appends the reports that are due.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Vec<u8>) {
        if now.saturating_since(self.reported) < REPORT_INTERVAL {
            return;
        }
        self.reported = now;
        for (place, stage) in &mut self.stages {
            if let Some(report) = stage.report() {
                reports::emit(*place, &report, "", out);
                stage.profile.timing.age(AGED_FROM);
            }
        }
    }

    /// Returns whether stages have counts that were not reported yet: the caller calls again after
    /// [`REPORT_INTERVAL`].
    pub fn is_unreported(&self) -> bool {
        self.stages.values().any(Stage::is_unreported)
    }

    fn check_len(&self, record: &[u8]) -> Result<(), SessionError> {
        match Record::len_at(record) {
            Some(len) if len > self.limits.record_len => Err(SessionError::TooLong(len)),
            _ => Ok(()),
        }
    }

    /// Processes whole records. Returns their length.
    fn records(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, SessionError> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            self.check_len(rest)?;
            let Some((record, len)) = Record::parse(rest)? else { return Ok(used) };
            self.process(now, record, out)?;
            used += len;
        }
    }

    fn process(&mut self, now: Instant, record: Record<'_>, out: &mut Vec<u8>) -> Result<(), SessionError> {
        if matches!(record, Record::Hello { .. }) == self.greeted {
            return Err(SessionError::Greeting);
        }
        match record {
            Record::Hello { .. } => {
                (self.greeted, self.reported) = (true, now);
                let hello = Record::Hello { credit: self.limits.calls.into() };
                let mut head = [0; RECORD_HEADER_LEN];
                let len = hello.emit_head(None, &mut head)?;
                out.extend_from_slice(&head[..len]);
            }
            Record::Stage { place, room, handler, parameters, supply } => {
                self.stage((place, room), (handler, parameters), supply, out)?;
            }
            Record::Call { place, sequence, age_ns, message } => {
                self.call(now, place, (sequence, age_ns), message, out)?;
            }
            Record::Part { object, total: 0, .. } => {
                let stages = &self.stages;
                let is_waiting = |(place, serial): &(Place, u64)| {
                    let pending = stages.get(place).and_then(|stage| stage.pending.as_ref());
                    pending.is_some_and(|pending| pending.request.serial == *serial)
                };
                if let Some(place) = self.objects.not_there(object, is_waiting)? {
                    reports::want(place, object, out);
                }
            }
            Record::Part { object, total, offset, bytes } => {
                let most = self.limits.object_bytes;
                if let Some((bytes, requests)) = self.objects.part(object, (total, offset), bytes, most)? {
                    requests.into_iter().for_each(|request| self.arrived(request, object, &bytes));
                }
            }
            Record::Room { place, bytes } => {
                let stage = self.stages.get_mut(&place).ok_or(SessionError::UnknownStage(place))?;
                stage.give_room(bytes);
                self.waiting_bytes -= stage.resume(Moment { now, clock: self.clock }, place, out);
                report_stops(stage, place, out);
            }
            Record::Gone { place } => {
                let gone = self.stages.remove(&place).ok_or(SessionError::UnknownStage(place))?;
                self.waiting_bytes -= gone.waiting_bytes;
                self.past.add(&gone.profile);
            }
            Record::Same { .. }
            | Record::Frames { .. }
            | Record::Range { .. }
            | Record::New { .. }
            | Record::Done { .. }
            | Record::Want { .. }
            | Record::Report { .. } => return Err(SessionError::Direction),
        }
        Ok(())
    }

    fn call(
        &mut self,
        now: Instant,
        place: Place,
        (sequence, age_ns): (u64, u64),
        message: Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let mut frames = [0; FRAMES_MAX];
        let mut count = 0;
        for (known, len) in frames.iter_mut().zip(message.frame_lens()) {
            (*known, count) = (len, count + 1);
        }
        let arrived = Instant::from_nanos(now.as_nanos().saturating_sub(age_ns));
        let (frames, bytes) = (&frames[..count], message.bytes);
        let info = stage::message(message.format, sequence, arrived, frames, bytes.len());
        let Limits { calls, waiting_bytes, .. } = self.limits;
        let stage = self.stages.get_mut(&place).ok_or(SessionError::UnknownStage(place))?;
        if stage.waiting.len() >= calls as usize {
            return Err(SessionError::Credit(calls));
        }
        let moment = Moment { now, clock: self.clock };
        let incoming = Incoming { message: info, frames, bytes };
        if stage.call(moment, place, incoming, out) == Outcome::Waits {
            self.waiting_bytes += bytes.len();
            if self.waiting_bytes > waiting_bytes {
                return Err(SessionError::Waiting(waiting_bytes));
            }
            stage.keep(incoming);
        }
        report_stops(stage, place, out);
        Ok(())
    }

    /// Creates a stage, or changes the parameters of one.
    fn stage(
        &mut self,
        (place, room): (Place, u64),
        (name, parameters): (&str, &str),
        supply: Supply<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let stages = self.stages.len();
        let Limits { stages: stages_max, state_bytes, .. } = self.limits;
        let (stage, first) = match self.stages.entry(place) {
            Entry::Occupied(known) if known.get().name == name => {
                if known.get().pending.as_ref().is_some_and(|pending| !pending.is_of(&supply)) {
                    return Err(SessionError::UnknownStage(place));
                }
                (known.into_mut(), false)
            }
            Entry::Occupied(_) => return Err(SessionError::UnknownStage(place)),
            Entry::Vacant(_) if stages >= stages_max => return Err(SessionError::Stages(stages_max)),
            Entry::Vacant(free) => match supply.module {
                Some(module) => {
                    self.serial += 1;
                    let pending = Pending::new(place, self.serial, parameters, module, &supply);
                    self.requests.push(pending.request.clone());
                    free.insert(Stage::pending(name, parameters, pending, room));
                    return Ok(());
                }
                None => {
                    let handler = (self.make)(name).filter(|handler| fits(&handler.needs(), state_bytes));
                    (free.insert(Stage::new(name, handler, room)), true)
                }
            },
        };
        if !first && stage.parameters == parameters {
            return Ok(());
        }
        let handler = name.to_owned();
        let event = match (stage.runs(), stage.configure(parameters, first)) {
            _ if stage.pending.is_some() => return Ok(()),
            (false, _) => SessionEvent::NoHandler { handler },
            (true, Ok(())) => SessionEvent::Runs { handler, parameters: parameters.to_owned() },
            (true, Err(error)) => SessionEvent::Refused { handler, error: error.to_string() },
        };
        if !stage.runs() {
            let why = match &event {
                SessionEvent::Refused { error, .. } => error.clone(),
                _ => "there is no such handler".to_owned(),
            };
            refuse(stage, place, why, out);
        }
        self.note(event);
        Ok(())
    }

    fn note(&mut self, event: SessionEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(event);
        }
    }

    /// Adds an object to a request, which is repeated once all of its objects have arrived.
    fn arrived(&mut self, (place, serial): (Place, u64), object: &Hash, bytes: &std::sync::Arc<[u8]>) {
        let pending = self.stages.get_mut(&place).and_then(|stage| stage.pending.as_mut());
        let Some(pending) = pending.filter(|pending| pending.request.serial == serial) else { return };
        pending.request.objects.push((*object, bytes.clone()));
        pending.missing = pending.missing.saturating_sub(1);
        if pending.missing == 0 {
            self.requests.push(pending.request.clone());
        }
    }

    /// Removes and returns the pending requests. The caller passes each result to [`built`](Self::built).
    pub fn take_requests(&mut self) -> Vec<BuildRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Processes the result of a request, and appends the output to `out`.
    pub fn built(
        &mut self,
        now: Instant,
        (place, serial): (Place, u64),
        made: BuildResult,
        out: &mut Vec<u8>,
    ) {
        let state_bytes = self.limits.state_bytes;
        let stage = self.stages.get_mut(&place);
        let is_its =
            |stage: &&mut Stage| stage.pending.as_ref().is_some_and(|known| known.request.serial == serial);
        let Some(stage) = stage.filter(is_its) else { return };
        let handler = stage.name.clone();
        let why = match made {
            BuildResult::Missing(objects) => match &mut stage.pending {
                // The objects that have arrived did not help.
                Some(pending) if pending.request.objects.is_empty() => {
                    pending.missing = objects.len();
                    for object in objects {
                        if self.objects.want(object, (place, serial)) {
                            reports::want(place, &object, out);
                        }
                    }
                    return;
                }
                _ => "the module is not here".to_owned(),
            },
            BuildResult::Refused(why) => why,
            BuildResult::Ready(made, _) if !fits(&made.needs(), state_bytes) => {
                "it needs a timer, or more state than a context elsewhere has".to_owned()
            }
            BuildResult::Ready(made, report) => {
                let wanted = stage.parameters.clone();
                let set = stage.pending.as_ref().is_some_and(|pending| pending.request.parameters == wanted);
                stage.begin(made, report);
                let event = match if set { Ok(()) } else { stage.configure(&wanted, false) } {
                    Ok(()) => SessionEvent::Runs { handler, parameters: wanted },
                    Err(error) => SessionEvent::Refused { handler, error: error.to_string() },
                };
                self.waiting_bytes -= stage.resume(Moment { now, clock: self.clock }, place, out);
                report_stops(stage, place, out);
                return self.note(event);
            }
        };
        stage.pending = None;
        refuse(stage, place, why.clone(), out);
        self.note(SessionEvent::Refused { handler, error: why });
    }

    /// Removes and returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<SessionEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// Returns the number of messages that wait for room.
    pub fn waiting(&self) -> usize {
        self.stages.values().map(|stage| stage.waiting.len()).sum()
    }

    /// Returns the calls of all stages so far.
    pub fn profile(&self) -> Profile {
        let mut all = self.past;
        self.stages.values().for_each(|stage| all.add(&stage.profile));
        all
    }

    /// Returns the number of emits that could not be sent, because the message does not contain the bytes or
    /// a record would be too long.
    pub fn invalid(&self) -> u64 {
        self.stages.values().map(|stage| stage.invalid).sum()
    }
}

/// Returns whether a session has the resources that a handler needs.
fn fits(needs: &Needs, state_bytes: u64) -> bool {
    u64::from(needs.state) + u64::from(needs.more_max) <= state_bytes && needs.period.is_none()
}

/// Notifies the proxy that a stage does not run.
fn refuse(stage: &mut Stage, place: Place, why: String, out: &mut Vec<u8>) {
    let report = stage.refused.insert(why).clone();
    reports::emit(place, &stage.reported(), &report, out);
}

/// Notifies the proxy at once if a stage's module was stopped.
fn report_stops(stage: &mut Stage, place: Place, out: &mut Vec<u8>) {
    if stage.stops() != stage.reported.1
        && let Some(report) = stage.report()
    {
        reports::emit(place, &report, "", out);
    }
}
