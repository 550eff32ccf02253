//! The search for the proxy of a connection that the node has no flow for.

use csp_types::FlowLabel;
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Flags, Record, RecordKind};

use super::fixture::*;
use crate::*;

/// A core with proxies `pn-1` to `pn-3`, the second with two workers, and one segment of an unknown
/// connection on its way to the first proxy worker asked.
fn searching() -> (Fixture, TunnelOut) {
    let mut f = Fixture::new();
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 2);
    f.core.proxy_up(ProxyId(2), "pn-3".parse().unwrap(), 1);
    f.client_sends(Tcp::ACK, b"after a restart");
    let asked = f.sent();
    (f, asked)
}

/// Has the proxy worker that was asked give the segment back; returns what the node sends then.
fn unknown(f: &mut Fixture, asked: &TunnelOut) -> TunnelOut {
    give_back(f, asked);
    f.sent()
}

fn give_back(f: &mut Fixture, asked: &TunnelOut) {
    let segment = Record { worker: asked.worker, ecn: asked.ecn, ..whole(FlowLabel::NONE, &asked.payload) };
    f.core.on_record(f.now, asked.proxy, &Record::unknown(&segment, asked.worker), &mut f.out);
}

fn place(sent: &TunnelOut) -> (ProxyId, u8) {
    (sent.proxy, sent.worker)
}

fn asks(sent: &TunnelOut) -> bool {
    sent.flags.contains(Flags::RETURN_UNKNOWN)
}

#[test]
fn every_worker_is_asked_once_and_the_first_answers_at_last() {
    let (mut f, first) = searching();
    let mut sent = first.clone();
    let mut places = vec![place(&sent)];
    for _ in 1..4 {
        assert!(asks(&sent) && sent.label.is_none() && sent.kind == RecordKind::Segment);
        sent = unknown(&mut f, &sent);
        assert_eq!((&sent.payload, sent.ecn), (&first.payload, first.ecn), "the client's packet as it was");
        places.push(place(&sent));
    }
    let mut all = places.clone();
    all.sort_unstable_by_key(|(proxy, worker)| (proxy.0, *worker));
    assert_eq!(all, [(ProxyId(0), 0), (ProxyId(1), 0), (ProxyId(1), 1), (ProxyId(2), 0)]);
    let last = unknown(&mut f, &sent);
    assert_eq!((place(&last), asks(&last)), (places[0], false), "it may answer with RST now");
    f.client_sends(Tcp::ACK, &[]);
    let next = f.sent();
    assert_eq!((place(&next), asks(&next)), (places[0], false), "and the same for what follows");
    assert_eq!(f.core.counters().segments_returned, 4);
}

#[test]
fn a_connection_that_nobody_has_is_not_reset_while_a_proxy_cannot_be_asked() {
    let (mut f, first) = searching();
    f.core.set_complete(false);
    let mut sent = first.clone();
    for _ in 1..4 {
        sent = unknown(&mut f, &sent);
    }
    let dropped = f.core.counters().drop_no_proxy;
    give_back(&mut f, &sent);
    assert_eq!(
        (f.out.tunnel.len(), f.core.counters().drop_no_proxy),
        (0, dropped + 1),
        "the proxy that is away may have it"
    );
    f.core.set_complete(true);
    f.client_sends(Tcp::ACK, b"again");
    let again = f.sent();
    assert_eq!((place(&again), asks(&again)), (place(&first), true), "the search begins anew");
}

/// A proxy comes up while others are asked: wherever it stands in the order, it is asked, too.
#[test]
fn a_proxy_that_comes_up_meanwhile_is_asked_too() {
    for answers in 0..4 {
        let (mut f, mut sent) = searching();
        let mut places = vec![place(&sent)];
        for at in 0..12 {
            if at == answers {
                f.core.proxy_up(ProxyId(3), "pn-0".parse().unwrap(), 1);
                f.core.set_draining(ProxyId(3), true);
            }
            sent = unknown(&mut f, &sent);
            places.push(place(&sent));
            if !asks(&sent) {
                break;
            }
        }
        assert!(!asks(&sent), "the search ends");
        assert!(places[..places.len() - 1].contains(&(ProxyId(3), 0)), "{answers}: {places:?}");
    }
}

