//! Windows: rows are grouped and summed up, and a group's result is emitted when its window closes.
//!
//! Rows come from one plan, from the pairs of a join, or from several plans whose results have one format (merged streams).

use std::sync::Arc;

use csp_formats::{Record, ViewError};
use csp_handlers::State;
use csp_queries::{ACCUMULATOR_LEN, Accumulator, Datum, EmitError, Expr, Plan, Window};

use super::groups::{Groups, KEPT_MAX};
use super::hash::Hash;
use super::keep::Keep;
use super::setup::{Limits, QuerySetupError};
use crate::counters::Counter;
use crate::formats::view;

/// Most aggregates of a query.
pub const AGGREGATES_MAX: usize = 64;
const FEW: usize = 8;

/// The windows of an operator.
#[derive(Debug)]
pub(super) struct Windows {
    plans: Vec<Arc<Plan>>,
    /// What groups keep of a row, for each plan and source.
    keeps: Vec<[Option<Keep>; 2]>,
    pub groups: Groups,
    pub kind: Window,
    seed: u64,
}

/// A row: its plan, one record of each source, and their bytes.
pub(super) struct Row<'v> {
    pub plan: usize,
    pub records: &'v [&'v Record<'v, 'v>],
    pub bytes: [&'v [u8]; 2],
}

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    Yes,
    NoRoom,
    /// Columns of the row that are grouped by are longer than a group keeps.
    TooLong,
}

impl Windows {
    pub fn new(plans: Vec<Arc<Plan>>, limits: &Limits, base: usize) -> Result<Self, QuerySetupError> {
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
        Ok(Windows { keeps, groups, kind, seed: limits.seed, plans })
    }

    /// The hash of the columns that a row is grouped by, in the window that begins at a time.
    pub fn hash(&self, row: &Row<'_>, window: i64) -> Result<u64, ViewError> {
        let plan = &self.plans[row.plan];
        let mut hash = Hash::new(self.seed ^ window as u64);
        for expr in &plan.group_by {
            hash.add(plan.evaluate(expr, row.records, &[])?);
        }
        Ok(hash.finish())
    }

    /// The group of a row; 0: there is none.
    pub fn find(&self, block: &[u8], row: &Row<'_>, (hash, window): (u64, i64)) -> Result<u32, ViewError> {
        let mut group = self.groups.of_hash(block, hash);
        while group != 0 {
            if self.groups.hash(block, group) == hash
                && self.groups.window(block, group) == window
                && self.is_of(block, group, row)?
            {
                break;
            }
            group = self.groups.next_of_hash(block, group);
        }
        Ok(group)
    }

