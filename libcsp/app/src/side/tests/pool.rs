//! Several links to one proxy worker.

use MessageKind::{AcceptCredit, Connect, Listen, Unlisten};
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use super::harness::{World, open_payload};
use crate::{AppError, FlowId, Handle, ListenerId, Readiness, errno};

fn label(n: u32) -> FlowLabel {
    FlowLabel::new(n, 0)
}

/// A listening process with two links, and one accepted connection on each: labels 1 and 2.
fn with_two_flows() -> (World, ListenerId, [FlowId; 2]) {
    let mut w = World::with_pool(2);
    assert_eq!(w.proxy.links.len(), 2);
    let listener = w.listening(8);
    let flows = [0, 1].map(|n| {
        w.proxy.link = Some(w.proxy.links[n]);
        w.proxy.open(&w.now, label(n as u32 + 1), listener);
        w.accept(listener)
    });
    w.proxy.take();
    (w, listener, flows)
}

fn read(w: &mut World, flow: FlowId) -> Result<usize, AppError> {
    w.app.read(w.now, flow, &mut [0; 64], false)
}

#[test]
fn a_flow_stays_on_the_link_on_which_it_was_offered() {
    let (mut w, _, flows) = with_two_flows();
    for (n, flow) in flows.into_iter().enumerate() {
        w.app.write(w.now, flow, &[b"bytes"]).unwrap();
        w.run();
        assert_eq!(w.proxy.last_received_on, Some(w.proxy.links[n]));
    }
    // A message with its label on another link is ignored.
    w.proxy.link = Some(w.proxy.links[1]);
    w.proxy.data(label(1), b"astray");
    w.run();
    assert_eq!(read(&mut w, flows[0]), Err(AppError::WouldBlock));
    assert_eq!(w.app.counters().messages_unknown, 1);
}

#[test]
fn a_lost_link_takes_its_own_flows_along_and_is_replaced() {
    for lost in [0, 1] {
        let (mut w, listener, flows) = with_two_flows();
        let gone = w.proxy.links[lost];
        w.proxy.link = Some(gone);
        w.proxy.data(label(lost as u32 + 1), b"before");
        w.run();
        w.proxy.drop_link(gone);
        w.run();
        let (dead, alive) = (flows[lost], flows[1 - lost]);
        assert_eq!(read(&mut w, dead), Ok(6), "delivered data first");
        assert_eq!(read(&mut w, dead), Err(AppError::Broken(errno::ECONNRESET)));
        w.proxy.data(label(2 - lost as u32), b"others go on");
        assert_eq!(w.app.write(w.now, alive, &[b"both ways"]), Ok(9));
        w.run();
        assert_eq!(read(&mut w, alive), Ok(12));
        w.run_for(5_000);
        assert_eq!(w.proxy.links.len(), 2, "the link is replaced");
        assert_eq!((w.app.counters().links_up, w.app.counters().links_lost), (3, 1));
        // New connections arrive on both links.
        for n in 0..2 {
            w.proxy.link = Some(w.proxy.links[n]);
            w.proxy.open(&w.now, label(n as u32 + 10), listener);
            w.accept(listener);
        }
        assert_eq!(w.app.counters().protocol_violations, 0);
    }
}

#[test]
fn listeners_are_announced_once_and_again_when_their_link_is_lost() {
    let (mut w, listener, _) = with_two_flows();
    w.app.set_interest(listener, true).unwrap();
    let sent = |w: &mut World| w.proxy.take().iter().map(|m| (m.0, m.2)).collect::<Vec<_>>();
    w.run();
    assert_eq!(sent(&mut w), [], "not once for each link");
    let (first, second) = (w.proxy.links[0], w.proxy.links[1]);
    w.proxy.drop_link(first);
    w.run_for(5_000);
    assert_eq!(sent(&mut w), [(Unlisten, 0), (Listen, 8), (AcceptCredit, 8)]);
    assert_eq!(w.proxy.last_received_on, Some(second));
    // Connections that the proxy had offered by the former credit are still accepted, and no more than those.
    w.proxy.link = Some(second);
    for n in 0..14 {
        w.proxy.open(&w.now, label(20 + n), listener);
        w.run();
    }
    assert_eq!((w.app.accept_queue_len(listener), w.app.counters().protocol_violations), (14, 0));
    for n in 0..2 {
        w.proxy.open(&w.now, label(40 + n), listener);
        w.run();
    }
    assert_eq!(w.app.counters().protocol_violations, 1);
}

#[test]
fn connections_offered_on_a_lost_link_cost_no_credit_for_good() {
    let (mut w, _, _) = with_two_flows();
    w.proxy.take();
    for _ in 0..3 {
        // Whether the proxy offered a connection on that link is unknown: all listeners are announced anew.
        w.proxy.drop_link(w.proxy.links[1]);
        w.run_for(5_000);
        let sent: Vec<_> = w.proxy.take().iter().map(|m| (m.0, m.2)).collect();
        assert_eq!(sent, [(Unlisten, 0), (Listen, 8), (AcceptCredit, 8)]);
        assert_eq!(w.proxy.links.len(), 2);
    }
    assert_eq!(w.app.counters().protocol_violations, 0);
}

#[test]
fn closed_listeners_are_announced_again_when_a_link_is_lost() {
    let (mut w, listener, _) = with_two_flows();
    w.app.close_listener(listener).unwrap();
    let first = w.proxy.links[0];
    w.proxy.drop_link(first);
    w.run_for(5_000);
    let sent = w.proxy.take();
    assert!(sent.iter().any(|m| (m.0, m.1) == (Unlisten, listener.to_wire())), "{sent:?}");
    assert_eq!(w.proxy.links.len(), 2);
}

#[test]
fn a_link_without_descriptors_delays_no_flow_of_other_links() {
    let (mut w, _, [held_up, free]) = with_two_flows();
    while w.app.write(w.now, held_up, &[b"x"]).is_ok() {}
    assert!(!w.app.readiness(Handle::Flow(held_up)).contains(Readiness::WRITABLE));
    assert_eq!(w.app.write(w.now, free, &[b"x"]), Ok(1));
}

#[test]
fn connections_are_spread_over_the_links() {
    let mut w = World::with_pool(2);
    let mut used = Vec::new();
    for n in 0..4 {
        let flow = w.app.connect(w.now, "10.76.0.1:9000".parse().unwrap(), None).unwrap();
        w.run();
        let (kind, request, ..) = w.proxy.take().remove(0);
        assert_eq!(kind, Connect);
        used.extend(w.proxy.last_received_on);
        w.proxy.link = w.proxy.last_received_on;
        w.proxy.send(MessageKind::Connected, label(n + 1).to_wire(), request, &open_payload());
        w.run();
        assert_eq!(w.app.write(w.now, flow, &[b"x"]), Ok(1));
        w.run();
        w.proxy.take();
    }
    assert!(used[0] != used[1] && used[..2] == used[2..], "{used:?}");
}
