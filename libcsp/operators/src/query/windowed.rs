//! Streams whose rows go into windows: a query over one channel, or merged streams.

use std::sync::Arc;

use csp_formats::{Field, Fixed};
use csp_handlers::{Call, FormatId, Full, Message, State, Stop, Tick};
use csp_queries::{Condition, Plan, Window};
use csp_types::Duration;

use super::groups::Groups;
use super::keep::Keep;
use super::setup::{Limits, QuerySetupError, SourceTime, Time, Unit, arrival};
use super::times::{Reached, Times};
use super::windows::{Added, Read, Values, Windows};
use crate::counters::Counter;
use crate::formats::view;
use crate::input::Body;
use crate::row::{INVALID, ROW_LEN_MAX, Room, give_up, problem, room};

/// How much later than its end a window of arrival time is closed by the timer: messages that arrived before
/// it may still be in queues.
pub const ARRIVAL_GRACE: Duration = Duration::from_millis(100);
/// How often the timer looks for windows to close.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);

/// Where results go, in a call with a message or because of the timer.
pub(super) trait Sink {
    fn state(&mut self) -> &mut State;
    fn emit_row(&mut self, format: FormatId, row: &[u8]) -> Result<(), Full>;
}

impl Sink for Call<'_> {
    fn state(&mut self) -> &mut State {
        Call::state(self)
    }

    fn emit_row(&mut self, format: FormatId, row: &[u8]) -> Result<(), Full> {
        let (frames, pieces) = ([row.len() as u32], [csp_handlers::Piece::Bytes(row)]);
        self.emit(0, csp_handlers::Emit::New { format, frames: &frames, pieces: &pieces })
    }
}

impl Sink for Tick<'_> {
    fn state(&mut self) -> &mut State {
        Tick::state(self)
    }

    fn emit_row(&mut self, format: FormatId, row: &[u8]) -> Result<(), Full> {
        self.emit(0, format, &[row.len() as u32], row)
    }
}

/// Windows with what fills and empties them. Plan `i` is that of stream `i`.
#[derive(Debug)]
pub(crate) struct Windowed {
    plans: Vec<Arc<Plan>>,
    keeps: Vec<Keep>,
    clocks: Vec<SourceTime>,
    programs: Vec<Program>,
    times: Times,
    closing: Closing,
    row: Room,
    values: Values,
}

/// What is read of a stream's rows at fixed places.
#[derive(Debug)]
struct Program {
    fixed: Fixed,
    filter: Option<Condition>,
}

/// What is known of a row before anything is changed.
#[derive(Clone, Copy)]
struct Seen {
    is_fixed: bool,
    accepted: bool,
    /// Its time, where windows are of time; `None`: it has none.
    at: Option<i64>,
    hash: Option<u64>,
}

/// Windows, and how they are closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub windows: Windows,
    pub output: FormatId,
    pub out: Room,
    /// A call with a message had no room. Until it is repeated the timer closes nothing, so that what was
    /// emitted is what is repeated.
    pub interrupted: bool,
}

/// Windows that a call closes: what was emitted, and what could not be written.
#[derive(Clone, Copy, Default)]
pub(super) struct Closed {
    emitted: u64,
    invalid: u64,
    too_long: u64,
    /// Groups that HAVING does not accept.
    refused: u64,
}

impl Seen {
    /// What windows are given of the row, but for its bytes.
    #[inline]
    fn read<'v>(self, windows: &Windows, plan: usize, values: &'v Values) -> Read<'v> {
        let begin = windows.begin(self.at.unwrap_or(0));
        Read { plan, bytes: [&[], &[]], is_fixed: self.is_fixed, begin, hash: self.hash, known: 0, values }
    }
}

impl Closing {
    /// Whether a window has ended at a time.
    #[inline]
    pub fn has_ended(&self, block: &[u8], at: i64) -> bool {
        let Some((length, _)) = self.windows.lengths() else { return false };
        self.windows.ended(block, 0, length, at).is_some()
    }

