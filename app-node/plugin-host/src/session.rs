//! The instances of one network node's worker: their configuration, packets and calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use csp_classify::multifield::{Direction, InstanceId, RuleHandle};
use csp_plugins::remote::{
    HOSTED_MAX, HostedInstance, REMOTE_LEN_MAX, read_call, read_hosted, read_modules, write_answer,
};
use csp_plugins::{
    Desired, DesiredInstance, Graph, HOST, HashKey, Level, Manager, ManagerConfig, Metadata, OUTPUTS_MAX,
    Output, Packet, Supply, Verdict, WORKERS, builtin, is_supplied,
};
use csp_types::{Duration, Instant};
use csp_wire::packets::{Count, Head, Kind};

/// Most instances of a network node; their numbers are below this.
const INSTANCES_MAX: usize = HOSTED_MAX;
/// Largest number of calls whose answers wait for room.
const ANSWERS_MAX: usize = 64;
/// Interval at which changed counters of instances are sent.
const COUNTS_INTERVAL: Duration = Duration::from_millis(250);

/// Configuration of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionConfig {
    /// Key of their tables, random.
    pub hash_key: HashKey,
    /// Added to the time of calls to obtain the time since 1970, for captures.
    pub clock_offset_ns: u64,
    /// Makes supplied plug-ins; without it there are none.
    pub supply: Option<Arc<dyn Supply>>,
}

/// Interval at which a session checks whether the modules of its configuration are compiled.
const READY_INTERVAL: Duration = Duration::from_millis(2);

/// The receiver of a session's records.
pub trait Sink {
    /// Adds a record. Returns false if there is no room: it is then not sent.
    fn put(&mut self, head: &Head, payload: &[u8]) -> bool;
    /// Whether there is room for another record of the longest payload that
    /// [`payload_len_max`](Self::payload_len_max) allows.
    fn has_room(&self) -> bool;
    /// Longest payload of a record, in bytes.
    fn payload_len_max(&self) -> usize;
}

/// How a network node has violated the protocol. Its link is failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// A record of a kind that only hosts send.
    #[error("a record of kind {0:?} is not for hosts")]
    Direction(Kind),
    /// The text is too long, or is not UTF-8.
    #[error("a text is longer than {REMOTE_LEN_MAX} bytes, or is not UTF-8")]
    Text,
    /// More calls than may wait.
    #[error("more than {ANSWERS_MAX} calls wait for their answers")]
    Calls,
}

/// Counters of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionCounters {
    /// Packets received.
    pub packets: u64,
    /// Packets for instances that the session does not have.
    pub absent: u64,
    /// Answers and copies that were not sent, for lack of room.
    pub unsent: u64,
}

/// The instances of one network node's worker.
pub struct Session {
    config: SessionConfig,
    manager: Manager,
    graph: Graph,
    /// The network node's number of each instance, by own number.
    theirs: Vec<u32>,
    /// The own number of each instance, by the network node's number.
    own: Vec<Option<InstanceId>>,
    /// The pieces of a configuration, and of a call, so far.
    configuration: Pieces,
    call: Pieces,
    /// A configuration whose modules are being compiled: its generation and its text.
    waiting: Option<(u32, String)>,
    /// Answers that are not sent yet, the oldest first: its record's head, the bytes, how many of them were
    /// sent.
    answers: VecDeque<(Head, Vec<u8>, usize)>,
    counted_at: Instant,
    pumped_at: Instant,
    counted: Vec<u8>,
    counters: SessionCounters,
}

/// Passes copies made by plug-ins to the sink.
struct Copies<'a, S> {
    sink: &'a mut S,
    head: &'a Head,
    unsent: u64,
}

impl<S: Sink> Output for Copies<'_, S> {
    fn copy(&mut self, interface: u16, frame: &[u8]) {
        let head = Head { kind: Kind::Copy, interface, ..*self.head };
        self.unsent += u64::from(!self.sink.put(&head, frame));
    }
}

impl Session {
    /// A session without instances.
    pub fn new(config: SessionConfig) -> Self {
        let mut manager = Manager::new(ManagerConfig {
            rules_max: 1,
            instances_max: 2 * INSTANCES_MAX,
            environments_max: 2,
            here: Level::Host,
            ..ManagerConfig::new(1, config.hash_key)
        });
        for module in builtin::MODULES {
            manager.install(module).expect("the modules' names are different");
        }
        config.supply.iter().for_each(|supply| manager.set_supply(supply.clone()));
        let mut graph = Graph::new(2 * INSTANCES_MAX, 2);
        for (name, level) in [(HOST, Level::Host), (WORKERS, Level::Worker)] {
            manager.add_environment(name, level).expect("the names are different, and there is room");
            manager.start(name).expect("it was added");
        }
        while let Some(command) = manager.poll_command(0) {
            drop(graph.apply(command));
        }
        Session {
            config,
            manager,
            graph,
            theirs: vec![u32::MAX; 2 * INSTANCES_MAX],
            own: vec![None; INSTANCES_MAX],
            configuration: Pieces::default(),
            call: Pieces::default(),
            waiting: None,
            answers: VecDeque::new(),
            counted_at: Instant::ZERO,
            pumped_at: Instant::ZERO,
            counted: Vec::new(),
            counters: SessionCounters::default(),
        }
    }

