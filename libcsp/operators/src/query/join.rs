//! Rows of two channels that are equal in some columns and close in time.
//!
//! A row meets the rows of the other side that came before it, and then waits for those that come after. It
//! waits until no row of the other side can be close enough any more, or until it has to give way.

use std::sync::Arc;

use csp_formats::{Fixed, Record, ViewError};
use csp_handlers::{Call, FormatId, State, Stop, Tick};
use csp_queries::{Condition, Datum, Expr, Image, Plan, Window};

use super::hash::Hash;
use super::keep::Keep;
use super::keys::{Keys, Pairs};
use super::setup::{Limits, QuerySetupError, SourceTime, Time, arrival};
use super::side::{Side, Waiting};
use super::times::{Reached, Times};
use super::windowed::{Closed, Closing, Sink, close_by_timer};
use super::windows::{Read, Values, Windows, columns_of};
use crate::counters::Counter;
use crate::formats::view;
use crate::input::Body;
use crate::row::{INVALID, ROW_LEN_MAX, Room, give_up, room};

/// A join, and the windows that its pairs go into.
#[derive(Debug)]
pub(super) struct Join {
    plan: Arc<Plan>,
    keys: Vec<(usize, usize)>,
    within: i64,
    /// What of the condition concerns one side, and what both.
    own: [Vec<Expr>; 2],
    pair: Vec<Expr>,
    keeps: [Keep; 2],
    clocks: [SourceTime; 2],
    program: Program,
    times: Times,
    sides: [Side; 2],
    windows: Option<Closing>,
    output: FormatId,
    seed: u64,
    row: Room,
    /// The other row of a pair, while its window changes the state.
    other: Room,
    out: Room,
    values: Values,
}

/// The join of rows that are read at fixed places.
#[derive(Debug)]
struct Program {
    fixed: [Fixed; 2],
    own: [Option<Condition>; 2],
    keys: [Option<Keys>; 2],
    pairs: Option<Pairs>,
    pair: Option<Condition>,
    image: Option<Image>,
}

/// A row that has come.
struct Come {
    side: usize,
    len: usize,
    at: i64,
    hash: u64,
}

/// What has become of a message before pairs are looked for.
enum Begun {
    Row(Come),
    /// It has a time, and can meet no other.
    Over(Counter, Option<i64>),
    Invalid,
}

impl Join {
    pub fn new(
        plan: &Arc<Plan>,
        times: &[Time],
        output: FormatId,
        limits: &Limits,
        base: usize,
    ) -> Result<Self, QuerySetupError> {
        let Some(join) = &plan.join else { return Err(QuerySetupError::Unsupported("no join")) };
        if matches!(plan.window, Some(Window::Rows { .. })) {
            return Err(QuerySetupError::Unsupported("a join with a window of rows (windows of time are)"));
        }
        let clocks = [SourceTime::new(plan, 0, &times[0])?, SourceTime::new(plan, 1, &times[1])?];
        if clocks[0].is_arrival() != clocks[1].is_arrival() {
            let by_arrival = usize::from(clocks[1].is_arrival());
            return Err(QuerySetupError::MixedTimes {
                first: plan.sources[1 - by_arrival].alias.clone(),
                second: plan.sources[by_arrival].alias.clone(),
            });
        }
        let keeps = [0, 1].map(|source| Keep::new(plan, source, 0..plan.columns.len()));
        let fields = [clocks[0].field(), clocks[1].field()];
        let first = Side::new(base, limits.rows, limits.row_bytes);
        let second = Side::new(base + first.len() as usize, limits.rows, limits.row_bytes);
        let base = base + (first.len() + second.len()) as usize;
        let windows = match plan.window {
            Some(_) => {
                let windows = Windows::new(vec![plan.clone()], &fields, clocks[0].unit(), limits, base)?;
                Some(Closing { windows, output, out: room(limits.result_len), interrupted: false })
            }
            None => None,
        };
        let (own, pair) = split(plan);
        let program = Program {
            fixed: [0, 1].map(|source| plan.fixed(source, fields[source])),
            own: [0, 1].map(|source| Condition::new(plan, &own[source])),
            keys: [0, 1].map(|source| Keys::of_join(plan, &join.keys, source)),
            pairs: Pairs::new(plan, &join.keys),
            pair: Condition::new(plan, &pair),
            image: Image::new(plan).filter(Image::is_whole),
        };
        let len = keeps.iter().map(|keep| keep.len_max().unwrap_or(ROW_LEN_MAX as usize)).max().unwrap_or(0);
        Ok(Join {
            keys: join.keys.clone(),
            within: i64::try_from(join.within_us).unwrap_or(i64::MAX),
            own,
            pair,
            keeps,
            program,
            values: Values::new(std::slice::from_ref(plan)),
            times: Times::new(clocks.iter().map(|clock| clock.lateness).collect(), limits),
            clocks,
            sides: [first, second],
            windows,
            output,
            seed: limits.seed,
            row: room(len as u32),
            other: room(len as u32),
            out: room(limits.result_len),
            plan: plan.clone(),
        })
    }