    /// Emits the results of windows that have ended at a time. The state is not changed.
    pub fn emit(&mut self, sink: &mut dyn Sink, at: i64) -> Result<Closed, Full> {
        let mut closed = Closed::default();
        let Some((length, _)) = self.windows.lengths() else { return Ok(closed) };
        let mut group = 0;
        while let Some(next) = self.windows.ended(sink.state().block(), group, length, at) {
            group = next;
            match self.windows.result(sink.state().block(), group, &mut self.out) {
                Ok(Some(len)) => {
                    sink.emit_row(self.output, &self.out[..len])?;
                    closed.emitted += 1;
                }
                Ok(None) => closed.refused += 1,
                Err(error) => match problem(&error).0 {
                    Counter::TooLong => closed.too_long += 1,
                    _ => closed.invalid += 1,
                },
            }
        }
        Ok(closed)
    }

    /// Releases the groups of windows that have ended at a time.
    pub fn release(&self, state: &mut State, at: i64, closed: Closed) {
        let Some((length, _)) = self.windows.lengths() else { return };
        while let Some(group) = self.windows.ended(state.block(), 0, length, at) {
            self.windows.groups.remove(state.block(), group);
        }
        for (counter, count) in [
            (Counter::Emitted, closed.emitted),
            (Counter::Invalid, closed.invalid),
            (Counter::TooLong, closed.too_long),
            (Counter::Refused, closed.refused),
        ] {
            if count > 0 {
                counter.add(state, count);
            }
        }
    }

    /// Adds a row to the windows of its time that are open. What went wrong in one of several is counted
    /// once.
    pub fn add_timed(&self, state: &mut State, row: &Read<'_>, closed: i64) -> Option<Counter> {
        let (length, every) = self.windows.lengths()?;
        if row.begin.saturating_add(length) <= closed {
            return Some(Counter::Late);
        }
        let Some(hash) = row.hash else { return Some(Counter::Invalid) };
        let (mut counted, mut back) = (None, length - every);
        while back >= 0 {
            let begin = row.begin.saturating_sub(back);
            back -= every;
            if begin.saturating_add(length) <= closed {
                continue;
            }
            let row = Read { begin, ..*row };
            let hash = Windows::in_window(hash, begin);
            counted = self.add_to(state.block(), &row, hash).or(counted);
        }
        counted
    }

    /// Adds a row to its window.
    #[inline]
    fn add_to(&self, block: &mut [u8], row: &Read<'_>, hash: u64) -> Option<Counter> {
        let Ok(group) = self.windows.find(block, row, hash) else { return Some(Counter::Invalid) };
        match self.windows.add(block, group, row, hash) {
            Added::Yes => None,
            // Windows that end make room; what other groups have is not given up for a new one.
            Added::NoRoom => Some(Counter::Evicted),
            Added::TooLong => Some(Counter::TooLong),
        }
    }

    /// Adds a row to its group, and emits the result if the group is complete.
    fn add_counted(
        &mut self,
        call: &mut Call<'_>,
        row: &Read<'_>,
        count: u64,
    ) -> Result<Option<Counter>, Stop> {
        let windows = &self.windows;
        let block = call.state().block();
        let Some(hash) = row.hash.map(|hash| Windows::in_window(hash, row.begin)) else {
            return Ok(Some(Counter::Invalid));
        };
        let Ok(group) = windows.find(block, row, hash) else { return Ok(Some(Counter::Invalid)) };
        let rows = if group == 0 { 0 } else { windows.groups.rows(block, group) };
        if rows + 1 >= count {
            let written = windows.result_with(block, group, row, &mut self.out);
            let problem = match written {
                Ok(Some(len)) => {
                    call.emit_row(self.output, &self.out[..len])?;
                    Counter::Emitted.add(call.state(), 1);
                    None
                }
                Ok(None) => Some(Counter::Refused),
                Err(error) => Some(problem(&error).0),
            };
            if group != 0 {
                windows.groups.remove(call.state().block(), group);
            }
            return Ok(problem);
        }
        let mut evicted = 0;
        let added = loop {
            match windows.add(block, group, row, hash) {
                Added::NoRoom if windows.groups.first(block) != 0 => {
                    // The group that has waited longest for a row gives way.
                    let oldest = windows.groups.first(block);
                    evicted += windows.groups.rows(block, oldest);
                    windows.groups.remove(block, oldest);
                }
                added => break added,
            }
        };
        if group != 0 {
            windows.groups.touch(block, group);
        }
        if evicted > 0 {
            Counter::Evicted.add(call.state(), evicted);
        }
        Ok(match added {
            Added::Yes => None,
            Added::NoRoom => Some(Counter::Evicted),
            Added::TooLong => Some(Counter::TooLong),
        })
    }
}

