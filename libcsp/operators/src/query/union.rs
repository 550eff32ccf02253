//! Merged streams side by side: one row of each with equal keys make a row of the result.

use csp_formats::{Record, ViewError};
use csp_handlers::{Call, FormatId, State, Stop, Tick};
use csp_queries::{Datum, Union};
use csp_types::Duration;

use super::groups::{Groups, KEPT_MAX};
use super::hash::Hash;
use super::keep::Keep;
use super::setup::{Limits, QuerySetupError, SourceTime, Time, arrival};
use super::times::{Reached, Times};
use super::windowed::{ARRIVAL_GRACE, Sink};
use crate::counters::{Counter, HEADER};
use crate::formats::view;
use crate::input::Body;
use crate::row::{INVALID, ROW_LEN_MAX, Room, give_up, problem, room};

/// Longest row of a stream whose variable part is part of the result.
const ROW_MAX: usize = 2048;

/// Streams that are merged side by side.
#[derive(Debug)]
pub(crate) struct SideBySide {
    union: Union,
    keeps: Vec<Keep>,
    clocks: Vec<SourceTime>,
    times: Times,
    groups: Groups,
    window: i64,
    output: FormatId,
    row: Room,
    out: Room,
    interrupted: bool,
    seed: u64,
}

/// A row that has come.
struct Come {
    stream: usize,
    len: usize,
    begin: i64,
    hash: u64,
}

impl SideBySide {
    pub fn new(
        union: Union,
        (time, window): (&Time, Duration),
        output: FormatId,
        (state, seed): (usize, u64),
    ) -> Result<Self, QuerySetupError> {
        let plan = &union.plan;
        let streams = plan.sources.len();
        let clocks: Vec<SourceTime> =
            (0..streams).map(|source| SourceTime::new(plan, source, time)).collect::<Result<_, _>>()?;
        let keeps: Vec<Keep> =
            (0..streams).map(|source| Keep::new(plan, source, 0..plan.columns.len())).collect();
        let mut kept = [0; KEPT_MAX];
        keeps.iter().zip(&mut kept).for_each(|(keep, len)| *len = keep.len_max().unwrap_or(ROW_MAX));
        let groups = Groups::fitting(state, Groups::slot_for(0, &kept));
        if groups == 0 {
            return Err(QuerySetupError::Limit {
                what: "bytes of a group",
                value: kept.iter().sum::<usize>() as u64,
            });
        }
        Ok(SideBySide {
            times: Times::new(clocks.iter().map(|clock| clock.lateness).collect(), &Limits::default()),
            row: room(kept.iter().copied().max().unwrap_or(0) as u32),
            groups: Groups::new(HEADER, groups, 0, kept),
            window: i64::try_from(window.as_micros()).unwrap_or(i64::MAX),
            out: room(ROW_LEN_MAX),
            interrupted: false,
            seed,
            keeps,
            clocks,
            union,
            output,
        })
    }

    pub fn message(&mut self, call: &mut Call<'_>, stream: usize) -> Result<(), Stop> {
        let done = self.process(call, stream);
        self.interrupted = done == Err(Stop::Full);
        done
    }

