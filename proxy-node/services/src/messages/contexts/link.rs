//! A connection to a context elsewhere: calls of the plane's messages out, what their handlers emit in.
//!
//! ```text
//!   plane ─ next_call ─▶ STAGE, CALL from the pool's slices ─▶ DATA of the connection
//!   plane ◀─ emit, done ── records, in their order; those of a stage without room are held, and others pass them
//! ```
//! Modules and formats that the context asks for go out in parts, one between two calls.
//!
//! The records held for a stage are bounded: the context emits no more than the room that it was granted, and
//! the room is granted again when the plane has taken the records.

use std::collections::{HashMap, VecDeque};

use csp_handlers::{Emit, FormatId, Piece};
use csp_messages::{MessageHandle, MessagePlane, PathId, RemoteDone, RemoteError, Ticket};
use csp_proxy_core::service::DATA_MAX;
use csp_proxy_core::service::upstream::UpstreamEnd;
use csp_quality::SharedLink;
use csp_types::{FlowLabel, Instant};
use csp_wire::WireError;
use csp_wire::context::{FRAMES_MAX, Hash, Place, RECORD_HEADER_LEN, RECORD_LEN_MAX, Record, message_of};

use super::body::Body;
use super::supply::{self, Transfer, WANTS_MAX};

/// Largest number of unanswered calls of a stage; the context may permit fewer.
pub(super) const CREDIT: u32 = 64;
/// Bytes of records that a stage may emit before the plane has taken them.
pub(super) const ROOM: u64 = 256 << 10;
/// Longest record of a context that carries no message.
const REPORT_LEN_MAX: usize = 1024;
/// Calls before other connections are served.
const CALLS_PER_VISIT: usize = 128;
/// Calls with messages of at most this many bytes are sent together.
const COPIED_MAX: u32 = 4096;

/// The context violated the protocol: it is disconnected.
#[derive(Debug)]
pub(super) struct Violation;

impl From<WireError> for Violation {
    fn from(_: WireError) -> Self {
        Violation
    }
}

/// A stage that the context knows.
#[derive(Debug, Default)]
struct Known {
    /// Number of the paths' generation that described the stage to the context.
    epoch: u64,
    /// Length of records that the plane has taken and that were not yet granted to the context again.
    taken: u64,
    /// Records that have no room.
    held: Vec<u8>,
    /// Number of requests for the stage's module and formats.
    wants: u8,
}

/// A connection to a context.
#[derive(Debug)]
pub(super) struct Link {
    pub label: FlowLabel,
    /// The context's number at the plane.
    context: u16,
    /// Unanswered calls permitted for each stage; 0 until the context has sent HELLO.
    credit: u32,
    /// Longest record that the context may send.
    record_len_max: usize,
    /// The beginning of a record.
    input: Vec<u8>,
    /// Records to be sent before the body.
    output: Vec<u8>,
    /// The body that follows, and records after it.
    body: Option<Body>,
    later: Vec<u8>,
    stages: HashMap<Place, Known>,
    /// Stages with records that are held.
    held: usize,
    /// The connection is in the list of those to be served.
    pub queued: bool,
    /// The connection is to be closed.
    pub ended: bool,
    /// The connection has no room.
    blocked: bool,
    /// Calls sent.
    pub calls: u64,
    /// Modules and formats that are being sent.
    transfers: VecDeque<Transfer>,
    /// Stages that the context does not run, with why; fetched by the broker.
    pub refused: Vec<(Ticket, String)>,
}

fn ticket(place: Place) -> Ticket {
    let Place { path, generation, stage } = place;
    Ticket { path: PathId { index: path, generation }, stage }
}

impl Link {
    /// A connection that sends HELLO. The context sends no record longer than that of a message of
    /// `message_len_max` bytes.
    pub fn new(label: FlowLabel, context: u16, message_len_max: u32) -> Self {
        let record_len_max = RECORD_HEADER_LEN + 4 * FRAMES_MAX + message_len_max as usize;
        let mut link = Link {
            label,
            context,
            credit: 0,
            record_len_max: record_len_max.clamp(REPORT_LEN_MAX, RECORD_LEN_MAX),
            input: Vec::new(),
            output: Vec::new(),
            body: None,
            later: Vec::new(),
            stages: HashMap::new(),
            held: 0,
            queued: false,
            ended: false,
            blocked: false,
            calls: 0,
            transfers: VecDeque::new(),
            refused: Vec::new(),
        };
        link.put(Record::Hello { credit: CREDIT.into() });
        link
    }

