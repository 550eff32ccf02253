//! The owner of the rules, on the control thread. It changes a table that no worker uses, and publishes the
//! table as a whole.
//!
//! Two tables alternate. The one that workers have returned lacks the latest changes, which are replayed on
//! it before the next change. A single change therefore costs twice its own time instead of a copy. A copy is
//! made only if a worker still uses the older table.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::fields::{Rule, RuleError};
use super::table::{RuleHandle, Table, order_of};
use super::worker::{Counters, HitCount};

/// Why rules were not changed. All rules stay as they were.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OwnerError {
    /// The rule is invalid.
    #[error("rule {name}: {error}")]
    Rule {
        /// Its name.
        name: Arc<str>,
        /// What is wrong with it.
        error: RuleError,
    },
    /// A rule with this name exists.
    #[error("there is a rule {0} already; names are unique")]
    Duplicate(Arc<str>),
    /// The capacity is exceeded.
    #[error("{count} rules do not fit a classifier for {capacity}")]
    TooMany {
        /// Number of rules that would result.
        count: usize,
        /// The capacity.
        capacity: usize,
    },
    /// No rule has this name.
    #[error("there is no rule {0}")]
    Unknown(Box<str>),
}

/// A published table for workers, with its number. Later tables have higher numbers.
#[derive(Clone, Debug)]
pub struct Published {
    /// Number of the table.
    pub generation: u64,
    /// The rules.
    pub table: Arc<Table>,
}

/// A rule in its slot.
#[derive(Clone, Debug)]
struct Placed {
    rule: Arc<Rule>,
    handle: RuleHandle,
    order: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Insert(Placed),
    Remove(Placed),
}

impl Change {
    fn apply(&self, table: &mut Table) {
        match self {
            Change::Insert(placed) => table.insert(&placed.rule, placed.handle, placed.order),
            Change::Remove(placed) => {
                table.remove(&placed.rule, placed.handle.slot);
            }
        }
    }
}

/// All rules by name and slot, and the tables made from them.
#[derive(Debug)]
pub struct Owner {
    /// Indexed by slot.
    places: Vec<Option<Placed>>,
    generations: Vec<u16>,
    /// Free slots, first in, first out, so that a slot is reused as late as possible.
    free: VecDeque<u32>,
    names: HashMap<Arc<str>, u32>,
    sequence: u64,
    current: Published,
    /// The table before the current one; it lacks the changes in `log`.
    spare: Option<Arc<Table>>,
    /// The next table, while it is built; the current one lacks the changes in `log`.
    building: Option<Arc<Table>>,
    log: Vec<Change>,
    /// Whether the next table was built from scratch, so that `log` does not lead to it.
    replaced: bool,
    /// Number of copies made because workers used the older table.
    copies: u64,
}

impl Owner {
    /// Creates an owner without rules, for at most `capacity` rules.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.min(u32::MAX as usize - 1);
        Owner {
            places: (0..capacity).map(|_| None).collect(),
            generations: vec![0; capacity],
            free: (0..capacity as u32).collect(),
            names: HashMap::with_capacity(capacity),
            sequence: 0,
            current: Published { generation: 0, table: Arc::default() },
            spare: None,
            building: None,
            log: Vec::new(),
            replaced: false,
            copies: 0,
        }
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the capacity in rules.
    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Returns how often a table was copied because workers still used the older one.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Returns the rule of this name and its handle.
    pub fn rule(&self, name: &str) -> Option<(&Rule, RuleHandle)> {
        let placed = self.places.get(*self.names.get(name)? as usize)?.as_ref()?;
        Some((&placed.rule, placed.handle))
    }

    /// Returns all rules with their handles, in match order.
    pub fn rules(&self) -> Vec<(&Rule, RuleHandle)> {
        let mut placed: Vec<&Placed> = self.places.iter().flatten().collect();
        placed.sort_unstable_by_key(|placed| placed.order);
        placed.into_iter().map(|placed| (&*placed.rule, placed.handle)).collect()
    }

