//! Windows: rows are grouped and summed up, and a group's result is emitted when its window closes.
//!
//! Rows come from one plan, from the pairs of a join, or from several plans whose results have one format
//! (merged streams).

use std::sync::Arc;

use csp_formats::{Cell, Field, Fixed, Record, ViewError};
use csp_handlers::State;
use csp_queries::{Accumulator, AggregateFunction, Code, Datum, EmitError, Expr, Plan, Sample, Window};

use super::groups::{Groups, KEPT_MAX};
use super::hash::Hash;
use super::keep::Keep;
use super::keys::Keys;
use super::setup::{Limits, QuerySetupError, Unit};
use crate::counters::Counter;
use crate::formats::view;

/// Most aggregates of a query.
pub const AGGREGATES_MAX: usize = 64;

/// The windows of an operator.
#[derive(Debug)]
pub(super) struct Windows {
    plans: Vec<Arc<Plan>>,
    /// What groups keep of a row, for each plan and source.
    keeps: Vec<[Option<Keep>; 2]>,
    programs: Vec<Program>,
    pub groups: Groups,
    pub kind: Window,
    /// What the begin of a window is counted in, in results.
    unit: Unit,
    seed: u64,
}

/// What windows read of the rows of a plan, at fixed places.
#[derive(Debug)]
struct Program {
    fixed: Vec<Fixed>,
    keys: Option<Keys>,
    /// The arguments of aggregates; those of `COUNT(*)` have none.
    arguments: Option<Vec<Option<Code>>>,
}

/// What a plan's windows read of a row before anything is changed.
#[derive(Clone, Copy)]
pub(super) struct Read<'v> {
    pub plan: usize,
    /// The row's bytes, of each source.
    pub bytes: [&'v [u8]; 2],
    /// Whether it was read at fixed places.
    pub is_fixed: bool,
    /// Where its window begins, of several the last; 0 for windows of rows.
    pub begin: i64,
    /// The hash of the columns that it is grouped by; `None`: it is not valid.
    pub hash: Option<u64>,
    /// Its group, if that was found before; 0: it was not. Only then the row's bytes can be missing.
    pub known: u32,
    pub values: &'v Values,
}

/// What was read of a row, in room that is allocated once.
#[derive(Debug)]
pub(super) struct Values {
    /// What aggregates are given.
    samples: Box<[Sample]>,
    /// What the row is grouped by, where it was read at fixed places.
    keys: Box<[Cell]>,
}

impl Values {
    pub fn new(plans: &[Arc<Plan>]) -> Self {
        let most = |count: fn(&Plan) -> usize| plans.iter().map(|plan| count(plan)).max().unwrap_or(0);
        Values {
            samples: vec![Sample::Null; most(|plan| plan.aggregates.len())].into(),
            keys: vec![Cell::Null; most(|plan| plan.group_by.len())].into(),
        }
    }
}

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    Yes,
    NoRoom,
    /// Columns of the row that are grouped by are longer than a group keeps.
    TooLong,
}

impl Program {
    fn new(plan: &Plan, times: &[Option<&Field>]) -> Self {
        let code = |argument: &Option<Expr>| match argument {
            None => Some(None),
            Some(argument) => Code::new(plan, argument).map(Some),
        };
        let time = |source: usize| times.get(source).copied().flatten();
        Program {
            fixed: (0..plan.sources.len()).map(|source| plan.fixed(source, time(source))).collect(),
            keys: Keys::new(plan, &plan.group_by),
            arguments: plan.aggregates.iter().map(|aggregate| code(&aggregate.argument)).collect(),
        }
    }
}

impl Windows {
    /// Windows of the rows of some plans, whose sources have the times of some fields.
    pub fn new(
        plans: Vec<Arc<Plan>>,
        times: &[Option<&Field>],
        unit: Unit,
        limits: &Limits,
        base: usize,
    ) -> Result<Self, QuerySetupError> {
        let Some(kind) = plans[0].window else { return Err(QuerySetupError::Unsupported("no window")) };
        if plans.iter().any(|plan| plan.aggregates.len() > AGGREGATES_MAX) {
            return Err(QuerySetupError::Unsupported("more than 64 aggregates"));
        }
        let keeps: Vec<_> = plans.iter().map(|plan| keeps(plan)).collect();
        let len = |source: usize| {
            let lens = keeps.iter().filter_map(|keep: &[Option<Keep>; 2]| keep[source]);
            lens.map(|keep| keep.len_max().unwrap_or(limits.group_bytes as usize)).max().unwrap_or(0)
        };
        let mut kept = [0; KEPT_MAX];
        (kept[0], kept[1]) = (len(0), len(1));
        let groups = Groups::new(base, limits.groups, plans[0].aggregates.len(), kept);
        // Several plans have one source each, a join's plan both.
        let times_of = |plan: usize| if plans.len() > 1 { &times[plan..=plan] } else { times };
        let programs = plans.iter().enumerate().map(|(at, plan)| Program::new(plan, times_of(at))).collect();
        Ok(Windows { keeps, programs, groups, kind, unit, seed: limits.seed, plans })
    }

