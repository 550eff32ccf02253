//! A proxy in memory: one client, one member, byte streams between them. It joins the parts of the crate as
//! the daemon does, but copies.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it")]

use csp_http::body::{ChunkHeader, LAST_CHUNK, Piece};
use csp_http::exchange::{After, ClientSide, FromClient, FromMember, MemberSide, StreamEnd};
use csp_http::forward::{
    self, Answer, Edits, Origin, OriginFields, PeerText, RequestForward, ResponseForward,
};
use csp_http::head::{Framing, Method, Request, Response, Scheme, Scratch, normalised};
use csp_http::{Limits, Refusal};

/// Bytes that have arrived from a peer.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    read: usize,
    pub end: StreamEnd,
    /// Length of the slices in which they are readable; 0: one slice.
    pub slice: usize,
}

impl Stream {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn unread(&self) -> usize {
        self.bytes.len() - self.read
    }

    fn take(&mut self, len: usize) -> &[u8] {
        self.read += len;
        &self.bytes[self.read - len..self.read]
    }
}

/// Returns the readable bytes in slices.
fn slices(stream: &Stream) -> Vec<&[u8]> {
    let size = if stream.slice == 0 { usize::MAX } else { stream.slice };
    stream.bytes[stream.read..].chunks(size).collect()
}

/// Chunks that are written to a peer.
#[derive(Debug, Default)]
struct Chunks {
    begun: bool,
}

impl Chunks {
    fn begin(&mut self, out: &mut Vec<u8>, size: u64) {
        out.extend_from_slice(ChunkHeader::new(size, !std::mem::replace(&mut self.begun, true)).bytes());
    }

    fn end(&mut self, out: &mut Vec<u8>, section: &[u8]) {
        if std::mem::take(&mut self.begun) {
            out.extend_from_slice(b"\r\n");
        }
        let mut room = vec![0; section.len() + 64];
        let len = forward::trailers(&mut room, section, forward::Edits::NONE).unwrap();
        out.extend_from_slice(&room[..len]);
    }
}

/// A proxy between one client and one member.
#[derive(Debug)]
pub struct Proxy {
    pub limits: Limits,
    pub client: ClientSide,
    pub member: MemberSide,
    pub from_client: Stream,
    pub from_member: Stream,
    pub to_client: Vec<u8>,
    pub to_member: Vec<u8>,
    /// What earlier members got on connections that were not kept, with their numbers of requests.
    pub earlier: Vec<(Vec<u8>, u32)>,
    /// What was done beside writing.
    pub log: Vec<String>,
    to_member_chunks: Chunks,
    to_client_chunks: Chunks,
    response: (Framing, Framing),
    /// The client's connection was closed or reset.
    closed: bool,
    /// The member's connection was reset, and nothing goes there.
    member_gone: bool,
}

impl Default for Proxy {
    fn default() -> Self {
        Proxy {
            limits: Limits::default(),
            client: ClientSide::default(),
            member: MemberSide::default(),
            from_client: Stream::default(),
            from_member: Stream::default(),
            to_client: Vec::new(),
            to_member: Vec::new(),
            earlier: Vec::new(),
            log: Vec::new(),
            to_member_chunks: Chunks::default(),
            to_client_chunks: Chunks::default(),
            response: (Framing::None, Framing::None),
            closed: false,
            member_gone: false,
        }
    }
}

impl Proxy {
    /// Processes what is readable, until nothing moves.
    pub fn run(&mut self) {
        let mut scratch = Scratch::new(&self.limits);
        let mut steps = 0;
        while self.step_client(&mut scratch) || self.step_member(&mut scratch) {
            steps += 1;
            let most = 4 * (self.from_client.bytes.len() + self.from_member.bytes.len()) + 100;
            assert!(steps < most, "no end: {:?} {:?}", self.client, self.member);
        }
    }

    /// Returns how many requests were sent to members.
    pub fn member_requests(&self) -> u32 {
        self.earlier.iter().map(|(_, requests)| requests).sum::<u32>() + self.member.requests()
    }

    /// Returns how many requests another proxy finds in what was sent to members.
    pub fn requests_found(&self) -> u32 {
        self.earlier.iter().map(|(bytes, _)| requests_in(bytes)).sum::<u32>() + requests_in(&self.to_member)
    }

    /// Returns what was sent to members, one connection after the other.
    pub fn sent(&self) -> Vec<u8> {
        let earlier = self.earlier.iter().flat_map(|(bytes, _)| bytes);
        earlier.chain(&self.to_member).copied().collect()
    }

