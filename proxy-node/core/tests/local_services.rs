//! Two local services of one worker: the core gives each its own connections, notices and turns.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::between::{Between, Examined, Towards};
use csp_proxy_core::service::both::Both;
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{
    Ended, Ends, Excluded, OpenError, Opened, Request, Upstream, UpstreamEnd,
};
use csp_proxy_core::{
    Blocked, ChannelId, CoreConfig, EgressRule, HairpinConfig, Lane, PoolServer, Process, ProxyCore,
    ProxyOutput, ServiceSpec, ServiceTcp, Verdict, Way,
};
use csp_quality::OutputLink;
use csp_tcp::StackConfig;
use csp_types::{FlowLabel, FourTuple, Grant, Instant};
use csp_wire::channel::{ConnectPayload, ListenPayload, Message, MessageHeader, MessageKind};
use csp_wire::tunnel::Record;

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const VIP: [u8; 4] = [10, 0, 0, 1];
/// Both services have this number for their port.
const NUMBER: u32 = 3;
const FIRST: u16 = 5_555;
const SECOND: u16 = 6_666;
const EXAMINED: u16 = 7_777;
/// Both services name their requests alike.
const TOKEN: u64 = 5;
const CLIENT: u32 = 1;
const SERVER: u32 = 2;

fn request(token: u64) -> Upstream {
    Upstream {
        token,
        service: "".into(),
        excluded: Excluded::NONE,
        client: ([10, 0, 0, 99], 1_000).into(),
        client_flow: FlowLabel::NONE,
        window: 0,
        deadline: None,
    }
}

/// A service that sends back what it receives, in upper case if it is the second.
#[derive(Default)]
struct Echo {
    upper: bool,
    connections: BTreeSet<FlowLabel>,
    examined: BTreeMap<FlowLabel, usize>,
    refuses: bool,
    /// A connection that is always ready.
    endless: Option<FlowLabel>,
    served: usize,
    contexts: usize,
    drained: Vec<u32>,
    opens: Option<String>,
    /// The outcomes of these requests.
    opened: Vec<Option<OpenError>>,
    upstreams: BTreeSet<FlowLabel>,
}

impl Between for Echo {
    fn begun(&mut self, _: Instant, label: FlowLabel, number: u32, _: FourTuple) -> bool {
        assert_eq!(number, NUMBER);
        self.examined.insert(label, 0).is_none()
    }

    fn examine<'a>(
        &mut self,
        label: FlowLabel,
        _: Towards,
        _: u64,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Examined {
        let pass = bytes.map(<[u8]>::len).sum();
        *self.examined.get_mut(&label).unwrap() += pass;
        Examined { pass, malformed: false }
    }

    fn ended(&mut self, label: FlowLabel) {
        assert!(self.examined.remove(&label).is_some());
    }
}

impl LocalServices for Echo {
    fn connected(&mut self, _: Instant, label: FlowLabel, number: u32, _: FourTuple) -> bool {
        assert_eq!(number, NUMBER);
        !self.refuses && self.connections.insert(label)
    }

    fn drain(&mut self, _: Instant, number: u32) {
        self.drained.push(number);
    }

    fn serve(&mut self, _: Instant, label: FlowLabel, ends: &mut impl Ends, _: &mut OutputLink) -> Step {
        assert!(self.connections.contains(&label), "it is this service's");
        self.served += 1;
        let mut client = ends.client(label).unwrap();
        let mut bytes: Vec<u8> = client.peek(client.readable()).flatten().copied().collect();
        client.consume(bytes.len());
        if self.upper {
            bytes.make_ascii_uppercase();
        }
        assert_eq!(client.write(&bytes, None), bytes.len());
        match bytes.is_empty() {
            true if client.is_finished() => Step::Close,
            true => Step::Idle,
            false => Step::Moved,
        }
    }

