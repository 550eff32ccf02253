//! Two hosts, the link between them and their applications in virtual time. Every step is checked.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_tcp::{Counters, Event};
use csp_types::{Duration, FourTuple, Instant};

use crate::app::App;
use crate::host::{EngineHost, Host, Id};
use crate::link::{Fate, Link};
use crate::model::ModelHost;
use crate::packet::Packet;
use crate::pattern::Stream;
use crate::random::Random;
use crate::scenario::{Plan, Scenario, Side, Theme};
use crate::watch::{Done, Watch};

/// The listeners' port; simultaneous opens use the next port, which has no listener.
const PORT: u16 = 80;
/// A server reports a connection within this time or not at all.
const UNTOLD: Duration = Duration::from_secs(15);
/// Most rounds of a simulation.
const STEPS_MAX: u64 = 1_000_000;

/// One connection, or an attempt to open one.
pub struct Conversation {
    pub plan: Plan,
    /// The addresses from the client's view.
    pub tuple: FourTuple,
    pub ends: [App; 2],
    pub begun: bool,
    /// `connect` was refused.
    pub refused: bool,
    pub progress: (u64, Instant),
    /// When it began, and when an end last received an event.
    pub lasted: (Instant, Instant),
}

impl Conversation {
    fn new(plan: Plan, random: &mut Random, start: Instant) -> Conversation {
        let (client, server): (IpAddr, IpAddr) = match plan.ipv6 {
            false => (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into()),
            true => (
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(),
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(),
            ),
        };
        let port = PORT + u16::from(plan.both_open);
        let tuple =
            FourTuple { local: SocketAddr::new(client, plan.port), remote: SocketAddr::new(server, port) };
        let (up, down) = (Stream::draw(random), Stream::draw(random));
        let [a, b] = plan.scripts.clone();
        let ends = [App::new(a, up, down), App::new(b, down, up)];
        Conversation {
            plan,
            tuple,
            ends,
            begun: false,
            refused: false,
            progress: (0, start),
            lasted: (start, start),
        }
    }

    /// The addresses from a side's view.
    pub fn tuple_at(&self, side: usize) -> FourTuple {
        match side {
            0 => self.tuple,
            _ => FourTuple { local: self.tuple.remote, remote: self.tuple.local },
        }
    }

    pub fn is_over(&self) -> bool {
        let [client, server] = &self.ends;
        let clients_end = self.refused || client.is_over();
        // A server to which the connection was never reported has nothing to end.
        clients_end && (server.id.is_none() || server.is_over())
    }

    pub fn is_forceful(&self) -> bool {
        self.ends.iter().any(|end| end.script().is_forceful())
    }
}

enum Happening {
    Arrival { to: usize, ingress: Instant, packet: Packet },
    TooBig { to: usize, tuple: FourTuple, seq: u32, mtu: usize },
    NodeChange,
}

pub struct World {
    pub scenario: Scenario,
    pub hosts: [Host; 2],
    pub links: [Link; 2],
    pub watches: [Option<Watch>; 2],
    pub conversations: Vec<Conversation>,
    /// The current conversation of a client's addresses.
    current: BTreeMap<FourTuple, usize>,
    /// Connections opened again by a repeated cookie.
    echoes: Vec<(usize, Id)>,
    pub now: Instant,
    start: Instant,
    random: Random,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    serial: u64,
    pub steps: u64,
    /// Prints every packet and event.
    trace: bool,
}

fn host(side: &Side, seed: u64) -> (Host, Option<Watch>) {
    match side {
        Side::Engine(config) => {
            let mut engine = EngineHost::new(config.clone());
            for address in ["0.0.0.0", "::"] {
                let address = SocketAddr::new(address.parse().unwrap(), PORT);
                engine.stack.listen(address, 1).unwrap();
            }
            let watch = Watch::new(engine.stack.config().clone());
            (Host::Engine(engine), Some(watch))
        }
        Side::Model(manners) => (Host::Model(ModelHost::new(*manners, PORT, seed)), None),
    }
}

