//! Calls of several clients through members that speak HTTP/2, in any division and with any fault, in an
//! order that a seed draws.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_gateway::spec::{MemberHttp2, ServiceConfig, Timeouts};
use csp_http::head::Scheme;
use csp_http2::{Limits, Reason as Code};
use csp_support::Random;
use csp_wire::channel::MessageKind;

use crate::http::{A, B, Http};
use crate::http2::Client;
use crate::random::{body, seeds};
use crate::servers::{OK, Servers, over_http2};

/// A request of a client.
struct Call {
    id: u64,
    up: Vec<u8>,
    sent: usize,
    ends: bool,
    down: usize,
}

/// What a member still has to send on a stream.
#[derive(Default)]
struct Answer {
    id: u64,
    body: Vec<u8>,
    sent: usize,
    is_begun: bool,
}

struct Run {
    h: Http,
    random: Random,
    servers: Servers,
    clients: Vec<Client>,
    calls: BTreeMap<(u16, u32), Call>,
    answers: BTreeMap<(usize, u32), Answer>,
    /// How often each request was begun at a member and was neither refused nor lost.
    processed: BTreeMap<u64, usize>,
    ids: u64,
    faulty: bool,
    config: ServiceConfig,
}

impl Run {
    fn new(seed: u64, faulty: bool) -> Run {
        let mut random = Random::new(seed);
        let member_http2 = MemberHttp2 {
            connections: 1 + random.below(4) as usize,
            streams_max: [1, 3, 100][random.below(3) as usize],
            ..over_http2().member_http2
        };
        let long = Duration::from_secs(150);
        let timeouts = Timeouts { body_idle: long, response: long, connect: long, ..Timeouts::default() };
        let config = ServiceConfig { member_http2, timeouts, ..over_http2() };
        let mut h = Http::new(config.clone());
        h.w.lends = random.below(4) > 0;
        h.room = [300, 5_000, 1 << 20][random.below(3) as usize];
        let mut servers = Servers::new();
        servers.limits = Limits { streams_max: [1, 4, 100][random.below(3) as usize], ..Limits::default() };
        let clients = (1_000..1_003).map(|port| Client::connect(&mut h, port)).collect();
        let (calls, answers, processed) = Default::default();
        Run { h, random, servers, clients, calls, answers, processed, ids: 0, faulty, config }
    }

    fn len(&mut self) -> usize {
        let most = [1, 100, 5_000, 60_000][self.random.below(4) as usize];
        self.random.below(most) as usize
    }

    /// Lets a client begin a request, and send some of those that it has begun.
    fn client(&mut self, at: usize, may_begin: bool) {
        let port = self.clients[at].port;
        let is_open = !self.clients[at].is_closed && !self.h.w.clients[&port].rst;
        if may_begin && is_open && self.random.below(2) == 0 && self.clients[at].machine.can_open() {
            self.ids += 1;
            let (id, up, down) = (self.ids, self.len(), self.len());
            let is_get = self.random.below(3) == 0;
            let (method, field, up) = match is_get {
                true => ("GET", "", Vec::new()),
                false => ("POST", "Transfer-Encoding: chunked\r\n", body(id, up)),
            };
            let head = format!("{method} /{id}/{down} HTTP/1.1\r\nHost: a\r\n{field}\r\n");
            let machine = &mut self.clients[at].machine;
            let stream = machine.request_text(head.as_bytes(), Scheme::Http, is_get).unwrap();
            self.calls.insert((port, stream), Call { id, up, sent: 0, ends: is_get, down });
        }
        let client = &mut self.clients[at];
        for ((_, stream), call) in self.calls.iter_mut().filter(|((of, _), call)| *of == port && !call.ends) {
            let end = call.up.len().min(call.sent + self.random.below(9_000) as usize);
            let is_last = end == call.up.len();
            call.sent += client.machine.send(*stream, &call.up[call.sent..end], is_last);
            call.ends = is_last && call.sent == end;
        }
        if self.faulty
            && self.random.below(40) == 0
            && let Some((key, _)) = self.calls.first_key_value()
        {
            let (of, stream) = *key;
            if of == port {
                client.machine.reset(stream, Code::CANCEL);
                self.calls.remove(&(of, stream));
                client.got.remove(&stream);
            }
        }
        client.stalled = self.random.below(4) == 0;
        client.run(&mut self.h);
        if self.faulty && self.random.below(300) == 0 && is_open {
            client.leave(&mut self.h);
            self.calls.retain(|(of, _), _| *of != port);
        }
    }

    /// Lets the members do something.
    fn members(&mut self) {
        while let Some((_, label)) = self.h.w.offers.front().copied() {
            self.h.w.offers.retain(|(_, other)| *other != label);
            self.h.w.offers.push_front((0, label));
            if self.faulty && self.random.below(6) == 0 {
                self.h.w.offers.pop_front();
                self.h.w.says(label, MessageKind::Refused, 0, &[]);
            } else {
                self.servers.accept(&mut self.h);
            }
        }
        // Connections of the policy before keep the room of others.
        if self.faulty && self.random.below(40) == 0 {
            self.h.set(self.config.clone());
        }
        for at in 0..self.servers.all.len() {
            if !self.servers.all[at].is_closed {
                self.member(at);
            }
        }
    }

