//! Connections to members, against h2's own server and against frames by hand.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use common::raw::{ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, block, frame};
use common::{Wire, body, context, each_seed};
use csp_http::head::Scheme;
use csp_http2::{Cause, ClientConnection, ClientEvent, Limits, Reason, SendError};
use csp_support::Random;
use csp_types::Instant;
use h2::server::{Connection, SendResponse};

/// An event with its own memory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Happened {
    Response { stream: u32, head: String, interim: bool, end: bool },
    Readable(u32),
    End(u32, String),
    Room(u32),
    Reset { stream: u32, reason: Option<Reason>, by_peer: bool, unprocessed: bool },
    Done(u32),
    GoneAway,
    Closed(Cause),
}

fn events(client: &mut ClientConnection) -> Vec<Happened> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut happened = Vec::new();
    while let Some(event) = client.next_event() {
        happened.push(match event {
            ClientEvent::Response { stream, head, interim, end } => {
                Happened::Response { stream, head: text(head), interim, end }
            }
            ClientEvent::Readable { stream } => Happened::Readable(stream),
            ClientEvent::End { stream, trailers } => Happened::End(stream, text(trailers)),
            ClientEvent::Room { stream } => Happened::Room(stream),
            ClientEvent::Reset { stream, reason, by_peer, unprocessed } => {
                Happened::Reset { stream, reason, by_peer, unprocessed }
            }
            ClientEvent::Done { stream } => Happened::Done(stream),
            ClientEvent::GoneAway => Happened::GoneAway,
            ClientEvent::Closed { cause } => Happened::Closed(cause),
        });
    }
    happened
}

type Accepted = (http::Request<h2::RecvStream>, SendResponse<Bytes>);

/// A connection of ours and a member of h2.
struct Pair {
    client: ClientConnection,
    member: Connection<Wire, Bytes>,
    wire: Wire,
    accepted: Vec<Accepted>,
    random: Option<Random>,
}

impl Pair {
    fn new(limits: Limits, builder: &h2::server::Builder, random: Option<Random>) -> Self {
        let wire = Wire::default();
        let mut client = ClientConnection::new(&limits);
        let mut handshake = builder.handshake(wire.clone());
        loop {
            carry(&mut client, &wire, None);
            if let Poll::Ready(member) = Pin::new(&mut handshake).poll(&mut context()) {
                return Pair { client, member: member.unwrap(), wire, accepted: Vec::new(), random };
            }
        }
    }

    fn turn(&mut self) -> Vec<Happened> {
        let mut happened = Vec::new();
        let mut still = 0;
        while still < 20 {
            let mut moved = carry(&mut self.client, &self.wire, self.random.as_mut());
            while let Poll::Ready(Some(Ok(accepted))) = self.member.poll_accept(&mut context()) {
                self.accepted.push(accepted);
                moved = true;
            }
            let new = events(&mut self.client);
            moved |= !new.is_empty() || self.client.wants_poll();
            happened.extend(new);
            still = if moved { 0 } else { still + 1 };
        }
        happened
    }
}

/// Moves bytes in both directions; returns whether there were any.
fn carry(client: &mut ClientConnection, wire: &Wire, mut random: Option<&mut Random>) -> bool {
    let mut part = |len: usize| match &mut random {
        Some(random) => random.below(len.min(4_000) as u64 + 1) as usize,
        None => len,
    };
    client.poll();
    let mut ends = wire.0.lock().unwrap();
    let len = part(client.output().len());
    ends.input.extend(&client.output()[..len]);
    client.sent(len);
    let most = part(ends.output.len());
    let taken = client.receive(Instant::ZERO, &[&ends.output[..most]]);
    ends.output.drain(..taken);
    client.poll();
    len + taken > 0
}