impl Windowed {
    /// Windows over streams that each have a plan and a time.
    pub fn new(
        plans: Vec<Arc<Plan>>,
        times: &[Time],
        output: FormatId,
        limits: &Limits,
        base: usize,
    ) -> Result<Self, QuerySetupError> {
        let clocks: Vec<SourceTime> = plans
            .iter()
            .zip(times)
            .map(|(plan, time)| SourceTime::new(plan, 0, time))
            .collect::<Result<_, _>>()?;
        let keep = |plan: &Arc<Plan>| Keep::new(plan, 0, 0..plan.columns.len());
        let keeps: Vec<Keep> = plans.iter().map(keep).collect();
        let len = keeps.iter().map(|keep| keep.len_max().unwrap_or(ROW_LEN_MAX as usize)).max().unwrap_or(0);
        let times = Times::new(clocks.iter().map(|clock| clock.lateness).collect(), limits);
        let fields: Vec<_> = clocks.iter().map(SourceTime::field).collect();
        let program = |(plan, field): (&Arc<Plan>, &Option<&Field>)| Program {
            fixed: plan.fixed(0, *field),
            filter: Condition::new(plan, &plan.filter),
        };
        let programs = plans.iter().zip(&fields).map(program).collect();
        let unit = clocks.first().map_or(Unit::Microseconds, SourceTime::unit);
        let windows = Windows::new(plans.clone(), &fields, unit, limits, base)?;
        let closing = Closing { windows, output, out: room(limits.result_len), interrupted: false };
        let (row, values) = (room(len as u32), Values::new(&plans));
        Ok(Windowed { plans, keeps, clocks, programs, times, closing, row, values })
    }

    /// Bytes of the state block behind `base`.
    pub fn state_len(&self) -> u64 {
        self.closing.windows.groups.len()
    }

    /// Most groups that so many bytes of state have room for.
    pub fn groups_fitting(&self, bytes: usize) -> u32 {
        Groups::fitting(bytes, self.closing.windows.groups.slot_len()).max(1)
    }

    /// Whether results depend on the timer.
    pub fn has_time(&self) -> bool {
        matches!(self.closing.windows.kind, Window::Time { .. })
    }

    /// Processes a message of a stream.
    pub fn message(&mut self, call: &mut Call<'_>, stream: usize) -> Result<(), Stop> {
        let done = self.process(call, stream);
        self.closing.interrupted = done == Err(Stop::Full);
        done
    }

    fn process(&mut self, call: &mut Call<'_>, stream: usize) -> Result<(), Stop> {
        let fixed = self.see_fixed(call, stream);
        let known = fixed.map_or(0, |seen| self.known(call, stream, seen));
        // The row's bytes are needed for a new group, and where they have to be viewed.
        let copied = match known {
            0 => self.keeps[stream].copy(call, Body::of(call), &mut self.row),
            _ => Ok(0),
        };
        let len = match copied {
            Ok(len) => len,
            Err(problem) => return give_up(call, problem),
        };
        let Some(seen) = fixed.or_else(|| self.see(call.message(), stream, len)) else {
            return give_up(call, (Counter::Invalid, INVALID));
        };
        let Windowed { times, closing, row, values, .. } = self;
        let row = Read { bytes: [&row[..len], &[]], known, ..seen.read(&closing.windows, stream, values) };
        let counted = match (closing.windows.kind, seen.at) {
            (Window::Rows { .. }, _) if !seen.accepted => Some(Counter::Refused),
            (Window::Rows { count }, _) => closing.add_counted(call, &row, count)?,
            (Window::Time { .. }, None) => Some(Counter::Unmatched),
            (Window::Time { .. }, Some(at)) => {
                timed(call, (times, closing), (stream, at), seen.accepted.then_some(&row))?
            }
        };
        let state = call.state();
        Counter::Read.add(state, 1);
        if let Some(counter) = counted {
            counter.add(state, 1);
        }
        closing.windows.count_held(state, 0, 0);
        Ok(())
    }

    /// The group of a window of time that a row goes into, if that can be said without its bytes; 0: it
    /// cannot.
    #[inline]
    fn known(&self, call: &mut Call<'_>, stream: usize, seen: Seen) -> u32 {
        let windows = &self.closing.windows;
        // A row of several windows may begin a group in one of them.
        let is_timed = windows.lengths().is_some_and(|(length, every)| length == every) && seen.at.is_some();
        if !is_timed || !self.keeps[stream].fits(Body::of(call), &self.row) {
            return 0;
        }
        let row = seen.read(windows, stream, &self.values);
        let hash = row.hash.map(|hash| Windows::in_window(hash, row.begin));
        hash.map_or(0, |hash| windows.find_fixed(call.state().block(), &row, hash))
    }