    fn is_of(&self, block: &[u8], group: u32, row: &Row<'_>) -> Result<bool, ViewError> {
        let plan = &self.plans[row.plan];
        self.with_kept(block, group, |kept_plan, kept| {
            for (own, other) in plan.group_by.iter().zip(&kept_plan.group_by) {
                let own = plan.evaluate(own, row.records, &[])?;
                if !own.groups_with(kept_plan.evaluate(other, kept, &[])?) {
                    return Ok(false);
                }
            }
            Ok(true)
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
        let (plan, keeps) = (&self.plans[of], &self.keeps[of]);
        let slices = [[self.groups.kept(block, group, 0)], [self.groups.kept(block, group, 1)]];
        let one = |source: usize| {
            let from = &plan.sources[source];
            // It was a message of the format when it was kept.
            view(&from.schema, from.format(), &slices[source]).map_err(|error| match error {
                crate::formats::Invalid::View(error) => error,
                crate::formats::Invalid::Other => {
                    ViewError { field: None, problem: csp_formats::ViewProblem::UnknownTemplate { id: 0 } }
                }
            })
        };
        match keeps {
            [None, None] => run(plan, &[]),
            [_, None] => run(plan, &[&*one(0)?]),
            [_, Some(_)] => run(plan, &[&*one(0)?, &*one(1)?]),
        }
    }

    /// Adds a row to a group, a new one if `group` is 0.
    pub fn add(
        &self,
        block: &mut [u8],
        group: u32,
        row: &Row<'_>,
        place: (u64, i64),
    ) -> Result<Added, ViewError> {
        // Room for the most aggregates is cleared only where there are many.
        match self.plans[row.plan].aggregates.len() {
            0..=FEW => self.add_up::<FEW>(block, group, row, place),
            _ => self.add_up::<AGGREGATES_MAX>(block, group, row, place),
        }
    }

    fn add_up<const N: usize>(
        &self,
        block: &mut [u8],
        group: u32,
        row: &Row<'_>,
        (hash, window): (u64, i64),
    ) -> Result<Added, ViewError> {
        let plan = &self.plans[row.plan];
        // Nothing is changed before all values are known.
        let mut sums = [[0; ACCUMULATOR_LEN]; N];
        self.sums(block, group, row, &mut sums)?;
        let group = if group != 0 {
            group
        } else {
            let Some(made) = self.groups.add(block, hash, window, row.plan) else { return Ok(Added::NoRoom) };
            for source in 0..2 {
                let Some(keep) = &self.keeps[row.plan][source] else { continue };
                let Some(len) = keep.again(row.bytes[source], self.groups.kept_mut(block, made, source))
                else {
                    self.groups.remove(block, made);
                    return Ok(Added::TooLong);
                };
                self.groups.set_kept_len(block, made, source, len);
            }
            made
        };
        for (index, sum) in sums.iter().enumerate().take(plan.aggregates.len()) {
            self.groups.set_aggregate(block, group, index, sum);
        }
        let rows = self.groups.rows(block, group);
        self.groups.set_rows(block, group, rows + 1);
        Ok(Added::Yes)
    }

    /// The aggregates of a group with one more row.
    fn sums(
        &self,
        block: &[u8],
        group: u32,
        row: &Row<'_>,
        sums: &mut [[u8; ACCUMULATOR_LEN]],
    ) -> Result<(), ViewError> {
        let plan = &self.plans[row.plan];
        for (index, (aggregate, sum)) in plan.aggregates.iter().zip(sums).enumerate() {
            let mut accumulator = match group {
                0 => Accumulator::new(aggregate.function),
                _ => Accumulator::from_bytes(aggregate.function, &self.groups.aggregate(block, group, index)),
            };
            accumulator.add(match &aggregate.argument {
                None => Datum::Boolean(true),
                Some(argument) => plan.evaluate(argument, row.records, &[])?,
            });
            *sum = accumulator.to_bytes();
        }
        Ok(())
    }

    /// Writes the result of a group.
    pub fn result(&self, block: &[u8], group: u32, out: &mut [u8]) -> Result<usize, EmitError> {
        let sum = |index: usize| self.groups.aggregate(block, group, index);
        self.with_kept(block, group, |plan, kept| emit(plan, kept, sum, out))
    }

    /// Writes the result of a group with a last row.
    pub fn result_with(
        &self,
        block: &[u8],
        group: u32,
        row: &Row<'_>,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        let mut sums = [[0; ACCUMULATOR_LEN]; AGGREGATES_MAX];
        self.sums(block, group, row, &mut sums)?;
        emit(&self.plans[row.plan], row.records, |index| sums[index], out)
    }

    /// The group after `group` (0: the first) whose window of `length` has ended at a time.
    pub fn ended(&self, block: &[u8], group: u32, length: i64, at: i64) -> Option<u32> {
        let next = if group == 0 { self.groups.first(block) } else { self.groups.after(block, group) };
        (next != 0 && self.groups.window(block, next).saturating_add(length) <= at).then_some(next)
    }

    /// When the last window that is open began.
    pub fn last(&self, block: &[u8]) -> Option<i64> {
        let last = self.groups.last(block);
        (last != 0).then(|| self.groups.window(block, last))
    }

    pub fn count_held(&self, state: &mut State, rows: u64, bytes: u64) {
        let groups = u64::from(self.groups.count(state.block()));
        Counter::Held.set(state, rows + groups);
        Counter::HeldBytes.set(state, bytes + groups * self.groups.slot_len() as u64);
    }
}

fn emit<'v>(
    plan: &'v Plan,
    records: &[&Record<'v, 'v>],
    sum: impl Fn(usize) -> [u8; ACCUMULATOR_LEN],
    out: &mut [u8],
) -> Result<usize, EmitError> {
    let mut results = [Datum::Null; AGGREGATES_MAX];
    for (index, (aggregate, result)) in plan.aggregates.iter().zip(&mut results).enumerate() {
        *result = Accumulator::from_bytes(aggregate.function, &sum(index)).result();
    }
    plan.emit(records, &results[..plan.aggregates.len().min(AGGREGATES_MAX)], out)
}

/// What groups keep of the rows of a plan: what they are grouped by, and so all that results read beside aggregates.
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
        Expr::Literal(_) | Expr::Aggregate(_) => (),
        Expr::Not(inner) | Expr::IsNull(inner) | Expr::Has(inner, _) | Expr::Like(inner, _) => {
            columns_of(inner, columns);
        }
        Expr::Arithmetic(_, left, right)
        | Expr::Compare(_, left, right)
        | Expr::And(left, right)
        | Expr::Or(left, right) => {
            columns_of(left, columns);
            columns_of(right, columns);
        }
    }
}
