//! A whole worker on a memory LAN and a memory fabric, with proxies that only count: dialling, a wrong node,
//! death and return, backpressure, shutdown.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "worker/hosts.rs"]
mod hosts;
#[path = "worker/lying_host.rs"]
mod lying_host;

use csp_lan::LanPort;
use csp_lan::memory::Hub;
use csp_network_node::core::{CoreConfig, PluginCapacity, PortConfig};
use csp_network_node::{DialSpec, LinkNotice, NetworkWorker, ProxySpec, TokenSource};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, LinkEvent, LinkId, MessageKind, PeerIdentity};
use csp_types::{Duration, Instant, MacAddr, Role};
use csp_vi::ViAddress;
use csp_vi::memory::{InFlight, MemoryFabric};
use csp_wire::tunnel::{Flags, Record, Records};

const UNIX_S: u64 = 1_800_000_000;
const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const VIP: [u8; 4] = [10, 76, 0, 100];

/// A proxy's worker 0: accepts tunnels, records labels and payload lengths of the records it receives.
struct Proxy {
    endpoint: Endpoint,
    link: Option<LinkId>,
    seen: Vec<(u32, usize)>,
    takes: bool,
}

impl Proxy {
    fn new(fabric: &MemoryFabric, name: &str, identity: &str, key: u8) -> Proxy {
        let identity = PeerIdentity::daemon(Role::ProxyNode, identity.parse().unwrap(), 7, 0);
        let config = EndpointConfig::tunnel(identity, Some(ClusterKey::from_bytes([key; 32]).into()));
        let mut endpoint = Endpoint::new(Box::new(fabric.provider(name)), config);
        endpoint.listen(&ViAddress::Name(name.to_owned())).unwrap();
        Proxy { endpoint, link: None, seen: Vec::new(), takes: true }
    }

    fn turn(&mut self, now: Instant) {
        self.endpoint.progress(now, UNIX_S);
        let mut scratch = vec![0; self.endpoint.message_len()];
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                self.link = if let LinkEvent::Up { link, .. } = event { Some(link) } else { None };
            }
            if !self.takes {
                return;
            }
            let Some(received) = self.endpoint.receive(now, &mut scratch) else { return };
            for record in Records::new(&scratch[..received.len]) {
                let record = record.unwrap();
                self.seen.push((record.label.to_wire(), record.payload.len()));
            }
        }
    }

    fn send(&mut self, now: Instant, record: &Record<'_>) {
        let mut bytes = vec![0; record.len()];
        record.emit(&mut bytes).unwrap();
        self.endpoint.send(now, self.link.unwrap(), MessageKind::Tunnel, 0, &[&bytes]).unwrap();
    }
}

struct World {
    fabric: MemoryFabric,
    now: Instant,
    worker: NetworkWorker,
    client: LanPort,
    proxies: Vec<Proxy>,
    notices: Vec<LinkNotice>,
}

impl World {
    fn new() -> World {
        World::with_room_for(64)
    }