#[test]
fn the_proxy_that_has_the_connection_takes_it() {
    let (mut f, first) = searching();
    let second = unknown(&mut f, &first);
    f.client_sends(Tcp::ACK, b"more");
    let more = f.sent();
    assert_eq!(
        (place(&more), asks(&more)),
        (place(&second), true),
        "what follows goes where the search stands"
    );
    let packet = tcp_packet(VIP, CLIENT, Tcp::ACK, &[]);
    let (flags, worker) = (Flags::FLOW_NEW, second.worker);
    let record = Record { flags, worker, ..whole(label(7), &packet) };
    f.core.on_record(f.now, second.proxy, &record, &mut f.out);
    f.client_sends(Tcp::ACK, b"even more");
    let sent = f.sent();
    assert_eq!((place(&sent), sent.label, asks(&sent)), (place(&second), label(7), false));
    // Two segments were on their way to the first proxy when the search went on.
    let late = unknown(&mut f, &first);
    assert_eq!((place(&late), asks(&late)), (place(&second), false));
}

#[test]
fn proxies_that_drain_are_asked_before_others_and_also_if_all_do() {
    let mut f = Fixture::new();
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    f.core.proxy_up(ProxyId(2), "pn-3".parse().unwrap(), 1);
    f.core.set_draining(ProxyId(2), true);
    f.client_sends(Tcp::ACK, &[]);
    let first = f.sent();
    assert_ne!(first.proxy, ProxyId(2), "most likely nothing has changed since the connection was opened");
    assert_eq!(unknown(&mut f, &first).proxy, ProxyId(2));
    f.core.set_draining(ProxyId(0), true);
    f.core.set_draining(ProxyId(1), true);
    f.frame(&ip_frame(&tcp_packet("10.76.0.9:1234", VIP, Tcp::ACK, &[])));
    let sent = f.sent();
    assert!(asks(&sent));
    f.frame(&ip_frame(&tcp_packet("10.76.0.9:1235", VIP, Tcp::SYN, &[])));
    assert!(f.out.tunnel.is_empty(), "no proxy takes new connections");
}

#[test]
fn a_syn_ends_the_search_and_goes_where_new_connections_go() {
    let (mut f, first) = searching();
    let second = unknown(&mut f, &first);
    assert_ne!(place(&first), place(&second));
    f.client_sends(Tcp::SYN, &[]);
    let sent = f.sent();
    assert_eq!((place(&sent), asks(&sent)), (place(&first), false));
}

#[test]
fn connections_that_applications_opened_are_looked_for_too() {
    let mut f = Fixture::new();
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    f.frame(&ip_frame(&tcp_packet(CLIENT, &format!("{EGRESS}:50000"), Tcp::ACK, b"answer")));
    let first = f.sent();
    assert!(asks(&first));
    assert_ne!(unknown(&mut f, &first).proxy, first.proxy);
}

#[test]
fn what_a_proxy_gives_back_without_being_asked_goes_nowhere() {
    let (mut f, first) = searching();
    let another = TunnelOut { payload: tcp_packet("10.76.0.9:1234", VIP, Tcp::ACK, &[]), ..first.clone() };
    let malformed = TunnelOut { payload: first.payload[..30].to_vec(), ..first.clone() };
    give_back(&mut f, &another);
    give_back(&mut f, &malformed);
    let counters = *f.core.counters();
    assert_eq!((f.out.tunnel.len(), counters.drop_foreign_flow, counters.drop_bad_record), (0, 1, 1));
    // A proxy that was not asked does not make the search go on.
    let other = TunnelOut { proxy: ProxyId(u16::from(first.proxy.0 == 0)), ..first.clone() };
    assert_eq!(place(&unknown(&mut f, &other)), place(&first));
}

#[test]
fn a_flood_of_returned_segments_is_bounded() {
    let (mut f, first) = searching();
    for _ in 0..50_500 {
        give_back(&mut f, &first);
    }
    assert_eq!((f.out.tunnel.len(), f.core.counters().drop_search_limit), (50_000, 500));
    f.out.tunnel.clear();
    f.now = seconds(12);
    give_back(&mut f, &first);
    assert_eq!(f.out.tunnel.len(), 1);
}
