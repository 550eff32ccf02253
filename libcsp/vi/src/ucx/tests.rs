//! Tests that need access to private state.
#![allow(clippy::disallowed_types, reason = "tests own deadlines")]

use std::time::{Duration, Instant};

use super::*;

const CONFIG: ViConfig = ViConfig { receive_depth: 4, send_depth: 4, message_len: 64 };

/// Returns two providers with a VI from the first to the second.
fn pair() -> (UcxProvider, UcxProvider, ViId) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = ViAddress::Ip(free);
    let (mut a, mut b) = (UcxProvider::new().unwrap(), UcxProvider::new().unwrap());
    b.listen(&to).unwrap();
    let from_a = a.connect(&to, CONFIG, b"").unwrap();
    let (mut open_a, mut open_b) = (false, false);
    while !(open_a && open_b) {
        let _ = (a.poll(), b.poll());
        open_a |= matches!(a.poll_event(), Some(Event::Established { .. }));
        match b.poll_event() {
            Some(Event::Request(request)) => drop(b.accept(request.id, CONFIG, b"").unwrap()),
            Some(Event::Established { .. }) => open_b = true,
            _ => {}
        }
    }
    (a, b, from_a)
}

#[test]
fn an_end_lingers_for_two_seconds() {
    let (mut a, _silent, from_a) = pair();
    a.disconnect(from_a).unwrap();
    let start = Instant::now();
    while !a.lingering.is_empty() {
        assert_eq!((a.poll(), a.poll_event()), (None, None));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert!(start.elapsed() >= Duration::from_millis(1900), "{:?}", start.elapsed());
}
