//! Clients and members that send in any division, in an order that a seed draws.
//!
//! A request's path says how its member answers: `/ID/FRAMING/LENGTH`. Bodies are made of the id.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_gateway::spec::{ServiceConfig, Timeouts};
use csp_http::head::Scheme;
use csp_proxy_core::ChannelId;
use csp_support::Random;
use csp_types::FlowLabel;
use csp_wire::channel::{MessageKind, close_argument};
use csp_wire::tcp::Flags;

use crate::http::{Http, service};

const CLIENTS: u16 = 5;
const MEMBERS: [u16; 2] = [8001, 8002];
/// Rounds in which clients may receive nothing.
const STALLS_MAX: usize = 200;

pub fn body(id: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((id as usize * 31 + at) % 251) as u8).collect()
}

/// Writes a body in chunks of random sizes.
fn chunked(random: &mut Random, body: &[u8]) -> Vec<u8> {
    let (mut text, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let most = [10, 500, 9_000][random.below(3) as usize];
        let len = rest.len().min(1 + random.below(most) as usize);
        text.extend(format!("{len:x}\r\n").into_bytes());
        text.extend(&rest[..len]);
        text.extend(b"\r\n");
        rest = &rest[len..];
    }
    text.extend(b"0\r\n\r\n");
    text
}

/// A message at the start of bytes.
struct Message {
    line: String,
    body: Vec<u8>,
    len: usize,
}

/// Reads a message. `None`: it is not complete. `finished`: nothing follows.
fn message(bytes: &[u8], finished: bool) -> Option<Message> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let line = head.lines().next().unwrap().to_owned();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let mut rest = &bytes[end..];
    let body = if let Some(length) = field("Content-Length: ") {
        let body = rest.get(..length.parse().unwrap())?;
        rest = &rest[body.len()..];
        body.to_vec()
    } else if field("Transfer-Encoding: chunked").is_some() {
        let mut body = Vec::new();
        loop {
            let line = rest.windows(2).position(|two| two == b"\r\n")?;
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            rest = &rest[line + 2..];
            body.extend(rest.get(..size)?);
            assert_eq!(rest.get(size..size + 2)?, b"\r\n");
            rest = &rest[size + 2..];
            if size == 0 {
                break;
            }
        }
        body
    } else if line.starts_with("HTTP/") && !line.contains(" 204") && !line.contains(" 1") {
        if !finished {
            return None;
        }
        std::mem::take(&mut rest).to_vec()
    } else {
        Vec::new()
    };
    Some(Message { line, body, len: bytes.len() - rest.len() })
}

/// What a client sends, and how much of it was sent; the ids of its requests.
#[derive(Default)]
struct Talk {
    asks: Vec<u8>,
    sent: usize,
    ids: Vec<(u64, usize)>,
}

impl Talk {
    fn new(random: &mut Random, ids: &mut u64, requests: u64) -> Talk {
        let mut talk = Talk::default();
        for _ in 0..requests {
            *ids += 1;
            let most = [1, 100, 5_000, 60_000];
            let (up, down) = (most[random.below(4) as usize], most[random.below(4) as usize]);
            let (up, down) = (random.below(up) as usize, random.below(down) as usize);
            let framing = ["length", "chunked", "close", "none", "early"][random.below(5) as usize];
            let down = if framing == "none" { 0 } else { down };
            let path = format!("/{ids}/{framing}/{down} HTTP/1.1\r\nHost: a\r\n");
            let (method, up) = match random.below(4) {
                0 | 1 => ("GET", None),
                2 => ("POST", Some(up)),
                _ => ("PUT", Some(up)),
            };
            talk.asks.extend(format!("{method} {path}").into_bytes());
            match up {
                None => talk.asks.extend(b"\r\n"),
                Some(len) if random.below(2) == 0 => {
                    talk.asks.extend(format!("Content-Length: {len}\r\n\r\n").into_bytes());
                    talk.asks.extend(body(*ids, len));
                }
                Some(len) => {
                    talk.asks.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                    talk.asks.extend(chunked(random, &body(*ids, len)));
                }
            }
            talk.ids.push((*ids, down));
        }
        talk
    }
}