    /// Returns the hits of a rule at all workers. Counts of a former rule of its slot are not included.
    pub fn hits<'a>(&self, handle: RuleHandle, workers: impl IntoIterator<Item = &'a Counters>) -> HitCount {
        workers.into_iter().fold(HitCount::default(), |sum, worker| sum + worker.of(handle))
    }

    /// Adds a rule after those of equal priority. Workers see it after [`publish`](Self::publish).
    pub fn insert(&mut self, rule: Rule) -> Result<RuleHandle, OwnerError> {
        check(&rule)?;
        if self.names.contains_key(&rule.name) {
            return Err(OwnerError::Duplicate(rule.name));
        }
        let full = OwnerError::TooMany { count: self.len() + 1, capacity: self.capacity() };
        let slot = self.free.pop_front().ok_or(full)?;
        let placed = self.place(Arc::new(rule), slot);
        let handle = placed.handle;
        self.change(Change::Insert(placed));
        Ok(handle)
    }

    /// Removes the rule of this name. Workers see it after [`publish`](Self::publish).
    pub fn remove(&mut self, name: &str) -> Result<(), OwnerError> {
        let slot = self.names.remove(name).ok_or_else(|| OwnerError::Unknown(name.into()))?;
        let Some(placed) = self.places.get_mut(slot as usize).and_then(Option::take) else { return Ok(()) };
        self.free.push_back(slot);
        self.change(Change::Remove(placed));
        Ok(())
    }

    /// Replaces all rules. They match by priority, then in the given order. An unchanged rule keeps its
    /// counters. Workers see the new rules after [`publish`](Self::publish), all at once.
    pub fn replace(&mut self, rules: Vec<Rule>) -> Result<(), OwnerError> {
        if rules.len() > self.capacity() {
            return Err(OwnerError::TooMany { count: rules.len(), capacity: self.capacity() });
        }
        let mut names: HashMap<Arc<str>, u32> = HashMap::with_capacity(self.capacity());
        for rule in &rules {
            check(rule)?;
            if names.insert(rule.name.clone(), u32::MAX).is_some() {
                return Err(OwnerError::Duplicate(rule.name.clone()));
            }
        }
        let mut before = core::mem::take(&mut self.names);
        self.names = names;
        let kept: Vec<Option<u32>> = rules
            .iter()
            .map(|rule| {
                let slot = *before.get(&rule.name)?;
                let same = self.places[slot as usize].as_ref().is_some_and(|placed| *placed.rule == *rule);
                same.then(|| before.remove(&rule.name)).flatten()
            })
            .collect();
        let mut freed: Vec<u32> = before.into_values().collect();
        // The map's order differs between runs, so slots are assigned by number.
        freed.sort_unstable();
        for slot in freed {
            self.places[slot as usize] = None;
            self.free.push_back(slot);
        }
        self.sequence = 0;
        let mut all: Vec<Placed> = Vec::with_capacity(rules.len());
        for (rule, kept) in rules.into_iter().zip(kept) {
            all.push(self.place_again(rule, kept));
        }
        self.build(all);
        Ok(())
    }

    /// Publishes the changes since the last call. Returns the table that workers should use from now on.
    pub fn publish(&mut self) -> Published {
        if let Some(table) = self.building.take() {
            let generation = self.current.generation + 1;
            let before = core::mem::replace(&mut self.current, Published { generation, table });
            self.spare = (!self.replaced).then_some(before.table);
            self.replaced = false;
        }
        self.current.clone()
    }

    /// Puts a rule into its slot, and its name into the directory.
    fn place(&mut self, rule: Arc<Rule>, slot: u32) -> Placed {
        let generation = self.generations[slot as usize].wrapping_add(1);
        self.generations[slot as usize] = generation;
        self.record(rule, RuleHandle { slot, generation })
    }

    fn record(&mut self, rule: Arc<Rule>, handle: RuleHandle) -> Placed {
        let order = order_of(rule.priority, self.sequence);
        self.sequence += 1;
        self.names.insert(rule.name.clone(), handle.slot);
        let placed = Placed { rule, handle, order };
        self.places[handle.slot as usize] = Some(placed.clone());
        placed
    }

    /// Puts a rule of a whole set into its former slot, or into a free one. There are as many free slots as
    /// the capacity requires.
    fn place_again(&mut self, rule: Rule, kept: Option<u32>) -> Placed {
        match kept.and_then(|slot| self.places[slot as usize].take()) {
            Some(Placed { rule, handle, .. }) => self.record(rule, handle),
            None => {
                let slot = self.free.pop_front().expect("as many places as rules were checked to fit");
                self.place(Arc::new(rule), slot)
            }
        }
    }

    /// Builds the next table from scratch. The last rule comes first, since chains are extended at their
    /// heads.
    fn build(&mut self, mut all: Vec<Placed>) {
        all.sort_unstable_by_key(|placed| core::cmp::Reverse(placed.order));
        let mut table = Table::new();
        for placed in &all {
            table.insert(&placed.rule, placed.handle, placed.order);
        }
        self.building = Some(Arc::new(table));
        self.spare = None;
        self.log.clear();
        self.replaced = true;
    }

    fn change(&mut self, change: Change) {
        let mut table = self.building.take().unwrap_or_else(|| self.acquire());
        // An unpublished table is not shared.
        if let Some(table) = Arc::get_mut(&mut table) {
            change.apply(table);
        }
        self.building = Some(table);
        if !self.replaced {
            self.log.push(change);
        }
    }

    /// Returns an unshared table with the content of the current one. The log is empty then.
    fn acquire(&mut self) -> Arc<Table> {
        let log = core::mem::take(&mut self.log);
        let reused = self.spare.take().and_then(|mut spare| {
            let table = Arc::get_mut(&mut spare)?;
            log.iter().for_each(|change| change.apply(table));
            Some(spare)
        });
        reused.unwrap_or_else(|| {
            self.copies += 1;
            Arc::new(Table::clone(&self.current.table))
        })
    }
}

fn check(rule: &Rule) -> Result<(), OwnerError> {
    rule.check().map_err(|error| OwnerError::Rule { name: rule.name.clone(), error })
}
