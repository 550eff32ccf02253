//! Two local services of one worker beside each other, as one.
//!
//! ```text
//!            bit of the pair 0 ─▶ ┌───────┐
//!  core ───▶                 [Both] first │   each label belongs to the service
//!            bit of the pair 1 ─▶ │ second│   that got its connection
//!                                 └───────┘
//! ```
//! More than two are a `Both` of a `Both`, in either place. The policy's numbers decide which service gets a
//! connection ([`Both::second_number`]); from then on its label does. Neither service knows of the other.
//!
//! Each level of pairs has a bit of its own in the numbers: the innermost pair bit 31, the pair around it bit
//! 30, and so on. A pair clears its bit before it passes a number to its second service.

use std::sync::Arc;

use csp_quality::OutputLink;
use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple, Instant, Owner};

use super::between::{Between, Examined, Towards};
use super::local::{LocalServices, Step};
use super::upstream::{Ended, Ends, OpenError, Opened, Request};

/// Returns memory that a service has borrowed for several connections: another service may have to read bytes
/// in the same region.
fn give_back(service: &mut impl LocalServices, ends: &mut impl Ends) {
    while let Some(lent) = service.take_lent() {
        ends.give_back(lent);
    }
}

/// One of two services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Which {
    #[default]
    First,
    Second,
}

impl Which {
    fn other(self) -> Self {
        if self == Which::First { Which::Second } else { Which::First }
    }
}

/// A set of labels: one bit for each slot of the flow table. It grows when a connection begins, up to the
/// number of label indices (512 KiB).
#[derive(Clone, Debug, Default)]
struct Labels(Vec<u64>);

impl Labels {
    fn insert(&mut self, label: FlowLabel) {
        let at = label.index() / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (label.index() % 64);
    }

    fn remove(&mut self, label: FlowLabel) {
        if let Some(bits) = self.0.get_mut(label.index() / 64) {
            *bits &= !(1 << (label.index() % 64));
        }
    }

    #[inline]
    fn which(&self, label: FlowLabel) -> Which {
        let bits = self.0.get(label.index() / 64).copied().unwrap_or(0);
        if bits >> (label.index() % 64) & 1 == 0 { Which::First } else { Which::Second }
    }
}

/// Two local services. They share the worker, and nothing else.
#[derive(Debug, Default)]
pub struct Both<A, B> {
    first: A,
    second: B,
    /// Connections that end at the second service.
    ends: Labels,
    /// Flows that the second service examines.
    between: Labels,
    /// The service that is asked first for a connection that is ready.
    next: Which,
    /// The service that is asked first for a request.
    asks: Which,
}

impl<A, B> Both<A, B> {
    /// Places two services beside each other.
    pub fn new(first: A, second: B) -> Self {
        let (next, asks) = (Which::First, Which::First);
        Both { first, second, ends: Labels::default(), between: Labels::default(), next, asks }
    }

    /// Returns the first service.
    pub fn first(&self) -> &A {
        &self.first
    }

    /// Returns the first service for changes.
    pub fn first_mut(&mut self) -> &mut A {
        &mut self.first
    }

    /// Returns the second service.
    pub fn second(&self) -> &B {
        &self.second
    }

    /// Returns the second service for changes.
    pub fn second_mut(&mut self) -> &mut B {
        &mut self.second
    }
}

impl<A: Between, B: Between> Both<A, B> {
    /// Bit of the numbers of the second service.
    const SECOND: u32 = 1 << (u32::BITS - <Self as Between>::LEVELS);

    /// Returns the number by which [`ServiceSpec::local`](crate::ServiceSpec::local) and
    /// [`ServiceSpec::between`](crate::ServiceSpec::between) name number `number` of the second service.
    /// Where the second service is a pair itself, `number` is what that pair's function returned. The first
    /// service keeps its numbers. Numbers of services that are no pair are below 2 to the power of 32 minus
    /// the levels.
    pub const fn second_number(number: u32) -> u32 {
        number | Self::SECOND
    }

    fn of_number(number: u32) -> (Which, u32) {
        match number & Self::SECOND {
            0 => (Which::First, number),
            _ => (Which::Second, number & !Self::SECOND),
        }
    }
}

impl<A: Between, B: Between> Between for Both<A, B> {
    const LEVELS: u32 = 1 + if A::LEVELS > B::LEVELS { A::LEVELS } else { B::LEVELS };

    fn begun(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool {
        self.between.remove(label);
        match Self::of_number(number) {
            (Which::First, number) => self.first.begun(now, label, number, tuple),
            (Which::Second, number) => {
                let begun = self.second.begun(now, label, number, tuple);
                if begun {
                    self.between.insert(label);
                }
                begun
            }
        }
    }

    #[inline]
    fn examine<'a>(
        &mut self,
        label: FlowLabel,
        towards: Towards,
        at: u64,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Examined {
        match self.between.which(label) {
            Which::First => self.first.examine(label, towards, at, bytes),
            Which::Second => self.second.examine(label, towards, at, bytes),
        }
    }

    fn may_end(&mut self, label: FlowLabel, towards: Towards) -> bool {
        match self.between.which(label) {
            Which::First => self.first.may_end(label, towards),
            Which::Second => self.second.may_end(label, towards),
        }
    }

    fn ended(&mut self, label: FlowLabel) {
        match self.between.which(label) {
            Which::First => self.first.ended(label),
            Which::Second => self.second.ended(label),
        }
        self.between.remove(label);
    }
}

impl<A: LocalServices, B: LocalServices> LocalServices for Both<A, B> {
    const QUEUES_FOR_LINK: bool = A::QUEUES_FOR_LINK || B::QUEUES_FOR_LINK;