    /// Processes a record of the network node; plug-ins change the payload in place.
    ///
    /// # Errors
    /// A violation of the protocol.
    pub fn process(
        &mut self,
        now: Instant,
        head: &Head,
        payload: &mut [u8],
        sink: &mut impl Sink,
    ) -> Result<(), SessionError> {
        match head.kind {
            Kind::Packet => self.packet(now, head, payload, sink),
            Kind::Configure => {
                if let Some(text) = self.configuration.add(head, payload)? {
                    self.offer(head.sequence, text)?;
                }
            }
            Kind::Call => {
                if let Some(text) = self.call.add(head, payload)? {
                    let answer = write_answer(self.execute(now, head.instance, &text));
                    self.answer(Head::new(Kind::Answer, head.sequence), answer)?;
                }
            }
            other => return Err(SessionError::Direction(other)),
        }
        Ok(())
    }

    fn packet(&mut self, now: Instant, head: &Head, frame: &mut [u8], sink: &mut impl Sink) {
        self.counters.packets += 1;
        let Some(instance) = self.own.get(head.instance as usize).copied().flatten() else {
            self.counters.absent += 1;
            let absent = Head { kind: Kind::Absent, ..*head };
            self.counters.unsent += u64::from(!sink.put(&absent, frame));
            return;
        };
        let metadata = Metadata {
            rule: Some(RuleHandle { slot: head.rule.slot, generation: head.rule.generation }),
            hops: head.hops,
            coalesced: head.coalesced,
            checksum_partial: head.partial,
            ..Metadata::new(head.interface, if head.egress { Direction::Egress } else { Direction::Ingress })
        };
        let mut packet = Packet::new(frame, metadata);
        let mut copies = Copies { sink, head, unsent: 0 };
        let verdict = self.graph.try_run(now, instance, &mut packet, &mut copies);
        let (hops, unsent) = (packet.metadata.hops, copies.unsent);
        let answer = Head { hops, ..*head };
        // Every instance that the graph leads to exists; a supplied plug-in may be stopped.
        let Some(verdict) = verdict else {
            let absent = Head { kind: Kind::Absent, ..answer };
            self.counters.unsent += unsent + u64::from(!sink.put(&absent, frame));
            return;
        };
        let answer = match verdict {
            Verdict::Pass => Head { kind: Kind::Pass, ..answer },
            Verdict::Drop => Head { kind: Kind::Drop, ..answer },
            Verdict::Transmit(interface) => Head { kind: Kind::Transmit, interface, ..answer },
            Verdict::HandOver { instance, .. } => {
                let instance = self.theirs.get(instance.0 as usize).copied().unwrap_or(u32::MAX);
                Head { kind: Kind::Enter, instance, ..answer }
            }
        };
        let payload: &[u8] = if verdict == Verdict::Drop { &[] } else { frame };
        self.counters.unsent += unsent + u64::from(!sink.put(&answer, payload));
    }

    /// Requests the compilation of a configuration's modules. The configuration is put into force when they
    /// are compiled.
    fn offer(&mut self, generation: u32, text: String) -> Result<(), SessionError> {
        let modules = match read_modules(&text) {
            Ok(modules) => modules,
            Err(error) => {
                return self.answer(Head::new(Kind::Configured, generation), error.to_string().into_bytes());
            }
        };
        if let Some(supply) = &self.config.supply {
            modules.into_iter().for_each(|(module, bytes)| supply.offer(module, bytes));
        }
        self.waiting = Some((generation, text));
        self.configure_waiting()?;
        self.withhold();
        Ok(())
    }