    /// Bytes of the state block behind `base`.
    pub fn state_len(&self) -> u64 {
        let windows = self.windows.as_ref().map_or(0, |windows| windows.windows.groups.len());
        self.sides[0].len() + self.sides[1].len() + windows
    }

    pub fn has_windows(&self) -> bool {
        self.windows.is_some()
    }

    pub fn message(&mut self, call: &mut Call<'_>, side: usize) -> Result<(), Stop> {
        let done = self.process(call, side);
        if let Some(windows) = &mut self.windows {
            windows.interrupted = done == Err(Stop::Full);
        }
        done
    }

    pub fn tick(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        let Some(windows) = &mut self.windows else { return Ok(()) };
        close_by_timer(tick, &self.times, windows, self.clocks[0].is_arrival())?;
        self.count_held(tick.state());
        Ok(())
    }

    fn process(&mut self, call: &mut Call<'_>, side: usize) -> Result<(), Stop> {
        let len = match self.keeps[side].copy(call, Body::of(call), &mut self.row) {
            Ok(len) => len,
            Err(problem) => return give_up(call, problem),
        };
        let begun = match self.begin_fixed(call, side, len) {
            Some(begun) => begun,
            None => self.begin(call, side, len).unwrap_or(Begun::Invalid),
        };
        let (at, counted) = match &begun {
            Begun::Row(come) => (Some(come.at), None),
            Begun::Over(counter, at) => (*at, Some(*counter)),
            Begun::Invalid => return give_up(call, (Counter::Invalid, INVALID)),
        };
        let now = arrival(call.message().arrived);
        // Without windows nothing is closed.
        let reached = match at {
            Some(at) if self.windows.is_some() => self.times.reached(call.state(), now, Some((side, at))),
            _ => Reached::Silence,
        };
        let mut closed = Closed::default();
        if let (Some(windows), Reached::Time(at)) = (&mut self.windows, reached) {
            closed = windows.emit(call, at)?;
        }
        let (mut emitted, mut failed) = (0, 0);
        if let (Begun::Row(come), None) = (&begun, &self.windows) {
            (emitted, failed) = self.emit_pairs(call, come)?;
        }
        // From here on the state changes.
        let state = call.state();
        if let Some(at) = at {
            self.times.start(state, now);
            self.times.record(state, (side, at), now);
        }
        if let (Some(windows), Reached::Time(at)) = (&self.windows, reached) {
            windows.release(state, at, closed);
            self.times.close(state, at);
        }
        if let Begun::Row(come) = &begun {
            if self.windows.is_some() {
                self.sum_pairs(state, come);
            }
            self.wait(state, come);
        }
        self.expire(state, 1 - side);
        Counter::Read.add(state, 1);
        Counter::Emitted.add(state, emitted);
        Counter::Invalid.add(state, failed);
        if let Some(counter) = counted {
            counter.add(state, 1);
        }
        self.count_held(state);
        Ok(())
    }

    /// As [`begin`](Self::begin), at fixed places. `None`: the row has to be viewed.
    #[inline]
    fn begin_fixed(&self, call: &mut Call<'_>, side: usize, len: usize) -> Option<Begun> {
        let program = &self.program;
        let row = Body::of(call).fixed(call, &program.fixed[side])?;
        // Columns of this side alone are read.
        let rows = [row, row];
        let accepted = program.own[side].as_ref()?.accepts(&rows)?;
        let mut hash = Hash::new(self.seed);
        let has_null = program.keys[side].as_ref()?.hash(&rows, &mut hash, &mut [])?;
        let Some(at) = self.clocks[side].of_fixed(call.message(), row)? else {
            return Some(Begun::Over(Counter::Unmatched, None));
        };
        Some(if !accepted {
            Begun::Over(Counter::Refused, Some(at))
        } else if at < self.times.of(call.state(), side) {
            Begun::Over(Counter::Late, Some(at))
        } else if has_null {
            Begun::Over(Counter::Unmatched, Some(at))
        } else {
            Begun::Row(Come { side, len, at, hash: hash.finish() })
        })
    }

