//! Members that speak HTTP/2, by the other end of `csp-http2`.

use std::collections::BTreeMap;

use csp_gateway::spec::{MemberHttp2, ServiceConfig};
use csp_http2::{Event, Limits, ServerConnection};
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use crate::http::Http;
use crate::http2::{Client, http2};
use crate::world::POOL;

/// What a member has got on a stream.
#[derive(Default, Debug)]
pub struct Asked {
    pub head: String,
    pub body: Vec<u8>,
    pub trailers: String,
    pub ended: bool,
    pub reset: Option<String>,
}

/// A connection at a member.
pub struct Server {
    pub label: FlowLabel,
    pub machine: ServerConnection,
    read: usize,
    pub got: BTreeMap<u32, Asked>,
    /// It takes no payload of this stream.
    pub stalled_stream: u32,
    /// The machine has closed: the connection ends behind its output.
    closes: bool,
    pub is_closed: bool,
}

impl Server {
    /// Passes bytes both ways until nothing moves. Returns whether something was moved.
    pub fn run(&mut self, h: &mut Http) -> bool {
        let mut any = false;
        loop {
            let served = &h.w.served[&self.label.to_wire()];
            if served.reset || served.closed {
                self.is_closed = true;
                return any;
            }
            let bytes = served.received[self.read..].to_vec();
            let (now, finished) = (h.w.now, served.finished);
            let taken = self.machine.receive(now, &[&bytes]);
            if taken > 0 {
                self.read += taken;
                h.w.says(self.label, MessageKind::Credit, taken as u32, &[]);
            }
            if finished && taken == bytes.len() {
                self.machine.receive_end();
            }
            self.machine.poll();
            self.events();
            self.machine.poll();
            let output = self.machine.output().to_vec();
            let sent = if output.is_empty() { 0 } else { h.w.sends(self.label, &output) };
            self.machine.sent(sent);
            if taken == 0 && sent == 0 && !self.machine.wants_poll() {
                if self.closes && self.machine.output().is_empty() {
                    self.is_closed = true;
                    h.w.says(self.label, MessageKind::Close, 0, &[]);
                }
                return any;
            }
            any = true;
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.machine.next_event() {
            match event {
                Event::Request { stream, head, end, .. } => {
                    let head = String::from_utf8_lossy(head).into_owned();
                    self.got.insert(stream, Asked { head, ended: end, ..Asked::default() });
                }
                Event::Refused { stream, fault } => panic!("stream {stream}: {fault:?}"),
                Event::End { stream, trailers } => {
                    let got = self.got.get_mut(&stream).unwrap();
                    got.trailers = String::from_utf8_lossy(trailers).into_owned();
                    got.ended = true;
                }
                Event::Reset { stream, reason, .. } => {
                    self.got.get_mut(&stream).unwrap().reset = Some(format!("{reason:?}"));
                }
                Event::Closed { .. } => self.closes = true,
                Event::Readable { .. } | Event::Room { .. } | Event::Done { .. } => {}
            }
        }
        for (stream, got) in self.got.iter_mut().filter(|(stream, _)| **stream != self.stalled_stream) {
            while !self.machine.data(*stream).is_empty() {
                let data = self.machine.data(*stream).to_vec();
                got.body.extend_from_slice(&data);
                self.machine.release(*stream, data.len());
            }
        }
    }

    /// Begins a response.
    pub fn respond(&mut self, h: &mut Http, stream: u32, head: &str, end: bool) {
        self.machine.respond_text(stream, head.as_bytes(), end).unwrap();
        self.run(h);
    }

    /// Sends payload, all of it.
    pub fn send(&mut self, h: &mut Http, stream: u32, bytes: &[u8], end: bool) {
        assert_eq!(self.machine.send(stream, bytes, end), bytes.len());
        self.run(h);
    }

    pub fn trailers(&mut self, h: &mut Http, stream: u32, section: &str) {
        self.machine.trailers(stream, section.as_bytes()).unwrap();
        self.run(h);
    }

    /// Answers with a body and trailers.
    pub fn answer(&mut self, h: &mut Http, stream: u32, body: &[u8]) {
        self.respond(h, stream, OK, false);
        self.send(h, stream, body, false);
        self.trailers(h, stream, "grpc-status: 0\r\n\r\n");
    }

    /// Returns the streams whose requests were received and not reset.
    pub fn open(&self) -> Vec<u32> {
        self.got.iter().filter(|(_, asked)| asked.reset.is_none()).map(|(stream, _)| *stream).collect()
    }
}

/// The head of a request whose body has no length.
pub const POST: &str = "POST /a HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The head of a response that begins a call's.
pub const OK: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n";

/// The service whose members speak HTTP/2, with one connection if others are not needed.
pub fn over_http2() -> ServiceConfig {
    let member_http2 = MemberHttp2 { services: vec![POOL.into()], connections: 1, ..MemberHttp2::default() };
    ServiceConfig { member_http2, ..http2() }
}

/// The connections at the members, in the order of their offers.
pub struct Servers {
    pub all: Vec<Server>,
    pub limits: Limits,
}

impl Servers {
    pub fn new() -> Self {
        Servers { all: Vec::new(), limits: Limits::default() }
    }

    /// Accepts what is offered, and passes bytes until nothing moves. Returns whether something was moved.
    pub fn run(&mut self, h: &mut Http) -> bool {
        let mut any = false;
        while !h.w.offers.is_empty() {
            self.accept(h);
            any = true;
        }
        for server in self.all.iter_mut().filter(|server| !server.is_closed) {
            any |= server.run(h);
        }
        any
    }

    /// Accepts the oldest offer.
    pub fn accept(&mut self, h: &mut Http) {
        let (label, got) = (h.accept(), BTreeMap::new());
        let machine = ServerConnection::new(&self.limits, 1);
        let server =
            Server { label, machine, read: 0, got, stalled_stream: 0, closes: false, is_closed: false };
        self.all.push(server);
    }

    /// Passes bytes of members and of a client until nothing moves.
    pub fn settle(&mut self, h: &mut Http, client: &mut Client) {
        loop {
            client.run(h);
            if !self.run(h) {
                break;
            }
        }
        client.run(h);
    }
}
