//! Clients and members of the reverse proxy, in an order that a seed draws.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_proxy_core::{ChannelId, ServiceSpec};
use csp_support::Random;
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use crate::lines::Lines;
use crate::talk::{Answering, Talk, body};
use crate::world::plain::{SERVER_PORT, plain, server};
use crate::world::{UPSTREAMS, World, pool};

const MEMBERS: [u16; 3] = [8001, 8002, 8003];
const SERVERS: [u8; 2] = [1, 2];
const CLIENTS: u16 = 5;

struct Run {
    w: World<Lines>,
    random: Random,
    at: BTreeMap<u32, Answering>,
    at_servers: BTreeMap<(u8, u32), Answering>,
    room: u32,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed);
        let mut w = World::new(Lines::default(), &MEMBERS);
        w.add_servers(&SERVERS);
        // Members of the first kind, of both, of the second.
        let kinds = seed % 3;
        let processes = if kinds < 2 { &MEMBERS[..] } else { &[] };
        let servers = if kinds > 0 { &SERVERS[..] } else { &[] };
        let of_servers: Vec<_> = servers.iter().copied().map(plain).collect();
        w.policy(ServiceSpec { pool: [pool(processes).pool, of_servers].concat(), ..pool(&[]) });
        w.losses.one_of = [0, 12, 50][random.below(3) as usize];
        w.lends = random.below(4) > 0;
        let room = [300, 5_000, 1 << 20][random.below(3) as usize];
        Run { w, random, at: BTreeMap::new(), at_servers: BTreeMap::new(), room }
    }

    /// Lets the members' processes do something. Some refuse a connection, if they may.
    fn serve(&mut self, may_refuse: bool) {
        while let Some((_, label)) = self.w.offers.front().copied() {
            if may_refuse && self.random.below(4) == 0 {
                self.w.offers.pop_front();
                self.w.says(label, MessageKind::Refused, 0, &[]);
                continue;
            }
            self.w.accept(self.room);
            self.at.insert(label.to_wire(), Answering::default());
        }
        for (id, served) in &mut self.at {
            let label = FlowLabel::from_wire(*id).unwrap();
            let conn = &self.w.served[id];
            if conn.closed || conn.reset {
                continue;
            }
            served.read(&conn.received, self.random.below(20_000) as usize);
            let more = served.read - served.credited;
            if more > 0 {
                served.credited += more;
                self.w.says(label, MessageKind::Credit, more as u32, &[]);
            }
            let len = served.answer.len().min(self.random.below(20_000) as usize);
            let sent = self.w.sends(label, &served.answer[..len]);
            served.answer.drain(..sent);
        }
        for member in MEMBERS {
            self.w.out.descriptors.insert(member.into(), self.random.below(4) as usize);
        }
        SERVERS.iter().for_each(|number| self.serve_plain(*number, may_refuse));
        self.w.settle();
    }

    /// Lets a plain server do something. For a time it may refuse connections.
    fn serve_plain(&mut self, number: u8, may_refuse: bool) {
        let Run { w, random, at_servers, .. } = self;
        let address = (server(number), SERVER_PORT).into();
        let host = w.server(number);
        host.tcp.unlisten(address);
        if !may_refuse || random.below(4) > 0 {
            host.tcp.listen(address, 0).unwrap();
        }
        for label in host.accepted.clone() {
            let connection = host.at_mut(label);
            if connection.end.is_some() {
                continue;
            }
            connection.stalls = random.below(3) == 0;
            let served = at_servers.entry((number, label.to_wire())).or_default();
            served.read(&connection.read, random.below(20_000) as usize);
            let len = served.answer.len().min(random.below(20_000) as usize);
            let part: Vec<u8> = served.answer.drain(..len).collect();
            host.write(label, &part);
        }
    }

    /// Has a plain server end one of its connections, or be silent for a time.
    fn fault_of_server(&mut self) {
        let number = 1 + self.random.below(2) as u8;
        let loses = self.w.losses.one_of > 0; // a lost RST is not repeated
        let (now, what, host) = (self.w.now, self.random.below(4), self.w.server(number));
        let last = host.accepted.last().copied();
        match (what, last) {
            (0, Some(label)) if !loses => host.tcp.abort(now, label),
            (1, Some(label)) => host.finish(label),
            (what, _) => host.silent = what == 2,
        }
    }

    /// Has plain servers end their connections.
    fn end_plain(&mut self, is_reset: bool) {
        self.w.losses.one_of = 0;
        for number in SERVERS {
            let (now, host) = (self.w.now, self.w.server(number));
            host.silent = false;
            for label in host.accepted.clone() {
                match is_reset {
                    true => host.tcp.abort(now, label),
                    false => host.finish(label),
                }
                host.at_mut(label).stalls = false;
            }
        }
    }

    /// Lets a client send, or stop to acknowledge for a while.
    fn client(&mut self, port: u16, talk: &mut Talk) {
        let stalls = self.random.below(4) == 0;
        self.w.clients.get_mut(&port).unwrap().stalled = stalls;
        let most = self.random.below(8_000) as usize;
        let end = talk.asks.len().min(talk.sent + most);
        while talk.sent < end {
            match self.w.client_sends(port, &talk.asks[talk.sent..end]) {
                0 => break,
                len => talk.sent += len,
            }
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let one = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    one.map_or(0..60, |seed| seed..seed + 1)
}

#[test]
fn what_clients_and_members_say_passes_byte_for_byte() {
    let (mut opened, mut retried) = (0, 0);
    for seed in seeds() {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        let mut talks: BTreeMap<u16, Talk> = BTreeMap::new();
        for port in 1_000..1_000 + CLIENTS {
            let requests = 1 + run.random.below(8);
            talks.insert(port, Talk::new(&mut run.random, requests));
            run.w.connect(port);
        }
        for round in 0.. {
            assert!(round < 50_000, "seed {seed}: it never ends");
            for (port, talk) in &mut talks {
                run.client(*port, talk);
            }
            // Fewer refusals than members, so that each request finds one in the end.
            run.serve(round % 16 == 0);
            run.w.pass(Duration::from_millis(run.random.below(50)));
            let done = |(port, talk): (&u16, &Talk)| run.w.clients[port].received.len() >= talk.expects.len();
            if talks.iter().all(done) {
                break;
            }
            let failed = |port: &u16| run.w.clients[port].received.ends_with(b"error\n");
            talks.retain(|port, _| !failed(port)); // all members have refused it
        }
        for (port, talk) in &talks {
            let client = run.w.clients.get_mut(port).unwrap();
            client.stalled = false;
            assert!(client.received == talk.expects && !client.rst, "seed {seed}: client {port}");
            run.w.client_finishes(*port);
        }
        let lines = run.w.core.local();
        assert!(run.w.core.upstream_count() <= UPSTREAMS, "seed {seed}");
        (opened, retried) = (opened + lines.opened, retried + lines.retried);
        MEMBERS
            .iter()
            .for_each(|m| run.w.core.channel_down(run.w.now, ChannelId((*m).into()), true, &mut run.w.out));
        run.end_plain(false);
        run.w.out.descriptors.clear();
        run.w.settle();
        run.w.pass(Duration::from_secs(300));
        assert_eq!(run.w.core.local().len(), 0, "seed {seed}");
        run.w.assert_empty();
    }
    println!("{opened} connections opened, {retried} times tried again");
    assert!(retried > 0 || std::env::var("CSP_SEED").is_ok());
}

/// Clients leave, and processes die, at any time: nothing hangs, and nothing is left.
#[test]
fn whoever_leaves_at_any_time_leaves_nothing() {
    for seed in seeds() {
        println!("seed {seed}");
        let mut run = Run::new(1_000 + seed);
        let mut talks: BTreeMap<u16, Talk> = BTreeMap::new();
        let mut port = 1_000;
        let mut alive: Vec<u16> = MEMBERS.to_vec();
        for round in 0..300 {
            if round < 250 && talks.len() < 6 {
                port += 1;
                talks.insert(port, Talk::new(&mut run.random, 3));
                run.w.connect(port);
            }
            for (port, talk) in &mut talks {
                run.client(*port, talk);
            }
            if run.random.below(4) == 0
                && let Some((port, _)) = talks.pop_first()
            {
                run.w.segment(port, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
            }
            let member = MEMBERS[run.random.below(3) as usize];
            match run.random.below(12) {
                0 if alive.contains(&member) => {
                    alive.retain(|known| *known != member);
                    run.w.offers.retain(|(process, _)| *process != u32::from(member));
                    run.at.retain(|id, _| run.w.served[id].process != u32::from(member));
                    let hangup = run.random.below(2) == 0;
                    run.w.core.channel_down(run.w.now, ChannelId(member.into()), hangup, &mut run.w.out);
                    run.w.settle();
                }
                1 if !alive.contains(&member) => {
                    alive.push(member);
                    run.w.process(member.into(), 64);
                }
                2..5 => run.fault_of_server(),
                _ => {}
            }
            run.serve(true);
            let over = |client: &crate::world::Client| client.rst || client.fin;
            talks.retain(|port, _| !over(&run.w.clients[port]));
            run.w.pass(Duration::from_millis(run.random.below(50)));
        }
        for port in talks.keys() {
            run.w.segment(*port, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
        }
        alive
            .iter()
            .for_each(|m| run.w.core.channel_down(run.w.now, ChannelId((*m).into()), false, &mut run.w.out));
        run.end_plain(true);
        run.w.out.descriptors.clear();
        run.w.settle();
        run.w.pass(Duration::from_secs(300));
        assert_eq!(run.w.core.local().len(), 0, "seed {seed}");
        run.w.assert_empty();
    }
}

/// A program of the cluster is a client, too; it reads slowly.
#[test]
fn a_program_of_the_cluster_is_served_as_a_client_is() {
    const PROGRAM: u32 = 9_000;
    const ROOM: usize = 3_000;
    let len = 200_000;
    for is_plain in [false, true] {
        let mut w = World::new(Lines::default(), &MEMBERS[..1]);
        w.add_servers(&SERVERS[..1]);
        if is_plain {
            w.policy(ServiceSpec { pool: vec![plain(SERVERS[0])], ..pool(&[]) });
        }
        w.process(PROGRAM, 0);
        let program = w.dial(PROGRAM, ROOM as u32);
        let put = [format!("put {len}\n").into_bytes(), body(len)].concat();
        let asks = [put, format!("get {len}\n").into_bytes()].concat();
        let expects = [format!("ok {len}\n{len}\n").into_bytes(), body(len)].concat();
        let (mut sent, mut credited) = (0, 0);
        let mut at_member = Answering::default();
        let mut upstream = None;
        for round in 0.. {
            assert!(round < 10_000, "{} of {}", w.served[&program.to_wire()].received.len(), expects.len());
            sent += w.sends(program, &asks[sent..]);
            if !w.offers.is_empty() {
                upstream = Some(w.accept(5_000).1);
            }
            match upstream {
                Some(upstream) => answer_of_process(&mut w, upstream, &mut at_member),
                None if is_plain => answer_of_server(&mut w, &mut at_member),
                None => {}
            }
            let received = w.served[&program.to_wire()].received.len();
            assert!(received - credited <= ROOM);
            w.says(program, MessageKind::Credit, (received - credited) as u32, &[]);
            credited = received;
            if received == expects.len() {
                break;
            }
        }
        assert!(w.served[&program.to_wire()].received == expects);
        w.says(program, MessageKind::Close, 0, &[]);
        match upstream {
            Some(upstream) => w.says(upstream, MessageKind::Close, 0, &[]),
            None => {
                let label = w.server(SERVERS[0]).accepted[0];
                w.server(SERVERS[0]).finish(label);
                w.settle();
                w.pass(Duration::from_secs(2));
            }
        }
        assert_eq!((w.core.local().len(), w.core.hairpin_count()), (0, 0));
        w.assert_empty();
    }
}

/// Has a process read, and send what its window holds.
fn answer_of_process(w: &mut World<Lines>, label: FlowLabel, at: &mut Answering) {
    let received = &w.served[&label.to_wire()].received;
    assert!(received.len() - at.credited <= 5_000);
    at.read(received, received.len());
    let more = at.read - at.credited;
    at.credited += more;
    w.says(label, MessageKind::Credit, more as u32, &[]);
    let sent = w.sends(label, &at.answer);
    at.answer.drain(..sent);
}

/// Has a plain server read and send.
fn answer_of_server(w: &mut World<Lines>, at: &mut Answering) {
    let host = w.server(SERVERS[0]);
    let label = host.accepted[0];
    let received = host.at(label).read.clone();
    at.read(&received, received.len());
    let answer = std::mem::take(&mut at.answer);
    host.write(label, &answer);
    w.settle();
    w.pass(Duration::from_millis(50)); // acknowledgements may be delayed
}