    fn process(&mut self, call: &mut Call<'_>, stream: usize) -> Result<(), Stop> {
        let len = match self.keeps[stream].copy(call, Body::of(call), &mut self.row) {
            Ok(len) => len,
            Err(problem) => return give_up(call, problem),
        };
        let now = arrival(call.message().arrived);
        let Ok(read) = self.read(call, stream, len) else {
            return give_up(call, (Counter::Invalid, INVALID));
        };
        let (at, come) = match read {
            Ok((at, hash)) => {
                let begin = at.div_euclid(self.window).saturating_mul(self.window);
                (Some(at), hash.map(|hash| Come { stream, len, begin, hash }))
            }
            Err(()) => (None, None),
        };
        let reached = match at.map(|at| self.times.reached(call.state(), now, Some((stream, at)))) {
            Some(Reached::Time(reached)) => reached,
            _ => self.times.closed(call.state()),
        };
        // What waits in windows that end is over, and so cannot be completed by this row.
        let is_late = |come: &Come| come.begin.saturating_add(self.window) <= reached;
        let (mut counted, mut group) = (None, 0);
        match &come {
            None => counted = Some(Counter::Unmatched),
            Some(come) if is_late(come) => counted = Some(Counter::Late),
            Some(come) => {
                group = self.find(call.state().block(), come);
                if self.is_last(call.state().block(), group, come) {
                    counted = Some(self.complete(call, group, come)?);
                }
            }
        }
        // From here on the state changes.
        let state = call.state();
        if let Some(at) = at {
            self.times.start(state, now);
            self.times.record(state, (stream, at), now);
            self.times.close(state, reached);
        }
        match (&come, counted) {
            (Some(come), None) => counted = self.put(state, group, come),
            (Some(_), Some(Counter::Late)) | (None, _) => (),
            _ if group != 0 => self.groups.remove(state.block(), group),
            _ => (),
        }
        self.release(state, reached);
        Counter::Read.add(state, 1);
        if let Some(counter) = counted {
            counter.add(state, 1);
        }
        self.count_held(state);
        Ok(())
    }