/// A connection at a process.
#[derive(Default)]
struct Served {
    read: usize,
    answer: Vec<u8>,
    /// It ends when the answer is sent.
    closes: bool,
    over: bool,
    requests: usize,
}

/// Times that a client which receives nothing for a while does not exceed.
fn times() -> Timeouts {
    let long = Duration::from_secs(150);
    Timeouts { body_idle: long, idle: long, ..Timeouts::default() }
}

pub struct Run {
    pub h: Http,
    pub random: Random,
    at: BTreeMap<u32, Served>,
    /// How often each request was processed: a request whose method is not idempotent.
    done: BTreeMap<u64, usize>,
    posts: Vec<u64>,
    rounds: usize,
    alive: Vec<u16>,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Faults {
    /// Kept connections close when a request comes.
    Kept,
    /// Anything.
    Any,
}

impl Run {
    pub fn new(seed: u64, config: ServiceConfig) -> Run {
        let mut random = Random::new(seed);
        // With HTTPS parts of heads are taken out of the connection.
        let scheme = if random.below(2) == 0 { Scheme::Http } else { Scheme::Https };
        let mut h = Http::new(ServiceConfig { scheme, timeouts: times(), ..config });
        h.w.lends = random.below(4) > 0;
        h.room = [300, 5_000, 1 << 20][random.below(3) as usize];
        Run {
            h,
            random,
            at: BTreeMap::new(),
            done: BTreeMap::new(),
            posts: Vec::new(),
            rounds: 0,
            alive: MEMBERS.to_vec(),
        }
    }

    fn client(&mut self, port: u16, talk: &mut Talk) {
        // What a stalled client does not receive is sent again, ever more slowly: in the end none stalls.
        let stalls = self.random.below(4) == 0 && self.rounds < STALLS_MAX;
        self.h.w.clients.get_mut(&port).unwrap().stalled = stalls;
        let end = talk.asks.len().min(talk.sent + self.random.below(8_000) as usize);
        while talk.sent < end {
            let piece = 1 + self.random.below(1_400) as usize;
            match self.h.w.client_sends(port, &talk.asks[talk.sent..end.min(talk.sent + piece)]) {
                0 => break,
                len => talk.sent += len,
            }
        }
    }

    /// Has another policy come into force, with the same rules and pools.
    fn reload(&mut self) {
        let config = ServiceConfig { timeouts: times(), ..service() };
        self.h.set(config);
        self.h.w.policy(crate::world::pool(&MEMBERS));
    }

    /// Has a process die, or another one take its place.
    fn change_processes(&mut self) {
        let member = MEMBERS[self.random.below(2) as usize];
        match self.alive.iter().position(|known| *known == member) {
            Some(at) => {
                self.alive.remove(at);
                self.h.w.offers.retain(|(process, _)| *process != u32::from(member));
                let served = &self.h.w.served;
                self.at.retain(|id, _| served[id].process != u32::from(member));
                // Not in order: a body that ends with its connection would be whole.
                self.h.w.core.channel_down(self.h.w.now, ChannelId(member.into()), false, &mut self.h.w.out);
                self.h.w.settle();
            }
            None => {
                self.alive.push(member);
                self.h.w.process(member.into(), 64);
            }
        }
    }

    /// Lets the processes do something.
    pub fn serve(&mut self, faults: Faults) {
        self.rounds += 1;
        while let Some((_, label)) = self.h.w.offers.front().copied() {
            // An offer that was withdrawn stands before the one of another process.
            self.h.w.offers.retain(|(_, other)| *other != label);
            if faults == Faults::Any && self.random.below(6) == 0 {
                self.h.w.says(label, MessageKind::Refused, 0, &[]);
                continue;
            }
            let room = self.h.room;
            self.h.w.says(label, MessageKind::Accepted, room, &[]);
            self.at.insert(label.to_wire(), Served::default());
        }
        let labels: Vec<u32> = self.at.keys().copied().collect();
        for id in labels {
            let mut served = self.at.remove(&id).unwrap();
            self.serve_one(FlowLabel::from_wire(id).unwrap(), &mut served, faults);
            self.at.insert(id, served);
        }
        for member in MEMBERS {
            self.h.w.out.descriptors.insert(member.into(), 1 + self.random.below(4) as usize);
        }
        self.h.w.settle();
    }