    /// While a configuration waits for its modules, withdraws the numbers that have a different meaning in
    /// it, and the numbers of instances that lead to those. Packets with these numbers are meant for the new
    /// instances.
    fn withhold(&mut self) {
        let Some(Ok(hosted)) = self.waiting.as_ref().map(|(_, text)| read_hosted(text)) else { return };
        let connected = self.manager.connected();
        let name_of = |id: u32| {
            let here = hosted.iter().find(|instance| instance.id == id);
            here.map_or_else(|| name_elsewhere(id), |instance| instance.name.clone())
        };
        let stays = |theirs: usize, own: InstanceId| {
            let (_, name, module, _) = self.manager.instances().find(|(id, ..)| *id == own)?;
            let then = hosted.iter().find(|instance| instance.id as usize == theirs)?;
            let mut leads: Vec<(u8, String)> =
                then.outputs.iter().map(|(output, to)| (*output, name_of(*to))).collect();
            let of_it = connected.iter().filter(|(from, ..)| from == name);
            let mut led: Vec<(u8, String)> = of_it.map(|(_, output, to)| (*output, to.clone())).collect();
            leads.sort();
            led.sort();
            (then.name == name && then.module == module && leads == led).then(|| name.to_owned())
        };
        let places = self.own.iter().enumerate().filter_map(|(theirs, own)| Some((theirs, (*own)?)));
        let mut staying: BTreeMap<usize, String> =
            places.filter_map(|(theirs, own)| Some((theirs, stays(theirs, own)?))).collect();
        loop {
            let names: Vec<String> = staying.values().cloned().collect();
            let known = staying.len();
            staying.retain(|_, name| {
                let mut leads = connected.iter().filter(|(from, ..)| from == name);
                leads.all(|(.., to)| names.contains(to) || to.starts_with(ELSEWHERE))
            });
            if staying.len() == known {
                break;
            }
        }
        for (theirs, place) in self.own.iter_mut().enumerate() {
            place.take_if(|_| !staying.contains_key(&theirs));
        }
    }

    /// Puts the waiting configuration into force if its modules are compiled.
    fn configure_waiting(&mut self) -> Result<(), SessionError> {
        let Some((_, text)) = &self.waiting else { return Ok(()) };
        let names = text.lines().filter_map(|line| line.strip_prefix("module ")?.split(' ').next());
        let mut names = names.filter(|name| is_supplied(name));
        if let Some(supply) = &self.config.supply
            && !names.all(|name| supply.is_ready(name))
        {
            return Ok(());
        }
        let Some((generation, text)) = self.waiting.take() else { return Ok(()) };
        let refused = self.configure(&text).err().unwrap_or_default();
        self.answer(Head::new(Kind::Configured, generation), refused.into_bytes())
    }

    /// Replaces the instances by those of a text. Unchanged instances keep their state.
    fn configure(&mut self, text: &str) -> Result<(), String> {
        let hosted = read_hosted(text).map_err(|error| error.to_string())?;
        if hosted.iter().any(|instance| instance.id as usize >= INSTANCES_MAX) {
            return Err(format!("numbers of instances are below {INSTANCES_MAX}"));
        }
        let elsewhere = elsewhere(&hosted);
        let mut instances: Vec<DesiredInstance> =
            hosted.iter().map(|instance| self.desired(instance, &hosted)).collect();
        instances.extend(elsewhere.iter().map(|id| DesiredInstance {
            name: name_elsewhere(*id),
            module: builtin::NO_OP.name.to_owned(),
            level: Level::Worker,
            ..DesiredInstance::default()
        }));
        let result = self.manager.reconcile(&Desired { instances, rules: Vec::new() });
        // Also after an error, since the graph must match the manager.
        while let Some(command) = self.manager.poll_command(0) {
            drop(self.graph.apply(command));
        }
        self.own.fill(None);
        self.theirs.fill(u32::MAX);
        let names = hosted.iter().map(|instance| (instance.id, instance.name.clone()));
        let names = names.chain(elsewhere.iter().map(|id| (*id, name_elsewhere(*id))));
        for (id, name) in names {
            let Ok(own) = self.manager.instance(&name) else { continue };
            if let Some(theirs) = self.theirs.get_mut(own.0 as usize) {
                *theirs = id;
            }
            if hosted.iter().any(|instance| instance.id == id) {
                self.own[id as usize] = Some(own);
            }
        }
        result.map_err(|error| error.to_string())
    }

    fn desired(&self, instance: &HostedInstance, hosted: &[HostedInstance]) -> DesiredInstance {
        let HostedInstance { name, module, settings, outputs, .. } = instance;
        let mut settings = settings.clone();
        if module == builtin::CAPTURE.name {
            // The network node's clock offset is not this host's.
            settings.retain(|(name, _)| name != "clock_offset_ns");
            settings.push(("clock_offset_ns".to_owned(), self.config.clock_offset_ns.to_string()));
        }
        let mut leads = vec![None; OUTPUTS_MAX];
        for (output, to) in outputs {
            let here = hosted.iter().find(|other| other.id == *to).map(|other| other.name.clone());
            if let Some(lead) = leads.get_mut(usize::from(*output)) {
                *lead = Some(here.unwrap_or_else(|| name_elsewhere(*to)));
            }
        }
        DesiredInstance {
            name: name.clone(),
            module: module.clone(),
            settings,
            outputs: leads,
            level: Level::Host,
            ..DesiredInstance::default()
        }
    }

