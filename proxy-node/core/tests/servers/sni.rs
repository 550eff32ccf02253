//! Pass-through by the server's name: what a service reads of a ClientHello decides whose pool gets the
//! bytes, all of them and as they came.

use std::sync::Arc;

use csp_proxy_core::{ProxyHeader, ServerNames, ServerOptions, ServiceSpec};
use csp_tcp::FailReason;
use csp_types::FlowLabel;
use csp_wire::tls::{HELLO_LEN_MAX, client_hello};

use super::host::End;
use super::world::{World, web};
use super::{MS, S, bytes};

const DB: &str = "db.example.com";

fn hello(name: Option<&str>) -> Vec<u8> {
    let mut out = [0; HELLO_LEN_MAX];
    let len = client_hello(name, &mut out).unwrap();
    out[..len].to_vec()
}

/// Puts the message of one record into records with at most `max` bytes of it each.
fn records(hello: &[u8], max: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    hello[5..].chunks(max).flat_map(record).collect()
}

/// A front whose names lead to server 2, and everything else to `otherwise`.
fn front(otherwise: &[u8], options: ServerOptions) -> Vec<ServiceSpec> {
    let mut names = ServerNames::default();
    names.insert(DB, "db".into());
    names.insert("*.db.example.com", "db".into());
    let sni = Some(Arc::new(names));
    let target = ServiceSpec { servers: options.clone(), ..web(&[2]) };
    let db = ServiceSpec { name: "db".to_owned(), address: ([0; 4], 0).into(), ..target };
    vec![ServiceSpec { sni, servers: ServerOptions::default(), ..web(otherwise) }, db]
}

fn world(otherwise: &[u8], connections: usize) -> World {
    let mut w = World::with_room(&[1, 2], connections);
    w.policy(front(otherwise, ServerOptions::default()));
    w
}

fn writes(w: &mut World, label: FlowLabel, part: &[u8]) {
    w.client().write(label, part);
    w.run(10 * MS);
}

/// Returns what the servers 1 and 2 have read in all.
fn read(w: &mut World) -> [Vec<u8>; 2] {
    [1, 2].map(|number| {
        let host = w.server(number);
        let labels = host.accepted.clone();
        labels.into_iter().flat_map(|label| host.at(label).read.clone()).collect()
    })
}

#[test]
fn the_name_decides_and_every_byte_arrives_however_it_was_sent() {
    for (name, at) in [
        (Some(DB), 1),
        (Some("DB.Example.Com"), 1),
        (Some("a.b.db.example.com"), 1),
        (Some("www.example.com"), 0),
        (None, 0),
    ] {
        let mut w = world(&[1], 512);
        let label = w.connect();
        let sent = [&hello(name)[..], &bytes(100_000, 3)].concat();
        w.client().write(label, &sent);
        w.client().finish(label);
        w.run(500 * MS);
        let got = read(&mut w);
        assert!(got[at] == sent && got[1 - at].is_empty(), "{name:?}: {} {}", got[0].len(), got[1].len());
        let of_server = w.server(at as u8 + 1).accepted[0];
        assert!(w.server(at as u8 + 1).at(of_server).finished);
        w.server(at as u8 + 1).finish(of_server);
        w.run(3 * S);
        assert_eq!(w.client().at(label).end, Some(End::Closed), "{name:?}");
        w.assert_empty("after both have closed");
    }
}

#[test]
fn a_hello_split_anywhere_is_read_once_it_is_whole() {
    let whole = hello(Some(DB));
    let sent = [&whole[..], b"more"].concat();
    let mut w = world(&[1], 512);
    for split in 1..sent.len() {
        let label = w.connect();
        writes(&mut w, label, &sent[..split]);
        let before = split - 1 + usize::from(split >= whole.len());
        assert_eq!(w.server(2).accepted.len(), before, "{split}");
        writes(&mut w, label, &sent[split..]);
        let of_server = *w.server(2).accepted.last().unwrap();
        assert_eq!(w.server(2).at(of_server).read, sent, "{split}");
        let now = w.now;
        w.client().tcp.abort(now, label);
    }
    for max in [1, 2, 3, 7, 50, 150] {
        let known = w.server(2).accepted.len();
        let (label, stream) = (w.connect(), records(&whole, max));
        for byte in stream.chunks(if max == 1 { 3 } else { 1 }) {
            assert_eq!(w.server(2).accepted.len(), known);
            writes(&mut w, label, byte);
        }
        let of_server = *w.server(2).accepted.last().unwrap();
        assert_eq!(w.server(2).at(of_server).read, stream, "{max}");
        assert!(w.client().at(label).end.is_none());
    }
    assert!(w.server(1).accepted.is_empty());
}

#[test]
fn lost_segments_change_nothing() {
    let mut whole = 0;
    for seed in 0..20 {
        let mut w = world(&[1], 16);
        w.seed(seed);
        w.loses = 10;
        let (label, sent) = (w.connect(), [records(&hello(Some(DB)), 40), bytes(30_000, 1)].concat());
        for part in sent.chunks(1_000) {
            w.client().write(label, part);
            w.run(3 * MS);
        }
        w.run(60 * S);
        let [of_others, got] = read(&mut w);
        // A server that does not answer in time is down, and the client is reset.
        assert!(of_others.is_empty() && (got == sent || w.client().at(label).end.is_some()), "seed {seed}");
        whole += usize::from(got == sent);
    }
    assert!(whole >= 15, "{whole} of 20");
}