    /// Bounds the messages that lanes of members accept until the next turn.
    fn bound_lanes(&mut self) {
        for member in [A, B] {
            self.h.w.out.descriptors.insert(member.into(), 1 + self.random.below(4) as usize);
        }
        self.h.w.settle();
    }

    fn member(&mut self, at: usize) {
        self.servers.all[at].run(&mut self.h);
        if self.servers.all[at].is_closed {
            return;
        }
        if self.faulty && self.random.below(80) == 0 {
            let label = self.servers.all[at].label;
            let how = if self.random.below(2) == 0 { MessageKind::Close } else { MessageKind::Reset };
            self.servers.all[at].is_closed = true;
            return self.h.w.says(label, how, 0, &[]);
        }
        // Connections that end with their streams keep the room of others.
        if self.random.below(60) == 0 && (self.faulty || at < 3) {
            self.servers.all[at].machine.go_away();
        }
        for stream in self.servers.all[at].open() {
            let server = &mut self.servers.all[at];
            if !self.answers.contains_key(&(at, stream)) {
                // Refused before anything of it was processed.
                if self.random.below(12) == 0 && server.got[&stream].body.is_empty() && self.faulty {
                    server.machine.reset(stream, Code::REFUSED_STREAM);
                    server.got.remove(&stream);
                    continue;
                }
                let head = server.got[&stream].head.clone();
                let mut parts = head.split(['/', ' ']);
                let (method, id) = (parts.next().unwrap(), parts.nth(1).unwrap().parse().unwrap());
                let len = parts.next().unwrap().parse().unwrap();
                if method == "POST" {
                    *self.processed.entry(id).or_default() += 1;
                }
                let answer = Answer { id, body: body(id, len), ..Answer::default() };
                self.answers.insert((at, stream), answer);
            }
            self.answer(at, stream);
        }
        self.servers.all[at].run(&mut self.h);
    }

    fn answer(&mut self, at: usize, stream: u32) {
        let server = &mut self.servers.all[at];
        let Some(answer) = self.answers.get_mut(&(at, stream)) else { return };
        let asked = &server.got[&stream];
        let sent = body(answer.id, asked.body.len());
        assert!(asked.body == sent, "request {}", answer.id);
        if self.faulty && self.random.below(100) == 0 {
            server.machine.reset(stream, Code::INTERNAL_ERROR);
            server.got.remove(&stream);
            return;
        }
        if !answer.is_begun && self.random.below(2) == 0 {
            answer.is_begun = server.machine.respond_text(stream, OK.as_bytes(), false).is_ok();
        }
        if !answer.is_begun {
            return;
        }
        let end = answer.body.len().min(answer.sent + self.random.below(20_000) as usize);
        answer.sent += server.machine.send(stream, &answer.body[answer.sent..end], false);
        // Some responses end before their requests.
        if answer.sent == answer.body.len() && (asked.ended || answer.id % 7 == 0) {
            let section = format!("grpc-status: {}\r\n\r\n", answer.id);
            if server.machine.trailers(stream, section.as_bytes()).is_ok() {
                server.got.remove(&stream);
            }
        }
    }

    /// Checks responses that are over, and forgets them.
    fn check(&mut self) {
        let Run { clients, calls, faulty, .. } = self;
        calls.retain(|(port, stream), call| {
            let client = clients.iter().find(|client| client.port == *port).unwrap();
            let Some(got) = client.got.get(stream) else { return true };
            if !got.done && got.reset.is_none() {
                return true;
            }
            let is_right = got.done && got.heads[0].starts_with("HTTP/1.1 200");
            if is_right {
                assert!(
                    got.body == body(call.id, call.down),
                    "request {}: {} bytes",
                    call.id,
                    got.body.len()
                );
                assert!(got.trailers.contains(&format!("grpc-status: {}\r\n", call.id)), "{got:?}");
            }
            // GOAWAY crosses a request of which more than is kept has passed.
            let is_502 = got.heads.first().is_some_and(|head| head.starts_with("HTTP/1.1 502"));
            let is_crossed = call.sent > 16 << 10 && is_502;
            assert!(is_right || *faulty || is_crossed, "request {}: {:?}", call.id, got.heads);
            false
        });
    }
}

/// Every response is that of its request, with its trailers; nothing is done twice, and nothing is left.
#[test]
fn calls_in_any_order_get_their_own_responses() {
    for faulty in [false, true] {
        for seed in seeds(5_000, 60) {
            println!("seed {seed} faulty {faulty}");
            let mut run = Run::new(seed, faulty);
            for round in 0.. {
                assert!(round < 20_000, "seed {seed}: it never ends");
                for at in 0..run.clients.len() {
                    run.client(at, round < 40);
                }
                run.members();
                run.bound_lanes();
                let pause = run.random.below(20);
                run.h.w.pass(Duration::from_millis(pause));
                run.check();
                if round > 40 && run.calls.is_empty() {
                    break;
                }
            }
            for (id, times) in &run.processed {
                assert!(*times == 1, "seed {seed}: request {id} was processed {times} times");
            }
            for client in &mut run.clients {
                if !run.h.w.clients[&client.port].rst {
                    client.leave(&mut run.h);
                }
            }
            run.h.w.out.descriptors.clear();
            for _ in 0..4 {
                run.members();
                run.h.w.pass(Duration::from_secs(100));
            }
            run.h.assert_no_leak();
        }
    }
}