const GET: &[u8] =
    b"GET /x?y HTTP/1.1\r\nHost: a.example:8080\r\nTE: trailers\r\nConnection: TE\r\nX: 1\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_request_and_its_response() {
    let mut pair = Pair::new(Limits::default(), &h2::server::Builder::new(), None);
    assert_eq!(pair.client.request_text(GET, Scheme::Http, true), Ok(1));
    assert_eq!(pair.turn(), []);
    let (request, mut respond) = pair.accepted.pop().unwrap();
    assert_eq!(request.uri(), "http://a.example:8080/x?y");
    assert_eq!(request.method(), "GET");
    let fields: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
    assert_eq!(fields, ["x", "te"]);
    respond.send_informational(http::Response::builder().status(103).body(()).unwrap()).unwrap();
    let response = http::Response::builder().header("grpc", "1").body(()).unwrap();
    let mut send = respond.send_response(response, false).unwrap();
    send.send_data(Bytes::from_static(b"hello"), false).unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    send.send_trailers(trailers).unwrap();
    let early = "HTTP/1.1 103 Early Hints\r\n\r\n".to_owned();
    let head = "HTTP/1.1 200 OK\r\ngrpc: 1\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    assert_eq!(
        pair.turn(),
        [
            Happened::Response { stream: 1, head: early, interim: true, end: false },
            Happened::Response { stream: 1, head, interim: false, end: false },
            Happened::Readable(1),
        ]
    );
    assert_eq!(pair.client.data(1), b"hello");
    pair.client.release(1, 5);
    let end = Happened::End(1, "grpc-status: 0\r\n\r\n".to_owned());
    assert_eq!(pair.turn(), [end, Happened::Done(1)]);
    assert_eq!((pair.client.streams(), pair.client.buffered()), (0, 0));
}