    fn execute(&mut self, now: Instant, instance: u32, text: &str) -> Result<csp_plugins::Answer, String> {
        let (operation, arguments) = read_call(text).map_err(|error| error.to_string())?;
        let own = self.own.get(instance as usize).copied().flatten();
        let name =
            own.and_then(|own| self.manager.name_of(own)).ok_or("the host does not have the instance")?;
        let prepared = self.manager.prepare_call(name, operation, &arguments);
        let (id, operation, settings) = prepared.map_err(|error| error.to_string())?;
        self.graph.call(now, id, operation, &settings).map_err(|error| error.to_string())
    }

    fn answer(&mut self, head: Head, bytes: Vec<u8>) -> Result<(), SessionError> {
        if self.answers.len() >= ANSWERS_MAX {
            return Err(SessionError::Calls);
        }
        self.answers.push_back((head, bytes, 0));
        Ok(())
    }

    /// Sends answers while there is room, and counters at intervals. Returns whether anything was sent.
    pub fn pump(&mut self, now: Instant, sink: &mut impl Sink) -> bool {
        self.pumped_at = now;
        // Too many waiting calls are a violation by the network node, which cannot occur here.
        let _ = self.configure_waiting();
        let mut any = false;
        while let Some((head, bytes, sent)) = self.answers.front_mut() {
            if !sink.has_room() {
                return any;
            }
            let rest = bytes.get(*sent..).unwrap_or_default();
            let piece = &rest[..rest.len().min(sink.payload_len_max())];
            let more = piece.len() < rest.len();
            if !sink.put(&Head { more, ..*head }, piece) {
                return any;
            }
            any = true;
            *sent += piece.len();
            if !more {
                self.answers.pop_front();
            }
        }
        any | self.count(now, sink)
    }

    fn count(&mut self, now: Instant, sink: &mut impl Sink) -> bool {
        if now.saturating_since(self.counted_at) < COUNTS_INTERVAL || !sink.has_room() {
            return false;
        }
        self.counted_at = now;
        let mut bytes = Vec::with_capacity(self.counted.len());
        for (id, own) in self.own.iter().enumerate() {
            let Some(count) = own.and_then(|own| self.graph.count(own)) else { continue };
            let csp_plugins::InstanceCount { packets, bytes: total, dropped } = count;
            bytes.extend(Count { instance: id as u32, packets, bytes: total, dropped }.emit());
        }
        let changed = bytes != self.counted && sink.put(&Head::new(Kind::Counts, 0), &bytes);
        if changed {
            self.counted = bytes;
        }
        changed
    }

    /// Returns when [`pump`](Self::pump) is due, if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        let running = self.own.iter().any(Option::is_some);
        let counts = running.then(|| self.counted_at + COUNTS_INTERVAL);
        let ready = self.waiting.is_some().then(|| self.pumped_at + READY_INTERVAL);
        counts.into_iter().chain(ready).min()
    }

    /// Returns the number of instances.
    pub fn instances(&self) -> usize {
        self.own.iter().flatten().count()
    }

    /// Returns the counters.
    pub fn counters(&self) -> SessionCounters {
        self.counters
    }
}

/// A text that arrives in several records with one sequence number. A record with a different number begins a
/// new text: the former one was abandoned.
#[derive(Default)]
struct Pieces {
    sequence: u32,
    text: Vec<u8>,
}

impl Pieces {
    /// Adds a record's payload. Returns the text if it was the last one.
    fn add(&mut self, head: &Head, piece: &[u8]) -> Result<Option<String>, SessionError> {
        if std::mem::replace(&mut self.sequence, head.sequence) != head.sequence {
            self.text.clear();
        }
        if self.text.len() + piece.len() > REMOTE_LEN_MAX {
            return Err(SessionError::Text);
        }
        self.text.extend_from_slice(piece);
        if head.more {
            return Ok(None);
        }
        let text = std::mem::take(&mut self.text);
        String::from_utf8(text).map(Some).map_err(|_| SessionError::Text)
    }
}

/// Returns the instances to which outputs lead and which the host does not run.
fn elsewhere(hosted: &[HostedInstance]) -> Vec<u32> {
    let led_to = hosted.iter().flat_map(|instance| instance.outputs.iter().map(|(_, to)| *to));
    let mut ids: Vec<u32> = led_to.filter(|id| hosted.iter().all(|instance| instance.id != *id)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Prefix of the names of instances that run elsewhere.
const ELSEWHERE: &str = "elsewhere.";

fn name_elsewhere(id: u32) -> String {
    format!("{ELSEWHERE}{id}")
}