    /// Returns whether the context has sent HELLO.
    pub fn is_up(&self) -> bool {
        self.credit > 0
    }

    /// Returns whether it could be served.
    pub fn has_work(&self, plane: &MessagePlane) -> bool {
        let has_more = || !self.transfers.is_empty() || plane.has_calls(self.context);
        !self.queued && (self.ended || (!self.blocked && self.is_up() && has_more()))
    }

    /// Adds a record without a message to the output, behind a body that is being sent.
    fn put(&mut self, record: Record<'_>) {
        let to = if self.body.is_some() { &mut self.later } else { &mut self.output };
        let text = match record {
            Record::Stage { handler, parameters, .. } => {
                handler.len() + parameters.len() + 2 * size_of::<Hash>()
            }
            Record::Part { bytes, .. } => bytes.len() + size_of::<Hash>(),
            _ => 0,
        };
        let start = to.len();
        to.resize(start + RECORD_HEADER_LEN + text, 0);
        let len = record.emit_head(None, &mut to[start..]).unwrap_or(0); // a policy's names are short
        to.truncate(start + len);
    }

    /// Serves the connection: first received bytes, then held records, then calls. Returns whether bytes were
    /// moved.
    pub fn serve(
        &mut self,
        now: Instant,
        upstream: &mut impl UpstreamEnd,
        (plane, mut output): (&mut MessagePlane, Option<&mut SharedLink>),
        epoch: u64,
    ) -> Result<bool, Violation> {
        self.queued = false;
        let mut moved = self.receive(now, upstream, plane, output.as_deref_mut())?;
        moved |= self.retry(now, plane, output)?;
        moved |= self.send(now, upstream, plane, epoch);
        Ok(moved)
    }

    fn receive(
        &mut self,
        now: Instant,
        upstream: &mut impl UpstreamEnd,
        plane: &mut MessagePlane,
        mut output: Option<&mut SharedLink>,
    ) -> Result<bool, Violation> {
        let readable = upstream.readable();
        if readable == 0 {
            return Ok(false);
        }
        upstream.peek(readable).for_each(|slice| self.input.extend_from_slice(slice));
        upstream.consume(readable);
        let mut input = std::mem::take(&mut self.input);
        let mut used = 0;
        while let Some((record, len)) = Record::parse(&input[used..])? {
            if len > self.record_len_max {
                return Err(Violation);
            }
            self.process(now, plane, record, &input[used..used + len], output.as_deref_mut())?;
            used += len;
        }
        input.drain(..used);
        if Record::len_at(&input).is_some_and(|len| len > self.record_len_max) {
            return Err(Violation);
        }
        self.input = input;
        Ok(true)
    }

    fn process(
        &mut self,
        now: Instant,
        plane: &mut MessagePlane,
        record: Record<'_>,
        bytes: &[u8],
        output: Option<&mut SharedLink>,
    ) -> Result<(), Violation> {
        if let Record::Hello { credit } = record {
            if self.credit > 0 || credit == 0 {
                return Err(Violation);
            }
            self.credit = u32::try_from(credit).unwrap_or(u32::MAX).min(CREDIT);
            plane.set_remote(self.context, self.credit);
            return Ok(());
        }
        let place = record.place().ok_or(Violation)?;
        if let Record::Want { object, .. } = record {
            return self.want(plane, place, object);
        }
        let Some(known) = self.stages.get_mut(&place) else {
            // It crossed GONE.
            return if plane.remote_stage(ticket(place)).is_none() { Ok(()) } else { Err(Violation) };
        };
        if let Record::Report { standing, numbers, why, .. } = record {
            if plane.remote_report(ticket(place), &supply::reported(standing, numbers), why) {
                self.refused.push((ticket(place), why.to_owned()));
            }
            return Ok(());
        }
        if known.held.is_empty() && self.apply(now, plane, record, bytes.len(), output)? {
            return Ok(());
        }
        let Some(known) = self.stages.get_mut(&place) else { return Ok(()) };
        self.held += usize::from(known.held.is_empty());
        known.held.extend_from_slice(bytes);
        let most = ROOM as usize + self.record_len_max + (CREDIT as usize + 1) * RECORD_HEADER_LEN;
        if known.held.len() > most { Err(Violation) } else { Ok(()) }
    }