    fn with_room_for(proxies_max: usize) -> World {
        let fabric = MemoryFabric::with_seed(1);
        let hub = Hub::new(1024);
        let lan = hub.attach("lan0", OUR_MAC, 1500);
        let client = hub.attach("eth0", CLIENT_MAC, 1500);
        let identity = PeerIdentity::daemon(Role::NetworkNode, "nn-1".parse().unwrap(), 5, 0);
        let endpoint =
            Endpoint::new(Box::new(fabric.provider("nn-1")), EndpointConfig::tunnel(identity, None));
        let key = ClusterKey::from_bytes([1; 32]);
        let tokens = TokenSource { keys: key.into(), node: identity.node, nonce: 9 };
        let config = CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2));
        let plugins = PluginCapacity { rules: 64, instances: 256, environments: 16, flows: 64 };
        let config = CoreConfig { proxies_max, plugins, ..config };
        let mut worker = NetworkWorker::new(config, 0, vec![lan], vec![endpoint], tokens);
        let now = Instant::from_nanos(1);
        worker.set_services(now, &[(VIP, 80).into()], &[]).unwrap();
        World { fabric, now, worker, client, proxies: Vec::new(), notices: Vec::new() }
    }

    /// Sets the proxies of the membership, each at the address of its name.
    fn set_proxies(&mut self, names: &[&str]) {
        let spec = |name: &&str| ProxySpec {
            draining: false,
            node: name.parse().unwrap(),
            incarnation: 7,
            dial: true,
            workers: vec![DialSpec { worker: 0, endpoint: 0, address: ViAddress::Name((*name).to_owned()) }],
        };
        let specs: Vec<ProxySpec> = names.iter().map(spec).collect();
        self.worker.set_proxies(self.now, &specs);
    }

    /// Advances virtual time by `millis` milliseconds.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            self.fabric.advance(self.now);
            for _ in 0..4 {
                self.worker.turn(self.now, UNIX_S);
                self.proxies.iter_mut().for_each(|p| p.turn(self.now));
            }
            self.notices.extend(std::iter::from_fn(|| self.worker.poll_notice()));
        }
    }

    /// Delivers a segment of the client from `port` with `len` bytes of data.
    fn client_sends(&mut self, port: u16, flags: u8, len: usize) {
        let mut segment = vec![0; 20 + len];
        segment[..2].copy_from_slice(&port.to_be_bytes());
        segment[3] = 80;
        (segment[12], segment[13]) = (0x50, flags);
        let mut sum = csp_wire::checksum::Checksum::pseudo_v4(
            [10, 76, 0, 1].into(),
            VIP.into(),
            6,
            segment.len() as u16,
        );
        sum.add(&segment);
        segment[16..18].copy_from_slice(&sum.finish().to_be_bytes());
        let header = ip_header([10, 76, 0, 1], VIP, segment.len());
        let ethernet = [&OUR_MAC.0[..], &CLIENT_MAC.0, &[8, 0]].concat();
        self.client.transmitter.transmit(&[&ethernet, &header, &segment], None).unwrap();
    }

    /// Returns the TCP flags of the segments that the client received.
    fn client_receives(&mut self) -> Vec<u8> {
        let mut flags = Vec::new();
        self.client.receiver.receive(&mut |frame| {
            if frame.bytes[12..14] == [8, 0] {
                flags.push(frame.bytes[47]);
            }
        });
        flags
    }
}

fn ip_header(source: [u8; 4], destination: [u8; 4], len: usize) -> [u8; 20] {
    let repr = csp_wire::ipv4::Repr {
        source: source.into(),
        destination: destination.into(),
        protocol: 6,
        ttl: 64,
        dscp: 0,
        ecn: csp_wire::Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        payload_len: len as u16,
    };
    let mut header = [0; 20];
    repr.emit(&mut header).unwrap();
    header
}

#[test]
fn a_flow_goes_through_the_tunnel_and_back() {
    let mut w = World::new();
    w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
    w.set_proxies(&["pn-1"]);
    w.run(10);
    assert!(matches!(&w.notices[..], [LinkNotice::Up { worker: 0, .. }]), "{:?}", w.notices);
    w.client_sends(4000, 2, 0);
    w.run(2);
    assert_eq!(w.proxies[0].seen, [(0, 40)]);

    let mut answer = ip_header(VIP, [10, 76, 0, 1], 20).to_vec();
    answer.extend_from_slice(&[0, 80, 15, 160, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x12, 0, 0, 0, 0, 0, 0]);
    let label = csp_types::FlowLabel::new(3, 0);
    let record = Record { flags: Flags::FLOW_NEW, ..Record::flow_end(label, 0) };
    let kind = csp_wire::tunnel::RecordKind::Segment;
    w.proxies[0].send(w.now, &Record { kind, payload: &answer, ..record });
    w.run(2);
    assert_eq!(w.client_receives(), [0x12]);
    w.client_sends(4000, 0x10, 100);
    w.run(2);
    assert_eq!(w.proxies[0].seen[1..], [(label.to_wire(), 120)]);
}

