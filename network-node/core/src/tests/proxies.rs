//! Proxies that come up and go down, and behaviour without any proxy.

use csp_types::{FlowLabel, NodeId, TraceKind};
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Flags, Record, RecordKind};

use super::fixture::*;
use crate::*;

fn config() -> CoreConfig {
    CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2))
}

fn client(n: u16) -> String {
    format!("10.76.1.{}:{}", n % 200 + 1, 1024 + n)
}

#[test]
fn without_a_proxy_segments_are_dropped_and_counted() {
    let mut f = Fixture::without_proxy(config());
    f.client_sends(Tcp::SYN, &[]);
    assert_eq!((f.core.counters().drop_no_proxy, f.core.flow_count(), f.out.tunnel.len()), (1, 0, 0));
}

#[test]
fn a_full_tunnel_drops_and_counts() {
    let mut f = Fixture::new();
    f.out.full = true;
    f.client_sends(Tcp::SYN, &[]);
    assert_eq!((f.core.counters().drop_tunnel_full, f.core.counters().segments_in), (1, 0));
}

#[test]
fn a_dead_proxys_flows_go_to_others_and_nothing_of_it_stays() {
    let mut f = Fixture::new();
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 2);
    for n in 0..100 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
    }
    let first: Vec<TunnelOut> = f.out.tunnel.drain(..).collect();
    let theirs = first.iter().filter(|r| r.proxy == ProxyId(1)).count();
    assert!((40..95).contains(&theirs), "{theirs} of 100 flows went to the proxy with two of three workers");
    f.core.proxy_down(ProxyId(1));
    assert_eq!((f.core.flow_count(), f.core.counters().flows_lost), (100 - theirs, theirs as u64));
    for n in 0..100 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::ACK, &[])));
    }
    assert!(f.out.tunnel.iter().all(|r| r.proxy == ProxyId(0)));
}

/// A proxy with 5,000 flows has died, more than one call treats.
fn half_swept() -> Fixture {
    let mut f = Fixture::new();
    f.core.set_draining(ProxyId(0), true);
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    for n in 0..5000 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
    }
    assert!(f.out.tunnel.drain(..).all(|r| r.proxy == ProxyId(1)));
    f.core.set_draining(ProxyId(0), false);
    f.core.proxy_down(ProxyId(1));
    let left = f.core.flow_count();
    assert!((1..5000).contains(&left), "{left} of 5,000 flows are left after one call");
    assert!(f.core.next_timeout().is_some_and(|due| due <= f.now), "the rest is due at once");
    f
}

#[test]
fn flows_of_a_dead_proxy_go_to_others_before_they_are_removed() {
    let mut f = half_swept();
    for n in 4900..5000 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::ACK, &[])));
    }
    assert!(f.out.tunnel.drain(..).all(|r| r.proxy == ProxyId(0)));
    (0..20).for_each(|_| f.core.on_timeout(f.now, &mut f.out));
    assert_eq!((f.core.flow_count(), f.core.counters().flows_lost), (100, 5000));
    assert!(f.core.next_timeout().is_none_or(|due| due > f.now));
}

#[test]
fn a_proxy_that_is_back_keeps_its_new_flows() {
    let mut f = half_swept();
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    assert_eq!((f.core.flow_count(), f.core.counters().flows_lost), (0, 5000));
    f.core.set_draining(ProxyId(0), true);
    for n in 0..100 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
    }
    (0..20).for_each(|_| f.core.on_timeout(f.now, &mut f.out));
    assert_eq!((f.core.flow_count(), f.core.counters().flows_lost), (100, 5000));
}

