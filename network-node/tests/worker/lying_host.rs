//! Hosts that lie: nothing of theirs is forwarded, and all of it is counted.

use std::collections::BTreeMap;

use csp_network_node::core::HostCounters;
use csp_transport::PacketBatch;
use csp_wire::packets::{HEADER_LEN, Head, Kind};

use super::hosts::{Hosted, identity};
use super::*;

/// A host that says what the test says.
struct Liar {
    endpoint: Endpoint,
    link: Option<LinkId>,
    got: Vec<(Head, Vec<u8>)>,
}

impl Liar {
    fn turn(&mut self, now: Instant) {
        self.endpoint.progress(now, UNIX_S);
        let mut scratch = vec![0; self.endpoint.message_len()];
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                self.link = if let LinkEvent::Up { link, .. } = event { Some(link) } else { None };
            }
            let Some(received) = self.endpoint.receive(now, &mut scratch) else { return };
            let mut rest = &scratch[..received.len];
            while !rest.is_empty() {
                let (head, len, total) = Head::parse(rest).unwrap();
                if head.kind == Kind::Configure {
                    self.say(now, &Head::new(Kind::Configured, head.sequence), &[]);
                } else {
                    self.got.push((head, rest[HEADER_LEN..HEADER_LEN + len].to_vec()));
                }
                rest = &rest[total..];
            }
        }
    }

    fn say(&mut self, now: Instant, head: &Head, payload: &[u8]) {
        let mut batch = PacketBatch::new(&self.endpoint, self.link.unwrap(), 1);
        batch.push(now, &mut self.endpoint, head, payload).unwrap();
        batch.flush(now, &mut self.endpoint).unwrap();
    }
}

fn with_liar(key: u8, name: &str) -> (Hosted, Liar) {
    let mut h = Hosted::new(
        &["3 far no-op -> near", "2 near no-op", "2 other no-op"],
        &["all ingress plugin far fallback drop"],
    );
    h.kill();
    h.run(1000);
    let config = EndpointConfig::tunnel(identity(name), Some(ClusterKey::from_bytes([key; 32]).into()));
    let mut endpoint = Endpoint::new(Box::new(h.w.fabric.provider("h0")), config);
    endpoint.listen(&ViAddress::Name("h0".to_owned())).unwrap();
    let mut liar = Liar { endpoint, link: None, got: Vec::new() };
    run_with(&mut h, &mut liar, 3000);
    (h, liar)
}

fn run_with(h: &mut Hosted, liar: &mut Liar, millis: u64) {
    for _ in 0..millis {
        h.run(1);
        liar.turn(h.w.now);
    }
}

#[test]
fn a_host_that_lies_forwards_nothing_and_is_counted_by_reason() {
    let (mut h, mut liar) = with_liar(1, "an-1");
    assert!(h.runs(), "{:?}", h.w.notices);
    let near = h.manager.instance("near").unwrap().0;
    let other = h.manager.instance("other").unwrap().0;
    // Each lie about one packet of five, of which the last one is answered as it should be.
    type Lie = fn(&mut Head, &mut Vec<u8>);
    let lies: [(&str, Lie); 7] = [
        ("rule", |head, _| head.rule.slot += 1),
        ("rule", |head, _| head.rule.generation += 1),
        ("hops", |head, _| head.hops = 33),
        ("length", |_, frame| frame.push(0)),
        ("length", |_, frame| frame.truncate(10)),
        ("unknown", |head, _| head.sequence += 1000),
        ("kind", |head, _| head.kind = Kind::Packet),
    ];
    for (reason, lie) in &lies[..6] {
        h.send(4000);
        run_with(&mut h, &mut liar, 3);
        let (mut head, mut frame) = liar.got.remove(0);
        (head.kind, head.hops) = (Kind::Pass, 1);
        let truth = (head, frame.clone());
        lie(&mut head, &mut frame);
        let before = h.hosts();
        liar.say(h.w.now, &head, &frame);
        run_with(&mut h, &mut liar, 3);
        let (after, known) =
            (h.hosts(), |counters: HostCounters| BTreeMap::from(counters.violations())[reason]);
        assert_eq!((known(after) - known(before), h.arrived()), (1, vec![]), "{reason}: {after:?}");
        // The truth afterwards: too late unless the lie was about another packet.
        liar.say(h.w.now, &truth.0, &truth.1);
        run_with(&mut h, &mut liar, 3);
        assert_eq!(h.arrived().len(), usize::from(*reason == "unknown"), "{reason}");
    }
    // An instance to which nothing of the host's leads; one to which it does; the same packet twice.
    for (instance, forwarded) in [(other, 0), (near, 1), (999, 0)] {
        h.send(4000);
        run_with(&mut h, &mut liar, 3);
        let (head, frame) = liar.got.remove(0);
        let head = Head { kind: Kind::Enter, hops: 1, instance, ..head };
        (0..2).for_each(|_| liar.say(h.w.now, &head, &frame));
        run_with(&mut h, &mut liar, 3);
        assert_eq!(h.arrived().len(), forwarded, "instance {instance}");
    }
    assert_eq!(h.hosts().wrong_instance, 2);
    // Copies without end.
    h.send(4000);
    run_with(&mut h, &mut liar, 3);
    let (head, frame) = liar.got.remove(0);
    let before = h.hosts().wrong_hops;
    let transmitted = h.w.worker.lan_counters().transmit.frames;
    for _ in 0..40 {
        liar.say(h.w.now, &Head { kind: Kind::Copy, interface: 0, ..head }, &frame);
        run_with(&mut h, &mut liar, 1);
    }
    let transmitted = h.w.worker.lan_counters().transmit.frames - transmitted;
    assert_eq!((transmitted, h.hosts().wrong_hops - before), (32, 8));
    // A record that no host sends ends the link; the fallback applies.
    let malformed = h.w.worker.malformed();
    liar.say(h.w.now, &Head::new(Kind::Packet, 0), b"x");
    run_with(&mut h, &mut liar, 3);
    assert_eq!((h.w.worker.malformed() - malformed, h.runs()), (1, false));
    h.send(4000);
    run_with(&mut h, &mut liar, 1);
    assert!(h.arrived().is_empty());
}

#[test]
fn another_node_or_cluster_at_the_hosts_address_gets_no_packet() {
    for (key, name) in [(2, "an-1"), (1, "an-2")] {
        let (mut h, mut liar) = with_liar(key, name);
        h.send(4000);
        run_with(&mut h, &mut liar, 10);
        assert!(!h.runs() && liar.got.is_empty());
        assert!(h.w.notices.iter().any(|n| matches!(n, LinkNotice::HostFailed { .. })), "{:?}", h.w.notices);
    }
}
