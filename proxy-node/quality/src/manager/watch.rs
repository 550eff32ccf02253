//! What is metered, and the triggers that look at it.

use std::collections::VecDeque;

use csp_types::{Duration, Instant};

use super::{Filter, ResourceManager};
use crate::admission::WINDOW;
use crate::flow::FlowId;
use crate::items::Item;
use crate::monitor::{Meter, MonitorConfig, MonitorFrequency, MonitorMode, Observation};
use crate::trigger::{Action, Armed, Condition, Fired, Side, TRIGGERS_MAX, Trigger, TriggerError};

/// Longest time between two looks at triggers in the frequent mode while items move, however many items lie
/// between two resource-management points.
const LOOK_EVERY: Duration = Duration::from_micros(4);
/// How often triggers that have fired, or are about to change, are looked at while no item moves.
const LOOK_IDLE: Duration = Duration::from_millis(10);

/// Most changes of triggers that wait for the owner; the oldest gives way.
const FIRED_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Watch {
    config: MonitorConfig,
    flows: Vec<Meter>,
    priorities: Vec<Meter>,
    priority_of: Vec<u8>,
    link: Meter,
    triggers: Vec<Trigger>,
    armed: Vec<Armed>,
    fired: VecDeque<Fired>,
    fired_lost: u64,
    next_control: Instant,
    /// When the frequent mode looks at triggers although no point is due.
    next_look: Instant,
    /// Items have moved since triggers were looked at.
    moved: bool,
    /// Filters that triggers have installed.
    installed: Vec<(FlowId, Filter)>,
}

impl Watch {
    pub fn new(config: MonitorConfig, flows: usize) -> Self {
        Watch {
            config,
            flows: vec![Meter::default(); flows],
            priorities: vec![Meter::default(); 256],
            priority_of: vec![0; flows],
            link: Meter::default(),
            triggers: Vec::new(),
            armed: Vec::new(),
            fired: VecDeque::with_capacity(FIRED_MAX),
            fired_lost: 0,
            next_control: Instant::ZERO,
            next_look: Instant::FAR_FUTURE,
            moved: false,
            installed: Vec::with_capacity(TRIGGERS_MAX),
        }
    }

    /// Triggers or their frequency have changed.
    fn begin(&mut self) {
        let frequent = self.config.frequency == MonitorFrequency::Frequent && !self.triggers.is_empty();
        self.next_look = if frequent { Instant::ZERO } else { Instant::FAR_FUTURE };
    }

    pub fn set_priority(&mut self, flow: FlowId, priority: u8) {
        self.priority_of[flow.index()] = priority;
    }

    #[inline]
    pub fn arrived(&mut self, flow: FlowId, item: &Item, now: Instant) {
        let window = self.config.window;
        if self.config.mode == MonitorMode::Flows {
            self.flows[flow.index()].arrived(item.bytes, now, window);
        }
        if matches!(self.config.mode, MonitorMode::Priorities | MonitorMode::Flows) {
            let priority = usize::from(self.priority_of[flow.index()]);
            self.priorities[priority].arrived(item.bytes, now, window);
        }
    }

    #[inline]
    pub fn left(&mut self, flow: FlowId, item: &Item, delay: Duration, emptied: bool, now: Instant) {
        let window = self.config.window;
        if self.config.mode == MonitorMode::Flows {
            self.flows[flow.index()].left(item.bytes, delay, emptied, now, window);
        }
        if matches!(self.config.mode, MonitorMode::Priorities | MonitorMode::Flows) {
            let priority = usize::from(self.priority_of[flow.index()]);
            self.priorities[priority].left(item.bytes, delay, emptied, now, window);
            self.link.left(item.bytes, delay, false, now, window);
        }
    }
}

impl ResourceManager {
    /// Changes what is monitored, where and how often. Meters begin anew.
    pub fn set_monitor(&mut self, config: MonitorConfig) {
        self.watch.config = config;
        self.watch.begin();
        for meter in self.watch.flows.iter_mut().chain(&mut self.watch.priorities) {
            *meter = Meter::default();
        }
        self.watch.link = Meter::default();
    }

    /// Replaces all triggers; none has fired. Filters that former triggers have installed are removed.
    pub fn set_triggers(&mut self, triggers: Vec<Trigger>) -> Result<(), TriggerError> {
        if triggers.len() > TRIGGERS_MAX {
            return Err(TriggerError::TooMany(triggers.len()));
        }
        let table = self.plan.table();
        triggers.iter().try_for_each(|trigger| trigger.check(|flow| table.flow(flow).is_some()))?;
        let installed: Vec<_> = self.watch.installed.drain(..).collect();
        installed.into_iter().for_each(|(flow, filter)| self.remove(flow, filter));
        self.watch.armed = vec![Armed::default(); triggers.len()];
        self.watch.triggers = triggers;
        self.watch.begin();
        self.watch.fired.clear();
        Ok(())
    }

    /// Puts filters of triggers back after a plan has replaced those of flows.
    pub(super) fn reinstall(&mut self) {
        for at in 0..self.watch.installed.len() {
            let (flow, filter) = self.watch.installed[at];
            self.install(flow, filter);
        }
    }

    /// Returns what flows' meters saw in their last whole window. Zero unless each flow is metered.
    pub fn observe(&mut self, now: Instant, flow: FlowId) -> Observation {
        let window = self.watch.config.window;
        self.watch.flows.get_mut(flow.index()).map(|meter| meter.observe(now, window)).unwrap_or_default()
    }

    /// Returns what the meter of a priority saw in its last whole window. Zero unless priorities are metered.
    pub fn observe_priority(&mut self, now: Instant, priority: u8) -> Observation {
        self.watch.priorities[usize::from(priority)].observe(now, self.watch.config.window)
    }