impl World {
    pub fn new(seed: u64, trace: bool) -> World {
        let scenario = Scenario::draw(seed);
        let mut random = Random(seed ^ 0x5151_5151);
        let start = Instant::from_nanos(1_000_000_000 + random.below(1 << 45));
        let [a, b] = [host(&scenario.sides[0], random.next()), host(&scenario.sides[1], random.next())];
        let links = [0, 1].map(|n| Link::new(scenario.links[n].clone(), random.next(), start));
        let plans = scenario.plans.iter();
        let conversations = plans.map(|plan| Conversation::new(plan.clone(), &mut random, start)).collect();
        let mut world = World {
            hosts: [a.0, b.0],
            links,
            watches: [a.1, b.1],
            conversations,
            current: BTreeMap::new(),
            echoes: Vec::new(),
            now: start,
            start,
            random,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            serial: 0,
            steps: 0,
            trace,
            scenario,
        };
        if let Some(every) = world.scenario.node_changes {
            world.schedule(start + every, Happening::NodeChange);
        }
        world
    }

    fn schedule(&mut self, at: Instant, happening: Happening) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial)));
        self.happenings.insert(self.serial, happening);
    }

    fn print(&self, side: usize, line: impl FnOnce() -> String) {
        if self.trace {
            let micros = (self.now - self.start).as_micros();
            let indent = if side == 0 { "" } else { "                    " };
            println!("{:>12.3} ms {indent}{}", micros as f64 / 1e3, line());
        }
    }

    /// Runs until every conversation has ended, then until no state is left.
    pub fn run(&mut self) {
        while !self.conversations.iter().all(Conversation::is_over) {
            self.step();
            self.check_progress();
        }
        while self.next_time().is_some() {
            self.step();
        }
        self.check_end();
    }

    /// Advances time to the next due item and processes it with all its consequences.
    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < STEPS_MAX, "the simulation does not end: {:#?}", self.stuck());
        let Some(next) = self.next_time() else { return };
        self.now = self.now.max(next);
        self.happen();
        for side in 0..2 {
            if self.hosts[side].next_timeout().is_some_and(|at| at <= self.now) {
                self.fire(side);
            }
        }
        self.begin_conversations();
        self.act();
        self.flush(0);
        self.flush(1);
        self.check_step();
    }

    fn fire(&mut self, side: usize) {
        let now = self.now;
        let timed_out = match &mut self.hosts[side] {
            Host::Model(model) => {
                model.on_timeout(now);
                None
            }
            Host::Engine(engine) => engine.on_timeout(now),
        };
        if let (Some(tuple), Some(watch)) = (timed_out, &mut self.watches[side]) {
            watch.on_retransmission_timeout(&tuple);
        }
    }

    /// When the next item is due.
    pub fn next_time(&self) -> Option<Instant> {
        let queued = self.queue.peek().map(|Reverse((at, _))| *at);
        let timers = self.hosts.iter().filter_map(Host::next_timeout);
        let apps = self.conversations.iter().flat_map(|c| &c.ends);
        let wakes = apps.filter(|app| !app.is_over()).filter_map(|app| app.wake);
        let begins = (0..self.conversations.len()).filter_map(|n| self.begins(n));
        queued.into_iter().chain(timers).chain(wakes).chain(begins).min()
    }

    /// When a conversation that has not begun is due; `None` if unknown, or if it has begun.
    fn begins(&self, n: usize) -> Option<Instant> {
        let conversation = &self.conversations[n];
        if conversation.begun {
            return None;
        }
        match conversation.plan.after {
            None => Some(self.start + conversation.plan.begins),
            Some(before) => {
                let before = &self.conversations[before];
                // The event may still be reported to the server later.
                let wait = if before.ends[1].id.is_none() { UNTOLD } else { Duration::ZERO };
                before.is_over().then(|| before.progress.1 + wait + conversation.plan.begins)
            }
        }
    }

    fn begin_conversations(&mut self) {
        for n in 0..self.conversations.len() {
            if self.begins(n).is_none_or(|at| at > self.now) {
                continue;
            }
            let now = self.now;
            let conversation = &mut self.conversations[n];
            conversation.begun = true;
            conversation.progress.1 = now;
            conversation.lasted = (now, now);
            self.current.insert(conversation.tuple, n);
            let sides = if conversation.plan.both_open { 0..2 } else { 0..1 };
            for side in sides {
                let tuple = conversation.tuple_at(side);
                let id = self.hosts[side].connect(now, tuple);
                conversation.ends[side].id = id;
                conversation.refused |= id.is_none();
            }
            if conversation.refused {
                // The other side of a simultaneous open has no peer; it fails by timeout.
                let reused = conversation.plan.after.is_some();
                assert!(self.scenario.is_rough() || reused, "connect was refused");
            }
        }
    }

    /// Applications process events and run their scripts, which may cause further events.
    fn act(&mut self) {
        for side in 0..2 {
            let mut rounds = 0;
            loop {
                let mut events = 0;
                while let Some((id, event)) = self.hosts[side].poll_event() {
                    self.print(side, || format!("{event:?}"));
                    self.on_event(side, id, event);
                    events += 1;
                }
                if events == 0 && rounds > 0 {
                    break;
                }
                for n in 0..self.conversations.len() {
                    let end = &mut self.conversations[n].ends[side];
                    end.act(self.now, &mut self.hosts[side], &mut self.random);
                }
                rounds += 1;
                assert!(rounds < 1_000, "events do not come to an end");
            }
        }
    }

    fn on_event(&mut self, side: usize, id: Id, event: Event) {
        if let Event::Established { passive, tuple, .. } = event {
            let clients = match side {
                0 => tuple,
                _ => FourTuple { local: tuple.remote, remote: tuple.local },
            };
            let n = *self.current.get(&clients).expect("a connection that no conversation opened");
            let conversation = &mut self.conversations[n];
            assert_eq!(
                passive,
                side == 1 && !conversation.plan.both_open,
                "the wrong side reports a passive open"
            );
            let end = &mut conversation.ends[side];
            if passive {
                if end.id.is_some() && self.scenario.has_cookies(side) {
                    // A late copy of the opening segment after the connection has ended: nothing records that
                    // the cookie was used.
                    self.hosts[side].abort(self.now, id);
                    self.echoes.push((side, id));
                    return;
                }
                assert!(end.id.is_none() || self.scenario.is_rough(), "accepted twice");
                end.id = Some(id);
            }
            end.established = true;
            return;
        }
        if self.echoes.contains(&(side, id)) {
            return;
        }
        let find = |c: &&mut Conversation| c.ends[side].id == Some(id);
        let conversation = self.conversations.iter_mut().rev().find(find).expect("an event of no connection");
        conversation.ends[side].on_event(event);
        conversation.lasted.1 = self.now;
        let (end, far) = (&conversation.ends[side], &conversation.ends[1 - side]);
        if event == Event::PeerFinished {
            assert!(far.finished && far.written == far.script().total(), "FIN before everything was written");
        }
        if event == Event::Closed && !end.left {
            assert!(end.finished && end.peer_finished, "closed before both finished");
            assert_eq!(end.received, far.written, "closed before everything was read");
        }
    }

    /// Transmits everything that a host has to send.
    pub fn flush(&mut self, side: usize) {
        let mut calls = 0;
        loop {
            let (packets, anonymous) = match &mut self.hosts[side] {
                Host::Engine(engine) => match engine.poll_transmit(self.now) {
                    Some(sent) => (sent.packets, sent.label.is_none()),
                    None => break,
                },
                Host::Model(model) => match model.poll_transmit() {
                    Some(packet) => (vec![packet], false),
                    None => break,
                },
            };
            calls += 1;
            assert!(calls < 20_000, "transmission does not end");
            for packet in packets {
                self.send(side, packet, anonymous);
            }
        }
    }

    pub fn done(&self, side: usize, tuple: &FourTuple) -> Option<Done> {
        let clients = match side {
            0 => *tuple,
            _ => FourTuple { local: tuple.remote, remote: tuple.local },
        };
        let end = &self.conversations[*self.current.get(&clients)?].ends[side];
        let App { sends, written, finished, received, .. } = *end;
        let lives = end.established && !end.is_over();
        let reads = lives && !end.left && !end.peer_finished;
        Some(Done { sends, written, finished, received, lives, reads })
    }

    fn send(&mut self, side: usize, mut packet: Packet, anonymous: bool) {
        let done = self.done(side, &packet.tuple);
        let fate = self.links[side].carry(self.now, &mut packet);
        self.print(side, || {
            let arrow = ["->", "<-"][side];
            match &fate {
                Fate::Arrives(_, None) => format!("{arrow} {packet}"),
                Fate::Arrives(_, Some(_)) => format!("{arrow} {packet}   TWICE"),
                Fate::Lost(why) => format!("{arrow} {packet}   LOST ({why})"),
                Fate::TooBig(mtu) => format!("{arrow} {packet}   TOO BIG ({mtu:?})"),
            }
        });
        if let Some(watch) = &mut self.watches[side] {
            watch.on_sent(self.now, &packet, anonymous, done);
        }
        match fate {
            Fate::Lost(_) | Fate::TooBig(None) => {}
            Fate::TooBig(Some(mtu)) => {
                let at = self.now + self.links[side].plan.delay;
                let (tuple, seq) = (packet.tuple, packet.header.seq);
                self.schedule(at, Happening::TooBig { to: side, tuple, seq, mtu });
            }
            Fate::Arrives(at, again) => {
                for ingress in [Some(at), again].into_iter().flatten() {
                    let to = 1 - side;
                    let seen = self.look_at(to, ingress);
                    let packet = packet.clone();
                    self.schedule(seen, Happening::Arrival { to, ingress, packet });
                }
            }
        }
    }

    /// When a host processes what arrives at `ingress`.
    fn look_at(&self, host: usize, ingress: Instant) -> Instant {
        let every = self.scenario.receive[host].every.as_nanos() as u64;
        match every {
            0 => ingress,
            every => Instant::from_nanos(ingress.as_nanos().div_ceil(every) * every),
        }
    }

    fn happen(&mut self) {
        let mut arrived: [Vec<(Instant, Packet)>; 2] = [Vec::new(), Vec::new()];
        while let Some(&Reverse((at, serial))) = self.queue.peek()
            && at <= self.now
        {
            self.queue.pop();
            match self.happenings.remove(&serial).expect("it was scheduled") {
                Happening::Arrival { to, ingress, packet } => {
                    let joins = self.scenario.receive[to].joins;
                    let joined = joins && arrived[to].last_mut().is_some_and(|(_, last)| last.join(&packet));
                    if !joined {
                        arrived[to].push((ingress, packet));
                    }
                }
                Happening::TooBig { to, tuple, seq, mtu } => {
                    self.print(to, || format!("ICMP: too big, MTU {mtu}"));
                    self.hosts[to].on_too_big(self.now, &tuple, seq, mtu);
                    if let Some(watch) = &mut self.watches[to] {
                        watch.on_too_big(&tuple);
                    }
                }
                Happening::NodeChange => self.change_node(),
            }
        }
        for (to, packets) in arrived.into_iter().enumerate() {
            for (ingress, packet) in packets {
                self.deliver(to, ingress, &packet);
                if self.scenario.receive[to].answers_each {
                    self.act();
                    self.flush(to);
                }
            }
        }
    }

    fn change_node(&mut self) {
        let side = self.random.below(2) as usize;
        let other = self.random.chance(0.5);
        if let Host::Engine(engine) = &mut self.hosts[side] {
            engine.replace_node(other);
        }
        let over = self.conversations.iter().all(Conversation::is_over);
        if let Some(every) = self.scenario.node_changes.filter(|_| !over) {
            self.schedule(self.now + every, Happening::NodeChange);
        }
    }

    fn deliver(&mut self, to: usize, ingress: Instant, packet: &Packet) {
        if packet.coalesced > 1 {
            self.print(to, || format!("joined: {packet}"));
        }
        match &mut self.hosts[to] {
            Host::Model(model) => model.on_packet(self.now, packet),
            Host::Engine(engine) => {
                let before = *engine.stack.counters();
                let result = engine.on_packet(self.now, ingress, packet);
                let counters = engine.stack.counters();
                let watch = self.watches[to].as_mut().expect("engines are watched");
                let opens = counters.passive_opens > before.passive_opens;
                if counters.syn_cookies_accepted > before.syn_cookies_accepted {
                    watch.on_cookie_taken(packet, self.scenario.theme == Theme::Crowded);
                }
                watch.memory_short |= is_memory_short(counters);
                watch.on_delivered(self.now, packet, result.is_ok(), opens);
                if let Err(reason) = result {
                    self.print(to, || format!("dropped: {reason}: {packet}"));
                }
            }
        }
    }
}

fn is_memory_short(counters: &Counters) -> bool {
    counters.bytes_dropped_no_block + counters.out_of_order_bytes_dropped > 0
}
