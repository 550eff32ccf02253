//! A resource manager on virtual time: sources, contexts whose handlers take their time, a transmitter. It
//! checks on the way that flows keep their order, that nothing idles that should not, and that nothing is
//! lost uncounted.
#![allow(dead_code, reason = "each program that includes it uses a part")]

use std::collections::VecDeque;

use csp_quality::{Cost, Filter, FlowId, Item, Offered, ResourceManager, Scheme, Taken};
use csp_support::Random;
use csp_types::{Duration, Instant};

/// What sends items of a flow.
#[derive(Clone, Debug)]
pub struct Source {
    pub flow: FlowId,
    /// Lengths of its items, used in turn.
    pub lens: Vec<u32>,
    /// From when on it sends how many bits a second.
    pub rates: Vec<(Instant, u64)>,
    pub next: Instant,
    sent: usize,
    /// Varies the time between items by half of it, either way.
    pub jitter: Option<Random>,
    /// An item that is held back.
    held: Option<u64>,
}

impl Source {
    pub fn new(flow: FlowId, lens: Vec<u32>, rates: Vec<(Instant, u64)>) -> Self {
        let next = rates.iter().find(|(_, rate)| *rate > 0).map_or(Instant::FAR_FUTURE, |(from, _)| *from);
        Source { flow, lens, rates, next, sent: 0, jitter: None, held: None }
    }

    fn len(&self) -> u32 {
        self.lens[self.sent % self.lens.len()]
    }

    /// Moves on to the time of the next item.
    fn advance(&mut self, now: Instant) {
        let vary = self.jitter.as_mut().map_or(1_000, |random| 500 + random.below(1_001));
        let bits = u64::from(self.len()) * 8 * vary / 1_000;
        self.sent += 1;
        let rate = self.rates.iter().rev().find(|(from, _)| *from <= now).map_or(0, |(_, rate)| *rate);
        let later = self.rates.iter().find(|(from, rate)| *from > now && *rate > 0).map(|(from, _)| *from);
        self.next = match rate {
            0 => later.unwrap_or(Instant::FAR_FUTURE),
            rate => now + Duration::from_nanos((u128::from(bits) * 1_000_000_000 / u128::from(rate)) as u64),
        };
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Waiting,
    Serving,
    Finished,
}

/// What happened to a flow.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// Items that have not left, in order.
    outstanding: VecDeque<(u64, Stage, u32)>,
    waiting: usize,
    serving: usize,
    finished_bytes: u64,
    /// Since when items have waited for a context or the link; `None`: none do.
    pub backlog_since: Option<Instant>,
    /// Since when items have waited that a context could take.
    pub waiting_since: Option<Instant>,
    /// Times at which items had been sent, with the bytes sent by then.
    pub sent: Vec<(Instant, u64)>,
    pub sent_bytes: u64,
    /// Periods in which items always waited.
    pub backlogs: Vec<(Instant, Instant)>,
    pub delay_sum: Duration,
    pub delays: Vec<Duration>,
    pub arrived_bytes: u64,
    pub ingress_dropped: u64,
}

impl Track {
    fn note_work(&mut self, now: Instant, ready_bytes_max: u64) {
        let ready = self.outstanding.front().is_some_and(|(_, stage, _)| *stage == Stage::Finished);
        match (self.waiting > 0 || ready, self.backlog_since) {
            (true, None) => self.backlog_since = Some(now),
            (false, Some(since)) => {
                self.backlogs.push((since, now));
                self.backlog_since = None;
            }
            _ => {}
        }
        match self.waiting > 0 && self.finished_bytes < ready_bytes_max {
            true => _ = self.waiting_since.get_or_insert(now),
            false => self.waiting_since = None,
        }
    }
}

/// The world around a resource manager.
pub struct World {
    pub manager: ResourceManager,
    pub now: Instant,
    pub sources: Vec<Source>,
    pub tracks: Vec<Track>,
    /// By flow: what its handler costs, and the thousandths that it leaves of an item.
    pub costs: Vec<Option<(Cost, u32)>>,
    contexts: Vec<Option<(Instant, Taken)>>,
    /// One receive ring before the queues, as the paper's appliance has it: what is held back there holds
    /// back what follows.
    pub ingress: Option<(usize, VecDeque<(FlowId, Item)>)>,
    pub ready_bytes_max: u64,
    pub quantum: u64,
    next_handle: u64,
    pub keep_delays: bool,
    /// The flows that own contexts, in their order.
    pub owners: Vec<FlowId>,
    /// Items that contexts took although their owners waited.
    pub strangers: Vec<Stranger>,
}