    /// Returns the next change of a trigger, whose actions the owner looks up in what it has set: those that
    /// the resource manager cannot do itself are the owner's.
    pub fn next_fired(&mut self) -> Option<Fired> {
        self.watch.fired.pop_front()
    }

    /// Returns how often triggers have changed that the owner did not fetch in time.
    pub fn fired_lost(&self) -> u64 {
        self.watch.fired_lost
    }

    /// Returns how often a trigger has changed.
    pub fn changes(&self, trigger: usize) -> u64 {
        self.watch.armed.get(trigger).map_or(0, |armed| armed.changes)
    }

    /// Returns when [`control`](Self::control) wants to be called: at its period in the infrequent mode; in
    /// the frequent one soon after items have moved that nobody has looked at, and now and then while a
    /// trigger has fired or is about to change.
    pub fn next_control(&self) -> Option<Instant> {
        let Watch { config, triggers, armed, next_control, next_look, moved, .. } = &self.watch;
        match config.frequency {
            _ if triggers.is_empty() => None,
            MonitorFrequency::Infrequent(_) => Some(*next_control),
            MonitorFrequency::Frequent if *moved => Some(*next_look),
            MonitorFrequency::Frequent => armed.iter().any(Armed::is_open).then(|| *next_look + LOOK_IDLE),
        }
    }

    /// The control context: looks at triggers, in the infrequent mode. In the frequent mode an owner without
    /// work calls it too, so that triggers are released when nothing moves.
    pub fn control(&mut self, now: Instant) {
        match self.watch.config.frequency {
            MonitorFrequency::Infrequent(_) if now < self.watch.next_control => {}
            MonitorFrequency::Infrequent(period) => {
                self.watch.next_control = now + period;
                self.look_at_triggers(now);
            }
            MonitorFrequency::Frequent => self.look_at_triggers(now),
        }
    }

    /// A resource-management point: looks at triggers, in the frequent mode.
    #[inline]
    pub(super) fn look(&mut self, now: Instant) {
        if self.watch.next_look != Instant::FAR_FUTURE {
            self.look_at_triggers(now);
        }
    }

    /// Looks at triggers, in the frequent mode, if none has for a while.
    #[inline]
    pub(super) fn look_if_due(&mut self, now: Instant) {
        match now >= self.watch.next_look {
            true => self.look_at_triggers(now),
            false => self.watch.moved = true,
        }
    }

    fn look_at_triggers(&mut self, now: Instant) {
        if self.watch.next_look != Instant::FAR_FUTURE {
            (self.watch.next_look, self.watch.moved) = (now + LOOK_EVERY, false);
        }
        if self.watch.config.mode == MonitorMode::Off {
            return;
        }
        for at in 0..self.watch.triggers.len() {
            let side = self.side(self.watch.triggers[at].condition, now);
            let (trigger, armed) = (&self.watch.triggers[at], &mut self.watch.armed[at]);
            if armed.look(trigger, side, now) {
                let fired = armed.fired;
                self.act(at, fired, now);
            }
        }
    }

    /// Returns where the watched value is.
    fn side(&mut self, condition: Condition, now: Instant) -> Side {
        let window = self.watch.config.window;
        match condition {
            Condition::QueueAbove(flow, at) => Side::above(u64::from(self.queued(flow).0), at),
            Condition::RateAbove(flow, at) => Side::above(self.observe(now, flow).arriving, at),
            Condition::RateBelow(flow, at) => Side::below(self.observe(now, flow).arriving, at),
            Condition::DelayAbove(flow, at) => {
                Side::above(self.observe(now, flow).delay_mean.as_nanos() as u64, at)
            }
            Condition::PromiseMissed(flow) => {
                let seen = self.observe(now, flow);
                let promise = self.table().flow(flow).map_or(0, |spec| spec.reservation.bits_per_second);
                match seen.always_waiting && seen.leaving < promise && window >= WINDOW {
                    true => Side::Fires,
                    false => Side::Releases,
                }
            }
            Condition::LinkFull(at) => {
                let leaving = self.watch.link.observe(now, window).leaving;
                let capacity = self.link.config().bits_per_second.max(1);
                Side::above((u128::from(leaving) * 1_000 / u128::from(capacity)) as u64, at)
            }
        }
    }

    fn act(&mut self, trigger: usize, fired: bool, now: Instant) {
        if self.watch.fired.len() == FIRED_MAX {
            self.watch.fired.pop_front();
            self.watch.fired_lost += 1;
        }
        self.watch.fired.push_back(Fired { trigger: trigger as u16, fired, at: now });
        // Taken out for the time, as actions change the manager.
        let held = std::mem::take(&mut self.watch.triggers);
        if let Some(trigger) = held.get(trigger) {
            let actions = if fired { &trigger.fire } else { &trigger.release };
            actions.iter().for_each(|action| self.act_once(action, now));
        }
        self.watch.triggers = held;
    }

    fn act_once(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Install(flow, name) => {
                // One that the plan has put there stays when the trigger is released.
                if let Some(filter) = Filter::parse(name)
                    && !self.has_filter(*flow, filter)
                    && self.install(*flow, filter)
                {
                    self.watch.installed.push((*flow, filter));
                }
            }
            Action::Remove(flow, name) => {
                if let Some(filter) = Filter::parse(name)
                    && self.watch.installed.contains(&(*flow, filter))
                {
                    self.watch.installed.retain(|installed| *installed != (*flow, filter));
                    self.remove(*flow, filter);
                }
            }
            Action::Switch(resource, scheme) => self.switch(now, *resource, *scheme),
            Action::SetPriority(flow, priority) => self.set_priority(*flow, *priority),
            // The owner's, by `next_fired`.
            Action::Raise(_) => {}
        }
    }
}