    /// Opens the connection to another member, if that to the last one was not kept.
    fn open(&mut self) {
        if std::mem::take(&mut self.member_gone) {
            self.earlier.push((std::mem::take(&mut self.to_member), self.member.requests()));
            self.member = MemberSide::default();
            self.from_member = Stream { slice: self.from_member.slice, ..Stream::default() };
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    fn after(&mut self, after: After) {
        self.note(format!("{after:?}"));
        self.closed |= after == After::Reset;
    }

    /// Answers a fault of the client (the status is its own) or of the member (502). A member's fault does
    /// not end the client's connection.
    fn refuse(&mut self, refusal: Refusal, status: u16) {
        self.note(format!("{status} {}", refusal.fault.code()));
        self.member_gone = true;
        let plan = match status {
            502 => self.client.respond(Framing::Length(0)),
            _ => self.client.refuse(Framing::Length(0), &self.limits),
        };
        let Some(plan) = plan else {
            let after = self.client.response_cut(&self.limits);
            return self.after(after);
        };
        let mut room = [0; 1_000];
        let head = Answer {
            status,
            plan,
            missing_body: None,
            date: None,
            fields: &[],
            own: &[],
            edits: Edits::NONE,
        };
        let len = forward::answer(&mut room, &head).unwrap();
        self.to_client.extend_from_slice(&room[..len]);
        let after = self.client.response_end(&self.limits);
        self.after(after);
    }

    fn step_client(&mut self, scratch: &mut Scratch) -> bool {
        if self.closed {
            return false;
        }
        let end = self.from_client.end;
        let from = match self.client.read(&slices(&self.from_client), end, &self.limits, scratch) {
            Ok(from) => from,
            Err(refusal) => {
                self.refuse(refusal, refusal.fault.status());
                return true;
            }
        };
        match from {
            FromClient::More | FromClient::Waiting => return false,
            FromClient::Request(request) => {
                let (len, is_head) = (request.head_len(), request.method() == Method::Head);
                let head = forwarded(&request);
                self.client.accept(&request);
                self.from_client.take(len);
                match head {
                    Err(refusal) => self.refuse(refusal, refusal.fault.status()),
                    Ok(head) => {
                        self.open();
                        self.member.begin(is_head, is_upgrade(&head));
                        self.member.sent(head.len());
                        self.to_member.extend(head);
                        self.to_member_chunks = Chunks::default();
                    }
                }
            }
            FromClient::Body(piece) => self.request_body(piece),
            FromClient::RequestEnd => self.member.request_end(),
            FromClient::Tunnel(len) => self.to_member.extend_from_slice(self.from_client.take(len)),
            FromClient::TunnelEnd => {
                self.note("tunnel: client's end");
                self.closed = true;
            }
            FromClient::Discard(len) => {
                self.from_client.take(len);
            }
            FromClient::Finish => self.note("Finish"),
            FromClient::Closed => {
                self.note("Closed");
                self.closed = true;
            }
        }
        true
    }

    fn request_body(&mut self, piece: Piece) {
        match piece {
            Piece::Framing { len, chunk } => {
                self.from_client.take(len);
                if let Some(size) = chunk {
                    self.to_member_chunks.begin(&mut self.to_member, size);
                }
            }
            Piece::Payload(len) => {
                self.client.moved(len);
                self.member.sent(len);
                self.to_member.extend_from_slice(self.from_client.take(len));
            }
            Piece::Trailers(len) => {
                self.client.moved(len);
                self.to_member_chunks.end(&mut self.to_member, self.from_client.take(len));
            }
            Piece::More | Piece::End => panic!("{piece:?} is no part of a body"),
        }
    }

    fn step_member(&mut self, scratch: &mut Scratch) -> bool {
        if self.member_gone || self.closed {
            return false;
        }
        let end = self.from_member.end;
        let (unread, size) =
            (self.from_member.bytes[self.from_member.read..].to_vec(), self.from_member.slice);
        let slices: Vec<&[u8]> = unread.chunks(if size == 0 { usize::MAX } else { size }).collect();
        let from = match self.member.read(&slices, end, &self.limits, scratch) {
            Ok(from) => from,
            Err(refusal) => {
                if self.member.requests() > 0 && !self.client.is_idle() {
                    self.refuse(refusal, 502);
                } else {
                    self.note(format!("member: {}", refusal.fault.code()));
                    self.member_gone = true;
                }
                return true;
            }
        };
        match from {
            FromMember::More => return false,
            FromMember::Interim(response) => {
                let len = response.head_len();
                if self.client.interim(response.status()) {
                    self.to_client.extend(answered(&response, None));
                }
                self.member.accept(&response);
                self.from_member.take(len);
            }
            FromMember::Response(response) => return self.response(response),
            FromMember::Body(piece) => self.response_body(piece),
            FromMember::ResponseEnd => {
                if self.response == (Framing::UntilClose, Framing::Chunked) {
                    let start = if self.to_client_chunks.begun { 0 } else { 2 };
                    self.to_client.extend_from_slice(&LAST_CHUNK[start..]);
                }
                let after = self.client.response_end(&self.limits);
                self.after(after);
                if self.member.can_be_kept(self.from_member.unread(), self.from_member.end) {
                    self.member.release();
                    self.note("kept");
                } else {
                    self.member_gone = true;
                }
            }
            FromMember::Tunnel(len) => self.to_client.extend_from_slice(self.from_member.take(len)),
            FromMember::TunnelEnd => {
                let after = self.client.response_end(&self.limits);
                self.after(after);
                self.member_gone = true;
            }
            FromMember::Unanswered => {
                self.note(format!("{:?}", self.member.loss(None)));
                self.member_gone = true;
            }
            FromMember::Closed => {
                self.note("member closed");
                self.member_gone = true;
            }
        }
        true
    }

    fn response(&mut self, response: Response<'_>) -> bool {
        let len = response.head_len();
        let plan = if response.status() == 101 {
            if let Err(refusal) = self.client.switched() {
                self.refuse(refusal, 502);
                return true;
            }
            None
        } else {
            let source = self.member_framing(&response);
            let Some(plan) = self.client.respond(source) else {
                self.member_gone = true;
                return true;
            };
            self.response = (source, plan.framing);
            Some(plan)
        };
        self.to_client_chunks = Chunks::default();
        self.to_client.extend(answered(&response, plan));
        self.member.accept(&response);
        self.from_member.take(len);
        true
    }

    fn member_framing(&self, response: &Response<'_>) -> Framing {
        response.framing(self.member.is_to_head())
    }

    fn response_body(&mut self, piece: Piece) {
        let (source, to) = self.response;
        match piece {
            Piece::Framing { len, chunk } => {
                self.from_member.take(len);
                if let (Some(size), Framing::Chunked) = (chunk, to) {
                    self.to_client_chunks.begin(&mut self.to_client, size);
                }
            }
            Piece::Payload(len) => {
                if (source, to) == (Framing::UntilClose, Framing::Chunked) {
                    self.to_client_chunks.begin(&mut self.to_client, len as u64);
                }
                self.member.moved(len);
                self.to_client.extend_from_slice(self.from_member.take(len));
            }
            Piece::Trailers(len) => {
                self.member.moved(len);
                let section = self.from_member.take(len);
                if to == Framing::Chunked {
                    self.to_client_chunks.end(&mut self.to_client, section);
                }
            }
            Piece::More | Piece::End => panic!("{piece:?} is no part of a body"),
        }
    }
}

fn forwarded(request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let mut room = Vec::new();
    let path = match request.path() {
        b"*" => b"*",
        path => normalised(path, &mut room).map_err(|fault| Refusal { fault, line: 1 })?,
    };
    let peer = PeerText::new("192.0.2.7".parse().unwrap());
    let how = RequestForward {
        path,
        host: None,
        default_host: b"default",
        origin: Origin {
            peer: &peer,
            is_trusted: false,
            scheme: Scheme::Http,
            fields: OriginFields::default(),
        },
        trace: None,
        request_id: None,
        upgrade: true,
        expect: true,
        edits: Edits::NONE,
        extra: &[],
    };
    let mut out = vec![0; 2 * request.head_len() + 500];
    let written = forward::request(&mut out, request, &how).unwrap();
    out.truncate(written.len);
    Ok(out)
}

fn answered(response: &Response<'_>, plan: Option<csp_http::exchange::Plan>) -> Vec<u8> {
    let how = ResponseForward { plan, date: None, edits: Edits::NONE, extra: &[] };
    let mut out = vec![0; response.head_len() + 500];
    let len = forward::response(&mut out, response, &how).unwrap();
    out.truncate(len);
    out
}

/// Whether a head that goes to a member upgrades the connection.
fn is_upgrade(head: &[u8]) -> bool {
    String::from_utf8_lossy(head).contains("\r\nConnection: upgrade")
}

/// Returns how many requests another proxy finds in bytes that were sent to a member.
fn requests_in(bytes: &[u8]) -> u32 {
    let mut other = Proxy::default();
    other.from_client.push(bytes);
    loop {
        let before = other.client.exchanges();
        other.run();
        if other.client.exchanges() == before {
            return other.client.exchanges();
        }
        other.from_member.push(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
}
