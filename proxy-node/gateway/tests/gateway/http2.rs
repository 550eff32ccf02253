//! Clients of HTTP/2, by the other end of `csp-http2`.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_gateway::spec::{ServiceConfig, Timeouts};
use csp_http::head::Scheme;
use csp_http2::{ClientConnection, ClientEvent, Limits};
use csp_wire::channel::MessageKind;
use csp_wire::tcp::Flags;

use crate::http::{Http, service};
use crate::random::{Faults, Run, body};

/// What a client has got on a stream.
#[derive(Default, Debug)]
pub struct Got {
    pub heads: Vec<String>,
    pub body: Vec<u8>,
    pub trailers: String,
    pub done: bool,
    pub reset: Option<String>,
}

/// A client of HTTP/2 at a port.
pub struct Client {
    pub port: u16,
    pub machine: ClientConnection,
    read: usize,
    pub got: BTreeMap<u32, Got>,
    pub is_closed: bool,
    /// It takes no payload at present.
    pub stalled: bool,
    /// It takes no payload of this stream.
    pub stalled_stream: u32,
}

impl Client {
    pub fn connect(h: &mut Http, port: u16) -> Client {
        Client::with_limits(h, port, &Limits::default())
    }

    pub fn with_limits(h: &mut Http, port: u16, limits: &Limits) -> Client {
        h.w.connect(port);
        let machine = ClientConnection::new(limits);
        let got = BTreeMap::new();
        let mut client =
            Client { port, machine, read: 0, got, is_closed: false, stalled: false, stalled_stream: 0 };
        client.run(h);
        client
    }