    fn gone(&mut self, _: Instant, label: FlowLabel) {
        assert!(self.connections.remove(&label), "once for each connection");
    }

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        self.endless
    }

    fn run_contexts(&mut self, _: Instant, _: &mut OutputLink) -> bool {
        self.contexts += 1;
        false
    }

    fn next_request(&mut self) -> Option<Request> {
        let service = self.opens.take()?.into();
        Some(Request::Open(Upstream { service, ..request(TOKEN) }))
    }

    fn opened(&mut self, _: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        assert_eq!(token, TOKEN);
        self.upstreams.extend(outcome.ok().map(|opened| opened.label));
        self.opened.push(outcome.err());
    }

    fn serve_upstream(
        &mut self,
        _: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        _: &mut OutputLink,
    ) -> Step {
        assert!(self.upstreams.contains(&label), "it is this service's");
        let mut server = ends.upstream(label).unwrap();
        let mut bytes: Vec<u8> = server.peek(server.readable()).flatten().copied().collect();
        server.consume(bytes.len());
        if self.upper {
            bytes.make_ascii_uppercase();
        }
        server.write(&[&bytes]);
        Step::Idle
    }

    fn upstream_gone(&mut self, _: Instant, label: FlowLabel, _: Ended) {
        assert!(self.upstreams.remove(&label), "once for each connection");
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

/// Messages to processes: kind, label or request, payload.
#[derive(Default)]
struct Out(Vec<(Lane, MessageKind, u32, Vec<u8>)>);

impl ProxyOutput for Out {
    fn tunnel_ready(&self, _: u32) -> bool {
        true
    }

    fn tunnel(&mut self, _: Instant, _: u32, _: &Record<'_>, _: &[&[u8]]) -> Result<(), Blocked> {
        Err(Blocked::Gone)
    }

    fn network_node(&self, _: &FourTuple) -> Option<Way> {
        None
    }

    fn channel(&mut self, _: Instant, lane: Lane, of: MessageHeader, parts: &[&[u8]]) -> Result<(), Blocked> {
        self.0.push((lane, of.kind, of.id, parts.concat()));
        Ok(())
    }

    fn lane_ready(&self, _: Lane) -> bool {
        true
    }

    fn lane(&self, channel: ChannelId, _: u32) -> Option<Lane> {
        Some(Lane(channel.0))
    }
}

struct World {
    core: ProxyCore<Both<Echo, Echo>>,
    out: Out,
}

fn spec(name: &str, port: u16) -> ServiceSpec {
    ServiceSpec::new(name.to_owned(), (VIP, port).into())
}

fn policy() -> Vec<ServiceSpec> {
    let pool = vec![PoolServer::of_node("an-1".parse().unwrap(), 8_080)];
    vec![
        ServiceSpec { local: Some(NUMBER), ..spec("first", FIRST) },
        ServiceSpec { local: Some(Both::<Echo, Echo>::second_number(NUMBER)), ..spec("second", SECOND) },
        ServiceSpec { pool: pool.clone(), ..spec("upstream", 0) },
        ServiceSpec {
            between: Some(Both::<Echo, Echo>::second_number(NUMBER)),
            pool,
            ..spec("examined", EXAMINED)
        },
    ]
}

impl World {
    fn new(pairs: usize) -> World {
        let tcp = StackConfig { connections: 8, blocks: 256, ..StackConfig::default() };
        let hairpin = HairpinConfig { first_label_index: 10_000, pairs };
        let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events: 16, hairpin, upstreams: 2 };
        let services = Both::new(Echo::default(), Echo { upper: true, ..Echo::default() });
        let mut world = World { core: ProxyCore::with_local_services(config, services), out: Out::default() };
        world.policy(policy());
        for (channel, name) in [(CLIENT, "client"), (SERVER, "server")] {
            let (node, name, grant) = ("an-1".parse().unwrap(), name.to_owned(), Grant::all());
            assert!(world.core.channel_up(ChannelId(channel), Process { node, name, uid: None, grant }));
        }
        let listen = ListenPayload { address: SocketAddr::from(([0, 0, 0, 0], 8_080)) }.emit();
        world.send(SERVER, MessageHeader::new(MessageKind::Listen, 7, 64, listen.len() as u32), &listen);
        world.send(SERVER, MessageHeader::new(MessageKind::AcceptCredit, 7, 64, 0), &[]);
        world
    }

    fn policy(&mut self, services: Vec<ServiceSpec>) {
        let address = IpAddr::from([10, 0, 0, 9]);
        let destinations = vec!["10.0.0.0/24".parse().unwrap()];
        let rule = EgressRule { address, destinations, except: Vec::new(), tcp: ServiceTcp::default() };
        self.core.set_policy(NOW, services, vec![rule], &mut self.out);
    }

    fn send(&mut self, channel: u32, header: MessageHeader, payload: &[u8]) {
        let (message, from) = (Message { header, payload }, (ChannelId(channel), Lane(channel)));
        let verdict = self.core.on_message(NOW, from, &message, None, &mut self.out);
        assert_eq!(verdict, Verdict::Fine);
        self.core.drive(NOW, &mut self.out);
    }

    fn say(&mut self, channel: u32, label: FlowLabel, text: &[u8]) {
        self.send(channel, MessageHeader::of_flow(MessageKind::Data, label, 0, text.len() as u32), text);
    }

    /// Connects the client to a port; returns its label, unless it was reset at once.
    fn connect(&mut self, port: u16) -> FlowLabel {
        let mut payload = [0; 64];
        let len = ConnectPayload { remote: (VIP, port).into(), local: None }.emit(&mut payload).unwrap();
        self.send(CLIENT, MessageHeader::new(MessageKind::Connect, 9, 65_536, len as u32), &payload[..len]);
        FlowLabel::from_wire(self.take(CLIENT, MessageKind::Connected)[0].0).unwrap()
    }

    /// Ends a connection of the client from its side.
    fn close(&mut self, label: FlowLabel) {
        self.send(CLIENT, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
    }

    /// Removes and returns the messages of this kind to a process: their ids and payloads.
    fn take(&mut self, to: u32, kind: MessageKind) -> Vec<(u32, Vec<u8>)> {
        let is = |m: &&(Lane, MessageKind, u32, Vec<u8>)| m.0 == Lane(to) && m.1 == kind;
        let taken = self.out.0.iter().filter(is).map(|m| (m.2, m.3.clone())).collect();
        self.out.0.retain(|m| !is(&m));
        taken
    }

    fn heard(&mut self, channel: u32) -> Vec<u8> {
        self.take(channel, MessageKind::Data).into_iter().flat_map(|(_, bytes)| bytes).collect()
    }

    fn first(&self) -> &Echo {
        self.core.local().first()
    }

    fn second(&self) -> &Echo {
        self.core.local().second()
    }

    fn counts(&self) -> (usize, usize) {
        (self.first().connections.len(), self.second().connections.len())
    }
}

#[test]
fn each_service_gets_the_connections_of_its_own_numbers() {
    let mut w = World::new(4);
    let (a, b) = (w.connect(FIRST), w.connect(SECOND));
    assert_eq!(w.counts(), (1, 1));
    w.say(CLIENT, a, b"abc");
    assert_eq!(w.heard(CLIENT), b"abc");
    w.say(CLIENT, b, b"abc");
    assert_eq!(w.heard(CLIENT), b"ABC");
    w.close(a);
    assert_eq!(w.counts(), (0, 1));
    w.close(b);
    assert_eq!((w.counts(), w.core.flow_count()), ((0, 0), 0));
}

/// The slot of a label is used again by a connection of the other service.
#[test]
fn a_label_index_may_change_between_the_services() {
    let mut w = World::new(1);
    let mut indices = BTreeSet::new();
    for (round, port) in [FIRST, SECOND, SECOND, FIRST, FIRST, SECOND].into_iter().enumerate() {
        let label = w.connect(port);
        indices.insert(label.index());
        w.say(CLIENT, label, b"x");
        let expected: &[u8] = if port == FIRST { b"x" } else { b"X" };
        assert_eq!(w.heard(CLIENT), expected, "round {round}");
        w.close(label);
        assert_eq!((w.counts(), w.core.hairpin_count()), ((0, 0), 0));
    }
    assert!(indices.len() <= 2, "{indices:?}");
}

#[test]
fn a_connection_that_one_service_refuses_leaves_nothing_at_either() {
    let mut w = World::new(1);
    w.core.local_mut().second_mut().refuses = true;
    w.connect(SECOND);
    assert_eq!(w.take(CLIENT, MessageKind::Reset).len(), 1);
    assert_eq!((w.counts(), w.core.flow_count()), ((0, 0), 0));
    let label = w.connect(FIRST);
    w.say(CLIENT, label, b"x");
    assert_eq!((w.heard(CLIENT), w.counts()), (b"x".to_vec(), (1, 0)));
}

#[test]
fn streams_between_both_ends_are_examined_by_the_service_that_the_policy_names() {
    let mut w = World::new(2);
    let label = w.connect(EXAMINED);
    let open = FlowLabel::from_wire(w.take(SERVER, MessageKind::Open)[0].0).unwrap();
    w.send(SERVER, MessageHeader::of_flow(MessageKind::Accepted, open, 1 << 16, 0), &[]);
    w.say(CLIENT, label, b"to the server");
    assert_eq!(w.heard(SERVER), b"to the server");
    w.say(SERVER, open, b"back");
    assert_eq!(w.heard(CLIENT), b"back");
    assert_eq!(w.second().examined.values().copied().collect::<Vec<_>>(), [17]);
    assert!(w.first().examined.is_empty());
    w.close(label);
    w.send(SERVER, MessageHeader::of_flow(MessageKind::Close, open, 0, 0), &[]);
    assert!(w.second().examined.is_empty() && w.core.flow_count() == 0);
}

#[test]
fn what_a_service_opens_is_its_own() {
    let mut w = World::new(1);
    w.core.local_mut().second_mut().opens = Some("nowhere".to_owned());
    w.core.drive(NOW, &mut w.out);
    assert_eq!(w.second().opened, [Some(OpenError::NoService)]);
    // The requests of both have the same token.
    let services = w.core.local_mut();
    services.first_mut().opens = Some("upstream".to_owned());
    services.second_mut().opens = Some("upstream".to_owned());
    w.core.drive(NOW, &mut w.out);
    let opens = w.take(SERVER, MessageKind::Open);
    let labels: Vec<FlowLabel> = opens.iter().map(|(id, _)| FlowLabel::from_wire(*id).unwrap()).collect();
    for label in &labels {
        w.send(SERVER, MessageHeader::of_flow(MessageKind::Accepted, *label, 1 << 16, 0), &[]);
        w.say(SERVER, *label, b"echo");
    }
    assert_eq!(w.heard(SERVER), b"echoECHO");
    assert_eq!([w.first(), w.second()].map(|echo| echo.upstreams.len()), [1, 1]);
    assert_eq!((w.counts(), w.core.upstream_count()), ((0, 0), 2));
    // No more of them are free: the service is informed.
    w.core.local_mut().second_mut().opens = Some("upstream".to_owned());
    w.core.drive(NOW, &mut w.out);
    assert_eq!(w.second().opened.last(), Some(&Some(OpenError::NoRoom)));
    for label in labels {
        w.send(SERVER, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
    }
    assert_eq!([w.first(), w.second()].map(|echo| echo.upstreams.len()), [0, 0]);
    assert_eq!((w.core.upstream_count(), w.core.flow_count()), (0, 0));
}

/// A flood at one service keeps neither the other one nor contexts from their turns.
#[test]
fn services_and_their_contexts_take_turns() {
    let mut w = World::new(2);
    w.connect(FIRST);
    w.connect(SECOND);
    let labels = [w.first(), w.second()].map(|echo| *echo.connections.first().unwrap());
    let services = w.core.local_mut();
    (services.first_mut().endless, services.second_mut().endless) = (Some(labels[0]), Some(labels[1]));
    let before = [w.first(), w.second()].map(|echo| (echo.served, echo.contexts));
    for _ in 0..10 {
        w.core.drive(NOW, &mut w.out);
        assert!(w.core.is_unfinished());
    }
    for (echo, before) in [w.first(), w.second()].into_iter().zip(before) {
        assert!(echo.served - before.0 >= 10, "{} visits", echo.served - before.0);
        assert!(echo.contexts - before.1 >= 10, "{} turns of contexts", echo.contexts - before.1);
    }
}

#[test]
fn a_service_that_the_policy_no_longer_names_drains() {
    let mut w = World::new(2);
    let label = w.connect(SECOND);
    w.policy(policy().into_iter().filter(|spec| spec.name != "second").collect());
    assert_eq!((w.second().drained.clone(), w.first().drained.len()), (vec![NUMBER], 0));
    w.say(CLIENT, label, b"still here");
    assert_eq!((w.heard(CLIENT), w.counts()), (b"STILL HERE".to_vec(), (0, 1)));
    w.policy(policy());
    w.policy(policy());
    assert_eq!(w.second().drained.len(), 1, "it is named again");
    // Another port of the same service: nothing drains.
    let moved = |spec: ServiceSpec| ServiceSpec { address: (VIP, spec.address.port() + 1).into(), ..spec };
    w.policy(policy().into_iter().map(moved).collect());
    assert_eq!((w.second().drained.len(), w.first().drained.len()), (1, 0));
}