    /// Reads what rows, header and block of each source, are grouped by and what aggregates are given.
    /// `None`: they have to be viewed.
    #[inline]
    pub fn read_fixed(&self, plan: usize, rows: &[&[u8]], values: &mut Values) -> Option<u64> {
        let program = &self.programs[plan];
        let mut hash = Hash::new(self.seed);
        program.keys.as_ref()?.hash(rows, &mut hash, &mut values.keys)?;
        for (code, sample) in program.arguments.as_ref()?.iter().zip(&mut values.samples) {
            *sample = match code {
                None => Sample::Present,
                Some(code) => Sample::from(code.run(rows)?),
            };
        }
        Some(hash.finish())
    }

    /// As [`read_fixed`](Self::read_fixed), of records.
    pub fn read(
        &self,
        plan: usize,
        records: &[&Record<'_, '_>],
        values: &mut Values,
    ) -> Result<u64, ViewError> {
        let plan = &*self.plans[plan];
        let mut hash = Hash::new(self.seed);
        for expr in &plan.group_by {
            hash.add(plan.evaluate(expr, records, &[])?);
        }
        for (aggregate, sample) in plan.aggregates.iter().zip(&mut values.samples) {
            *sample = match &aggregate.argument {
                None => Sample::Present,
                Some(argument) => plan.evaluate(argument, records, &[])?.into(),
            };
        }
        Ok(hash.finish())
    }

    /// The hash of a row in the window that begins at a time.
    #[inline]
    pub fn in_window(hash: u64, window: i64) -> u64 {
        let mut hash = Hash::new(hash);
        hash.word(window as u64);
        hash.finish()
    }

    /// Where the window of a time begins, of several the last; 0 for windows of rows.
    #[inline]
    pub fn begin(&self, at: i64) -> i64 {
        match self.kind {
            Window::Time { every_us, .. } => {
                let every = micros(every_us);
                at.div_euclid(every).saturating_mul(every)
            }
            Window::Rows { .. } => 0,
        }
    }

    /// Length of windows of time, and how far their begins are apart.
    #[inline]
    pub fn lengths(&self) -> Option<(i64, i64)> {
        match self.kind {
            Window::Time { length_us, every_us } => Some((micros(length_us), micros(every_us))),
            Window::Rows { .. } => None,
        }
    }

    /// The group of a row; 0: there is none.
    #[inline]
    pub fn find(&self, block: &[u8], row: &Read<'_>, hash: u64) -> Result<u32, ViewError> {
        let mut group = row.known;
        if group != 0 {
            return Ok(group);
        }
        group = self.groups.of_hash(block, hash);
        while group != 0 {
            if self.is_at(block, group, (hash, row.begin))
                && (self.is_surely_of(block, group, row) || self.is_of(block, group, row)?)
            {
                break;
            }
            group = self.groups.next_of_hash(block, group);
        }
        Ok(group)
    }

    /// The group of a row that was read at fixed places, found without its bytes; 0: there is none, or the
    /// bytes have to be compared.
    #[inline]
    pub fn find_fixed(&self, block: &[u8], row: &Read<'_>, hash: u64) -> u32 {
        let mut group = self.groups.of_hash(block, hash);
        while group != 0
            && !(self.is_at(block, group, (hash, row.begin)) && self.is_surely_of(block, group, row))
        {
            group = self.groups.next_of_hash(block, group);
        }
        group
    }

    #[inline]
    fn is_at(&self, block: &[u8], group: u32, place: (u64, i64)) -> bool {
        (self.groups.hash(block, group), self.groups.window(block, group)) == place
    }

