//! Which flow a context serves next.
//!
//! Flows that have work are in a list of all, in a list of their priority and, if promised a rate, on a
//! clock, whatever the scheme: so a switch between RR, PA and PAR takes constant time. EAS and SA with more
//! flows than contexts move the active flows to their homes.

use csp_types::Instant;

use crate::clocks::{Clocks, Rate};
use crate::lists::{Levels, Links, List};
use crate::scheme::{Duties, Duty, Scheme};

#[derive(Clone, Copy, Debug)]
struct Context {
    duty: Duty,
    /// Its flow had no work: until the next resource-management point the context serves others.
    lent: bool,
    home: List,
}

/// The next flow of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub flow: u16,
    /// It is served because it is due, or because the context is its own.
    pub promised: bool,
}

#[derive(Debug)]
pub(crate) struct ContextScheduler {
    scheme: Scheme,
    contexts: Vec<Context>,
    homes: Vec<Option<u16>>,
    home_links: Links,
    all: List,
    all_links: Links,
    levels: Levels,
    clocks: Clocks,
}

impl ContextScheduler {
    pub fn new(contexts: usize, flows: usize) -> Self {
        let context = Context { duty: Duty::Shared, lent: false, home: List::EMPTY };
        ContextScheduler {
            scheme: Scheme::RoundRobin,
            contexts: vec![context; contexts],
            homes: vec![None; flows],
            home_links: Links::new(flows),
            all: List::EMPTY,
            all_links: Links::new(flows),
            levels: Levels::new(flows),
            clocks: Clocks::new(flows),
        }
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn set_scheme(&mut self, scheme: Scheme, duties: &Duties, now: Instant) {
        if scheme != self.scheme {
            self.clocks.begin(now);
        }
        self.scheme = scheme;
        for (context, duty) in self.contexts.iter_mut().zip(&duties.contexts) {
            (context.duty, context.lent) = (*duty, false);
        }
        if self.homes != duties.homes {
            self.settle(&duties.homes);
        }
    }

    /// Moves flows to other homes, in the order in which all are served.
    fn settle(&mut self, homes: &[Option<u16>]) {
        let mut flow = self.all.front();
        while let Some(at) = flow {
            self.leave_home(at);
            flow = self.all.after(&self.all_links, at);
        }
        self.homes.copy_from_slice(homes);
        let mut flow = self.all.front();
        while let Some(at) = flow {
            self.enter_home(at);
            flow = self.all.after(&self.all_links, at);
        }
    }

    fn leave_home(&mut self, flow: u16) {
        if let Some(home) = self.homes[usize::from(flow)] {
            self.contexts[usize::from(home)].home.remove(&mut self.home_links, flow);
        }
    }

    fn enter_home(&mut self, flow: u16) {
        if let Some(home) = self.homes[usize::from(flow)] {
            self.contexts[usize::from(home)].home.push_back(&mut self.home_links, flow);
        }
    }

    pub fn set_priority(&mut self, flow: u16, priority: u8) {
        self.levels.set_level(flow, priority);
    }

    pub fn set_rate(&mut self, flow: u16, rate: Rate, now: Instant) {
        let active = self.is_active(flow);
        self.clocks.set_rate(flow, rate, active, now);
    }

    #[inline]
    pub fn is_active(&self, flow: u16) -> bool {
        self.all_links.is_linked(flow)
    }

    pub fn has_work(&self) -> bool {
        !self.all.is_empty()
    }

    /// Returns whether a context has something to do under its duty.
    pub fn has_work_for(&self, context: u16) -> bool {
        let Some(at) = self.contexts.get(usize::from(context)) else { return false };
        match at.duty {
            Duty::Idle => false,
            Duty::Homes => !at.home.is_empty(),
            Duty::Flow(flow) if self.scheme.is_static() => self.all_links.is_linked(flow),
            Duty::Flow(_) | Duty::Shared => self.has_work(),
        }
    }

    /// Returns a flow that has work, whoever is to do it.
    pub fn any(&self) -> Option<u16> {
        self.all.front()
    }

    /// Changes the number of contexts. Until [`set_scheme`](Self::set_scheme) none has a duty of its own.
    /// Allocates.
    pub fn resize(&mut self, contexts: usize) {
        let homeless = vec![None; self.homes.len()];
        self.settle(&homeless);
        self.contexts = vec![Context { duty: Duty::Shared, lent: false, home: List::EMPTY }; contexts];
    }

    pub fn set_active(&mut self, flow: u16, active: bool, now: Instant) {
        if active == self.is_active(flow) {
            return;
        }
        if active {
            self.all.push_back(&mut self.all_links, flow);
            self.levels.insert(flow);
            self.clocks.activate(flow, now);
            self.enter_home(flow);
        } else {
            self.all.remove(&mut self.all_links, flow);
            self.levels.remove(flow);
            self.clocks.deactivate(flow);
            self.leave_home(flow);
        }
    }

    /// Returns the flow that a context serves next.
    #[inline]
    pub fn next(&mut self, context: u16, now: Instant) -> Option<Choice> {
        let at = self.contexts.get_mut(usize::from(context))?;
        let beyond = |flow| Choice { flow, promised: false };
        match at.duty {
            Duty::Idle => return None,
            Duty::Homes => return at.home.front().map(beyond),
            Duty::Flow(flow) => {
                if !at.lent && self.all_links.is_linked(flow) {
                    return Some(Choice { flow, promised: true });
                }
                if self.scheme.is_static() {
                    return None;
                }
                at.lent = true;
            }
            Duty::Shared => {}
        }
        match self.scheme {
            Scheme::RoundRobin => self.all.front().map(beyond),
            Scheme::PriorityAware => self.levels.first().map(beyond),
            Scheme::PriorityAwareReserved => match self.clocks.next(now) {
                Some(flow) => Some(Choice { flow, promised: true }),
                None => self.levels.first().map(beyond),
            },
            Scheme::EqualStatic | Scheme::Static => None,
        }
    }

    /// Records that a context has taken an item of the flow that was chosen.
    #[inline]
    pub fn charge(&mut self, context: u16, choice: Choice, bytes: u32, now: Instant) {
        let Choice { flow, promised } = choice;
        if !self.is_active(flow) {
            return;
        }
        self.all.rotate(&mut self.all_links, flow);
        match self.contexts[usize::from(context)].duty {
            Duty::Homes => self.contexts[usize::from(context)].home.rotate(&mut self.home_links, flow),
            _ if self.scheme == Scheme::PriorityAwareReserved && promised => {
                self.clocks.charge(flow, bytes, now)
            }
            _ if self.scheme == Scheme::PriorityAwareReserved => {
                self.levels.rotate(flow);
                self.clocks.charge_beyond(flow, bytes, now);
            }
            _ => self.levels.rotate(flow),
        }
    }

    /// A resource-management point of a context: what it has lent is its flow's again.
    pub fn point(&mut self, context: u16) {
        if let Some(context) = self.contexts.get_mut(usize::from(context)) {
            context.lent = false;
        }
    }
}
