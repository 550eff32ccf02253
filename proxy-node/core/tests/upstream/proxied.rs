//! Clients and members of the reverse proxy, in an order that a seed draws.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_proxy_core::ChannelId;
use csp_support::Random;
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use crate::lines::Lines;
use crate::world::{UPSTREAMS, World};

const MEMBERS: [u16; 3] = [8001, 8002, 8003];
const CLIENTS: u16 = 5;

/// The byte at this place of any body.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(byte).collect()
}

/// What a client sends, and what it is to receive.
#[derive(Default)]
struct Talk {
    asks: Vec<u8>,
    expects: Vec<u8>,
    sent: usize,
}

impl Talk {
    fn new(random: &mut Random, requests: u64) -> Talk {
        let mut talk = Talk::default();
        for _ in 0..requests {
            let most = [1, 100, 5_000, 60_000][random.below(4) as usize];
            let len = random.below(most) as usize;
            if random.below(2) == 0 {
                talk.asks.extend(format!("get {len}\n").into_bytes());
                talk.expects.extend(format!("{len}\n").into_bytes());
                talk.expects.extend(body(len));
            } else {
                talk.asks.extend(format!("put {len}\n").into_bytes());
                talk.asks.extend(body(len));
                talk.expects.extend(format!("ok {len}\n").into_bytes());
            }
        }
        talk
    }
}

/// A connection at a member's process: what it has read, and what it has still to send.
#[derive(Default)]
struct Answering {
    read: usize,
    credited: usize,
    /// Bytes of a body that it still receives, and their number.
    puts: Option<(usize, usize)>,
    answer: Vec<u8>,
}

impl Answering {
    /// Reads what has arrived, up to `most` bytes.
    fn read(&mut self, received: &[u8], most: usize) {
        let end = received.len().min(self.read + most);
        while self.read < end {
            if let Some((left, len)) = self.puts {
                let now = left.min(end - self.read);
                let at = len - left;
                assert!(received[self.read..self.read + now].iter().copied().eq((at..at + now).map(byte)));
                (self.read, self.puts) = (self.read + now, Some((left - now, len)));
            } else {
                let Some(line) = received[self.read..end].iter().position(|b| *b == b'\n') else { return };
                let text = std::str::from_utf8(&received[self.read..self.read + line]).unwrap();
                self.read += line + 1;
                let len = text[4..].parse().unwrap();
                match text.starts_with("put ") {
                    true => self.puts = Some((len, len)),
                    false => {
                        self.answer.extend(format!("{len}\n").into_bytes());
                        self.answer.extend(body(len));
                    }
                }
            }
            if let Some((0, len)) = self.puts {
                self.puts = None;
                self.answer.extend(format!("ok {len}\n").into_bytes());
            }
        }
    }
}

struct Run {
    w: World<Lines>,
    random: Random,
    at: BTreeMap<u32, Answering>,
    room: u32,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed);
        let mut w = World::new(Lines::default(), &MEMBERS);
        w.lends = random.below(4) > 0;
        let room = [300, 5_000, 1 << 20][random.below(3) as usize];
        Run { w, random, at: BTreeMap::new(), room }
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
        self.w.settle();
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
    one.map_or(0..40, |seed| seed..seed + 1)
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
    let mut w = World::new(Lines::default(), &MEMBERS[..1]);
    w.process(PROGRAM, 0);
    let program = w.dial(PROGRAM, ROOM as u32);
    let asks = [format!("put {len}\n").into_bytes(), body(len), format!("get {len}\n").into_bytes()].concat();
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
        if let Some(upstream) = upstream {
            let received = &w.served[&upstream.to_wire()].received;
            assert!(received.len() - at_member.credited <= 5_000);
            at_member.read(received, received.len());
            let more = at_member.read - at_member.credited;
            at_member.credited += more;
            w.says(upstream, MessageKind::Credit, more as u32, &[]);
            let sent = w.sends(upstream, &at_member.answer);
            at_member.answer.drain(..sent);
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
    w.says(upstream.unwrap(), MessageKind::Close, 0, &[]);
    assert_eq!((w.core.local().len(), w.core.hairpin_count()), (0, 0));
    w.assert_empty();
}