    /// Passes bytes both ways until nothing moves.
    pub fn run(&mut self, h: &mut Http) {
        let mut idle = 0;
        while idle < 2 {
            self.machine.poll();
            self.events();
            let mut moved = false;
            loop {
                let output = self.machine.output();
                let len = if output.is_empty() { 0 } else { h.w.client_sends(self.port, output) };
                if len == 0 {
                    break;
                }
                moved = true;
                self.machine.sent(len);
                self.machine.poll();
                self.events();
            }
            let received = &h.w.clients[&self.port].received[self.read..];
            let now = h.w.now;
            let len = if received.is_empty() { 0 } else { self.machine.receive(now, &[received]) };
            self.read += len;
            if h.w.clients[&self.port].fin && self.read == h.w.clients[&self.port].received.len() {
                self.machine.receive_end();
            }
            self.machine.poll();
            self.events();
            idle = if moved || len > 0 || self.machine.wants_poll() { 0 } else { idle + 1 };
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.machine.next_event() {
            match event {
                ClientEvent::Response { stream, head, .. } => {
                    let head = String::from_utf8_lossy(head).into_owned();
                    self.got.entry(stream).or_default().heads.push(head);
                }
                ClientEvent::End { stream, trailers } => {
                    self.got.entry(stream).or_default().trailers =
                        String::from_utf8_lossy(trailers).into_owned();
                }
                ClientEvent::Done { stream } => self.got.entry(stream).or_default().done = true,
                ClientEvent::Reset { stream, reason, .. } => {
                    self.got.entry(stream).or_default().reset = Some(format!("{reason:?}"));
                }
                ClientEvent::Closed { .. } => self.is_closed = true,
                ClientEvent::Readable { .. } | ClientEvent::Room { .. } | ClientEvent::GoneAway => {}
            }
        }
        for (stream, got) in self.got.iter_mut().filter(|_| !self.stalled) {
            if *stream == self.stalled_stream {
                continue;
            }
            while !self.machine.data(*stream).is_empty() {
                let data = self.machine.data(*stream).to_vec();
                got.body.extend_from_slice(&data);
                self.machine.release(*stream, data.len());
            }
        }
    }

    /// Ends the connection.
    pub fn leave(&mut self, h: &mut Http) {
        h.w.segment(self.port, Flags::RST | Flags::ACK, &[]);
        h.w.clients.get_mut(&self.port).unwrap().rst = true;
    }

    pub fn ask(&mut self, h: &mut Http, head: &str, end: bool) -> u32 {
        let stream = self.machine.request_text(head.as_bytes(), Scheme::Http, end).unwrap();
        self.run(h);
        stream
    }

    pub fn send(&mut self, h: &mut Http, stream: u32, bytes: &[u8], end: bool) {
        assert_eq!(self.machine.send(stream, bytes, end), bytes.len());
        self.run(h);
    }
}

pub fn http2() -> ServiceConfig {
    ServiceConfig { http2: Some(Limits::default()), ..service() }
}

pub const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn streams_have_exchanges_of_their_own() {
    let mut h = Http::new(http2());
    let mut client = Client::connect(&mut h, 1_000);
    let first = client.ask(&mut h, GET, true);
    let second = client.ask(&mut h, "GET /b HTTP/1.1\r\nHost: a\r\n\r\n", true);
    let (one, two) = (h.accept(), h.accept());
    assert!(h.hears(one).starts_with("GET /a HTTP/1.1\r\nHost: a\r\n"));
    assert!(h.hears(two).starts_with("GET /b HTTP/1.1\r\nHost: a\r\n"));
    // The second one is answered first.
    h.says(two, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nbb");
    client.run(&mut h);
    let got = &client.got[&second];
    assert!(got.heads[0].starts_with("HTTP/1.1 200") && got.heads[0].contains("x: y\r\n"), "{got:?}");
    assert_eq!((&got.body[..], got.done), (&b"bb"[..], true));
    h.says(one, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    h.says(one, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n");
    client.run(&mut h);
    let got = &client.got[&first];
    assert_eq!((got.heads.len(), &got.body[..], got.done), (2, &b"a"[..], true));
    assert!(got.trailers.to_ascii_lowercase().contains("x-sum: 1"), "{got:?}");
    assert_eq!(h.gateway().snapshot().upstreams.idle, 2);
    // Kept connections carry further streams, without a body and until the end of the connection.
    let third = client.ask(&mut h, "HEAD /c HTTP/1.1\r\nHost: a\r\n\r\n", true);
    h.says(two, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
    let fourth = client.ask(&mut h, GET, true);
    h.says(one, "HTTP/1.1 200 OK\r\n\r\nuntil the end");
    h.closes(one);
    client.run(&mut h);
    assert!(client.got[&third].done && client.got[&third].body.is_empty());
    assert_eq!(client.got[&fourth].body, b"until the end");
    assert_eq!(h.codes(), [(200, "ok"); 4]);
    h.assert_no_leak();
}

#[test]
fn bodies_of_requests_pass_with_trailers() {
    let mut h = Http::new(http2());
    let mut client = Client::connect(&mut h, 1_000);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let stream = client.ask(&mut h, post, false);
    client.send(&mut h, stream, b"hello", false);
    let member = h.accept();
    assert!(h.hears(member).ends_with("ransfer-Encoding: chunked\r\n\r\n5\r\nhello"));
    client.send(&mut h, stream, b"you", false);
    client.machine.trailers(stream, b"X-Sum: 8\r\n\r\n").unwrap();
    client.run(&mut h);
    assert_eq!(h.hears(member).to_ascii_lowercase(), "\r\n3\r\nyou\r\n0\r\nx-sum: 8\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    client.run(&mut h);
    assert!(client.got[&stream].done);
    // With a length.
    let stream = client.ask(&mut h, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", false);
    client.send(&mut h, stream, b"abc", true);
    assert!(h.hears(member).ends_with("ontent-Length: 3\r\n\r\nabc"));
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    client.run(&mut h);
    assert!(client.got[&stream].done);
    assert_eq!(h.records().iter().map(|record| record.received).collect::<Vec<_>>(), [8, 3]);
    h.assert_no_leak();
}

#[test]
fn answers_of_the_gateway_and_faults_of_members_are_those_of_http_1() {
    let mut config = http2();
    config.rules[0].route.path = csp_http::route::PathSpec::Prefix("/a".to_owned());
    let mut h = Http::new(config);
    let mut client = Client::connect(&mut h, 1_000);
    let nowhere = client.ask(&mut h, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n", true);
    assert!(client.got[&nowhere].heads[0].starts_with("HTTP/1.1 404"));
    assert!(client.got[&nowhere].body.starts_with(b"no-route: ") && client.got[&nowhere].done);
    let broken = client.ask(&mut h, GET, true);
    let member = h.accept();
    h.says(member, "nonsense\r\n\r\n");
    client.run(&mut h);
    assert!(client.got[&broken].heads[0].starts_with("HTTP/1.1 502") && client.got[&broken].done);
    let cut = client.ask(&mut h, GET, true);
    let member = h.accept();
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
    h.closes(member);
    client.run(&mut h);
    assert_eq!(client.got[&cut].reset.as_deref(), Some("Some(INTERNAL_ERROR)"));
    // A kept connection that closes under a request is replaced.
    let first = client.ask(&mut h, GET, true);
    let member = h.accept();
    h.says(member, "HTTP/1.1 204 No\r\n\r\n");
    client.run(&mut h);
    let second = client.ask(&mut h, GET, true);
    h.closes(member);
    let member = h.accept();
    h.says(member, "HTTP/1.1 204 No\r\n\r\n");
    client.run(&mut h);
    assert!(client.got[&first].done && client.got[&second].done);
    let codes = [(404, "no-route"), (502, "start-line"), (200, "truncated-body"), (204, "ok"), (204, "ok")];
    assert_eq!(h.codes(), codes);
    h.assert_no_leak();
}

#[test]
fn a_stream_that_is_reset_cancels_its_request_alone() {
    let mut h = Http::new(http2());
    let mut client = Client::connect(&mut h, 1_000);
    let (first, second) = (client.ask(&mut h, GET, true), client.ask(&mut h, GET, true));
    let (one, two) = (h.accept(), h.accept());
    client.machine.reset(first, csp_http2::Reason::CANCEL);
    client.run(&mut h);
    assert!(h.w.served[&one.to_wire()].reset && !h.w.served[&two.to_wire()].reset);
    h.says(two, "HTTP/1.1 204 No\r\n\r\n");
    client.run(&mut h);
    assert!(client.got[&second].done);
    // The connection is lost with a stream in progress.
    client.ask(&mut h, GET, true);
    h.hears(two);
    h.w.segment(1_000, Flags::RST | Flags::ACK, &[]);
    assert!(h.w.served[&two.to_wire()].reset);
    assert_eq!(h.codes(), [(499, "client-gone"), (204, "ok"), (499, "client-gone")]);
    h.assert_no_leak();
}

/// A slow reader of a large answer beside fast ones on one connection.
#[test]
fn a_slow_stream_does_not_stop_the_others() {
    let mut h = Http::new(http2());
    let mut client = Client::connect(&mut h, 1_000);
    let slow = client.ask(&mut h, GET, true);
    let member = h.accept();
    client.stalled = true;
    let len = 800_000;
    h.says(member, format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n"));
    let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    loop {
        let now = h.w.sends(member, &body[sent..]);
        client.run(&mut h);
        sent += now;
        if now == 0 {
            break;
        }
    }
    assert!(sent < 400_000, "{sent} bytes: the windows bound them");
    for _ in 0..5 {
        let fast = client.ask(&mut h, GET, true);
        let other = h.accept();
        h.says(other, "HTTP/1.1 204 No\r\nConnection: close\r\n\r\n");
        h.closes(other);
        client.run(&mut h);
        assert!(client.got[&fast].done);
    }
    client.stalled = false;
    client.run(&mut h);
    while sent < len {
        let now = h.w.sends(member, &body[sent..]);
        client.run(&mut h);
        assert!(now > 0, "at {sent}");
        sent += now;
    }
    assert!(client.got[&slow].body == body && client.got[&slow].done);
    h.assert_no_leak();
}

#[test]
fn times_and_drain_end_streams_and_connections() {
    let second = Duration::from_secs(1);
    let timeouts = Timeouts { response: second, idle: 2 * second, ..Timeouts::default() };
    let mut h = Http::new(ServiceConfig { timeouts, ..http2() });
    let mut client = Client::connect(&mut h, 1_000);
    let late = client.ask(&mut h, GET, true);
    let member = h.accept();
    h.w.pass(second + Duration::from_millis(2));
    client.run(&mut h);
    assert!(client.got[&late].heads[0].starts_with("HTTP/1.1 504"), "{:?}", client.got);
    assert!(h.w.served[&member.to_wire()].reset);
    h.w.pass(2 * second + Duration::from_millis(10));
    client.run(&mut h);
    assert!(client.is_closed && h.w.clients[&1_000].fin);
    // Drained, the proxy and then the service: the stream in progress ends in order.
    let mut kept = None;
    for port in [1_001, 1_002] {
        let mut client = Client::connect(&mut h, port);
        let stream = client.ask(&mut h, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", true);
        let member = kept.unwrap_or_else(|| h.accept());
        kept = Some(member);
        let now = h.w.now;
        match port {
            1_001 => h.gateway().drain_all(now),
            _ => h.w.core.set_policy(now, vec![crate::world::pool(&[8001, 8002])], Vec::new(), &mut h.w.out),
        }
        h.w.settle();
        client.run(&mut h);
        assert!(!h.w.clients[&port].fin);
        h.says(member, "HTTP/1.1 204 No\r\n\r\n");
        client.run(&mut h);
        assert!(client.got[&stream].done && client.is_closed);
        h.w.pass(second);
        assert!(h.w.clients[&port].fin);
    }
    h.assert_no_leak();
}

#[test]
fn without_http_2_the_preface_is_refused() {
    let mut h = Http::new(service());
    let client = Client::connect(&mut h, 1_000);
    drop(client);
    assert!(h.reads(1_000).starts_with("HTTP/1.1 505 "));
    h.assert_no_leak();
    // The service still serves HTTP/1.1 beside HTTP/2.
    let mut h = Http::new(http2());
    let member = h.asks(1_000, GET);
    h.says(member, "HTTP/1.1 204 No\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 204 No\r\n\r\n");
    h.w.says(member, MessageKind::Close, 0, &[]);
    h.assert_no_leak();
}

/// What a client has still to send on a stream, and what it is to get.
struct Talk {
    id: u64,
    body: Vec<u8>,
    sent: usize,
    ends: bool,
    expects: usize,
}

/// Streams of several clients with bodies in any division, while kept connections close under requests, or
/// anything fails: every response is that of its request, and nothing is left.
#[test]
fn streams_in_any_order_get_their_own_responses() {
    for faults in [Faults::Kept, Faults::Any] {
        for seed in crate::random::seeds(3_000, 40) {
            println!("seed {seed} {faults:?}");
            let mut run = Run::new(seed, http2());
            let (mut ids, mut talks) = (0, BTreeMap::new());
            let mut clients: Vec<Client> =
                (1_000..1_003).map(|port| Client::connect(&mut run.h, port)).collect();
            for round in 0.. {
                assert!(round < 20_000, "seed {seed}: it never ends");
                for client in &mut clients {
                    let is_open = !client.is_closed && !run.h.w.clients[&client.port].rst;
                    let has_room = talks.len() < 5; // the worker has eight connections to members
                    if round < 40
                        && has_room
                        && run.random.below(3) == 0
                        && is_open
                        && client.machine.can_open()
                    {
                        let talk = begin(&mut run, client, &mut ids);
                        talks.insert((client.port, talk.0), talk.1);
                    }
                    send(&mut run, client, &mut talks);
                    client.run(&mut run.h);
                    if faults == Faults::Any && run.random.below(200) == 0 {
                        client.leave(&mut run.h);
                        talks.retain(|(port, _), _| *port != client.port);
                    }
                }
                run.serve(faults);
                let pause = run.random.below(20);
                run.h.w.pass(Duration::from_millis(pause));
                let of = |port: u16| clients.iter().find(|client| client.port == port).unwrap();
                talks.retain(|(port, stream), talk| !is_over(of(*port).got.get(stream), talk, faults));
                if round > 40 && talks.is_empty() {
                    break;
                }
            }
            for client in &mut clients {
                client.leave(&mut run.h);
            }
            run.end(seed);
        }
    }
}

/// Begins a request; returns its stream and what follows.
fn begin(run: &mut Run, client: &mut Client, ids: &mut u64) -> (u32, Talk) {
    *ids += 1;
    let most = [1, 100, 5_000, 60_000];
    let mut len = || {
        let most = most[run.random.below(4) as usize];
        run.random.below(most) as usize
    };
    let (up, down) = (len(), len());
    let framing = ["length", "chunked", "close", "none", "early"][run.random.below(5) as usize];
    let expects = if framing == "none" { 0 } else { down };
    let (method, fields) = match run.random.below(4) {
        0 | 1 => ("GET", None),
        2 => ("POST", Some("Transfer-Encoding: chunked\r\n".to_owned())),
        _ => ("PUT", Some(format!("Content-Length: {up}\r\n"))),
    };
    let has_body = fields.is_some();
    let head = format!(
        "{method} /{ids}/{framing}/{expects} HTTP/1.1\r\nHost: a\r\n{}\r\n",
        fields.unwrap_or_default()
    );
    let stream = client.machine.request_text(head.as_bytes(), Scheme::Http, !has_body).unwrap();
    let body = if has_body { body(*ids, up) } else { Vec::new() };
    (stream, Talk { id: *ids, body, sent: 0, ends: !has_body, expects })
}

fn send(run: &mut Run, client: &mut Client, talks: &mut BTreeMap<(u16, u32), Talk>) {
    for ((_, stream), talk) in talks.iter_mut().filter(|((port, _), talk)| *port == client.port && !talk.ends)
    {
        let end = talk.body.len().min(talk.sent + run.random.below(9_000) as usize);
        let is_last = end == talk.body.len();
        talk.sent += client.machine.send(*stream, &talk.body[talk.sent..end], is_last);
        talk.ends = is_last && talk.sent == end;
    }
}

/// Checks what was got of a response, and returns whether it is over.
fn is_over(got: Option<&Got>, talk: &Talk, faults: Faults) -> bool {
    let Some(got) = got.filter(|got| got.done || got.reset.is_some()) else { return false };
    let head = got.heads.iter().find(|head| !head.starts_with("HTTP/1.1 1")).map_or("", |head| &head[..12]);
    let is_right = got.done && matches!(head, "HTTP/1.1 200" | "HTTP/1.1 204");
    if is_right {
        assert!(got.body == body(talk.id, talk.expects), "request {}: {} bytes", talk.id, got.body.len());
    }
    assert!(is_right || faults == Faults::Any, "request {}: {got:?}", talk.id);
    true
}