    /// Passes a record to the plane; `false` if the plane has no room for the emitted message.
    fn apply(
        &mut self,
        now: Instant,
        plane: &mut MessagePlane,
        record: Record<'_>,
        len: usize,
        link: Option<&mut SharedLink>,
    ) -> Result<bool, Violation> {
        let place = record.place().ok_or(Violation)?;
        let to = ticket(place);
        let done = match record {
            Record::Same { output, .. } => plane.remote_emit(now, to, (output, Emit::Same), link),
            Record::Frames { output, format, first, count, .. } => {
                let emit = Emit::Frames { format: FormatId(format), first, count };
                plane.remote_emit(now, to, (output, emit), link)
            }
            Record::Range { output, format, start, len, .. } => {
                let emit = Emit::Range { format: FormatId(format), start, len };
                plane.remote_emit(now, to, (output, emit), link)
            }
            Record::New { output, message, .. } => {
                let mut frames = [0; FRAMES_MAX];
                let mut count = 0;
                for (known, len) in frames.iter_mut().zip(message.frame_lens()) {
                    (*known, count) = (len, count + 1);
                }
                let (format, pieces) = (FormatId(message.format), [Piece::Bytes(message.bytes)]);
                let emit = Emit::New { format, frames: &frames[..count], pieces: &pieces };
                plane.remote_emit(now, to, (output, emit), link)
            }
            Record::Done { fault, ended, .. } => {
                let done = match (fault, ended) {
                    (false, _) => RemoteDone::Processed,
                    (true, false) => RemoteDone::GivenUp,
                    (true, true) => RemoteDone::Ended,
                };
                return match plane.remote_done(now, to, done, link) {
                    Ok(()) | Err(RemoteError::Stale) => Ok(true),
                    Err(RemoteError::Full) => Ok(false),
                    Err(_) => Err(Violation),
                };
            }
            Record::Hello { .. }
            | Record::Stage { .. }
            | Record::Call { .. }
            | Record::Gone { .. }
            | Record::Room { .. }
            | Record::Part { .. }
            | Record::Want { .. }
            | Record::Report { .. } => return Err(Violation),
        };
        match done {
            Ok(()) => self.taken(place, len as u64),
            Err(RemoteError::Stale) => {}
            Err(RemoteError::Full) => return Ok(false),
            Err(RemoteError::NotGiven) => return Err(Violation),
        }
        Ok(true)
    }

    /// Records that the plane has taken a record of `len` bytes, and grants the room again once it is worth a
    /// record.
    fn taken(&mut self, place: Place, len: u64) {
        let Some(known) = self.stages.get_mut(&place) else { return };
        known.taken += len;
        if known.taken >= ROOM / 2 {
            let bytes = std::mem::take(&mut known.taken);
            self.put(Record::Room { place, bytes });
        }
    }

    /// Passes held records to the plane, as far as it has room.
    fn retry(
        &mut self,
        now: Instant,
        plane: &mut MessagePlane,
        mut output: Option<&mut SharedLink>,
    ) -> Result<bool, Violation> {
        if self.held == 0 {
            return Ok(false);
        }
        let held = |(place, known): (&Place, &Known)| (!known.held.is_empty()).then_some(*place);
        let places: Vec<Place> = self.stages.iter().filter_map(held).collect();
        let mut moved = false;
        for place in places {
            let Some(known) = self.stages.get_mut(&place) else { continue };
            let mut held = std::mem::take(&mut known.held);
            let mut used = 0;
            while let Some((record, len)) = Record::parse(&held[used..])?
                && self.apply(now, plane, record, len, output.as_deref_mut())?
            {
                used += len;
            }
            held.drain(..used);
            moved |= used > 0;
            self.held -= usize::from(held.is_empty());
            if let Some(known) = self.stages.get_mut(&place) {
                known.held = held;
            }
        }
        Ok(moved)
    }

    fn send(
        &mut self,
        now: Instant,
        upstream: &mut impl UpstreamEnd,
        plane: &mut MessagePlane,
        epoch: u64,
    ) -> bool {
        let mut moved = self.flush(upstream, plane);
        for _ in 0..CALLS_PER_VISIT {
            if self.blocked || !self.is_up() {
                return moved;
            }
            let has_part = self.put_part();
            match plane.next_call(self.context) {
                Some(call) => self.begin(now, plane, (call.ticket, call.handle), epoch),
                None if has_part => {}
                None => break,
            }
            if self.body.is_some() || self.output.len() >= DATA_MAX {
                moved |= self.flush(upstream, plane);
            }
        }
        moved | self.flush(upstream, plane)
    }