#[test]
fn a_draining_proxy_keeps_its_flows_and_gets_no_new_ones() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    f.core.set_draining(ProxyId(0), true);
    f.out.tunnel.clear();
    f.client_sends(Tcp::ACK, b"more");
    assert!(f.out.tunnel.drain(..).all(|r| r.proxy == ProxyId(0)), "an established flow");
    let mut proxies_of_new = |first: u16| -> Vec<ProxyId> {
        for n in first..first + 50 {
            f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
        }
        let proxies = f.out.tunnel.drain(..).map(|r| r.proxy).collect();
        f.core.set_draining(ProxyId(0), false);
        proxies
    };
    assert!(proxies_of_new(0).iter().all(|proxy| *proxy == ProxyId(1)));
    assert!(proxies_of_new(50).contains(&ProxyId(0)), "in service again");
}

#[test]
fn a_flow_stays_with_its_proxy_when_another_comes() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.client_sends(Tcp::SYN, &[]);
    for n in 0..50 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
    }
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 4);
    f.out.tunnel.clear();
    for n in 0..50 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::ACK, &[])));
    }
    assert!(f.out.tunnel.iter().all(|r| r.proxy == ProxyId(0)));
}

#[test]
fn a_proxy_that_comes_back_may_give_out_its_labels_again() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.core.proxy_down(ProxyId(0));
    assert_eq!(f.core.label_count(), 0);
    // A record that was in transit binds nothing.
    f.proxy_binds(label(1));
    assert_eq!((f.core.label_count(), f.core.counters().drop_stale_label), (0, 1));
    f.core.proxy_up(ProxyId(0), "pn-1".parse().unwrap(), 1);
    f.establish(label(1));
    assert_eq!(f.core.label_count(), 1);
}

#[test]
fn a_proxy_cannot_take_anothers_flow_or_send_from_a_foreign_address() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    let packet = tcp_packet(VIP, CLIENT, Tcp::SYN | Tcp::ACK, &[]);
    let record = Record { flags: Flags::FLOW_NEW, ..whole(label(8), &packet) };
    f.core.on_record(f.now, ProxyId(1), &record, &mut f.out);
    let packet = tcp_packet("10.76.0.55:80", CLIENT, Tcp::SYN, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(9), &packet) });
    f.record(whole(FlowLabel::NONE, &packet));
    assert_eq!((f.core.counters().drop_foreign_flow, f.core.label_count(), f.out.lan.len()), (3, 1, 0));
    f.client_sends(Tcp::ACK, &[]);
    assert_eq!((f.sent().label, f.core.flow_count()), (label(1), 1));
}

#[test]
fn a_full_table_prefers_flows_with_labels() {
    let mut f = Fixture::with(CoreConfig { flows_max: 4, ..config() });
    f.establish(label(1));
    for n in 0..10 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
    }
    assert_eq!((f.core.flow_count(), f.core.label_count(), f.core.counters().flows_evicted), (3, 1, 8));
    f.out.tunnel.clear();
    f.client_sends(Tcp::ACK, &[]);
    assert_eq!(f.sent().label, label(1));
}

#[test]
fn a_flow_waits_for_its_proxy_while_only_the_tunnel_is_broken() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    f.out.tunnel.clear();
    f.core.worker_unreachable(f.now, ProxyId(0), 0);
    assert_eq!((f.core.flow_count(), f.core.label_count()), (1, 0));
    for n in 0..20 {
        f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
    }
    assert!(f.out.tunnel.drain(..).all(|r| r.proxy == ProxyId(1)), "a new flow was given to a broken tunnel");
    f.client_sends(Tcp::ACK, &[]);
    let sent = f.sent();
    assert_eq!((sent.proxy, sent.label), (ProxyId(0), FlowLabel::NONE));
    f.core.worker_down(ProxyId(0), 0);
    f.out.tunnel.clear();
    f.client_sends(Tcp::ACK, &[]);
    assert_eq!(f.sent().proxy, ProxyId(1), "its proxy is dead: another one resets the client");
}

