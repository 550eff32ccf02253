//! Requests and responses between a client of h2 and the crate.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]
mod common;

use common::{Happened, OK, Pair, body, context, each_seed, poll, requests};

use std::task::Poll;

use bytes::Bytes;
use common::raw::{DATA, END_STREAM, PREFACE, RST_STREAM, Raw, SETTINGS, frame, get, resets};
use csp_http2::{Cause, Limits, Reason, SendError, ServerConnection};
use csp_types::Instant;

#[test]
fn a_request_and_its_response() {
    let mut pair = Pair::new(Limits::default());
    let mut response = pair.get("/x?y=1");
    let happened = pair.turn();
    let head = "GET /x?y=1 HTTP/1.1\r\nhost: a.example\r\n\r\n".to_owned();
    assert_eq!(happened, [Happened::Request { stream: 1, head, end: true, websocket: false }]);
    pair.server.respond_text(1, OK, false).unwrap();
    assert_eq!(pair.server.send(1, b"hello", true), 5);
    assert_eq!(pair.turn(), [Happened::Done(1)]);
    let (parts, mut stream) = poll(&mut response).unwrap().unwrap().into_parts();
    assert_eq!((parts.status.as_u16(), &parts.headers["server"]), (200, &"member".parse().unwrap()));
    assert_eq!(body(&mut stream), (b"hello".to_vec(), true));
    assert_eq!((pair.server.streams(), pair.server.buffered()), (0, 0));
}