    /// Reads a row at fixed places. `None`: it has to be viewed.
    #[inline]
    fn see_fixed(&mut self, call: &Call<'_>, stream: usize) -> Option<Seen> {
        let program = &self.programs[stream];
        let row = Body::of(call).fixed(call, &program.fixed)?;
        let accepted = program.filter.as_ref()?.accepts(&[row])?;
        let at = match self.closing.windows.kind {
            Window::Time { .. } => self.clocks[stream].of_fixed(call.message(), row)?,
            Window::Rows { .. } => None,
        };
        let hash = match accepted {
            true => Some(self.closing.windows.read_fixed(stream, &[row], &mut self.values)?),
            false => None,
        };
        Some(Seen { is_fixed: true, accepted, at, hash })
    }

    /// Reads a row. `None`: it is not valid.
    fn see(&mut self, message: &Message, stream: usize, len: usize) -> Option<Seen> {
        let (plan, slices) = (&self.plans[stream], [&self.row[..len]]);
        let source = &plan.sources[0];
        let view = view(&source.schema, source.format(), &slices).ok()?;
        let accepted = plan.accepts(&[&view]).ok()?;
        let at = match self.closing.windows.kind {
            Window::Time { .. } => self.clocks[stream].of(message, &view).ok()?,
            Window::Rows { .. } => None,
        };
        let read = || self.closing.windows.read(stream, &[&view], &mut self.values).ok();
        let hash = accepted.then(read).flatten();
        Some(Seen { is_fixed: false, accepted, at, hash })
    }

    /// Closes windows because time has passed.
    pub fn tick(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        // Sources are all of one kind.
        let arrivals = self.clocks.iter().all(SourceTime::is_arrival);
        close_by_timer(tick, &self.times, &mut self.closing, arrivals)?;
        self.closing.windows.count_held(tick.state(), 0, 0);
        Ok(())
    }
}

/// A row of a time: first the windows that it ends are emitted, then it is added to its own.
fn timed(
    call: &mut Call<'_>,
    (times, closing): (&Times, &mut Closing),
    (stream, at): (usize, i64),
    row: Option<&Read<'_>>,
) -> Result<Option<Counter>, Stop> {
    let now = arrival(call.message().arrived);
    // This stream is not silent.
    let Reached::Time(reached) = times.reached(call.state(), now, Some((stream, at))) else {
        return Ok(None);
    };
    if closing.has_ended(call.state().block(), reached) {
        let closed = closing.emit(call, reached)?;
        closing.release(call.state(), reached, closed);
    }
    let state = call.state();
    times.start(state, now);
    times.record(state, (stream, at), now);
    times.close(state, reached);
    Ok(match row {
        Some(row) => closing.add_timed(state, row, reached),
        None => Some(Counter::Refused),
    })
}

/// Closes windows of arrival time that have ended, those of event time that the sources that are not silent
/// have passed, and all of them after a longer silence of every source if the limits say so.
pub(super) fn close_by_timer(
    tick: &mut Tick<'_>,
    times: &Times,
    closing: &mut Closing,
    arrivals: bool,
) -> Result<(), Stop> {
    let now = arrival(tick.now());
    if closing.interrupted {
        return Ok(());
    }
    let passed = now.saturating_sub(ARRIVAL_GRACE.as_micros() as i64);
    let reached = match times.reached(tick.state(), now, None) {
        _ if arrivals => passed.max(times.closed(tick.state())),
        _ if times.is_over(tick.state(), now) => i64::MAX,
        Reached::Time(at) => at,
        Reached::Silence => return Ok(()),
    };
    let closed = closing.emit(tick, reached)?;
    let state = tick.state();
    // What silence has closed ends with the last window that was open.
    let last = match (reached, closing.windows.lengths()) {
        (i64::MAX, Some((length, _))) => {
            closing.windows.last(state.block()).map(|begin| begin.saturating_add(length))
        }
        _ => Some(reached),
    };
    closing.release(state, reached, closed);
    times.start(state, now);
    if let Some(last) = last {
        times.close(state, last);
    }
    Ok(())
}