    /// Reads time and key of a row, and what of the condition concerns its side.
    fn begin(&self, call: &mut Call<'_>, side: usize, len: usize) -> Result<Begun, ViewError> {
        let (plan, source) = (&*self.plan, &self.plan.sources[side]);
        let slices = [&self.row[..len]];
        let Ok(view) = view(&source.schema, source.format(), &slices) else { return Ok(Begun::Invalid) };
        let Some(at) = self.clocks[side].of(call.message(), &view)? else {
            return Ok(Begun::Over(Counter::Unmatched, None));
        };
        // Columns of this side alone are read.
        let rows: [&Record<'_, '_>; 2] = [&view, &view];
        if !all(plan, &self.own[side], &rows)? {
            return Ok(Begun::Over(Counter::Refused, Some(at)));
        }
        if at < self.times.of(call.state(), side) {
            return Ok(Begun::Over(Counter::Late, Some(at)));
        }
        let mut hash = Hash::new(self.seed);
        for key in &self.keys {
            match plan.value(if side == 0 { key.0 } else { key.1 }, &rows)? {
                Datum::Null => return Ok(Begun::Over(Counter::Unmatched, Some(at))),
                value => hash.add(value),
            }
        }
        Ok(Begun::Row(Come { side, len, at, hash: hash.finish() }))
    }

    /// The next row of the other side, from number `next` on, that has the hash and is close enough.
    #[inline]
    fn close(&self, block: &[u8], come: &Come, next: &mut u32) -> Option<Waiting> {
        let other = &self.sides[1 - come.side];
        while *next != 0 {
            let row;
            (row, *next) = other.row(block, *next);
            if row.hash == come.hash && row.time.abs_diff(come.at) <= self.within.unsigned_abs() {
                return Some(row);
            }
        }
        None
    }

    /// Emits the pairs of a row in the order in which the other rows came.
    fn emit_pairs(&mut self, call: &mut Call<'_>, come: &Come) -> Result<(u64, u64), Stop> {
        let (mut emitted, mut failed) = (0, 0);
        let mut next = self.sides[1 - come.side].first(call.state().block(), come.hash);
        loop {
            let block = call.state().block();
            let Some(waiting) = self.close(block, come, &mut next) else { return Ok((emitted, failed)) };
            let other = self.sides[1 - come.side].bytes(block, &waiting);
            let (plan, own) = (&*self.plan, &self.row[..come.len]);
            let (pair, keys, out) = (&self.pair, &self.keys, &mut self.out);
            let written = match self.program.emit(in_order(come.side, own, other), out) {
                Some(written) => Ok(written.map(Ok)),
                None => with_pair(plan, in_order(come.side, own, other), |rows| {
                    let met = equal(plan, keys, rows)? && all(plan, pair, rows)?;
                    Ok(if met { Some(plan.emit(rows, &[], out)) } else { None })
                }),
            };
            match written {
                Ok(None) => (),
                Ok(Some(Ok(len))) => {
                    call.emit_row(self.output, &self.out[..len])?;
                    emitted += 1;
                }
                Ok(Some(Err(_))) | Err(_) => failed += 1,
            }
        }
    }

    /// Adds the pairs of a row to their windows. The time of a pair is that of its later row.
    fn sum_pairs(&mut self, state: &mut State, come: &Come) {
        let mut next = self.sides[1 - come.side].first(state.block(), come.hash);
        loop {
            let block = state.block();
            let Some(waiting) = self.close(block, come, &mut next) else { return };
            let other = self.sides[1 - come.side].bytes(block, &waiting);
            let Some(copy) = self.other.get_mut(..other.len()) else { continue };
            copy.copy_from_slice(other);
            let bytes = in_order(come.side, &self.row[..come.len], copy);
            let (plan, at) = (&*self.plan, come.at.max(waiting.time));
            let Some(windows) = &self.windows else { return };
            let fixed = self.program.read(windows, bytes, &mut self.values);
            let is_fixed = fixed.is_some();
            let read = match fixed {
                Some(read) => Ok(read.map(Some)),
                None => with_pair(plan, bytes, |records| {
                    if !equal(plan, &self.keys, records)? || !all(plan, &self.pair, records)? {
                        return Ok(None);
                    }
                    Ok(Some(windows.windows.read(0, records, &mut self.values).ok()))
                }),
            };
            let closed = self.times.closed(state);
            let counted = read.map(|read| {
                let begin = windows.windows.begin(at);
                let hash = read?;
                let row = Read { plan: 0, bytes, is_fixed, begin, hash, known: 0, values: &self.values };
                windows.add_timed(state, &row, closed)
            });
            if let Some(counter) = counted.unwrap_or(Some(Counter::Invalid)) {
                counter.add(state, 1);
            }
        }
    }

    /// Lets a row wait for rows of the other side, if any can still be close enough.
    fn wait(&self, state: &mut State, come: &Come) {
        let reached = self.times.of(state, 1 - come.side);
        let is_over = |at: i64| at.saturating_add(self.within) < reached;
        let (side, len) = (&self.sides[come.side], come.len as u32);
        if is_over(come.at) {
            return;
        }
        if !side.fits(len) {
            return Counter::TooLong.add(state, 1);
        }
        loop {
            match side.room(state.block(), len) {
                Some(offset) => {
                    let row = &self.row[..come.len];
                    return side.put(state.block(), offset, (come.hash, come.at), row);
                }
                None => {
                    if !side.oldest(state.block()).is_none_or(is_over) {
                        Counter::Evicted.add(state, 1);
                    }
                    side.release(state.block());
                }
            }
        }
    }