/// An item that a context took although the flow that owns the context waited.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    pub at: Instant,
    pub context: u16,
    pub flow: FlowId,
    pub owner: FlowId,
    /// Since when items of the owner waited.
    pub since: Instant,
}

impl World {
    pub fn new(manager: ResourceManager, contexts: u16, flows: usize) -> Self {
        World {
            manager,
            now: Instant::ZERO,
            sources: Vec::new(),
            tracks: vec![Track::default(); flows],
            costs: vec![None; flows],
            contexts: (0..contexts).map(|_| None).collect(),
            ingress: None,
            ready_bytes_max: 64 * 1024,
            quantum: 16 * 1024,
            next_handle: 1,
            keep_delays: false,
            owners: Vec::new(),
            strangers: Vec::new(),
        }
    }

    /// Runs until a time.
    pub fn run(&mut self, until: Instant) {
        loop {
            self.settle();
            let next = self.next_event();
            if next > until {
                self.now = until;
                return;
            }
            assert!(next > self.now, "the world stands still at {:?}", self.now);
            self.now = next;
        }
    }

    /// Stops all sources and runs until everything has left.
    pub fn drain(&mut self, limit: Duration) {
        self.sources
            .iter_mut()
            .filter(|source| source.held.is_none())
            .for_each(|source| source.next = Instant::FAR_FUTURE);
        self.sources.iter_mut().for_each(|source| source.rates = vec![(Instant::ZERO, 0)]);
        self.run(self.now + limit);
    }

