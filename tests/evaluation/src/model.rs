//! The simulation of one scenario: what each node does with a packet or a message.
//!
//! ```text
//! client ──LAN──▶ network node ──SAN──▶ proxy node ──SAN──▶ application node
//!   SYN ─────────────────────────────────▶
//!   ◀──────────────────────────── SYN/ACK
//!   ACK, request ────────────────────────▶ open, data ─────────▶
//!   ◀──────────────────────── data packets ◀─── data, …, close
//!   ACK of every second packet ──────────▶
//!   ◀──────────────────────────────── FIN
//!   FIN ─────────────────────────────────▶
//!   ◀──────────────────────────── last ACK
//! ```

mod nodes;
mod parcel;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::costs::Work;
use crate::link::{Link, Train};
use crate::model::nodes::Nodes;
use crate::model::parcel::{Destination, IP_TCP, Kind, Parcel, Transaction};
use crate::outcome::{Completions, Counted, Outcome, Use};
use crate::queue::Queue;
use crate::scenario::{Arrivals, SEGMENT, Scenario, ScenarioError, Stop};
use crate::station::Station;
use crate::workload::exponential;
use crate::{Picoseconds, SECOND};

/// Most events of a run.
const EVENTS_MAX: u64 = 4_000_000_000;
/// Most events that are due later: about a gigabyte of memory.
const PENDING_MAX: usize = 16_000_000;
/// Most transactions that are started for one that has to be completed: a system that is offered more
/// than this many times what it can do gets no more.
const STARTED_FOR_EACH_MAX: u64 = 16;
/// Data of one TLS record.
const RECORD: u32 = 16_384;