#[test]
fn a_dead_proxys_flows_move_and_it_is_dialled_again() {
    let mut w = World::new();
    w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
    w.proxies.push(Proxy::new(&w.fabric, "pn-2", "pn-2", 1));
    w.set_proxies(&["pn-1", "pn-2"]);
    w.run(10);
    (0..40).for_each(|n| w.client_sends(4000 + n, 2, 0));
    w.run(2);
    let before = w.proxies[0].seen.len();
    assert_eq!(before + w.proxies[1].seen.len(), 40);
    assert!((5..35).contains(&before), "{before} of 40 at one of two proxies");

    w.fabric.kill_node("pn-2", InFlight::Lost);
    w.proxies.pop();
    w.run(1000);
    assert!(w.notices.iter().any(|n| matches!(n, LinkNotice::Lost { .. })), "{:?}", w.notices);
    (0..40).for_each(|n| w.client_sends(4000 + n, 0x10, 0));
    w.run(2);
    assert_eq!(w.proxies[0].seen.len(), before + 40);

    w.proxies.push(Proxy::new(&w.fabric, "pn-2", "pn-2", 1));
    w.run(5000);
    assert_eq!(w.worker.tunnels().filter(|t| t.up).count(), 2);
}

/// A proxy ends its tunnels to a node that was silent, and keeps its connections: as long as it was not
/// dialled again, a segment that the others do not know is not sent to one of them to be reset.
#[test]
fn a_proxy_that_has_hung_up_is_asked_before_a_segment_is_reset() {
    let mut w = World::new();
    w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
    w.proxies.push(Proxy::new(&w.fabric, "pn-2", "pn-2", 1));
    w.set_proxies(&["pn-1", "pn-2"]);
    w.run(10);
    let link = w.proxies[1].link.unwrap();
    w.proxies[1].endpoint.close(w.now, link);
    w.run(2);
    assert_eq!(w.worker.tunnels().filter(|t| t.up).count(), 1, "it is not dialled again yet");
    w.client_sends(5000, 0x10, 0);
    w.run(2);
    assert_eq!(w.proxies[0].seen, [(0, 40)]);
    let mut unknown = ip_header([10, 76, 0, 1], VIP, 20).to_vec();
    unknown.extend_from_slice(&[0x13, 0x88, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    let record = Record::flow_end(csp_types::FlowLabel::NONE, 0);
    let kind = csp_wire::tunnel::RecordKind::Unknown;
    w.proxies[0].send(w.now, &Record { kind, payload: &unknown, ..record });
    w.run(2);
    assert_eq!((w.worker.core().counters().drop_no_proxy, w.proxies[0].seen.len()), (1, 1));
}

#[test]
fn records_pass_the_tunnels_that_are_left_after_a_proxy_is_removed() {
    let mut w = World::new();
    let names = ["pn-1", "pn-2", "pn-3"];
    names.iter().for_each(|name| w.proxies.push(Proxy::new(&w.fabric, name, name, 1)));
    w.set_proxies(&names);
    w.run(10);
    w.set_proxies(&names[1..]);
    w.run(10);
    (0..40).for_each(|n| w.client_sends(4000 + n, 2, 0));
    w.run(2);
    let seen: Vec<usize> = w.proxies.iter().map(|p| p.seen.len()).collect();
    assert!(seen[0] == 0 && seen[1] > 0 && seen[2] > 0 && seen[1] + seen[2] == 40, "{seen:?}");
    for at in [1, 2] {
        w.proxies[at].send(w.now, &Record::flow_end(csp_types::FlowLabel::new(3, 0), 0));
    }
    w.run(2);
    assert_eq!((w.worker.core().counters().records_out, w.worker.malformed()), (2, 0));
    assert!(w.worker.tunnels().all(|t| t.up && t.provider == "memory"));
}

#[test]
fn a_proxy_beyond_the_capacity_is_reported_once_and_used_when_there_is_room() {
    let mut w = World::with_room_for(1);
    let names = ["pn-1", "pn-2"];
    names.iter().for_each(|name| w.proxies.push(Proxy::new(&w.fabric, name, name, 1)));
    w.set_proxies(&names);
    w.set_proxies(&names);
    w.run(10);
    let without: Vec<_> = w.notices.iter().filter(|n| matches!(n, LinkNotice::NoSlot { .. })).collect();
    assert_eq!(without, [&LinkNotice::NoSlot { node: "pn-2".parse().unwrap() }]);
    assert_eq!(w.worker.proxies(), (1, 1));
    w.set_proxies(&names[1..]);
    w.run(10);
    w.client_sends(4000, 2, 0);
    w.run(2);
    assert_eq!((w.worker.proxies(), w.proxies[1].seen.len()), ((1, 0), 1));
}

#[test]
fn a_node_other_than_the_expected_proxy_receives_no_traffic() {
    // Another node at the address, and one of another cluster.
    for (identity, key) in [("pn-9", 1), ("pn-1", 2)] {
        let mut w = World::new();
        w.proxies.push(Proxy::new(&w.fabric, "pn-1", identity, key));
        w.set_proxies(&["pn-1"]);
        w.run(3000);
        w.client_sends(4000, 2, 0);
        w.run(10);
        assert!(w.proxies[0].seen.is_empty());
        assert_eq!(w.worker.core().counters().drop_no_proxy, 1);
        assert!(matches!(&w.notices[..], [LinkNotice::Failed { .. }]), "reported once: {:?}", w.notices);
    }
}

#[test]
fn a_record_in_another_workers_name_breaks_the_link() {
    let mut w = World::new();
    w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
    w.set_proxies(&["pn-1"]);
    w.run(10);
    let record = Record::flow_end(csp_types::FlowLabel::new(3, 0), 1);
    w.proxies[0].send(w.now, &record);
    w.run(2);
    assert_eq!(w.worker.malformed(), 1);
    assert!(w.notices.iter().any(|n| matches!(n, LinkNotice::Lost { .. })), "{:?}", w.notices);
}

#[test]
fn a_proxy_that_takes_nothing_costs_drops_not_memory() {
    let mut w = World::new();
    w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
    w.set_proxies(&["pn-1"]);
    w.run(10);
    w.proxies[0].takes = false;
    for _ in 0..200 {
        (0..50).for_each(|n| w.client_sends(4000 + n, 0x10, 1400));
        w.run(1);
    }
    let counters = *w.worker.core().counters();
    assert!(counters.drop_tunnel_full > 0, "{counters:?}");
    assert_eq!(counters.segments_in + counters.drop_tunnel_full, 10_000);
    w.proxies[0].takes = true;
    w.run(10);
    assert_eq!(w.proxies[0].seen.len() as u64, counters.segments_in, "what was taken was delivered");
}

#[test]
fn a_proxy_that_left_is_forgotten_and_a_lapsed_one_is_used_while_it_lives() {
    let mut w = World::new();
    w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
    w.set_proxies(&["pn-1"]);
    w.run(10);
    let address = ViAddress::Name("pn-1".to_owned());
    let workers = vec![DialSpec { worker: 0, endpoint: 0, address }];
    let lapsed =
        ProxySpec { node: "pn-1".parse().unwrap(), incarnation: 7, draining: false, dial: false, workers };
    w.worker.set_proxies(w.now, std::slice::from_ref(&lapsed));
    w.run(10);
    w.client_sends(4000, 2, 0);
    w.run(2);
    assert_eq!(w.proxies[0].seen.len(), 1);
    w.set_proxies(&[]);
    w.run(10);
    assert_eq!((w.worker.tunnels().count(), w.worker.core().flow_count()), (0, 0));
    assert!(w.proxies[0].link.is_none(), "the proxy was notified");
    w.client_sends(4000, 2, 0);
    w.run(2);
    assert_eq!(w.worker.core().counters().drop_no_proxy, 1);
}