#[test]
fn unknown_connections_are_left_alone_until_all_proxies_were_tried() {
    let mut f = Fixture::new();
    f.core.set_settled(false);
    f.client_sends(Tcp::ACK, b"late");
    assert_eq!((f.out.tunnel.len(), f.core.counters().drop_no_proxy), (0, 1));
    f.frame(&ip_frame(&tcp_packet(&client(1), VIP, Tcp::SYN, &[])));
    assert_eq!(f.out.tunnel.len(), 1, "new ones cannot be given to a wrong proxy");
    f.core.set_settled(true);
    f.out.tunnel.clear();
    f.client_sends(Tcp::ACK, b"late");
    assert_eq!(f.out.tunnel.len(), 1);
}

#[test]
fn a_proxy_whose_source_port_belongs_to_another_receives_flow_end() {
    let mut f = Fixture::new();
    let syn = tcp_packet(VIP, CLIENT, Tcp::SYN, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(1), &syn) });
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    let record = Record { flags: Flags::FLOW_NEW, ..whole(label(8), &syn) };
    f.core.on_record(f.now, ProxyId(1), &record, &mut f.out);
    let reported = f.sent();
    assert_eq!((reported.proxy, reported.kind, reported.label), (ProxyId(1), RecordKind::FlowEnd, label(8)));
}

#[test]
fn a_trace_distinguishes_flows_of_two_proxies_with_one_label() {
    let mut f = Fixture::new();
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 1);
    for proxy in [ProxyId(0), ProxyId(1)] {
        let is_its = |f: &mut Fixture, n: u16| {
            f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
            f.sent().proxy == proxy
        };
        let n = (0..100).find(|n| is_its(&mut f, 200 * proxy.0 + n)).expect("a client of each proxy");
        let packet = tcp_packet(VIP, &client(200 * proxy.0 + n), Tcp::SYN | Tcp::ACK, &[]);
        let record = Record { flags: Flags::FLOW_NEW, ..whole(label(1), &packet) };
        f.core.on_record(f.now, proxy, &record, &mut f.out);
    }
    let trace = f.core.flow_trace(label(1));
    for id in ["pn-1", "pn-2"] {
        let tag = id.parse::<NodeId>().unwrap().tag();
        let kinds: Vec<TraceKind> = trace.iter().filter(|e| e.proxy == tag).map(|e| e.kind).collect();
        assert_eq!(kinds, [TraceKind::LanIn, TraceKind::LabelBound, TraceKind::LanOut], "{id}");
    }
    assert_eq!(trace.len(), 6);
}

/// The worker in the same thread gets all new flows, until it is down or its proxy drains.
#[test]
fn new_flows_go_to_the_nodes_own_proxy_while_it_takes_any() {
    let own = Some(("pn-2".parse().unwrap(), 1));
    let mut f = Fixture::with(CoreConfig { own_proxy: own, ..config() });
    let mut next = 0;
    let mut chosen = |f: &mut Fixture| -> Vec<(ProxyId, u8)> {
        for n in next..next + 40 {
            f.frame(&ip_frame(&tcp_packet(&client(n), VIP, Tcp::SYN, &[])));
        }
        next += 40;
        let mut all: Vec<_> = f.out.tunnel.drain(..).map(|r| (r.proxy, r.worker)).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert!(chosen(&mut f).iter().all(|(proxy, _)| *proxy == ProxyId(0)), "the own one is not there");
    f.core.proxy_up(ProxyId(1), "pn-2".parse().unwrap(), 3);
    assert_eq!(chosen(&mut f), [(ProxyId(1), 1)]);
    f.core.set_draining(ProxyId(1), true);
    assert!(chosen(&mut f).iter().all(|(proxy, _)| *proxy == ProxyId(0)), "it drains");
    f.core.set_draining(ProxyId(1), false);
    assert_eq!(chosen(&mut f), [(ProxyId(1), 1)]);
    f.core.worker_down(ProxyId(1), 1);
    let others = chosen(&mut f);
    assert!(others.len() > 1 && !others.contains(&(ProxyId(1), 1)), "{others:?}");
}