    fn serve_one(&mut self, label: FlowLabel, served: &mut Served, faults: Faults) {
        let at = &self.h.w.served[&label.to_wire()];
        if served.over || at.closed || at.reset {
            return;
        }
        let unread = at.received.len() > served.read;
        let is_kept = served.requests > 0 && served.answer.is_empty() && unread;
        let breaks = faults == Faults::Any && self.random.below(60) == 0;
        if is_kept && self.random.below(4) == 0 || breaks {
            served.over = true;
            // A body that ends with its connection is whole for everybody, unless that is reset.
            let closes = self.random.below(2) == 0 && !served.closes;
            let how = if closes { MessageKind::Close } else { MessageKind::Reset };
            return self.h.w.says(label, how, close_argument(Some(served.read as u32)), &[]);
        }
        if served.answer.is_empty() && !served.closes {
            self.read(label, served);
        }
        let ended = self.h.w.served[&label.to_wire()].finished;
        self.h.hears(label);
        if self.h.w.served[&label.to_wire()].reset {
            return;
        }
        let len = served.answer.len().min(self.random.below(20_000) as usize);
        let sent = self.h.w.sends(label, &served.answer[..len]);
        served.answer.drain(..sent);
        if served.answer.is_empty() && (served.closes || ended) && !self.h.w.served[&label.to_wire()].reset {
            served.over = true;
            self.h.closes(label);
        }
    }

