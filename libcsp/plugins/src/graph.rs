//! The graph of a worker: its instances, their connections, and the path of a packet through them.

use csp_classify::multifield::{InstanceId, RuleHandle};
use csp_types::Instant;

use crate::command::{Command, EnvironmentId, Level};
use crate::packet::{Binding, Fallback, Packet};
use crate::plugin::{Action, Answer, Call, CallError, Effects, Plugin};
use crate::settings::Settings;

/// Largest number of plug-ins that a packet passes, on all levels together. The manager refuses cycles; this
/// bounds packets that return from another level.
pub const HOPS_MAX: u8 = 32;
/// Largest number of calls of other instances that a packet may cause at one plug-in.
pub const CALLS_MAX: usize = 4;

/// Largest number of outputs of an instance.
pub const OUTPUTS_MAX: usize = 8;

/// Fate of a packet after the graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// It is routed: to the flow table, or to the kernel.
    Pass,
    /// It is dropped.
    Drop,
    /// It is transmitted on this interface.
    Transmit(u16),
    /// It is passed to an instance that runs elsewhere, and returns with its metadata.
    HandOver {
        /// The instance.
        instance: InstanceId,
        /// The environment in which it runs.
        environment: EnvironmentId,
        /// The environment's level.
        level: Level,
    },
}

/// Receives copies of packets.
pub trait Output {
    /// Transmits a copy on an interface.
    fn copy(&mut self, interface: u16, frame: &[u8]);
}

/// Packets and bytes of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InstanceCount {
    /// Packets that it processed.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that it dropped.
    pub dropped: u64,
}

/// Counters of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphCounters {
    /// Packets that entered the graph because of a rule.
    pub entered: u64,
    /// Packets that left the graph to be routed.
    pub passed: u64,
    /// Packets that a plug-in dropped.
    pub dropped: u64,
    /// Packets that a plug-in transmitted.
    pub transmitted: u64,
    /// Packets handed over to other levels.
    pub handed_over: u64,
    /// Packets that passed because their instance does not exist or its environment does not run.
    pub fallback_passed: u64,
    /// Packets that were dropped for the same reason.
    pub fallback_dropped: u64,
    /// Packets dropped because they went through [`HOPS_MAX`] plug-ins.
    pub drop_hops: u64,
    /// Calls of other instances.
    pub calls: u64,
    /// Calls that failed, or that exceeded [`CALLS_MAX`].
    pub calls_failed: u64,
}

struct Instance {
    environment: EnvironmentId,
    level: Level,
    plugin: Option<Box<dyn Plugin>>,
    outputs: Vec<Option<InstanceId>>,
    count: InstanceCount,
    /// Totals of hosts that ran the instance earlier. Their successors count from 0.
    before: InstanceCount,
    /// Environments with an output that leads to this instance, one bit each.
    entered_from: u64,
}

/// Collects the side effects of a plug-in while it runs.
struct Collected<'a> {
    output: &'a mut dyn Output,
    calls: &'a mut Vec<Call>,
    refused: u64,
}

impl Effects for Collected<'_> {
    fn copy(&mut self, interface: u16, frame: &[u8]) {
        self.output.copy(interface, frame);
    }

    fn call(&mut self, call: Call) -> bool {
        let fits = self.calls.len() < CALLS_MAX;
        match fits {
            true => self.calls.push(call),
            false => self.refused += 1,
        }
        fits
    }
}

/// A worker's graph.
pub struct Graph {
    /// Indexed by instance number.
    instances: Vec<Option<Instance>>,
    /// Indexed by environment number.
    running: Vec<bool>,
    calls: Vec<Call>,
    counters: GraphCounters,
}

impl Graph {
    /// Creates an empty graph. The numbers of instances and environments must be below these limits.
    pub fn new(instances: usize, environments: usize) -> Self {
        Graph {
            instances: (0..instances).map(|_| None).collect(),
            running: vec![false; environments],
            calls: Vec::with_capacity(CALLS_MAX),
            counters: GraphCounters::default(),
        }
    }