    fn connected(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool {
        self.ends.remove(label);
        match Self::of_number(number) {
            (Which::First, number) => self.first.connected(now, label, number, tuple),
            (Which::Second, number) => {
                let connected = self.second.connected(now, label, number, tuple);
                if connected {
                    self.ends.insert(label);
                }
                connected
            }
        }
    }

    fn elsewhere(&self, number: u32) -> Option<Owner> {
        match Self::of_number(number) {
            (Which::First, number) => self.first.elsewhere(number),
            (Which::Second, number) => self.second.elsewhere(number),
        }
    }

    fn drain(&mut self, now: Instant, number: u32) {
        match Self::of_number(number) {
            (Which::First, number) => self.first.drain(now, number),
            (Which::Second, number) => self.second.drain(now, number),
        }
    }

    #[inline]
    fn serve(&mut self, now: Instant, label: FlowLabel, ends: &mut impl Ends, link: &mut OutputLink) -> Step {
        match self.ends.which(label) {
            Which::First => {
                give_back(&mut self.second, ends);
                self.first.serve(now, label, ends, link)
            }
            Which::Second => {
                give_back(&mut self.first, ends);
                self.second.serve(now, label, ends, link)
            }
        }
    }

    /// Requests of the first service get even tokens, those of the second odd ones.
    fn next_request(&mut self) -> Option<Request> {
        let order = [self.asks, self.asks.other()];
        self.asks = self.asks.other();
        order.into_iter().find_map(|which| {
            let request = match which {
                Which::First => self.first.next_request(),
                Which::Second => self.second.next_request(),
            };
            request.map(|request| request.with_token(|token| token << 1 | which as u64))
        })
    }

    fn opened(&mut self, now: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        let second = token & 1 == Which::Second as u64;
        if let Ok(Opened { label, .. }) = outcome {
            match second {
                true => self.ends.insert(label),
                false => self.ends.remove(label),
            }
        }
        match second {
            true => self.second.opened(now, token >> 1, outcome),
            false => self.first.opened(now, token >> 1, outcome),
        }
    }

    fn waits(&mut self, now: Instant, token: u64, service: &Arc<str>) {
        match token & 1 == Which::Second as u64 {
            true => self.second.waits(now, token >> 1, service),
            false => self.first.waits(now, token >> 1, service),
        }
    }

    fn serve_upstream(
        &mut self,
        now: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        link: &mut OutputLink,
    ) -> Step {
        match self.ends.which(label) {
            Which::First => self.first.serve_upstream(now, label, ends, link),
            Which::Second => self.second.serve_upstream(now, label, ends, link),
        }
    }

    fn upstream_gone(&mut self, now: Instant, label: FlowLabel, how: Ended) {
        match self.ends.which(label) {
            Which::First => self.first.upstream_gone(now, label, how),
            Which::Second => self.second.upstream_gone(now, label, how),
        }
        self.ends.remove(label);
    }

    fn take_lent(&mut self) -> Option<Buffer> {
        self.first.take_lent().or_else(|| self.second.take_lent())
    }

    fn gone(&mut self, now: Instant, label: FlowLabel) {
        match self.ends.which(label) {
            Which::First => self.first.gone(now, label),
            Which::Second => self.second.gone(now, label),
        }
        self.ends.remove(label);
    }

    /// The services alternate, so that a flood at one of them leaves the other its share of a pass.
    fn next_ready(&mut self, link: &mut OutputLink) -> Option<FlowLabel> {
        match self.next {
            Which::First => {
                self.next = Which::Second;
                self.first.next_ready(link).or_else(|| self.second.next_ready(link))
            }
            Which::Second => {
                self.next = Which::First;
                self.second.next_ready(link).or_else(|| self.first.next_ready(link))
            }
        }
    }

    fn run_contexts(&mut self, now: Instant, link: &mut OutputLink) -> bool {
        self.first.run_contexts(now, link) | self.second.run_contexts(now, link)
    }

    fn release(&mut self, now: Instant, link: &mut OutputLink) {
        const { assert!(!(A::QUEUES_FOR_LINK && B::QUEUES_FOR_LINK), "one client's messages wait for the link") };
        match B::QUEUES_FOR_LINK {
            false => self.first.release(now, link),
            true => self.second.release(now, link),
        }
    }

    fn unshare(&mut self, now: Instant, link: &mut OutputLink) {
        match B::QUEUES_FOR_LINK {
            false => self.first.unshare(now, link),
            true => self.second.unshare(now, link),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.first.next_timeout().into_iter().chain(self.second.next_timeout()).min()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.first.on_timeout(now);
        self.second.on_timeout(now);
    }
}

#[cfg(test)]
mod tests;