/// Simulates a scenario.
pub fn run(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    let mut simulation = Simulation::new(scenario);
    simulation.begin();
    let events = simulation.run_events()?;
    Ok(simulation.outcome(events))
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client wants something.
    Arrival,
    /// A packet of a client is at the network node.
    FromClient(Parcel),
    /// The network node sends it on to the proxy node.
    NetworkIn(Parcel),
    /// The head of a message is at the switch; its last packet is there at `tail`.
    Switch { parcel: Parcel, tail: Picoseconds },
    /// The message has crossed the SAN.
    Delivered(Parcel),
    /// The proxy node has processed it.
    ProxyDone(Parcel),
    /// The network node sends a packet to the client.
    NetworkOut(Parcel),
    /// An application node sends a message.
    ApplicationSends(Parcel),
    /// The client has it.
    AtClient(Parcel),
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    network: Work,
    proxy: Work,
    application: Work,
    nodes: Nodes,
    queue: Queue<Event>,
    transactions: Vec<Transaction>,
    completions: Completions,
    counted: Counted,
    random: ChaCha8Rng,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        Simulation {
            network: scenario.costs.network.work(),
            proxy: scenario.costs.proxy.work(),
            application: scenario.costs.application.work(),
            nodes: Nodes::new(scenario),
            queue: Queue::default(),
            transactions: Vec::new(),
            completions: Completions::new(scenario.warm_up),
            counted: Counted::default(),
            random: ChaCha8Rng::seed_from_u64(scenario.seed),
            scenario,
        }
    }

    fn begin(&mut self) {
        match self.scenario.arrivals {
            Arrivals::Open { .. } => self.next_arrival(),
            Arrivals::Closed { outstanding } => {
                for _ in 0..outstanding.min(self.scenario.transactions) {
                    self.queue.schedule(0, Event::Arrival);
                }
            }
        }
    }

    fn run_events(&mut self) -> Result<u64, ScenarioError> {
        let mut events = 0;
        while let Some(event) = self.queue.take() {
            events += 1;
            if events > EVENTS_MAX || self.queue.len() > PENDING_MAX {
                return Err(ScenarioError::TooManyEvents(events));
            }
            self.handle(event);
            if self.scenario.stop == Stop::Completed
                && self.completions.number() >= u64::from(self.scenario.transactions)
            {
                break;
            }
        }
        Ok(events)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival => self.arrival(),
            Event::FromClient(parcel) => self.at_network_from_client(parcel),
            Event::NetworkIn(parcel) => self.enter_switch(parcel),
            Event::Switch { parcel, tail } => self.through_switch(parcel, tail),
            Event::Delivered(parcel) => match parcel.kind.destination() {
                Destination::Client => self.at_network_from_proxy(parcel),
                Destination::ProxyFromClient | Destination::ProxyFromApplication => self.at_proxy(parcel),
                Destination::Application => self.at_application(parcel),
            },
            Event::ProxyDone(parcel) => self.proxy_answers(parcel),
            Event::NetworkOut(parcel) => self.network_out(parcel),
            Event::ApplicationSends(parcel) => self.send_message(parcel),
            Event::AtClient(parcel) => self.at_client(parcel),
        }
    }

    fn arrival(&mut self) {
        // Several were scheduled for the same time.
        if !self.may_start() {
            return;
        }
        let now = self.queue.now();
        let number = self.transactions.len() as u32;
        let response = self.scenario.sizes.draw(&mut self.random) + self.scenario.head_bytes;
        self.transactions.push(self.nodes.spread(number, now, response));
        self.counted.bytes_requested += u64::from(response);
        self.completions.started(now);
        self.client_sends(Parcel { transaction: number, kind: Kind::Syn, bytes: 0 });
        if let Arrivals::Open { .. } = self.scenario.arrivals {
            self.next_arrival();
        }
    }

    /// Schedules the next arrival of an open load, unless enough transactions were started.
    fn next_arrival(&mut self) {
        let Arrivals::Open { per_second } = self.scenario.arrivals else { return };
        if self.may_start() {
            let time = exponential(&mut self.random, SECOND / per_second);
            self.queue.schedule(self.queue.now() + time.round() as Picoseconds, Event::Arrival);
        }
    }

    fn may_start(&self) -> bool {
        let most = u64::from(self.scenario.transactions);
        let most = match self.scenario.stop {
            Stop::Completed => most * STARTED_FOR_EACH_MAX,
            Stop::Drained => most,
        };
        (self.transactions.len() as u64) < most
    }

    fn client_sends(&mut self, parcel: Parcel) {
        let now = self.queue.now();
        let link = &mut self.nodes.lan_in[self.transactions[parcel.transaction as usize].network as usize];
        let arrived = link.carry(Train::whole(now), parcel.bytes + IP_TCP);
        self.counted.packets_from_clients += 1;
        self.queue.schedule(arrived.tail, Event::FromClient(parcel));
    }

    fn at_network_from_client(&mut self, parcel: Parcel) {
        let done = self.network_work(parcel);
        self.queue.schedule(done, Event::NetworkIn(parcel));
    }

    /// Queues a packet at its network node's processors; returns when it is done.
    fn network_work(&mut self, parcel: Parcel) -> Picoseconds {
        let station =
            &mut self.nodes.network[self.transactions[parcel.transaction as usize].network as usize];
        let once = if parcel.kind == Kind::Syn { self.network.transaction } else { 0.0 };
        let work = once + self.network.packet + self.network.byte * f64::from(parcel.bytes + IP_TCP);
        station.admit(self.queue.now(), work).1
    }

    /// Sends a parcel from its node's SAN port to the switch.
    fn enter_switch(&mut self, parcel: Parcel) {
        let transaction = &self.transactions[parcel.transaction as usize];
        let port = match parcel.kind.destination() {
            Destination::ProxyFromClient => self.nodes.network_port(transaction),
            Destination::Client | Destination::Application => self.nodes.proxy_port(transaction),
            Destination::ProxyFromApplication => self.nodes.application_port(transaction),
        };
        let now = Train::whole(self.queue.now());
        let arrived = self.nodes.up[port as usize].carry(now, parcel.san_bytes());
        let delay = Picoseconds::from(self.scenario.san.switch_ns) * 1000;
        self.queue.schedule(arrived.head + delay, Event::Switch { parcel, tail: arrived.tail + delay });
    }

    fn through_switch(&mut self, parcel: Parcel, tail: Picoseconds) {
        let transaction = &self.transactions[parcel.transaction as usize];
        let port = match parcel.kind.destination() {
            Destination::ProxyFromClient | Destination::ProxyFromApplication => {
                self.nodes.proxy_port(transaction)
            }
            Destination::Client => self.nodes.network_port(transaction),
            Destination::Application => self.nodes.application_port(transaction),
        };
        let ready = Train { head: self.queue.now(), tail };
        let arrived = self.nodes.down[port as usize].carry(ready, parcel.san_bytes());
        self.queue.schedule(arrived.tail, Event::Delivered(parcel));
    }

    fn at_proxy(&mut self, parcel: Parcel) {
        let costs = self.proxy;
        let (bytes, records) = (f64::from(parcel.bytes), f64::from(parcel.bytes.div_ceil(RECORD)));
        let content = costs.byte * bytes + costs.record * records;
        let work = match parcel.kind {
            // The SYN/ACK, too.
            Kind::Syn => costs.transaction + 2.0 * costs.packet,
            // Each leads to a message to the application node.
            Kind::Established => costs.packet + costs.message,
            Kind::Request => costs.packet + costs.message + content,
            Kind::Response => {
                costs.message + costs.packet * f64::from(parcel.bytes.div_ceil(SEGMENT)) + content
            }
            Kind::Close => costs.message + costs.packet,
            // The last ACK, too.
            Kind::ClientFin => 2.0 * costs.packet,
            _ => costs.packet,
        };
        match parcel.kind.destination() {
            Destination::ProxyFromClient => self.counted.packets_at_proxies += 1,
            _ => self.counted.messages_received += 1,
        }
        let station = &mut self.nodes.proxy[self.transactions[parcel.transaction as usize].proxy as usize];
        let done = station.admit(self.queue.now(), work).1;
        self.queue.schedule(done, Event::ProxyDone(parcel));
    }

    fn proxy_answers(&mut self, parcel: Parcel) {
        let of = |kind, bytes| Parcel { transaction: parcel.transaction, kind, bytes };
        match parcel.kind {
            Kind::Syn => self.send_packet(of(Kind::SynAck, 0)),
            Kind::Established => self.send_message(of(Kind::Open, 0)),
            Kind::Request => self.send_message(of(Kind::Get, parcel.bytes)),
            Kind::Response => {
                self.counted.bytes_relayed += u64::from(parcel.bytes);
                let mut left = parcel.bytes;
                while left > 0 {
                    let bytes = left.min(SEGMENT);
                    left -= bytes;
                    self.send_packet(of(Kind::Data, bytes));
                }
            }
            Kind::Close => self.send_packet(of(Kind::Fin, 0)),
            Kind::ClientFin => self.send_packet(of(Kind::LastAck, 0)),
            _ => {}
        }
    }

    fn send_packet(&mut self, parcel: Parcel) {
        self.counted.packets_from_proxies += 1;
        self.enter_switch(parcel);
    }

    fn send_message(&mut self, parcel: Parcel) {
        self.counted.messages_sent += 1;
        if parcel.kind == Kind::Response {
            self.counted.bytes_sent += u64::from(parcel.bytes);
        }
        self.enter_switch(parcel);
    }

    fn at_application(&mut self, parcel: Parcel) {
        let now = self.queue.now();
        self.counted.messages_received += 1;
        let costs = self.application;
        let transaction = &self.transactions[parcel.transaction as usize];
        let (application, mut left) = (transaction.application as usize, transaction.response);
        if parcel.kind == Kind::Open {
            self.nodes.application[application].admit(now, costs.message);
            return;
        }
        // One job: parts of the response leave as soon as each is made, and in their order.
        let mut done = costs.transaction + costs.message + costs.byte * f64::from(parcel.bytes);
        let mut parts = Vec::with_capacity(left.div_ceil(self.scenario.message_bytes) as usize);
        while left > 0 {
            let bytes = left.min(self.scenario.message_bytes);
            left -= bytes;
            done += costs.message + costs.byte * f64::from(bytes);
            parts.push((done, bytes));
        }
        let station: &mut Station = &mut self.nodes.application[application];
        let (start, end) = station.admit(now, done + costs.message);
        for (at, bytes) in parts {
            let at = start + station.scaled(at);
            let part = Parcel { kind: Kind::Response, bytes, ..parcel };
            self.queue.schedule(at, Event::ApplicationSends(part));
        }
        let close = Parcel { kind: Kind::Close, bytes: 0, ..parcel };
        self.queue.schedule(end, Event::ApplicationSends(close));
    }

    fn at_network_from_proxy(&mut self, parcel: Parcel) {
        let done = self.network_work(parcel);
        self.queue.schedule(done, Event::NetworkOut(parcel));
    }

    fn network_out(&mut self, parcel: Parcel) {
        let now = Train::whole(self.queue.now());
        let link = &mut self.nodes.lan_out[self.transactions[parcel.transaction as usize].network as usize];
        let arrived = link.carry(now, parcel.bytes + IP_TCP);
        self.queue.schedule(arrived.tail, Event::AtClient(parcel));
    }

    fn at_client(&mut self, parcel: Parcel) {
        self.counted.packets_at_clients += 1;
        let of = |kind, bytes| Parcel { transaction: parcel.transaction, kind, bytes };
        let transaction = &mut self.transactions[parcel.transaction as usize];
        match parcel.kind {
            Kind::SynAck => {
                self.client_sends(of(Kind::Established, 0));
                self.client_sends(of(Kind::Request, self.scenario.request_bytes));
                return;
            }
            Kind::Data => {
                transaction.received += parcel.bytes;
                transaction.packets += 1;
                self.counted.bytes_received += u64::from(parcel.bytes);
                let complete = transaction.is_complete();
                if transaction.packets.is_multiple_of(2) {
                    self.client_sends(of(Kind::DataAck, 0));
                }
                if !complete {
                    return;
                }
            }
            Kind::Fin => {
                transaction.ended = true;
                if !transaction.is_complete() {
                    return;
                }
            }
            _ => return,
        }
        self.complete(parcel.transaction);
    }

    fn complete(&mut self, number: u32) {
        let now = self.queue.now();
        let started = self.transactions[number as usize].started;
        self.completions.completed(started, now);
        self.client_sends(Parcel { transaction: number, kind: Kind::ClientFin, bytes: 0 });
        if let Arrivals::Closed { .. } = self.scenario.arrivals
            && self.may_start()
        {
            self.queue.schedule(now, Event::Arrival);
        }
    }

    fn outcome(mut self, events: u64) -> Outcome {
        let now = self.queue.now();
        self.count_nodes();
        let mean = |stations: &[Station]| {
            stations.iter().map(|station| station.utilisation(now)).sum::<f64>() / stations.len() as f64
        };
        let links =
            |links: &[Link]| links.iter().map(|link| link.utilisation(now)).sum::<f64>() / links.len() as f64;
        let san = self.nodes.up.iter().chain(&self.nodes.down);
        let use_of = Use {
            network: mean(&self.nodes.network),
            proxy: mean(&self.nodes.proxy),
            application: mean(&self.nodes.application),
            lan_in: links(&self.nodes.lan_in),
            lan_out: links(&self.nodes.lan_out),
            busiest_san_link: san.map(|link| link.utilisation(now)).fold(0.0, f64::max),
        };
        let started = self.transactions.len() as u64;
        self.completions.outcome(self.scenario.seed, started, self.counted, use_of, events)
    }

    fn count_nodes(&mut self) {
        let counted = &mut self.counted;
        let busy = |stations: &[Station]| stations.iter().map(|station| station.counters().busy).sum();
        counted.network_busy = busy(&self.nodes.network);
        counted.proxy_busy = busy(&self.nodes.proxy);
        counted.application_busy = busy(&self.nodes.application);
        counted.san_packets = self.nodes.up.iter().map(|link| link.counters().packets).sum();
        let wire = |links: &[Link]| links.iter().map(|link| link.counters().wire_bytes).sum();
        counted.lan_out_wire_bytes = wire(&self.nodes.lan_out);
        counted.lan_in_wire_bytes = wire(&self.nodes.lan_in);
        let first_proxy = self.nodes.network.len();
        let first_application = self.nodes.up.len() - self.nodes.application.len();
        let of = |range: std::ops::Range<usize>| {
            [&self.nodes.up, &self.nodes.down]
                .map(|links| links[range.clone()].iter().map(|link| link.counters().busy).sum())
        };
        counted.san_network_busy = of(0..first_proxy);
        counted.san_proxy_busy = of(first_proxy..first_application);
        counted.san_application_busy = of(first_application..self.nodes.up.len());
    }
}
