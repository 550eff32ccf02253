//! The table of flows: one generation of what the policy says, with ids and the classification of data items.
//!
//! A table is made beside the data path and replaced as a whole. A flow keeps its id from generation to
//! generation by its name; an id that has become free is used again as late as possible.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;

use csp_types::Instant;

use crate::Predicate;
use crate::classifier::{Classifier, TooManyTuples};
use crate::descriptor::{Descriptor, WORDS, Words};
use crate::flow::{FLOWS_MAX, FlowError, FlowErrorReason, FlowId, FlowSpec};

/// Name of the flow of what no predicate matches. A flow of this name in the policy sets its priority,
/// promises and bounds.
pub const DEFAULT_NAME: &str = "default";

/// Why a table cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// One flow is wrong.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// Classification would cost too much.
    #[error(transparent)]
    Tuples(#[from] TooManyTuples),
}

/// A generation of flows.
#[derive(Clone, Debug)]
pub struct FlowTable {
    generation: u64,
    flows: Vec<Option<FlowSpec>>,
    ids: HashMap<String, u16>,
    classifier: Classifier,
    /// By id: the generation that used it last.
    used: Vec<u64>,
    /// The words and bits that predicates read.
    reads: Vec<(u8, u64)>,
}

impl FlowTable {
    /// The first generation: room for `flows_max` flows beside the default flow, which alone is there.
    pub fn new(flows_max: usize) -> Self {
        let capacity = (flows_max + 1).clamp(1, FLOWS_MAX);
        let mut flows: Vec<Option<FlowSpec>> = (0..capacity).map(|_| None).collect();
        flows[0] = Some(FlowSpec::new(DEFAULT_NAME, Predicate::default()));
        FlowTable {
            generation: 1,
            flows,
            ids: HashMap::from([(DEFAULT_NAME.to_owned(), 0)]),
            classifier: Classifier::default(),
            used: vec![0; capacity],
            reads: Vec::new(),
        }
    }

    /// Makes the next generation. The first flow whose predicate holds gets a data item.
    pub fn replace(&self, specs: Vec<FlowSpec>) -> Result<FlowTable, TableError> {
        let mut next = FlowTable::new(self.capacity() - 1);
        next.generation = self.generation + 1;
        next.used.clone_from(&self.used);
        self.ids.values().for_each(|id| next.used[usize::from(*id)] = self.generation);
        let (mut new, mut default_seen) = (Vec::new(), false);
        for (order, spec) in specs.into_iter().enumerate() {
            spec.check()?;
            if spec.name == DEFAULT_NAME && !default_seen {
                default_seen = true;
                next.flows[0] = Some(FlowSpec { predicate: Predicate::default(), ..spec });
                continue;
            }
            let known = self.ids.get(&spec.name).copied();
            match next.ids.entry(spec.name.clone()) {
                MapEntry::Occupied(_) => {
                    return Err(FlowError { flow: spec.name, reason: FlowErrorReason::Twice }.into());
                }
                MapEntry::Vacant(entry) => match known {
                    Some(id) => {
                        entry.insert(id);
                        next.put(spec, id, order)?;
                    }
                    None => new.push((order, spec)),
                },
            }
        }
        next.add_new(new)?;
        let compiled = next.flows.iter().skip(1).flatten().map(|spec| spec.predicate.compile());
        let mask = next.classifier.reads(compiled);
        next.reads =
            (0..WORDS).filter(|word| mask[*word] != 0).map(|word| (word as u8, mask[word])).collect();
        Ok(next)
    }

    /// Gives ids to flows that have none: those that have been free for longest first.
    fn add_new(&mut self, new: Vec<(usize, FlowSpec)>) -> Result<(), TableError> {
        let mut free: Vec<u16> =
            (1..self.capacity()).filter(|id| self.flows[*id].is_none()).map(|id| id as u16).collect();
        free.sort_by_key(|id| self.used[usize::from(*id)]);
        let mut free = free.into_iter();
        for (order, spec) in new {
            let Some(id) = free.next() else {
                let reason = FlowErrorReason::TooMany(self.capacity() - 1);
                return Err(FlowError { flow: spec.name, reason }.into());
            };
            match self.ids.entry(spec.name.clone()) {
                MapEntry::Occupied(_) => {
                    return Err(FlowError { flow: spec.name, reason: FlowErrorReason::Twice }.into());
                }
                MapEntry::Vacant(entry) => _ = entry.insert(id),
            }
            self.put(spec, id, order)?;
        }
        Ok(())
    }

    fn put(&mut self, spec: FlowSpec, id: u16, order: usize) -> Result<(), TableError> {
        self.classifier.insert(&spec.predicate.compile(), order as u32, id)?;
        self.flows[usize::from(id)] = Some(spec);
        Ok(())
    }

    /// Returns the flow of a data item. Costs one hash for each kind of predicate; see the module of the
    /// classifier.
    #[inline]
    pub fn classify(&self, descriptor: &Descriptor) -> FlowId {
        FlowId(self.classifier.find(&descriptor.0).unwrap_or(0))
    }

    /// Adds a message of `len` bytes to the run of its connection. Returns its flow, and whether it begins a
    /// data item; all messages of a data item have the flow of the first, and are equal in all fields that
    /// predicates read.
    pub fn next_message(
        &self,
        run: &mut Run,
        now: Instant,
        descriptor: &Descriptor,
        len: u32,
    ) -> (FlowId, bool) {
        let same = run.generation == self.generation
            && self.reads.iter().all(|(word, mask)| {
                let word = usize::from(*word);
                (descriptor.0[word] ^ run.words[word]) & mask == 0
            });
        let flow = if same { run.flow } else { self.classify(descriptor) };
        let rule = self.flow(flow).map(|spec| spec.item).unwrap_or_default();
        if same
            && run.messages < rule.messages_max
            && run.bytes.saturating_add(len) <= rule.bytes_max
            && now.saturating_since(run.began) <= rule.window
        {
            (run.messages, run.bytes) = (run.messages + 1, run.bytes.saturating_add(len));
            return (flow, false);
        }
        *run = Run {
            words: descriptor.0,
            generation: self.generation,
            flow,
            messages: 1,
            bytes: len,
            began: now,
        };
        (flow, true)
    }

    /// Returns the number of this generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns how many ids there are.
    pub fn capacity(&self) -> usize {
        self.flows.len()
    }

    /// Returns a flow's description.
    pub fn flow(&self, flow: FlowId) -> Option<&FlowSpec> {
        self.flows.get(flow.index())?.as_ref()
    }

    /// Returns the id of a flow.
    pub fn id(&self, name: &str) -> Option<FlowId> {
        self.ids.get(name).copied().map(FlowId)
    }

    /// Returns all flows in the order of their ids.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, &FlowSpec)> {
        let flows = self.flows.iter().enumerate();
        flows.filter_map(|(id, spec)| spec.as_ref().map(|spec| (FlowId(id as u16), spec)))
    }
}

/// The data item that the messages of a connection form.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    words: Words,
    /// 0: none has begun.
    generation: u64,
    flow: FlowId,
    messages: u16,
    bytes: u32,
    began: Instant,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            words: [0; WORDS],
            generation: 0,
            flow: FlowId::DEFAULT,
            messages: 0,
            bytes: 0,
            began: Instant::ZERO,
        }
    }
}
