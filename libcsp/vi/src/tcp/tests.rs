//! Peers that do not follow the protocol, over sockets of this test.
#![allow(clippy::disallowed_types, reason = "tests own deadlines")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{HEADER_LEN, Header, Kind, Setup};
use super::setup::SILENT_MAX;
use super::{SCRATCH_LEN, TcpProvider};
use crate::{Completion, Event, Provider, ViAddress, ViConfig, ViError, ViId};

const CONFIG: ViConfig = ViConfig { receive_depth: 4, send_depth: 4, message_len: 64 };

/// Calls `step` until it returns a value.
#[track_caller]
fn wait<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Instant::now() < end, "nothing came");
        std::thread::yield_now();
    }
}

#[track_caller]
fn event(provider: &mut TcpProvider) -> Event {
    wait(|| {
        assert_eq!(provider.poll(), None);
        provider.poll_event()
    })
}

fn frame(kind: Kind, (posted, received): (u32, u32), body: &[u8]) -> Vec<u8> {
    let header = Header { posted, received, ..Header::new(kind, body.len(), 0) };
    [&header.write(), body].concat()
}

fn request() -> Vec<u8> {
    frame(Kind::Request, (4, 0), &Setup::write(&CONFIG, b"hello"))
}

/// Returns a provider that listens, and where.
fn listening() -> (TcpProvider, SocketAddr) {
    let mut provider = TcpProvider::new().unwrap();
    provider.listen(&ViAddress::Ip((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
    let at = provider.listeners[0].socket.address();
    (provider, at)
}

/// Returns a provider with an open VI to a peer that is this test.
fn opened() -> (TcpProvider, ViId, TcpStream) {
    let (mut provider, at) = listening();
    let mut peer = TcpStream::connect(at).unwrap();
    peer.write_all(&request()).unwrap();
    let Event::Request(asked) = event(&mut provider) else { panic!("no request") };
    assert_eq!((&asked.private_data[..], asked.listener), (&b"hello"[..], Some(0)));
    let vi = provider.accept(asked.id, CONFIG, b"").unwrap();
    assert!(matches!(event(&mut provider), Event::Established { .. }));
    let mut answer = [0; HEADER_LEN + 20];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 4, "accepted");
    (provider, vi, peer)
}

#[test]
fn what_is_no_request_is_dropped_and_counted() {
    let (mut provider, at) = listening();
    let long = Header { len: 97, ..Header::new(Kind::Request, 0, 0) }.write();
    let wrong = Setup::write(&ViConfig { message_len: 0, ..CONFIG }, b"");
    let bad = [
        b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n".to_vec(),
        long.to_vec(),
        frame(Kind::Accept, (4, 0), &Setup::write(&CONFIG, b"")),
        frame(Kind::Data, (4, 0), b"x"),
        frame(Kind::Counts, (4, 0), b""),
        frame(Kind::Request, (4, 0), &wrong),
        [request(), frame(Kind::Data, (4, 0), b"x")].concat(),
    ];
    for (n, bytes) in bad.iter().enumerate() {
        let mut peer = TcpStream::connect(at).unwrap();
        peer.write_all(bytes).unwrap();
        wait(|| {
            assert_eq!((provider.poll(), provider.poll_event()), (None, None));
            (provider.counters().handshakes_malformed == n as u64 + 1).then_some(())
        });
        // It is closed, or reset since not all of it was read.
        assert!(matches!(peer.read(&mut [0]), Ok(0) | Err(_)));
    }
    assert_eq!(provider.silent.iter().count(), 0);
}

#[test]
fn silent_connections_are_bounded_and_do_not_keep_others_out() {
    let (mut provider, at) = listening();
    let silent: Vec<_> = (0..SILENT_MAX + 10)
        .map(|_| {
            let peer = TcpStream::connect(at).unwrap();
            assert_eq!(provider.poll(), None);
            peer
        })
        .collect();
    let mut peer = TcpStream::connect(at).unwrap();
    // A request may come in pieces.
    for piece in request().chunks(7) {
        peer.write_all(piece).unwrap();
        assert_eq!(provider.poll(), None);
    }
    assert!(matches!(event(&mut provider), Event::Request(_)));
    assert!(provider.counters().handshakes_dropped >= 10);
    assert!(provider.silent.iter().count() <= SILENT_MAX);
    drop(silent);
}

#[test]
fn a_peer_that_gives_up_takes_its_request_along() {
    let (mut provider, at) = listening();
    let mut peer = TcpStream::connect(at).unwrap();
    peer.write_all(&request()).unwrap();
    let Event::Request(asked) = event(&mut provider) else { panic!("no request") };
    drop(peer);
    wait(|| {
        assert_eq!(provider.poll(), None);
        (provider.waiting.iter().count() == 0).then_some(())
    });
    assert!(matches!(provider.accept(asked.id, CONFIG, b""), Err(ViError::Unknown(_))));
}

#[test]
fn a_peer_that_violates_the_protocol_loses_its_vi_and_nothing_else() {
    let counts = |posted, received| frame(Kind::Counts, (posted, received), b"");
    let bad = [
        ("an unknown kind", vec![9; HEADER_LEN]),
        ("a set-up on an open VI", request()),
        ("more receives than it has", counts(5, 0)),
        ("a message that was not sent", counts(4, 1)),
        ("too long a message", frame(Kind::Data, (4, 0), &[0; 65])),
        ("more messages than receives", frame(Kind::Data, (4, 0), b"x").repeat(5)),
    ];
    for (what, bytes) in bad {
        let (mut provider, vi, mut peer) = opened();
        peer.write_all(&bytes).unwrap();
        let end = wait(|| {
            while provider.poll().is_some() {}
            provider.poll_event()
        });
        assert_eq!(end, Event::Disconnected { vi, clean: false }, "{what}");
        assert_eq!(provider.counters().violations, 1, "{what}");
        provider.disconnect(vi).unwrap();
        assert_eq!(provider.ends.iter().count(), 0);
    }
}

#[test]
fn messages_before_the_end_of_a_stream_are_received_and_the_rest_of_one_is_not() {
    let (mut provider, vi, mut peer) = opened();
    let whole = frame(Kind::Data, (4, 0), b"whole");
    peer.write_all(&[&whole, &whole[..HEADER_LEN + 3]].concat()).unwrap();
    let message = wait(|| provider.poll());
    assert!(matches!(message, Completion::Received { len: 5, .. }));
    wait(|| {
        assert_eq!(provider.poll(), None);
        (provider.incomplete(vi) == HEADER_LEN + 3).then_some(())
    });
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(event(&mut provider), Event::Disconnected { vi, clean: false });
}

/// The end of the stream can arrive in the same moment as the last bytes.
#[test]
fn a_clean_end_behind_many_messages_is_seen() {
    for len in [0, 1, 64] {
        let (mut provider, vi, mut peer) = opened();
        let stream = [frame(Kind::Data, (4, 0), &vec![7; len]).repeat(4), frame(Kind::Close, (4, 0), b"")];
        peer.write_all(&stream.concat()).unwrap();
        drop(peer);
        let mut got = 0;
        let end = wait(|| {
            while provider.poll().is_some() {
                got += 1;
            }
            provider.poll_event()
        });
        assert_eq!((got, end), (4, Event::Disconnected { vi, clean: true }));
    }
}

#[test]
fn what_answers_a_connector_wrongly_refuses_it() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = ViAddress::Ip(listener.local_addr().unwrap());
    let other = ViConfig { message_len: 65, ..CONFIG };
    for answer in [
        b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n".to_vec(),
        frame(Kind::Accept, (4, 0), b"short"),
        frame(Kind::Accept, (4, 0), &Setup::write(&other, b"")),
        frame(Kind::Data, (4, 0), b"x"),
        Vec::new(),
    ] {
        let mut provider = TcpProvider::new().unwrap();
        let vi = provider.connect(&at, CONFIG, b"").unwrap();
        let mut peer = listener.accept().unwrap().0;
        peer.write_all(&answer).unwrap();
        drop(peer);
        match event(&mut provider) {
            Event::Refused { vi: of, reason: ViError::Protocol(_) | ViError::Unreachable { .. } }
                if of == vi => {}
            other => panic!("{other:?}"),
        }
        provider.disconnect(vi).unwrap();
    }
}

/// An end that its caller has released waits for the peer, but not for ever, and takes nothing more.
#[test]
fn a_released_end_discards_what_arrives_and_goes_with_its_peer() {
    let (mut provider, vi, mut peer) = opened();
    provider.disconnect(vi).unwrap();
    peer.write_all(&vec![0; 2 * SCRATCH_LEN]).unwrap();
    let mut last: Vec<u8> = Vec::new();
    peer.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    wait(|| {
        assert_eq!((provider.poll(), provider.poll_event()), (None, None));
        let mut bytes = [0; 64];
        match peer.read(&mut bytes) {
            Ok(0) => Some(()),
            Ok(len) => {
                last.extend(&bytes[..len]);
                None
            }
            Err(_) => None,
        }
    });
    assert_eq!(last.len(), HEADER_LEN);
    assert_eq!(last[0], 6, "the end of the VI");
    assert_eq!(provider.ends.iter().count(), 1);
    drop(peer);
    wait(|| {
        assert_eq!(provider.poll(), None);
        (provider.ends.iter().count() == 0).then_some(())
    });
}
