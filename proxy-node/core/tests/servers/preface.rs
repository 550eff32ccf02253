//! Balancers in front that begin each connection with a header of the PROXY protocol.

use csp_proxy_core::{ProxyHeader, ServerOptions, ServiceSpec};
use csp_tcp::FailReason;
use csp_types::FlowLabel;

use super::host::End;
use super::world::{World, web};
use super::{MS, S, bytes};

/// A service behind a balancer, whose servers get a header, too: it shows which client they see.
fn behind(networks: &[&str]) -> World {
    with_room(networks, 512)
}

fn with_room(networks: &[&str], connections: usize) -> World {
    let mut w = World::with_room(&[1], connections);
    let servers = ServerOptions { header: Some(ProxyHeader::V1), ..ServerOptions::default() };
    let accept_proxy_from = networks.iter().map(|network| network.parse().unwrap()).collect();
    w.policy(vec![ServiceSpec { servers, accept_proxy_from, ..web(&[1]) }]);
    w
}

fn read(w: &mut World) -> Vec<u8> {
    let label = w.server(1).accepted[0];
    w.server(1).at(label).read.clone()
}

fn writes(w: &mut World, label: FlowLabel, part: &[u8]) {
    w.client().write(label, part);
    w.run(20 * MS);
}

#[test]
fn the_server_sees_the_client_that_the_header_names() {
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\x4c\0\x64\x01\x02\x01\xbb";
    for (header, seen) in [
        (&b"PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n"[..], "PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n"),
        (v2, "PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n"),
        // Nothing is known of the client, or it is of the other family: the balancer's own address.
        (b"PROXY UNKNOWN\r\n", "PROXY TCP4 10.0.0.2 10.0.0.1 10001 80\r\n"),
        (b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n", "PROXY TCP4 10.0.0.2 10.0.0.1 10001 80\r\n"),
        (
            b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.9 258 2\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n",
        ),
    ] {
        for split in [0, 3, header.len() - 1] {
            let mut w = behind(&["10.0.0.0/30"]);
            let label = w.connect();
            writes(&mut w, label, &header[..split]);
            assert!(w.server(1).accepted.is_empty(), "it is not known whose connection this is");
            writes(&mut w, label, &[&header[split..], b"hello"].concat());
            assert_eq!(String::from_utf8(read(&mut w)).unwrap(), format!("{seen}hello"));
            w.client().finish(label);
            w.run(20 * MS);
            let of_server = w.server(1).accepted[0];
            w.server(1).finish(of_server);
            w.run(3 * S);
            assert_eq!(w.client().at(label).end, Some(End::Closed));
            w.assert_empty("after both have closed");
        }
    }
}

#[test]
fn all_at_once_and_much_more_arrives_whole() {
    let mut w = behind(&["10.0.0.2/32"]);
    let (label, sent) = (w.connect(), bytes(300_000, 3));
    w.client().write(label, b"PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n");
    w.client().write(label, &sent);
    w.client().finish(label);
    w.run(S);
    let got = read(&mut w);
    assert!(got.ends_with(&sent), "{} bytes", got.len());
    let of_server = w.server(1).accepted[0];
    assert!(w.server(1).at(of_server).finished);
}

#[test]
fn others_come_without_a_header() {
    let mut w = behind(&["10.9.0.0/16"]);
    let label = w.connect();
    writes(&mut w, label, b"PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n");
    let seen = String::from_utf8(read(&mut w)).unwrap();
    assert!(seen.starts_with("PROXY TCP4 10.0.0.2 ") && seen.ends_with("258 80\r\n"), "{seen}");
    assert_eq!(w.core.counters().proxy_headers_refused, 0);
}

#[test]
fn a_balancer_that_sends_no_header_is_reset() {
    for (part, finish) in [(&b"GET / HTTP/1.1\r\n"[..], false), (b"PROXY TCP4 1", true), (b"", false)] {
        let mut w = behind(&["10.0.0.0/30"]);
        let label = w.connect();
        w.client().write(label, part);
        if finish {
            w.client().finish(label);
        }
        w.run(4_900 * MS);
        let waits = part.is_empty();
        assert_eq!(w.client().at(label).end.is_none(), waits, "{part:?}");
        w.run(S);
        assert_eq!(w.client().at(label).end, Some(End::Failed(FailReason::Reset)));
        assert_eq!((w.core.counters().proxy_headers_refused, w.server(1).accepted.len()), (1, 0));
        w.assert_empty("after a reset");
    }
}

/// Connections without a header give way when the table is nearly full, the oldest first.
#[test]
fn silent_connections_of_a_balancer_exclude_nobody() {
    let mut w = with_room(&["10.0.0.0/30"], 64);
    let silent: Vec<FlowLabel> = (0..100)
        .map(|_| {
            w.run(5 * MS);
            w.connect()
        })
        .collect();
    w.run(20 * MS);
    let ended = |w: &mut World, label: &FlowLabel| w.client().at(*label).end.is_some();
    let gone: Vec<bool> = silent.iter().map(|label| ended(&mut w, label)).collect();
    let first = gone.iter().position(|gone| !gone).unwrap();
    assert!((36..45).contains(&first) && gone[first..].iter().all(|gone| !gone), "{gone:?}");
    assert_eq!(w.core.counters().proxy_headers_refused, first as u64);
    let served = w.connect();
    writes(&mut w, served, b"PROXY UNKNOWN\r\nhello");
    assert!(read(&mut w).ends_with(b"hello"));
}

#[test]
fn a_check_by_the_balancer_is_no_fault() {
    let mut w = behind(&["10.0.0.0/30"]);
    let label = w.connect();
    w.client().finish(label);
    w.run(S);
    assert!(w.client().at(label).end.is_some());
    assert_eq!((w.core.counters().proxy_headers_refused, w.server(1).accepted.len()), (0, 0));
    w.assert_empty("after a check");
}

#[test]
fn one_that_leaves_before_its_header_leaves_nothing() {
    let mut w = behind(&["10.0.0.0/30"]);
    let label = w.connect();
    writes(&mut w, label, b"PROXY");
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(10 * S);
    assert_eq!((w.core.counters().proxy_headers_refused, w.server(1).accepted.len()), (0, 0));
    w.assert_empty("after the client's reset");
    // Its label may be used again.
    let label = w.connect();
    writes(&mut w, label, b"PROXY UNKNOWN\r\nhello");
    assert!(read(&mut w).ends_with(b"hello"));
}