    /// Writes the output, as far as the connection has room. Returns whether bytes were written.
    fn flush(&mut self, upstream: &mut impl UpstreamEnd, plane: &MessagePlane) -> bool {
        let mut moved = false;
        loop {
            let written = upstream.write(&[&self.output]);
            self.output.drain(..written);
            moved |= written > 0;
            let Some(body) = self.body.as_mut().filter(|_| self.output.is_empty()) else { break };
            moved |= body.write(upstream, plane);
            if body.done < body.len {
                break;
            }
            self.body = None;
            std::mem::swap(&mut self.output, &mut self.later);
        }
        self.blocked = !self.output.is_empty() || self.body.is_some();
        moved
    }

    /// Adds the next part of a module or format that the context has asked for. Returns whether there was
    /// one.
    fn put_part(&mut self) -> bool {
        let Some(mut transfer) = self.transfers.pop_front() else { return false };
        if let Some(part) = transfer.next_part() {
            self.put(part);
        }
        if !transfer.is_done() {
            self.transfers.push_front(transfer);
        }
        true
    }

    /// Begins to send a call, preceded by the description of a stage that the context does not know.
    fn begin(
        &mut self,
        now: Instant,
        plane: &MessagePlane,
        (to, handle): (Ticket, MessageHandle),
        epoch: u64,
    ) {
        let place = Place { path: to.path.index, generation: to.path.generation, stage: to.stage };
        let known = self.stages.get(&place).map(|known| known.epoch);
        if known != Some(epoch)
            && let Some(stage) = plane.remote_stage(to)
        {
            if known.is_none() {
                self.forget(plane);
            }
            self.put(supply::record(place, ROOM, &stage));
            self.stages.entry(place).or_default().epoch = epoch;
        }
        let Some((info, format)) = plane.remote_message(handle) else { return };
        let mut frames = [0; FRAMES_MAX];
        let mut count = 0;
        for (known, len) in frames.iter_mut().zip(plane.frame_lens(handle)) {
            (*known, count) = (len, count + 1);
        }
        let age_ns = now.saturating_since(info.arrived).as_nanos().try_into().unwrap_or(u64::MAX);
        let call = Record::Call { place, sequence: info.sequence, age_ns, message: message_of(format.0) };
        let mut head = [0; RECORD_HEADER_LEN + 4 * FRAMES_MAX];
        // A channel's messages are no longer than 64 MiB with their headers, and have no more frames.
        let Ok(len) = call.emit_head(Some((&frames[..count], info.len as usize)), &mut head) else { return };
        self.output.extend_from_slice(&head[..len]);
        if info.len <= COPIED_MAX {
            plane.range(handle, 0, info.len).for_each(|slice| self.output.extend_from_slice(slice));
        } else {
            self.body = Some(Body { handle, done: 0, len: info.len });
        }
        self.calls += 1;
    }

    /// Processes a request for a stage's module or format. If the stage has ended meanwhile, another stage
    /// that needs the same object supplies it; if there is none, the context is notified.
    fn want(&mut self, plane: &MessagePlane, place: Place, object: &Hash) -> Result<(), Violation> {
        if let Some(known) = self.stages.get_mut(&place) {
            known.wants += 1;
            if known.wants > WANTS_MAX {
                return Err(Violation);
            }
        }
        let ended = plane.remote_stage(ticket(place)).is_none();
        let mut others = self.stages.keys().filter(|_| ended);
        let wanted = Transfer::find(plane, ticket(place), object)
            .or_else(|| others.find_map(|other| Transfer::find(plane, ticket(*other), object)));
        match wanted {
            Some(_) if self.transfers.len() > self.stages.len() * usize::from(WANTS_MAX) => {
                return Err(Violation);
            }
            Some(transfer) => self.transfers.push_back(transfer),
            None if !ended => return Err(Violation),
            None => {
                self.forget(plane);
                self.put(Record::Part { object, total: 0, offset: 0, bytes: &[] });
            }
        }
        Ok(())
    }

    /// Notifies the context of stages that have ended.
    fn forget(&mut self, plane: &MessagePlane) {
        let over = |place: &&Place| plane.remote_stage(ticket(**place)).is_none();
        let gone: Vec<Place> = self.stages.keys().filter(over).copied().collect();
        for place in gone {
            if let Some(known) = self.stages.remove(&place) {
                self.held -= usize::from(!known.held.is_empty());
            }
            self.put(Record::Gone { place });
        }
    }
}