    /// Whether a row has the same keys as that of a group. If not, their values can still be equal.
    #[inline]
    fn is_surely_of(&self, block: &[u8], group: u32, row: &Read<'_>) -> bool {
        let Program { fixed, keys: Some(keys), .. } = &self.programs[row.plan] else { return false };
        if keys.is_empty() {
            return true;
        }
        if !row.is_fixed || self.groups.source(block, group) != row.plan {
            return false;
        }
        let kept = |source: usize| {
            let bytes = self.groups.kept(block, group, source);
            fixed.get(source).and_then(|fixed| fixed.of(bytes, bytes.len()))
        };
        let Some(first) = kept(0) else { return false };
        if fixed.len() == 1 {
            return keys.are_same((&row.values.keys, &row.bytes), &[first]);
        }
        kept(1).is_some_and(|second| keys.are_same((&row.values.keys, &row.bytes), &[first, second]))
    }

    #[cold]
    fn is_of(&self, block: &[u8], group: u32, row: &Read<'_>) -> Result<bool, ViewError> {
        let plan = &self.plans[row.plan];
        self.with_rows(row.plan, row.bytes, |_, records| {
            self.with_kept(block, group, |kept_plan, kept| {
                for (own, other) in plan.group_by.iter().zip(&kept_plan.group_by) {
                    let own = plan.evaluate(own, records, &[])?;
                    if !own.groups_with(kept_plan.evaluate(other, kept, &[])?) {
                        return Ok(false);
                    }
                }
                Ok(true)
            })
        })
    }

    /// Gives the row that a group keeps: no records if it keeps none.
    fn with_kept<R, E: From<ViewError>>(
        &self,
        block: &[u8],
        group: u32,
        run: impl FnOnce(&Plan, &[&Record<'_, '_>]) -> Result<R, E>,
    ) -> Result<R, E> {
        let of = self.groups.source(block, group).min(self.plans.len() - 1);
        match &self.keeps[of] {
            [None, None] => run(&self.plans[of], &[]),
            _ => self.with_rows(of, [0, 1].map(|source| self.groups.kept(block, group, source)), run),
        }
    }

    /// Views the rows of a plan's sources.
    fn with_rows<R, E: From<ViewError>>(
        &self,
        plan: usize,
        bytes: [&[u8]; 2],
        run: impl FnOnce(&Plan, &[&Record<'_, '_>]) -> Result<R, E>,
    ) -> Result<R, E> {
        let (plan, slices) = (&*self.plans[plan], bytes.map(|bytes| [bytes]));
        let one = |source: usize| {
            let from = &plan.sources[source];
            // It was a message of the format before.
            view(&from.schema, from.format(), &slices[source]).map_err(|error| match error {
                crate::formats::Invalid::View(error) => error,
                crate::formats::Invalid::Other => {
                    ViewError { field: None, problem: csp_formats::ViewProblem::UnknownTemplate { id: 0 } }
                }
            })
        };
        match plan.sources.len() {
            1 => run(plan, &[&*one(0)?]),
            _ => run(plan, &[&*one(0)?, &*one(1)?]),
        }
    }

    /// Adds a row to a group, a new one if `group` is 0.
    #[inline]
    pub fn add(&self, block: &mut [u8], group: u32, row: &Read<'_>, hash: u64) -> Added {
        let group = match group {
            0 => match self.make(block, row, hash) {
                Ok(group) => group,
                Err(added) => return added,
            },
            group => group,
        };
        let aggregates = self.plans[row.plan].aggregates.iter().zip(&row.values.samples);
        let sums = self.groups.aggregates_mut(block, group);
        for ((aggregate, sample), sum) in aggregates.zip(sums) {
            aggregate.function.add(sum, sample);
        }
        let rows = self.groups.rows(block, group);
        self.groups.set_rows(block, group, rows + 1);
        Added::Yes
    }

    /// A new group.
    fn make(&self, block: &mut [u8], row: &Read<'_>, hash: u64) -> Result<u32, Added> {
        let made = self.groups.add(block, hash, row.begin, row.plan).ok_or(Added::NoRoom)?;
        for source in 0..2 {
            let Some(keep) = &self.keeps[row.plan][source] else { continue };
            let kept = keep.again(row.bytes[source], self.groups.kept_mut(block, made, source));
            let Some(len) = kept else {
                self.groups.remove(block, made);
                return Err(Added::TooLong);
            };
            self.groups.set_kept_len(block, made, source, len);
        }
        Ok(made)
    }