    /// Applies a command, between two packets. A command about an object that does not exist has no effect.
    /// Returns a removed plug-in, which the caller drops where freeing a large table may take time.
    pub fn apply(&mut self, command: Command) -> Option<Box<dyn Plugin>> {
        match command {
            Command::Create { id, environment, level, plugin } => {
                if let Some(slot) = self.instances.get_mut(id.0 as usize) {
                    let (outputs, count) = (vec![None; OUTPUTS_MAX], InstanceCount::default());
                    let (before, entered_from) = (count, 0);
                    *slot =
                        Some(Instance { environment, level, plugin, outputs, count, before, entered_from });
                }
            }
            Command::Place(id, environment, level) => {
                if let Some(instance) = self.instance_mut(id) {
                    (instance.environment, instance.level) = (environment, level);
                }
            }
            Command::Configure(id, settings) => {
                if let Some(plugin) = self.instance_mut(id).and_then(|instance| instance.plugin.as_mut()) {
                    // The manager has checked the settings with an instance of the same module, so this
                    // cannot fail.
                    let _ = plugin.configure(&settings);
                }
            }
            Command::Remove(id) => {
                let removed = self.instances.get_mut(id.0 as usize)?.take()?.plugin;
                self.find_entrances();
                return removed;
            }
            Command::Connect(port, to) => {
                if let Some(instance) = self.instance_mut(port.instance)
                    && let Some(output) = instance.outputs.get_mut(usize::from(port.output))
                {
                    *output = to;
                }
                self.find_entrances();
            }
            Command::Run(environment, running) => {
                if let Some(state) = self.running.get_mut(usize::from(environment.0)) {
                    *state = running;
                }
            }
        }
        None
    }

    /// Runs a packet that a rule matched through the graph.
    pub fn enter(
        &mut self,
        now: Instant,
        rule: RuleHandle,
        binding: Binding,
        packet: &mut Packet<'_>,
        output: &mut dyn Output,
    ) -> Verdict {
        self.counters.entered += 1;
        packet.metadata.rule = Some(rule);
        self.run(now, binding, packet, output)
    }

    /// Hands over a packet whose rule names an instance on another level, without accessing the packet's
    /// bytes. Returns `None` if [`enter`](Self::enter) has to decide: the instance runs here or does not run,
    /// or the packet has no hop left.
    pub fn leave(&mut self, binding: Binding, hops: u8) -> Option<Verdict> {
        let found = self.instances.get(binding.instance.0 as usize)?.as_ref()?;
        let (environment, level) = (found.environment, found.level);
        if found.plugin.is_some() || hops >= HOPS_MAX || !self.is_running(environment) {
            return None;
        }
        self.counters.entered += 1;
        self.counters.handed_over += 1;
        Some(Verdict::HandOver { instance: binding.instance, environment, level })
    }

    /// Runs a packet through the graph from an instance on, such as one that returns from another level.
    pub fn run(
        &mut self,
        now: Instant,
        binding: Binding,
        packet: &mut Packet<'_>,
        output: &mut dyn Output,
    ) -> Verdict {
        match self.try_run(now, binding.instance, packet, output) {
            Some(verdict) => verdict,
            None => self.fall_back(binding.fallback),
        }
    }

    /// Like [`run`](Self::run), for a caller that does not know the rule's fallback. Returns `None` if the
    /// fallback applies.
    pub fn try_run(
        &mut self,
        now: Instant,
        mut at: InstanceId,
        packet: &mut Packet<'_>,
        output: &mut dyn Output,
    ) -> Option<Verdict> {
        loop {
            let slot = self.instances.get_mut(at.0 as usize).and_then(Option::as_mut);
            let instance =
                slot.filter(|instance| self.running.get(usize::from(instance.environment.0)) == Some(&true))?;
            if packet.metadata.hops >= HOPS_MAX {
                self.counters.drop_hops += 1;
                return Some(Verdict::Drop);
            }
            let Some(plugin) = &mut instance.plugin else {
                // The packet is counted where the instance runs.
                self.counters.handed_over += 1;
                let (environment, level) = (instance.environment, instance.level);
                return Some(Verdict::HandOver { instance: at, environment, level });
            };
            packet.metadata.hops += 1;
            instance.count.packets += 1;
            instance.count.bytes += packet.bytes().len() as u64;
            let mut collected = Collected { output, calls: &mut self.calls, refused: 0 };
            let action = plugin.process(now, packet, &mut collected);
            self.counters.calls_failed += collected.refused;
            let next = match action {
                Action::Next(port) => instance.outputs.get(usize::from(port)).copied().flatten(),
                Action::Drop | Action::Transmit(_) | Action::FallBack => None,
            };
            instance.count.dropped += u64::from(action == Action::Drop);
            self.execute_calls(now);
            match (action, next) {
                (Action::Next(_), Some(next)) => at = next,
                (Action::Next(_), None) => {
                    self.counters.passed += 1;
                    return Some(Verdict::Pass);
                }
                (Action::Drop, _) => {
                    self.counters.dropped += 1;
                    return Some(Verdict::Drop);
                }
                (Action::Transmit(interface), _) => {
                    self.counters.transmitted += 1;
                    return Some(Verdict::Transmit(interface));
                }
                (Action::FallBack, _) => return None,
            }
        }
    }