    /// Reads the next request, if it is complete or answered early.
    fn read(&mut self, label: FlowLabel, served: &mut Served) {
        let received = &self.h.w.served[&label.to_wire()].received[served.read..];
        let is_early = received.windows(7).take(60).any(|seven| seven == b"/early/");
        let head = received.windows(4).position(|four| four == b"\r\n\r\n");
        let (line, is_whole) = match (message(received, false), head) {
            (Some(message), _) => {
                let id: u64 = message.line.split('/').nth(1).unwrap().parse().unwrap();
                assert!(message.body == body(id, message.body.len()), "{}", message.line);
                served.read += message.len;
                (message.line, true)
            }
            (None, Some(end)) if is_early => {
                let line = std::str::from_utf8(&received[..end]).unwrap().lines().next().unwrap().to_owned();
                (line, false)
            }
            _ => return,
        };
        served.requests += 1;
        let mut parts = line.split(['/', ' ']);
        let method = parts.next().unwrap();
        let id: u64 = parts.nth(1).unwrap().parse().unwrap();
        let (framing, len) = (parts.next().unwrap(), parts.next().unwrap().parse().unwrap());
        *self.done.entry(id).or_default() += 1;
        if method == "POST" {
            self.posts.push(id);
        }
        if self.random.below(4) == 0 {
            served.answer.extend(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        }
        let (text, body) = (&mut served.answer, body(id, len));
        match framing {
            "none" => text.extend(b"HTTP/1.1 204 No Content\r\n\r\n"),
            "chunked" => {
                text.extend(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                text.extend(chunked(&mut self.random, &body));
            }
            "close" => {
                text.extend(b"HTTP/1.1 200 OK\r\n\r\n");
                text.extend(body);
                served.closes = true;
            }
            _ => {
                text.extend(format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").into_bytes());
                text.extend(body);
                served.closes |= !is_whole;
            }
        }
    }

    /// Checks what a client has received, as far as it is complete; returns the number of final responses.
    fn check(&self, port: u16, talk: &Talk, faults: Faults) -> usize {
        let client = &self.h.w.clients[&port];
        let (mut rest, mut count) = (&client.received[..], 0);
        while let Some(message) = message(rest, client.fin) {
            rest = &rest[message.len..];
            if message.line.contains(" 103 ") {
                continue;
            }
            let (id, len) = talk.ids[count];
            count += 1;
            match message.line.as_str() {
                "HTTP/1.1 200 OK" | "HTTP/1.1 204 No Content" => {
                    assert!(message.body == body(id, len), "request {id}: {} of {len}", message.body.len());
                }
                line => {
                    assert_eq!(faults, Faults::Any, "request {id}: {line}");
                    assert!(line.contains(" 502 ") || line.contains(" 503 "), "{line}");
                }
            }
        }
        if faults == Faults::Kept {
            let is_idle = count == talk.ids.len(); // its time may have passed
            assert!(is_idle || (!client.rst && !client.fin), "it is kept");
        }
        count
    }

    pub fn end(mut self, seed: u64) {
        for (id, times) in &self.done {
            assert!(*times == 1 || !self.posts.contains(id), "seed {seed}: POST {id} was done {times} times");
        }
        self.h.w.out.descriptors.clear();
        self.h.w.clients.values_mut().for_each(|client| client.stalled = false);
        self.h.assert_no_leak();
    }
}

pub fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let one = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    one.map_or(first..first + count, |seed| seed..seed + 1)
}

/// Kept connections close whenever a request comes: every request is answered by its member's response.
#[test]
fn requests_are_answered_whatever_becomes_of_kept_connections() {
    let mut stale = 0;
    for seed in seeds(0, 60) {
        println!("seed {seed}");
        let (mut run, mut ids) = (Run::new(seed, service()), 0);
        let mut talks = BTreeMap::new();
        for port in 1_000..1_000 + CLIENTS {
            let requests = 1 + run.random.below(8);
            talks.insert(port, Talk::new(&mut run.random, &mut ids, requests));
            run.h.w.connect(port);
        }
        for round in 0.. {
            assert!(round < 20_000, "seed {seed}: it never ends");
            for (port, talk) in &mut talks {
                run.client(*port, talk);
            }
            run.serve(Faults::Kept);
            if run.random.below(40) == 0 {
                run.reload();
            }
            let pause = run.random.below(20);
            run.h.w.pass(Duration::from_millis(pause));
            let is_done =
                |(port, talk): (&u16, &Talk)| run.check(*port, talk, Faults::Kept) == talk.ids.len();
            if talks.iter().all(is_done) {
                break;
            }
        }
        stale += run.h.gateway().snapshot().upstreams.stale;
        let codes = run.h.codes();
        assert!(codes.iter().all(|(_, code)| *code == "ok"), "seed {seed}: {codes:?}");
        run.end(seed);
    }
    assert!(stale > 20 || std::env::var("CSP_SEED").is_ok(), "{stale} kept connections were closed");
}

/// Members refuse, close and reset, and clients leave, at any time: nothing hangs, no POST is done twice, no
/// response is mixed up, and nothing is left.
#[test]
fn whatever_fails_nothing_is_left() {
    for seed in seeds(1_000, 60) {
        println!("seed {seed}");
        let (mut run, mut ids, mut port) = (Run::new(seed, service()), 0, 1_000);
        let mut talks: BTreeMap<u16, Talk> = BTreeMap::new();
        for round in 0..200 {
            if round < 170 && talks.len() < 6 {
                port += 1;
                talks.insert(port, Talk::new(&mut run.random, &mut ids, 4));
                run.h.w.connect(port);
            }
            for (port, talk) in &mut talks {
                run.client(*port, talk);
            }
            if run.random.below(6) == 0
                && let Some((port, talk)) = talks.pop_first()
            {
                run.check(port, &talk, Faults::Any);
                run.h.w.segment(port, Flags::RST | Flags::ACK, &[]);
                run.h.w.clients.get_mut(&port).unwrap().rst = true;
            }
            run.serve(Faults::Any);
            if run.random.below(20) == 0 {
                run.change_processes();
            }
            talks.retain(|port, talk| {
                run.check(*port, talk, Faults::Any);
                let client = &run.h.w.clients[port];
                !client.rst && !client.fin
            });
            let pause = run.random.below(50);
            run.h.w.pass(Duration::from_millis(pause));
        }
        run.end(seed);
    }
}