#[test]
fn what_is_no_tls_and_what_ends_early_stay_with_the_service() {
    for (sent, finish) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], false),
        (b"\x16\x03\x01\0\0", false),
        (&hello(Some(DB))[..40], true),
        (b"", true),
    ] {
        let mut w = world(&[1], 16);
        let label = w.connect();
        w.client().write(label, sent);
        if finish {
            w.client().finish(label);
        }
        w.run(100 * MS);
        assert_eq!(read(&mut w), [sent.to_vec(), vec![]], "{sent:02x?}");
        let of_server = w.server(1).accepted[0];
        assert_eq!(w.server(1).at(of_server).finished, finish, "{sent:02x?}");
    }
}

#[test]
fn without_an_own_pool_other_names_get_an_alert_and_others_a_reset() {
    let alert = |code: u8| vec![21, 3, 3, 0, 2, 2, code];
    for (sent, answer, end) in [
        (hello(Some("www.example.com")), alert(112), "CN"),
        (hello(None), alert(112), "CN"),
        (b"\x16\x03\x01\0\0".to_vec(), alert(50), "CH"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![], "CH"),
    ] {
        let mut w = world(&[], 16);
        w.core.set_connection_log(Some(&|_| 0));
        let label = w.connect();
        w.client().write(label, &sent);
        w.run(S);
        let got = w.client().at(label);
        assert_eq!((&got.read, got.end), (&answer, Some(End::Failed(FailReason::Reset))), "{sent:02x?}");
        let ended = w.core.take_ended_connections(Vec::new()).0;
        let ended: Vec<_> = ended.iter().map(|record| (&*record.service, record.end.code())).collect();
        assert_eq!(ended, [("web", end)]);
        assert_eq!(w.core.counters().tls_handshakes_failed, 1);
        w.assert_empty("after a refusal");
    }
}

#[test]
fn the_target_has_the_connection_its_options_and_its_counters() {
    let mut w = world(&[1], 16);
    w.policy(front(&[1], ServerOptions { header: Some(ProxyHeader::V1), ..ServerOptions::default() }));
    w.core.set_connection_log(Some(&|_| 1));
    let (label, sent) = (w.connect(), hello(Some(DB)));
    writes(&mut w, label, &sent);
    w.client().finish(label);
    w.run(50 * MS);
    let header = b"PROXY TCP4 10.0.0.2 10.0.0.1 10001 80\r\n";
    assert_eq!(read(&mut w)[1], [&header[..], &sent].concat());
    let of_server = w.server(2).accepted[0];
    w.server(2).finish(of_server);
    w.run(3 * S);
    let ended = w.core.take_ended_connections(Vec::new()).0;
    assert_eq!((ended.len(), &*ended[0].service, ended[0].bytes.0), (1, "db", sent.len() as u64));
    let services = w.core.services();
    let opened = |name: &str| {
        let service = services.iter().find(|service| service.name == name).unwrap();
        service.counters.map(|counters| counters.opened)
    };
    assert_eq!((opened("web"), opened("db")), (Some(0), Some(1)));
}

#[test]
fn a_client_that_sends_nothing_or_drips_is_given_up() {
    let mut w = world(&[1], 16);
    let (silent, drips) = (w.connect(), w.connect());
    let sent = hello(Some(DB));
    for byte in 0..19 {
        writes(&mut w, drips, &sent[byte..=byte]);
        w.run(490 * MS);
    }
    assert!(w.client().at(silent).end.is_none());
    w.run(S);
    for label in [silent, drips] {
        assert_eq!(w.client().at(label).end, Some(End::Failed(FailReason::Reset)));
    }
    assert!(w.server(1).accepted.is_empty() && w.server(2).accepted.is_empty());
    w.assert_empty("after the time is over");
}

/// Connections without a hello give way when the table is nearly full, the oldest first.
#[test]
fn silent_connections_exclude_nobody() {
    let mut w = world(&[1], 64);
    let silent: Vec<FlowLabel> = (0..100)
        .map(|_| {
            w.run(50 * MS);
            w.connect()
        })
        .collect();
    w.run(20 * MS);
    let gone: Vec<bool> = silent.iter().map(|label| w.client().at(*label).end.is_some()).collect();
    let first = gone.iter().position(|gone| !gone).unwrap();
    assert!((36..45).contains(&first) && gone[first..].iter().all(|gone| !gone), "{gone:?}");
    let served = w.connect();
    writes(&mut w, served, &hello(Some(DB)));
    w.run(10 * MS);
    assert_eq!(read(&mut w)[1], hello(Some(DB)));
}

#[test]
fn one_that_leaves_before_its_hello_leaves_nothing() {
    let mut w = world(&[1], 16);
    let label = w.connect();
    writes(&mut w, label, b"\x16\x03");
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(20 * S);
    assert_eq!(w.server(1).accepted.len() + w.server(2).accepted.len(), 0);
    w.assert_empty("after the client's reset");
}

#[test]
fn a_header_of_a_balancer_comes_before_the_hello() {
    let mut w = world(&[1], 16);
    let mut services =
        front(&[1], ServerOptions { header: Some(ProxyHeader::V1), ..ServerOptions::default() });
    services[0].accept_proxy_from = vec!["10.0.0.0/30".parse().unwrap()];
    w.policy(services);
    let label = w.connect();
    let sent = hello(Some(DB));
    let all = [b"PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n", &sent[..]].concat();
    for part in all.chunks(10) {
        writes(&mut w, label, part);
    }
    assert_eq!(read(&mut w)[1], [b"PROXY TCP4 192.0.2.7 10.0.0.1 258 80\r\n", &sent[..]].concat());
}