    /// The time of a row and the hash of its keys; no hash if one is null, and `Err` in it if the time is.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn read(
        &self,
        call: &Call<'_>,
        stream: usize,
        len: usize,
    ) -> Result<Result<(i64, Option<u64>), ()>, ViewError> {
        let invalid =
            || ViewError { field: None, problem: csp_formats::ViewProblem::UnknownTemplate { id: 0 } };
        let source = &self.union.plan.sources[stream];
        let slices = [&self.row[..len]];
        let view = view(&source.schema, source.format(), &slices).map_err(|_| invalid())?;
        let Some(at) = self.clocks[stream].of(call.message(), &view)? else { return Ok(Err(())) };
        let mut hash = Hash::new(self.seed);
        let records: [&Record<'_, '_>; KEPT_MAX] = [&view; KEPT_MAX];
        for key in &self.union.keys[stream] {
            match self.union.plan.value(*key, &records)? {
                Datum::Null => return Ok(Ok((at, None))),
                value => hash.add(value),
            }
        }
        Ok(Ok((at, Some(hash.finish()))))
    }

    /// The group of a row's keys and window; 0: there is none.
    fn find(&self, block: &[u8], come: &Come) -> u32 {
        let mut group = self.groups.of_hash(block, come.hash);
        while group != 0 {
            if self.groups.hash(block, group) == come.hash
                && self.groups.window(block, group) == come.begin
                && self.is_of(block, group, come).unwrap_or(false)
            {
                break;
            }
            group = self.groups.next_of_hash(block, group);
        }
        group
    }

    fn is_of(&self, block: &[u8], group: u32, come: &Come) -> Result<bool, ViewError> {
        let of = self.groups.source(block, group).min(self.keeps.len() - 1);
        let (plan, keys) = (&self.union.plan, &self.union.keys);
        let slices = [[&self.row[..come.len]], [self.groups.kept(block, group, of)]];
        let source = |stream: usize| &plan.sources[stream];
        let own = view(&source(come.stream).schema, source(come.stream).format(), &slices[0]);
        let other = view(&source(of).schema, source(of).format(), &slices[1]);
        let (Ok(own), Ok(other)) = (own, other) else { return Ok(false) };
        let (own, other): ([&Record<'_, '_>; KEPT_MAX], [&Record<'_, '_>; KEPT_MAX]) =
            ([&own; KEPT_MAX], [&other; KEPT_MAX]);
        for (first, second) in keys[come.stream].iter().zip(&keys[of]) {
            if !plan.value(*first, &own)?.equals(plan.value(*second, &other)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all other streams have a row in the group.
    fn is_last(&self, block: &[u8], group: u32, come: &Come) -> bool {
        let mut others = (0..self.keeps.len()).filter(|stream| *stream != come.stream);
        group != 0 && others.all(|stream| self.groups.has_kept(block, group, stream))
    }

    /// Emits the row of a group with its last stream.
    fn complete(&mut self, call: &mut Call<'_>, group: u32, come: &Come) -> Result<Counter, Stop> {
        let plan = &self.union.plan;
        let block = call.state().block();
        let own = &self.row[..come.len];
        let bytes: [[&[u8]; 1]; KEPT_MAX] = core::array::from_fn(|stream| {
            [if stream == come.stream {
                own
            } else {
                self.groups.kept(block, group, stream.min(self.keeps.len() - 1))
            }]
        });
        let source = &plan.sources[come.stream];
        let Ok(first) = view(&source.schema, source.format(), &bytes[come.stream]) else {
            return Ok(Counter::Invalid);
        };
        let mut views = [first; KEPT_MAX];
        for (stream, source) in plan.sources.iter().enumerate() {
            match view(&source.schema, source.format(), &bytes[stream]) {
                Ok(view) => views[stream] = view,
                Err(_) => return Ok(Counter::Invalid),
            }
        }
        let records: [&Record<'_, '_>; KEPT_MAX] = core::array::from_fn(|stream| &*views[stream]);
        match plan.emit(&records[..plan.sources.len()], &[], &mut self.out) {
            Ok(len) => {
                call.emit_row(self.output, &self.out[..len])?;
                Ok(Counter::Emitted)
            }
            Err(error) => Ok(problem(&error).0),
        }
    }

    /// Puts a row into its group, where it waits for the other streams.
    fn put(&self, state: &mut State, group: u32, come: &Come) -> Option<Counter> {
        let block = state.block();
        let is_new = group == 0;
        let group = match group {
            0 => self.groups.add(block, come.hash, come.begin, come.stream),
            group => Some(group),
        };
        let Some(group) = group else { return Some(Counter::Evicted) };
        let replaced = self.groups.has_kept(block, group, come.stream);
        let Some(room) = self.groups.kept_mut(block, group, come.stream).get_mut(..come.len) else {
            if is_new {
                self.groups.remove(block, group);
            }
            return Some(Counter::TooLong);
        };
        room.copy_from_slice(&self.row[..come.len]);
        self.groups.set_kept_len(block, group, come.stream, come.len);
        let rows = self.groups.rows(block, group);
        self.groups.set_rows(block, group, rows + u64::from(!replaced));
        replaced.then_some(Counter::Evicted)
    }

    /// Releases groups whose window has ended; their rows have met no others.
    fn release(&self, state: &mut State, reached: i64) {
        loop {
            let block = state.block();
            let group = self.groups.first(block);
            if group == 0 || self.groups.window(block, group).saturating_add(self.window) > reached {
                return;
            }
            let rows = self.groups.rows(block, group);
            self.groups.remove(block, group);
            Counter::Unmatched.add(state, rows);
        }
    }

    /// Releases what no row can complete any more because time has passed.
    pub fn tick(&mut self, tick: &mut Tick<'_>) {
        if self.interrupted {
            return;
        }
        let now = arrival(tick.now());
        let state = tick.state();
        let passed = now.saturating_sub(ARRIVAL_GRACE.as_micros() as i64);
        let reached = match self.times.reached(state, now, None) {
            _ if self.clocks[0].is_arrival() => passed.max(self.times.closed(state)),
            Reached::Time(at) => at,
            Reached::Silence => return,
        };
        self.times.start(state, now);
        self.times.close(state, reached);
        self.release(state, reached);
        self.count_held(state);
    }

    fn count_held(&self, state: &mut State) {
        let groups = u64::from(self.groups.count(state.block()));
        Counter::Held.set(state, groups);
        Counter::HeldBytes.set(state, groups * self.groups.slot_len() as u64);
    }
}