    fn next_event(&mut self) -> Instant {
        let sources = self.sources.iter().filter(|source| source.held.is_none()).map(|source| source.next);
        let contexts = self.contexts.iter().flatten().map(|(ends, _)| *ends);
        let link = self.manager.next_release(self.now).map(|at| at.max(self.now + Duration::from_nanos(1)));
        let control = self.manager.next_control().map(|at| at.max(self.now + Duration::from_nanos(1)));
        sources.chain(contexts).chain(link).chain(control).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Does everything that is to be done now.
    fn settle(&mut self) {
        if self.manager.next_control().is_some_and(|at| at <= self.now) {
            self.manager.control(self.now);
        }
        loop {
            let mut moved = self.finish();
            moved |= self.arrivals();
            moved |= self.take();
            moved |= self.release();
            if !moved {
                break;
            }
        }
        self.check_idle();
    }

    fn arrivals(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.sources.len() {
            if let Some(handle) = self.sources[at].held
                && self.manager.has_room(self.sources[at].flow, self.sources[at].len())
            {
                let (flow, bytes) = (self.sources[at].flow, self.sources[at].len());
                let item = Item { handle, bytes, messages: 1, arrived: self.now };
                assert!(self.offer(flow, item), "there was room");
                self.sources[at].held = None;
                self.sources[at].advance(self.now);
                moved = true;
            }
            while self.sources[at].held.is_none() && self.sources[at].next <= self.now {
                moved = true;
                let (flow, bytes, due) =
                    (self.sources[at].flow, self.sources[at].len(), self.sources[at].next);
                let handle = self.next_handle;
                self.next_handle += 1;
                let item = Item { handle, bytes, messages: 1, arrived: due };
                self.tracks[usize::from(flow.0)].arrived_bytes += u64::from(bytes);
                if self.ingress.is_none() && !self.offer(flow, item) {
                    self.sources[at].held = Some(handle);
                    continue;
                }
                if let Some((items_max, ring)) = &mut self.ingress {
                    match ring.len() < *items_max {
                        true => ring.push_back((flow, item)),
                        false => self.tracks[usize::from(flow.0)].ingress_dropped += 1,
                    }
                }
                self.sources[at].advance(due);
            }
        }
        while let Some((flow, item)) = self.ingress.as_mut().and_then(|(_, ring)| ring.front().copied()) {
            if !self.offer(flow, item) {
                break;
            }
            moved = true;
            self.ingress.as_mut().and_then(|(_, ring)| ring.pop_front());
        }
        moved
    }

    /// Offers an item; returns false if it is held back.
    fn offer(&mut self, flow: FlowId, item: Item) -> bool {
        let mut evicted = Vec::new();
        let offered = self.manager.offer(self.now, flow, item, |item| evicted.push(item));
        // An item of a flow that the plan does not have belongs to the default flow.
        let flow = if self.manager.table().flow(flow).is_some() { flow } else { FlowId::DEFAULT };
        let track = &mut self.tracks[usize::from(flow.0)];
        for item in evicted {
            let at = track.outstanding.iter().position(|(handle, ..)| *handle == item.handle);
            let (_, stage, bytes) = track.outstanding.remove(at.expect("evicted once")).expect("it is there");
            match stage {
                Stage::Waiting => track.waiting -= 1,
                Stage::Finished => track.finished_bytes -= u64::from(bytes),
                Stage::Serving => panic!("an item in service was evicted"),
            }
        }
        if offered == Offered::Queued {
            // What arrives when an item in service is all there is behind contexts waits for them, too.
            let pending = track.waiting + track.serving > 0;
            match self.costs[usize::from(flow.0)].is_some() || pending {
                true => {
                    track.waiting += 1;
                    track.outstanding.push_back((item.handle, Stage::Waiting, item.bytes));
                }
                false => {
                    track.finished_bytes += u64::from(item.bytes);
                    track.outstanding.push_back((item.handle, Stage::Finished, item.bytes));
                }
            }
        }
        track.note_work(self.now, self.ready_bytes_max);
        offered != Offered::Held
    }

    fn take(&mut self) -> bool {
        let mut moved = false;
        for context in 0..self.contexts.len() {
            if self.contexts[context].is_some() {
                continue;
            }
            if let Some(taken) = self.manager.take(self.now, context as u16) {
                moved = true;
                let owner = self.owners.get(context).filter(|owner| **owner != taken.flow);
                if let Some(owner) = owner.copied()
                    && let Some(since) = self.tracks[usize::from(owner.0)].waiting_since
                {
                    let (context, flow) = (context as u16, taken.flow);
                    self.strangers.push(Stranger { at: self.now, context, flow, owner, since });
                }
                let track = &mut self.tracks[usize::from(taken.flow.0)];
                let first = track.outstanding.len() - track.waiting;
                let entry = &mut track.outstanding[first];
                assert_eq!(entry.1, Stage::Waiting);
                assert_eq!(entry.0, taken.item.handle, "flow {} is taken in order", taken.flow.0);
                entry.1 = Stage::Serving;
                (track.waiting, track.serving) = (track.waiting - 1, track.serving + 1);
                track.note_work(self.now, self.ready_bytes_max);
                let (cost, _) = self.costs[usize::from(taken.flow.0)].unwrap_or_default();
                let ends = self.now + cost.of(taken.item.bytes).max(Duration::from_nanos(1));
                self.contexts[context] = Some((ends, taken));
            }
        }
        moved
    }

    fn finish(&mut self) -> bool {
        let mut moved = false;
        for context in 0..self.contexts.len() {
            if self.contexts[context].as_ref().is_none_or(|(ends, _)| *ends > self.now) {
                continue;
            }
            let Some((_, taken)) = self.contexts[context].take() else { continue };
            moved = true;
            let permille = self.costs[usize::from(taken.flow.0)].map_or(1_000, |(_, permille)| permille);
            let left = (u64::from(taken.item.bytes) * u64::from(permille) / 1_000) as u32;
            let left = (permille > 0).then_some(left.max(1));
            let track = &mut self.tracks[usize::from(taken.flow.0)];
            let at = track.outstanding.iter().position(|(handle, ..)| *handle == taken.item.handle);
            let at = at.expect("it is there");
            track.serving -= 1;
            match left {
                Some(bytes) => {
                    track.outstanding[at].1 = Stage::Finished;
                    track.outstanding[at].2 = bytes;
                    track.finished_bytes += u64::from(bytes);
                }
                None => _ = track.outstanding.remove(at),
            }
            let flow = taken.flow;
            self.manager.finish(self.now, taken, left);
            let track = &mut self.tracks[usize::from(flow.0)];
            track.note_work(self.now, self.ready_bytes_max);
        }
        moved
    }

    fn release(&mut self) -> bool {
        let mut moved = false;
        while let Some(released) = self.manager.release(self.now) {
            moved = true;
            let bits = u64::from(released.item.bytes) * 8;
            let track = &mut self.tracks[usize::from(released.flow.0)];
            let (handle, stage, bytes) = track.outstanding.pop_front().expect("it was there");
            assert_eq!(handle, released.item.handle, "flow {} keeps its order", released.flow.0);
            assert_eq!((stage, bytes), (Stage::Finished, released.item.bytes));
            track.finished_bytes -= u64::from(bytes);
            track.sent_bytes += bits / 8;
            track.sent.push((self.manager.sent_at(), track.sent_bytes));
            track.delay_sum += released.delay;
            if self.keep_delays {
                track.delays.push(released.delay);
            }
            track.note_work(self.now, self.ready_bytes_max);
        }
        moved
    }

    /// Checks that nothing waits for something that is free.
    fn check_idle(&self) {
        let (contexts, link) = self.manager.schemes();
        let idle = self.contexts.iter().any(Option::is_none);
        for (flow, track) in self.tracks.iter().enumerate() {
            let ready = track.outstanding.front().is_some_and(|(_, stage, _)| *stage == Stage::Finished);
            let free = self.manager.unsent(self.now) < self.quantum;
            assert!(
                !(ready && free && !link.is_static()),
                "{}: flow {flow} waits for an idle link",
                self.now.as_nanos()
            );
            let waits = track.waiting > 0 && track.finished_bytes < self.ready_bytes_max;
            // With owned contexts only, a context that is its flow's own may stand still until its point.
            assert!(
                !(waits && idle && !contexts.is_static()),
                "{}: flow {flow} waits for an idle context under {contexts:?}",
                self.now.as_nanos()
            );
        }
    }

    /// Checks that everything has left and that the counters say how.
    pub fn check_nothing_lost(&self) {
        assert_eq!(self.manager.items(), 0, "items remain");
        for (flow, track) in self.tracks.iter().enumerate() {
            let counters = self.manager.counters(FlowId(flow as u16));
            assert_eq!(counters.outstanding(), 0, "flow {flow}: {counters:?}");
            assert_eq!(counters.released, track.sent.len() as u64);
            assert!(track.outstanding.is_empty());
        }
    }

    /// Returns the bytes of a flow that were sent in a period.
    pub fn sent_between(&self, flow: FlowId, from: Instant, to: Instant) -> u64 {
        let sent = &self.tracks[usize::from(flow.0)].sent;
        let at = |time: Instant| match sent.partition_point(|(sent, _)| *sent <= time) {
            0 => 0,
            n => sent[n - 1].1,
        };
        at(to) - at(from)
    }
}

/// Returns the least part of a promise of `bits_per_second` that any window within `periods` had, of those in
/// which the flow always had items: 1 or more means that the promise was kept.
pub fn least_kept(
    track: &Track,
    bits_per_second: u64,
    periods: &[(Instant, Instant)],
    window: Duration,
) -> f64 {
    let promised = bits_per_second as f64 / 8.0 * window.as_secs_f64();
    let mut least = f64::INFINITY;
    let at = |time: Instant| match track.sent.partition_point(|(sent, _)| *sent <= time) {
        0 => 0,
        n => track.sent[n - 1].1,
    };
    for (from, to) in periods {
        let first = track.sent.partition_point(|(sent, _)| sent < from);
        let later = track.sent[first..].iter().map(|(sent, _)| *sent);
        // The worst windows begin when an item has just been sent.
        for begins in std::iter::once(*from).chain(later) {
            let ends = begins + window;
            if ends > *to {
                break;
            }
            // What is sent at the very end counts.
            least = least.min((at(ends) - at(begins)) as f64 / promised);
        }
    }
    least
}

/// Returns the filters of names, for tests.
pub fn filter(name: &str) -> Filter {
    Filter::parse(name).expect("a filter")
}

/// Returns whether a scheme keeps promises.
pub fn keeps_promises(scheme: Scheme) -> bool {
    scheme == Scheme::PriorityAwareReserved
}