    /// Releases rows of a side that no row of the other can meet any more.
    fn expire(&self, state: &mut State, side: usize) {
        let reached = self.times.of(state, 1 - side);
        while let Some(at) = self.sides[side].oldest(state.block())
            && at.saturating_add(self.within) < reached
        {
            self.sides[side].release(state.block());
        }
    }

    fn count_held(&self, state: &mut State) {
        let [first, second] = &self.sides;
        let block = state.block();
        let rows = u64::from(first.count(block)) + u64::from(second.count(block));
        let bytes = u64::from(first.used(block)) + u64::from(second.used(block));
        match &self.windows {
            Some(windows) => windows.windows.count_held(state, rows, bytes),
            None => {
                Counter::Held.set(state, rows);
                Counter::HeldBytes.set(state, bytes);
            }
        }
    }
}

impl Program {
    /// Header and block of rows of both sides that meet. The inner `None`: they do not; the outer one: they
    /// have to be viewed.
    #[inline]
    fn meet<'v>(&self, [first, second]: [&'v [u8]; 2]) -> Option<Option<[&'v [u8]; 2]>> {
        let rows = [self.fixed[0].of(first, first.len())?, self.fixed[1].of(second, second.len())?];
        if !self.pairs.as_ref()?.are_same(&rows) {
            return None;
        }
        Some(self.pair.as_ref()?.accepts(&rows)?.then_some(rows))
    }

    /// Writes the result of two rows and returns its length.
    #[inline]
    fn emit(&self, rows: [&[u8]; 2], out: &mut [u8]) -> Option<Option<usize>> {
        let image = self.image.as_ref()?;
        match self.meet(rows)? {
            Some(rows) => image.emit(&rows, out).map(Some),
            None => Some(None),
        }
    }

    /// Reads what windows need of two rows.
    #[inline]
    fn read(&self, windows: &Closing, rows: [&[u8]; 2], values: &mut Values) -> Option<Option<u64>> {
        match self.meet(rows)? {
            Some(rows) => windows.windows.read_fixed(0, &rows, values).map(Some),
            None => Some(None),
        }
    }
}

/// A row and one of the other side in the order of the sources.
#[inline]
fn in_order<'v>(side: usize, own: &'v [u8], other: &'v [u8]) -> [&'v [u8]; 2] {
    if side == 0 { [own, other] } else { [other, own] }
}

/// Views rows of both sides as records.
fn with_pair<R>(
    plan: &Plan,
    [first, second]: [&[u8]; 2],
    run: impl FnOnce(&[&Record<'_, '_>]) -> Result<R, ViewError>,
) -> Result<R, ViewError> {
    let (first, second) = ([first], [second]);
    let views = (
        view(&plan.sources[0].schema, plan.sources[0].format(), &first),
        view(&plan.sources[1].schema, plan.sources[1].format(), &second),
    );
    match views {
        (Ok(first), Ok(second)) => run(&[&*first, &*second]),
        // Both were viewed before.
        _ => Err(ViewError { field: None, problem: csp_formats::ViewProblem::UnknownTemplate { id: 0 } }),
    }
}

#[inline]
fn equal(plan: &Plan, keys: &[(usize, usize)], rows: &[&Record<'_, '_>]) -> Result<bool, ViewError> {
    for (first, second) in keys {
        if !plan.value(*first, rows)?.equals(plan.value(*second, rows)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[inline]
fn all(plan: &Plan, conditions: &[Expr], rows: &[&Record<'_, '_>]) -> Result<bool, ViewError> {
    for condition in conditions {
        if !matches!(plan.evaluate(condition, rows, &[])?, Datum::Boolean(true)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The terms of a condition by the side whose columns they read; the last are those of both or none.
fn split(plan: &Plan) -> ([Vec<Expr>; 2], Vec<Expr>) {
    let (mut own, mut pair) = ([Vec::new(), Vec::new()], Vec::new());
    let mut terms: Vec<&Expr> = plan.filter.iter().collect();
    while let Some(term) = terms.pop() {
        if let Expr::And(left, right) = term {
            terms.extend([&**right, &**left]);
            continue;
        }
        let mut columns = Vec::new();
        columns_of(term, &mut columns);
        let reads = |source: usize| columns.iter().any(|column| plan.columns[*column].source == source);
        match (reads(0), reads(1)) {
            (true, false) => own[0].push(term.clone()),
            (false, true) => own[1].push(term.clone()),
            _ => pair.push(term.clone()),
        }
    }
    (own, pair)
}