/// Bodies in both directions at once, cut anywhere, larger than all windows.
#[test]
fn bodies_in_both_directions() {
    each_seed(20, |seed| {
        let limits = Limits { stream_window: 9_000, connection_window: 20_000, ..Limits::default() };
        let mut pair = Pair::new(limits).seeded(seed);
        let request = http::Request::post("http://a/").body(()).unwrap();
        let (mut response, mut send) = pair.client.send_request(request, false).unwrap();
        let sent: Vec<u8> = (0..200_000u32).map(|at| ((at * at) >> 7) as u8).collect();
        send.send_data(Bytes::from(sent.clone()), true).unwrap();
        let (mut echo, mut received, mut has_ended) = (Vec::new(), Vec::new(), false);
        let mut stream = None;
        for _ in 0..10_000 {
            for event in pair.turn() {
                match event {
                    Happened::Request { head, .. } => {
                        assert!(head.contains("transfer-encoding: chunked"), "{head}");
                        pair.server.respond_text(1, OK, false).unwrap();
                    }
                    Happened::End { trailers, .. } => {
                        assert_eq!(trailers, "");
                        has_ended = true;
                    }
                    Happened::Readable(1) | Happened::Room(1) | Happened::Done(1) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(pair.server.buffered() < 200_000);
            let data = pair.server.data(1);
            let part = data[..data.len().min(5_000)].to_vec();
            echo.extend_from_slice(&part);
            pair.server.release(1, part.len());
            let is_last = has_ended && pair.server.data(1).is_empty();
            let taken = pair.server.send(1, &echo, is_last);
            echo.drain(..taken);
            if stream.is_none() {
                stream = poll(&mut response).map(|response| response.unwrap().into_body());
            }
            let Some(stream) = &mut stream else { continue };
            let (bytes, ended) = body(stream);
            received.extend(bytes);
            if ended {
                break;
            }
        }
        assert_eq!(received.len(), sent.len());
        assert!(received == sent);
    });
}

/// 100 requests at once, each with an answer of its own.
#[test]
fn a_hundred_streams() {
    each_seed(5, |seed| {
        let mut pair = Pair::new(Limits::default()).seeded(seed);
        let mut responses: Vec<_> = (0..100).map(|at| Some(pair.get(&format!("/{at}")))).collect();
        let mut seen = Vec::new();
        let mut answers = std::collections::BTreeMap::new();
        let mut bodies: Vec<_> = (0..100).map(|_| (None, Vec::new())).collect();
        for _ in 0..2_000 {
            for event in pair.turn() {
                if let Happened::Request { stream, head, .. } = event {
                    seen.push(stream);
                    pair.server.respond_text(stream, OK, false).unwrap();
                    answers.insert(stream, head.repeat(1_000).into_bytes());
                }
            }
            for (stream, answer) in &mut answers {
                let taken = pair.server.send(*stream, answer, true);
                answer.drain(..taken);
            }
            for (at, response) in responses.iter_mut().enumerate() {
                if let Some(future) = response
                    && let Some(ready) = poll(future)
                {
                    bodies[at].0 = Some(ready.unwrap().into_body());
                    *response = None;
                }
                if let Some(stream) = &mut bodies[at].0 {
                    let (bytes, ended) = body(stream);
                    bodies[at].1.extend(bytes);
                    if ended {
                        bodies[at].0 = None;
                    }
                }
            }
            if pair.server.streams() == 0 && seen.len() == 100 && bodies.iter().all(|body| body.0.is_none()) {
                break;
            }
        }
        assert_eq!(seen.len(), 100);
        for (at, (stream, bytes)) in bodies.iter().enumerate() {
            assert!(stream.is_none(), "{at} has not ended");
            let expected = format!("GET /{at} HTTP/1.1\r\nhost: a.example\r\n\r\n").repeat(1_000);
            assert!(*bytes == expected.into_bytes(), "{at}: {} bytes", bytes.len());
        }
    });
}

/// A client that does not read one large answer gets the others, and what it uploads beside it is read.
#[test]
fn a_slow_stream_beside_fast_ones() {
    let mut pair = Pair::with(
        Limits::default(),
        h2::client::Builder::new().initial_window_size(65_535).initial_connection_window_size(1 << 20),
    );
    let mut slow = pair.get("/slow");
    pair.turn();
    pair.server.respond_text(1, OK, false).unwrap();
    let large = vec![b'l'; 1 << 20];
    let mut sent = pair.server.send(1, &large, true);
    assert_eq!(sent, 32 << 10);
    for _ in 0..20 {
        for event in pair.turn() {
            if event == Happened::Room(1) {
                sent += pair.server.send(1, &large[sent..], true);
            }
        }
    }
    // The window of the stream, and what waits behind it.
    assert_eq!(sent, 65_535 + (32 << 10));
    let mut slow_body = poll(&mut slow).unwrap().unwrap().into_body();
    for at in 1..200 {
        let stream = 2 * at + 1;
        let request = http::Request::post("http://a/").body(()).unwrap();
        let (mut response, mut upload) = pair.client.send_request(request, false).unwrap();
        upload.send_data(Bytes::from(vec![b'u'; 20_000]), true).unwrap();
        assert_eq!(requests(&pair.turn()), [stream]);
        let mut received = 0;
        while !pair.server.data(stream).is_empty() {
            let len = pair.server.data(stream).len();
            received += len;
            pair.server.release(stream, len);
        }
        assert_eq!(received, 20_000);
        pair.server.respond_text(stream, OK, false).unwrap();
        assert_eq!(pair.server.send(stream, &[b'f'; 20_000], true), 20_000);
        assert!(pair.turn().contains(&Happened::Done(stream)));
        let (bytes, ended) = body(&mut poll(&mut response).unwrap().unwrap().into_body());
        assert_eq!((bytes.len(), ended), (20_000, true));
    }
    let mut received = 0;
    while sent < large.len() || pair.server.streams() > 0 {
        received += body(&mut slow_body).0.len();
        if pair.turn().contains(&Happened::Room(1)) {
            sent += pair.server.send(1, &large[sent..], true);
        }
    }
    received += body(&mut slow_body).0.len();
    assert_eq!(received, 1 << 20);
}

/// A member that takes nothing of one upload does not stop the others.
#[test]
fn a_stalled_upload_beside_others() {
    let mut pair = Pair::new(Limits::default());
    let post = || http::Request::post("http://a/").body(()).unwrap();
    let (_first, mut stalled) = pair.client.send_request(post(), false).unwrap();
    stalled.send_data(Bytes::from(vec![b's'; 1 << 20]), true).unwrap();
    pair.turn();
    assert_eq!(pair.server.buffered(), 64 << 10, "its window");
    for at in 1..100 {
        let (_response, mut upload) = pair.client.send_request(post(), false).unwrap();
        upload.send_data(Bytes::from(vec![b'u'; 60_000]), true).unwrap();
        pair.turn();
        let (stream, mut received) = (2 * at + 1, 0);
        while !pair.server.data(stream).is_empty() {
            let len = pair.server.data(stream).len();
            received += len;
            pair.server.release(stream, len);
        }
        assert_eq!(received, 60_000, "upload {at}");
        pair.server.respond_text(stream, OK, true).unwrap();
        pair.turn();
    }
}

#[test]
fn trailers_in_both_directions() {
    let mut pair = Pair::new(Limits::default());
    let request = http::Request::post("http://a/").header("te", "trailers").body(()).unwrap();
    let (mut response, mut send) = pair.client.send_request(request, false).unwrap();
    send.send_data(Bytes::from_static(b"body"), false).unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-check", "1".parse().unwrap());
    trailers.insert("content-length", "4".parse().unwrap());
    send.send_trailers(trailers).unwrap();
    let happened = pair.turn();
    assert!(matches!(&happened[..], [Happened::Request { .. }, Happened::Readable(1)]), "{happened:?}");
    pair.server.release(1, 4);
    let section = "x-check: 1\r\ncontent-length: 4\r\n\r\n".to_owned();
    assert_eq!(pair.turn(), [Happened::End { stream: 1, trailers: section }]);

    let early = pair.server.trailers(1, b"a: b\r\n\r\n");
    assert_eq!(early, Err(SendError::State), "before the head");
    pair.server.respond_text(1, OK, false).unwrap();
    pair.server.send(1, b"answer", false);
    let section = b"grpc-status: 0\r\nTransfer-Encoding: chunked\r\nset-cookie: a\r\n\r\n";
    pair.server.trailers(1, section).unwrap();
    assert_eq!(pair.server.send(1, b"late", false), 0, "behind the end");
    assert_eq!(pair.turn(), [Happened::Done(1)]);
    let mut stream = poll(&mut response).unwrap().unwrap().into_body();
    assert_eq!(body(&mut stream), (b"answer".to_vec(), true));
    let Poll::Ready(Ok(Some(trailers))) = stream.poll_trailers(&mut context()) else { panic!() };
    assert_eq!(trailers.len(), 1);
    assert_eq!(trailers["grpc-status"], "0");
}

#[test]
fn interim_responses() {
    let mut pair = Pair::new(Limits::default());
    let mut response = pair.get("/");
    pair.turn();
    pair.server.respond_text(1, b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", false).unwrap();
    pair.server.respond_text(1, b"HTTP/1.1 100 Continue\r\n\r\n", false).unwrap();
    pair.turn();
    for status in [103, 100] {
        let Poll::Ready(Some(Ok(interim))) = response.poll_informational(&mut context()) else { panic!() };
        assert_eq!(interim.status().as_u16(), status);
    }
    pair.server.respond_text(1, OK, true).unwrap();
    let again = pair.server.respond_text(1, OK, true);
    assert_eq!(again, Err(SendError::State), "a second final response");
    assert_eq!(pair.turn(), [Happened::Done(1)]);
    assert_eq!(poll(&mut response).unwrap().unwrap().status(), 200);
    let gone = pair.server.respond_text(1, OK, true);
    assert_eq!(gone, Err(SendError::NoStream));
}

#[test]
fn resets_in_both_directions() {
    let mut pair = Pair::new(Limits::default());
    // By the client: before the answer, within it, and within its own body.
    let request = || http::Request::post("http://a/").body(()).unwrap();
    for (stream, has_answer) in [(1, false), (3, true)] {
        let (response, mut send) = pair.client.send_request(request(), stream == 3).unwrap();
        pair.turn();
        if has_answer {
            pair.server.respond_text(stream, OK, false).unwrap();
            pair.server.send(stream, b"part", false);
            pair.turn();
        }
        send.send_reset(h2::Reason::CANCEL);
        let reset = Happened::Reset { stream, reason: Reason::CANCEL, by_peer: true };
        assert_eq!(pair.turn(), [reset]);
        drop(response);
        assert_eq!((pair.server.data(stream), pair.server.room(stream)), (&b""[..], 0));
        assert_eq!(pair.server.send(stream, b"x", true), 0);
    }
    // By the server.
    let mut response = pair.get("/");
    pair.turn();
    pair.server.reset(5, Reason::INTERNAL_ERROR);
    assert_eq!(pair.turn(), []);
    let error = poll(&mut response).unwrap().unwrap_err();
    assert_eq!((error.is_remote(), error.reason()), (true, Some(h2::Reason::INTERNAL_ERROR)));
    assert_eq!(pair.server.streams(), 0);
}

/// An answer that ends before its request does, such as 413: the client gets all of it, then NO_ERROR.
#[test]
fn an_answer_before_the_request_has_ended() {
    let mut raw = Raw::new(Limits::default());
    assert_eq!(requests(&raw.give(&get(1, &[], 0))), [1]);
    raw.give(&frame(DATA, 0, 1, b"part"));
    raw.server.respond_text(1, b"HTTP/1.1 413 Content Too Large\r\n\r\n", false).unwrap();
    assert_eq!(raw.server.send(1, &[b'x'; 30_000], true), 30_000);
    assert_eq!(raw.give(&[]), [Happened::Done(1)]);
    let frames = raw.frames();
    let data: usize = frames.iter().filter(|frame| frame.0 == DATA).map(|frame| frame.3.len()).sum();
    assert_eq!(data, 30_000);
    assert_eq!(resets(&frames), [(1, 0)], "NO_ERROR");
    assert_eq!(frames.last().unwrap().0, RST_STREAM, "behind all data");
    // What the client sends meanwhile is nobody's.
    assert_eq!(raw.give(&frame(DATA, END_STREAM, 1, b"rest")), []);
}

#[test]
fn a_body_has_the_length_that_was_announced() {
    for (sent, flags) in [(&b"12345678"[..], 0), (b"123", END_STREAM)] {
        let mut raw = Raw::new(Limits::default());
        assert_eq!(requests(&raw.give(&get(1, &[("content-length", "7")], 0))), [1]);
        let happened = raw.give(&frame(DATA, flags, 1, sent));
        let reset = Happened::Reset { stream: 1, reason: Reason::PROTOCOL_ERROR, by_peer: false };
        assert_eq!(happened.last(), Some(&reset), "{happened:?}");
        assert_eq!(resets(&raw.frames()), [(1, 1)]);
    }
}

#[test]
fn the_preface_is_cut_anywhere() {
    let bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &get(1, &[], END_STREAM)].concat();
    for cut in 0..bytes.len() {
        let mut server = ServerConnection::new(&Limits::default(), 0);
        let mut seen = 0;
        for part in [&bytes[..cut], &bytes[cut..]] {
            assert_eq!(server.receive(Instant::ZERO, &[part]), part.len());
            server.poll();
            while let Some(event) = server.next_event() {
                assert!(matches!(event, csp_http2::Event::Request { stream: 1, .. }), "{event:?}");
                seen += 1;
            }
        }
        assert_eq!(seen, 1, "cut at {cut}");
    }
    // A wrong byte anywhere, such as another version.
    for at in 0..PREFACE.len() {
        let mut bytes = PREFACE.to_vec();
        bytes[at] ^= 1;
        let mut server = ServerConnection::new(&Limits::default(), 0);
        server.receive(Instant::ZERO, &[&bytes]);
        server.poll();
        let closed = server.next_event().map(common::owned);
        assert!(matches!(closed, Some(Happened::Closed(_))), "byte {at}: {closed:?}");
    }
}

#[test]
fn a_connection_that_is_lost() {
    let mut pair = Pair::new(Limits::default());
    let _response = pair.get("/");
    assert_eq!(pair.turn().len(), 1);
    pair.server.receive_end();
    assert_eq!(pair.turn(), [Happened::Closed(Cause::Lost)]);
    assert_eq!(pair.server.streams(), 0);
    let mut idle = Pair::new(Limits::default());
    idle.turn();
    idle.server.receive_end();
    assert_eq!(idle.turn(), [Happened::Closed(Cause::Finished)]);
    // Calls afterwards do nothing.
    idle.server.go_away();
    idle.server.abrupt(Reason::NO_ERROR);
    idle.server.reset(1, Reason::NO_ERROR);
    idle.server.poll();
    assert_eq!(idle.server.next_event(), None);
    assert_eq!(idle.server.receive(Instant::ZERO, &[b"more"]), 4);
}