#[test]
fn bodies_in_both_directions() {
    each_seed(10, |seed| {
        let random = Some(Random::new(seed));
        let limits = Limits { stream_window: 10_000, connection_window: 30_000, ..Limits::default() };
        let mut pair = Pair::new(limits, h2::server::Builder::new().initial_window_size(9_000), random);
        assert_eq!(pair.client.request_text(POST, Scheme::Https, false), Ok(1));
        let sent: Vec<u8> = (0..150_000u32).map(|at| ((at * at) >> 5) as u8).collect();
        let (mut at, mut received) = (0, Vec::new());
        let (mut upload, mut download) = (None, None);
        while received.len() < sent.len() {
            let is_first = at == 0;
            let mut has_room = is_first;
            for event in pair.turn() {
                match event {
                    Happened::Room(1) => has_room = true,
                    Happened::Readable(1) | Happened::Response { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            if has_room {
                at += pair.client.send(1, &sent[at..], true);
            }
            if let Some((request, mut respond)) = pair.accepted.pop() {
                upload = Some(request.into_body());
                download = Some(respond.send_response(http::Response::new(()), false).unwrap());
            }
            if let (Some(upload), Some(download)) = (&mut upload, &mut download) {
                let (bytes, _) = body(upload);
                download.send_data(Bytes::from(bytes), false).unwrap();
            }
            let len = pair.client.data(1).len().min(3_000);
            received.extend_from_slice(&pair.client.data(1)[..len]);
            pair.client.release(1, len);
            assert!(pair.client.buffered() < 150_000);
        }
        assert!(received == sent);
        download.unwrap().send_data(Bytes::new(), true).unwrap();
        assert_eq!(pair.turn(), [Happened::End(1, String::new()), Happened::Done(1)]);
    });
}

#[test]
fn streams_open_as_far_as_the_member_permits() {
    let limits = Limits { streams_max: 50, ..Limits::default() };
    let mut pair = Pair::new(limits, h2::server::Builder::new().max_concurrent_streams(3), None);
    pair.turn();
    for at in 0..3 {
        assert_eq!(pair.client.request_text(GET, Scheme::Http, true), Ok(2 * at + 1));
    }
    assert!(!pair.client.can_open());
    assert_eq!(pair.client.request_text(GET, Scheme::Http, true), Err(SendError::Full));
    pair.turn();
    for (_, mut respond) in std::mem::take(&mut pair.accepted) {
        respond.send_response(http::Response::new(()), true).unwrap();
    }
    let happened = pair.turn();
    assert_eq!(happened.iter().filter(|event| matches!(event, Happened::Done(_))).count(), 3);
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
    assert_eq!(happened[0], Happened::Response { stream: 1, head, interim: false, end: true });
    assert!(pair.client.can_open());
    assert_eq!(pair.client.request_text(GET, Scheme::Http, true), Ok(7));
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(pair.client.request_text(upgrade, Scheme::Http, true), Err(SendError::Head));
}

#[test]
fn a_response_without_a_body_to_head() {
    let mut pair = Pair::new(Limits::default(), &h2::server::Builder::new(), None);
    let head = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(pair.client.request_text(head, Scheme::Http, true), Ok(1));
    pair.turn();
    let (_, mut respond) = pair.accepted.pop().unwrap();
    let response = http::Response::builder().header("content-length", "12").body(()).unwrap();
    respond.send_response(response, true).unwrap();
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n".to_owned();
    let response = Happened::Response { stream: 1, head, interim: false, end: true };
    assert_eq!(pair.turn(), [response, Happened::Done(1)]);
}

#[test]
fn a_reset_by_the_caller_cancels_at_the_member() {
    let mut pair = Pair::new(Limits::default(), &h2::server::Builder::new(), None);
    assert_eq!(pair.client.request_text(POST, Scheme::Http, false), Ok(1));
    pair.turn();
    pair.client.reset(1, Reason::CANCEL);
    assert_eq!(pair.turn(), []);
    let (_, respond) = &mut pair.accepted[0];
    let reset = respond.poll_reset(&mut context());
    assert!(matches!(reset, Poll::Ready(Ok(h2::Reason::CANCEL))), "{reset:?}");
    assert_eq!(pair.client.send(1, b"x", false), 0);
}

/// A connection that gets a member's frames by hand, with streams that have been opened.
fn raw(streams: u32) -> ClientConnection {
    let mut client = ClientConnection::new(&Limits::default());
    give(&mut client, &frame(SETTINGS, 0, 0, &[]));
    for at in 0..streams {
        assert_eq!(client.request_text(GET, Scheme::Http, true), Ok(2 * at + 1));
    }
    client.poll();
    client.sent(client.output().len());
    client
}

fn give(client: &mut ClientConnection, bytes: &[u8]) -> Vec<Happened> {
    assert_eq!(client.receive(Instant::ZERO, &[bytes]), bytes.len());
    client.poll();
    let happened = events(client);
    client.poll();
    client.sent(client.output().len());
    happened
}

fn response(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &[0x88])
}

fn reset(stream: u32, reason: Option<Reason>, by_peer: bool, unprocessed: bool) -> Happened {
    Happened::Reset { stream, reason, by_peer, unprocessed }
}

#[test]
fn streams_above_the_number_of_go_away_are_unprocessed() {
    let mut client = raw(4);
    let happened = give(&mut client, &frame(GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    let reason = Some(Reason::NO_ERROR);
    assert_eq!(happened, [Happened::GoneAway, reset(5, reason, true, true), reset(7, reason, true, true)]);
    assert!(!client.can_open());
    // The others go on.
    let happened = give(&mut client, &response(1, END_STREAM));
    assert_eq!(happened.len(), 2, "{happened:?}");
    // The member closes: stream 3 may have been processed.
    client.receive_end();
    client.poll();
    let happened = events(&mut client);
    assert!(matches!(
        happened[..],
        [Happened::Reset { stream: 3, unprocessed: false, .. }, Happened::Closed(_)]
    ));
}

#[test]
fn resets_by_a_member() {
    let mut client = raw(4);
    let refuse = |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 7]);
    assert_eq!(give(&mut client, &refuse(1)), [reset(1, Some(Reason::REFUSED_STREAM), true, true)]);
    give(&mut client, &response(3, 0));
    // Behind a response it cannot be true.
    assert_eq!(give(&mut client, &refuse(3)), [reset(3, Some(Reason::REFUSED_STREAM), true, false)]);
    let happened = give(&mut client, &frame(RST_STREAM, 0, 5, &[0, 0, 0, 2]));
    assert_eq!(happened, [reset(5, Some(Reason::INTERNAL_ERROR), true, false)]);
    // Malformed: no :status, a field of connections, and whitespace that h2 lets pass.
    for fields in
        [&[("x", "y")][..], &[(":status", "200"), ("connection", "x")], &[(":status", "200"), ("x", " ")]]
    {
        let mut client = raw(1);
        let happened = give(&mut client, &frame(HEADERS, END_HEADERS, 1, &block(fields)));
        assert_eq!(happened, [reset(1, Some(Reason::PROTOCOL_ERROR), false, false)], "{fields:?}");
    }
}

#[test]
fn a_member_that_is_lost_within_responses() {
    let mut client = raw(3);
    let bytes =
        [response(1, 0), frame(DATA, END_STREAM, 1, b"whole"), response(3, 0), frame(DATA, 0, 3, b"part")];
    assert_eq!(client.receive(Instant::ZERO, &[&bytes.concat()]), bytes.concat().len());
    client.receive_end();
    client.poll();
    let happened = events(&mut client);
    let is_whole = |event: &Happened| matches!(event, Happened::Reset { stream: 1, .. });
    assert!(!happened.iter().any(is_whole), "{happened:?}");
    assert!(
        happened.contains(&reset(3, None, false, false)) && happened.contains(&reset(5, None, false, false))
    );
    assert_eq!(happened.last(), Some(&Happened::Closed(Cause::Lost)));
    // What is complete can be read.
    assert_eq!(client.data(1), b"whole");
    client.release(1, 5);
    assert_eq!(events(&mut client), [Happened::End(1, String::new()), Happened::Done(1)]);
    assert_eq!(client.request_text(GET, Scheme::Http, true), Err(SendError::Closed));
}

#[test]
fn interim_responses_without_end() {
    let mut client = raw(1);
    let interim = frame(HEADERS, END_HEADERS, 1, &block(&[(":status", "103")]));
    let mut happened = Vec::new();
    for _ in 0..20 {
        happened.extend(give(&mut client, &interim));
    }
    assert_eq!(happened.len(), 17);
    assert_eq!(happened.last(), Some(&reset(1, Some(Reason::ENHANCE_YOUR_CALM), false, false)));
}

#[test]
fn a_member_that_floods_is_left() {
    let mut client = raw(1);
    let settings = frame(SETTINGS, 0, 0, &[]).repeat(100);
    let mut happened = Vec::new();
    for _ in 0..100 {
        let taken = client.receive(Instant::ZERO, &[&settings]);
        client.poll();
        client.sent(client.output().len());
        happened.extend(events(&mut client));
        if taken < settings.len() {
            break;
        }
    }
    let cause = Cause::Flood(csp_http2::Flood::ControlFrames);
    assert_eq!(happened, [reset(1, None, false, false), Happened::Closed(cause)]);
    // A member that resets all streams makes no work that was not asked for.
    let mut client = raw(0);
    for at in 0..1_000 {
        assert_eq!(client.request_text(GET, Scheme::Http, true), Ok(2 * at + 1));
        assert_eq!(give(&mut client, &[]), []);
        let happened = give(&mut client, &frame(RST_STREAM, 0, 2 * at + 1, &[0, 0, 0, 7]));
        assert_eq!(happened.len(), 1, "{at}: {happened:?}");
    }
}

#[test]
fn a_connection_that_is_not_needed_any_more() {
    let mut client = raw(1);
    client.go_away();
    assert!(!client.can_open());
    assert_eq!(client.request_text(GET, Scheme::Http, true), Err(SendError::Full));
    let happened = give(&mut client, &[frame(SETTINGS, ACK, 0, &[]), response(1, END_STREAM)].concat());
    assert!(matches!(
        happened[..],
        [Happened::Response { .. }, Happened::Done(1), Happened::Closed(Cause::Finished)]
    ));
}
