//! Requests that a process has provably not read: it says so when it closes its connection.

use csp_gateway::spec::ServiceConfig;
use csp_types::FlowLabel;
use csp_wire::channel::{CLOSE_UNREAD, MessageHeader, MessageKind, close_argument};

use crate::http::{A, Http, service};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn post(len: usize) -> String {
    format!("POST /pay HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{}", "b".repeat(len))
}

/// Has a process close a connection of which its program has read this much.
fn closes_after(h: &mut Http, label: FlowLabel, read: Option<u32>) {
    let argument = close_argument(read);
    let header = MessageHeader::of_flow(MessageKind::Close, label, argument, 0);
    let process = h.w.served[&label.to_wire()].process;
    h.w.message(process, MessageHeader { flags: CLOSE_UNREAD, ..header }, &[]);
}

/// A kept connection, and how many bytes its process has read.
fn kept(h: &mut Http) -> (FlowLabel, u32) {
    let member = h.asks(1_000, GET);
    let read = h.hears(member).len() as u32;
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    (member, read)
}

#[test]
fn a_post_that_meets_the_end_of_a_kept_connection_is_sent_again() {
    for len in [0, 2, 1_000, 16 << 10] {
        let mut h = Http::new(service());
        let (member, read) = kept(&mut h);
        h.send(1_000, post(len));
        assert!(h.hears(member).ends_with(&"b".repeat(len)), "it is on its way to the process");
        closes_after(&mut h, member, Some(read));
        let other = h.accept();
        assert_eq!(h.hears(other).split_once("\r\n\r\n").unwrap().1, "b".repeat(len), "all of it, once");
        h.says(other, EMPTY);
        assert_eq!(h.reads(1_000), EMPTY);
        let records = h.records();
        assert_eq!((records[1].attempts, records[1].code(), records[1].reused), (2, "ok", false));
        h.assert_no_leak();
    }
}

/// Programs that end their stream before they close.
#[test]
fn a_post_that_meets_the_end_of_a_program_s_stream_is_sent_again() {
    let mut h = Http::new(service());
    let (member, read) = kept(&mut h);
    h.send(1_000, post(2));
    h.w.says(member, MessageKind::Shutdown, close_argument(Some(read)), &[]);
    let other = h.accept();
    assert!(h.hears(other).ends_with("\r\n\r\nbb"));
    h.says(other, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.assert_no_leak();
}

#[test]
fn a_part_of_a_body_is_sent_again_and_the_rest_follows() {
    let mut h = Http::new(service());
    let (member, read) = kept(&mut h);
    let whole = post(1_000);
    let (first, rest) = whole.split_at(whole.len() - 400);
    h.send(1_000, first);
    h.hears(member);
    closes_after(&mut h, member, Some(read));
    let other = h.accept();
    h.send(1_000, rest);
    assert_eq!(h.hears(other).split_once("\r\n\r\n").unwrap().1, "b".repeat(1_000));
    h.says(other, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.assert_no_leak();
}

#[test]
fn a_post_of_which_a_byte_was_read_is_never_sent_again() {
    for more in [Some(1), Some(40), None] {
        let mut h = Http::new(service());
        let (member, read) = kept(&mut h);
        h.send(1_000, post(2));
        h.hears(member);
        closes_after(&mut h, member, more.map(|more| read + more));
        assert!(h.w.offers.is_empty(), "{more:?}");
        assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
        h.assert_no_leak();
    }
}

/// It would have to be kept whole. Neither is one kept whose length is not known.
#[test]
fn a_long_post_gets_a_fresh_connection() {
    for text in [
        post(17_000)[..2_000].to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
    ] {
        let mut h = Http::new(service());
        let (member, _) = kept(&mut h);
        h.send(1_000, text);
        let other = h.accept();
        assert_ne!(other, member);
        h.says(other, EMPTY);
        assert_eq!(h.reads(1_000), EMPTY);
        h.assert_no_leak();
    }
}

/// A method that may be repeated is, with its body, whatever the process has read.
#[test]
fn a_put_is_sent_again_though_it_was_read() {
    let mut h = Http::new(service());
    h.w.connect(1_000);
    h.send(1_000, post(5).replace("POST", "PUT"));
    let member = h.accept();
    h.hears(member);
    closes_after(&mut h, member, None);
    let other = h.accept();
    assert!(h.hears(other).ends_with("\r\n\r\nbbbbb"));
    h.says(other, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.assert_no_leak();
}

/// With one member, whose process closes each connection unread, there is an end.
#[test]
fn an_unread_request_is_not_sent_for_ever() {
    let mut h = Http::with_members(ServiceConfig { retries: 1, ..service() }, &[A]);
    let (member, read) = kept(&mut h);
    h.send(1_000, post(2));
    closes_after(&mut h, member, Some(read));
    for _ in 0..4 {
        if h.w.offers.is_empty() {
            break;
        }
        let label = h.accept();
        closes_after(&mut h, label, Some(0));
    }
    assert!(h.w.offers.is_empty());
    assert!(h.reads(1_000).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    h.assert_no_leak();
}