    /// Executes an operation of an instance.
    pub fn call(
        &mut self,
        now: Instant,
        instance: InstanceId,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Answer, CallError> {
        let plugin = self.instance_mut(instance).and_then(|instance| instance.plugin.as_mut());
        plugin.ok_or(CallError::NoInstance)?.call(now, operation, arguments)
    }

    /// Returns whether an environment runs.
    pub fn is_running(&self, environment: EnvironmentId) -> bool {
        self.running.get(usize::from(environment.0)) == Some(&true)
    }

    /// Returns the counters.
    pub fn counters(&self) -> &GraphCounters {
        &self.counters
    }

    /// Returns the counters of an instance.
    pub fn count(&self, instance: InstanceId) -> Option<InstanceCount> {
        Some(self.instances.get(instance.0 as usize)?.as_ref()?.count)
    }

    /// Records the fate of a packet on another level.
    pub fn conclude(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Pass => self.counters.passed += 1,
            Verdict::Drop => self.counters.dropped += 1,
            Verdict::Transmit(_) => self.counters.transmitted += 1,
            Verdict::HandOver { .. } => {}
        }
    }

    /// Returns the fate of a packet whose instance does not exist where it should run.
    pub fn absent(&mut self, fallback: Fallback) -> Verdict {
        self.fall_back(fallback)
    }

    /// Returns whether a packet may enter this instance from an environment: an output of an instance there
    /// leads here, and this instance does not run there itself.
    pub fn is_entrance(&self, from: EnvironmentId, instance: InstanceId) -> bool {
        let found = self.instances.get(instance.0 as usize).and_then(Option::as_ref);
        found.is_some_and(|found| found.entered_from & bit(from) != 0 && found.environment != from)
    }

    /// Records the counters that an environment reports for one of its instances.
    pub fn report(&mut self, from: EnvironmentId, instance: InstanceId, count: InstanceCount) {
        if let Some(known) = self.instance_mut(instance).filter(|known| known.environment == from) {
            let InstanceCount { packets, bytes, dropped } = known.before;
            known.count = InstanceCount {
                packets: packets.saturating_add(count.packets),
                bytes: bytes.saturating_add(count.bytes),
                dropped: dropped.saturating_add(count.dropped),
            };
        }
    }

    /// Records that an environment has ended. Its successor counts from 0.
    pub fn keep_counts(&mut self, of: EnvironmentId) {
        for instance in self.instances.iter_mut().flatten().filter(|instance| instance.environment == of) {
            instance.before = instance.count;
        }
    }

    fn find_entrances(&mut self) {
        for instance in self.instances.iter_mut().flatten() {
            instance.entered_from = 0;
        }
        for at in 0..self.instances.len() {
            for output in 0..OUTPUTS_MAX {
                let Some(from) = self.instances.get(at).and_then(Option::as_ref) else { break };
                let (environment, to) = (from.environment, from.outputs.get(output).copied().flatten());
                if let Some(to) = to.and_then(|to| self.instance_mut(to)) {
                    to.entered_from |= bit(environment);
                }
            }
        }
    }

    fn instance_mut(&mut self, id: InstanceId) -> Option<&mut Instance> {
        self.instances.get_mut(id.0 as usize).and_then(Option::as_mut)
    }

    fn fall_back(&mut self, fallback: Fallback) -> Verdict {
        match fallback {
            Fallback::Pass => {
                self.counters.fallback_passed += 1;
                Verdict::Pass
            }
            Fallback::Drop => {
                self.counters.fallback_dropped += 1;
                Verdict::Drop
            }
        }
    }

    /// Executes the calls that the last plug-in made. Operations make no calls, so this terminates.
    fn execute_calls(&mut self, now: Instant) {
        while !self.calls.is_empty() {
            let call = self.calls.remove(0);
            self.counters.calls += 1;
            let done = self.call(now, call.instance, call.operation, &call.arguments);
            self.counters.calls_failed += u64::from(done.is_err());
        }
    }
}

/// Returns the environment's bit. No manager has more environments than bits.
const fn bit(environment: EnvironmentId) -> u64 {
    if environment.0 < 64 { 1 << environment.0 } else { 0 }
}