    /// Begin and end of a window, as results have them.
    fn bounds(&self, begin: i64) -> [Datum<'static>; 2] {
        let Some((length, _)) = self.lengths() else { return [Datum::Null; 2] };
        [begin, begin.saturating_add(length)].map(|at| Datum::Integer(self.unit.of_micros(at)))
    }

    /// Writes the result of a group; `None`: HAVING does not accept it.
    pub fn result(&self, block: &[u8], group: u32, out: &mut [u8]) -> Result<Option<usize>, EmitError> {
        let sums = self.groups.aggregates(block, group);
        let bounds = self.bounds(self.groups.window(block, group));
        self.with_kept(block, group, |plan, kept| emit(plan, kept, (sums, bounds), out))
    }

    /// Writes the result of a group with a last row; `None`: HAVING does not accept it.
    pub fn result_with(
        &self,
        block: &[u8],
        group: u32,
        row: &Read<'_>,
        out: &mut [u8],
    ) -> Result<Option<usize>, EmitError> {
        let plan = &self.plans[row.plan];
        let mut sums = [Accumulator::default(); AGGREGATES_MAX];
        let sums = &mut sums[..plan.aggregates.len()];
        if group != 0 {
            sums.copy_from_slice(self.groups.aggregates(block, group).get(..sums.len()).unwrap_or_default());
        }
        for ((aggregate, sample), sum) in plan.aggregates.iter().zip(&row.values.samples).zip(sums.iter_mut())
        {
            aggregate.function.add(sum, sample);
        }
        self.with_rows(row.plan, row.bytes, |plan, records| {
            emit(plan, records, (sums, [Datum::Null; 2]), out)
        })
    }

    /// The group after `group` (0: the first) whose window of `length` has ended at a time.
    #[inline]
    pub fn ended(&self, block: &[u8], group: u32, length: i64, at: i64) -> Option<u32> {
        let next = if group == 0 { self.groups.first(block) } else { self.groups.after(block, group) };
        (next != 0 && self.groups.window(block, next).saturating_add(length) <= at).then_some(next)
    }

    /// When the last window that is open began.
    pub fn last(&self, block: &[u8]) -> Option<i64> {
        let last = self.groups.last(block);
        (last != 0).then(|| self.groups.window(block, last))
    }

    #[inline]
    pub fn count_held(&self, state: &mut State, rows: u64, bytes: u64) {
        let groups = u64::from(self.groups.count(state.block()));
        Counter::Held.set(state, rows + groups);
        Counter::HeldBytes.set(state, bytes + groups * self.groups.slot_len() as u64);
    }
}

/// Microseconds of a time of a query: at least one, and less than 2^63.
#[inline]
fn micros(time_us: u64) -> i64 {
    i64::try_from(time_us).unwrap_or(i64::MAX).max(1)
}

fn emit<'v>(
    plan: &'v Plan,
    records: &[&Record<'v, 'v>],
    (sums, [begin, end]): (&'v [Accumulator], [Datum<'v>; 2]),
    out: &mut [u8],
) -> Result<Option<usize>, EmitError> {
    let mut results = [Datum::Null; AGGREGATES_MAX];
    for ((aggregate, sum), result) in plan.aggregates.iter().zip(sums).zip(&mut results) {
        *result = match aggregate.function {
            AggregateFunction::WindowStart => begin,
            AggregateFunction::WindowEnd => end,
            function => function.result_of(sum),
        };
    }
    let results = &results[..plan.aggregates.len().min(AGGREGATES_MAX)];
    if let Some(having) = &plan.having
        && !matches!(plan.evaluate(having, records, results)?, Datum::Boolean(true))
    {
        return Ok(None);
    }
    plan.emit(records, results, out).map(Some)
}

/// What groups keep of the rows of a plan: what they are grouped by, and so all that results read beside
/// aggregates.
fn keeps(plan: &Plan) -> [Option<Keep>; 2] {
    if plan.group_by.is_empty() {
        return [None; 2];
    }
    let mut columns = Vec::new();
    plan.group_by.iter().for_each(|expr| columns_of(expr, &mut columns));
    core::array::from_fn(|source| {
        (source < plan.sources.len()).then(|| Keep::new(plan, source, columns.iter().copied()))
    })
}

/// The columns of an expression.
pub(super) fn columns_of(expr: &Expr, columns: &mut Vec<usize>) {
    match expr {
        Expr::Column(column) => columns.push(*column),
        _ => expr.children().for_each(|inner| columns_of(inner, columns)),
    }
}
