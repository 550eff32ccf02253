//! Congestion control over a bottleneck in virtual time: throughput of a path, and how flows share it.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{LinkFaults, Net, client_tuple, small_config};
use csp_tcp::{CongestionControl, Event, StackConfig};
use csp_types::{FlowLabel, Instant};

static CHUNK: [u8; 65_536] = [7; 65_536];
const MILLISECOND: Duration = Duration::from_millis(1);

fn config(seed: u64, congestion: CongestionControl) -> StackConfig {
    StackConfig {
        blocks: 16_384,
        receive_window_max: 8 << 20,
        send_buffer_max: 8 << 20,
        congestion,
        ..small_config(seed)
    }
}

/// A path whose bottleneck carries `bandwidth` bytes per second and holds `queue` bytes.
fn bottleneck(seed: u64, client: StackConfig, rtt: Duration, bandwidth: u64, queue: u64) -> Net {
    let mut net = Net::new(seed, client, config(2, CongestionControl::Cubic)).with_rtt(rtt);
    net.faults[0] = LinkFaults { bandwidth, queue, ..net.faults[0] };
    net
}

/// One bulk flow from the client to the server.
struct Flow {
    port: u16,
    begins: Duration,
    client: Option<FlowLabel>,
    server: Option<FlowLabel>,
    congestion: Option<CongestionControl>,
    received: u64,
}

fn flow(port: u16, begins: Duration) -> Flow {
    Flow { port, begins, client: None, server: None, congestion: None, received: 0 }
}

/// Runs bulk flows for `time`; each writes and reads as much as it can.
fn run(net: &mut Net, flows: &mut [Flow], time: Duration) {
    let start = net.now;
    let end = start + time;
    while net.now < end {
        for flow in flows.iter_mut() {
            turn(net, flow, start);
        }
        net.flush();
        let next = net.now + MILLISECOND;
        net.step(next.min(end));
    }
}

fn turn(net: &mut Net, flow: &mut Flow, start: Instant) {
    let now = net.now;
    if flow.client.is_none() && now >= start + flow.begins {
        let label = net.hosts[0].stack.connect(now, client_tuple(flow.port), 7, 1).unwrap();
        if let Some(congestion) = flow.congestion {
            let options =
                csp_tcp::ConnectionOptions { congestion, ..net.hosts[0].stack.config().connection_options() };
            assert!(net.hosts[0].stack.set_options(now, label, options));
        }
        flow.client = Some(label);
    }
    while net.hosts[0].stack.poll_event().is_some() {}
    while let Some((_, event)) = net.hosts[1].stack.poll_event() {
        assert!(!matches!(event, Event::Failed(_)), "{event:?}");
    }
    let Some(client) = flow.client else { return };
    while net.hosts[0].stack.write(now, client, &CHUNK) == CHUNK.len() {}
    if flow.server.is_none() {
        let mut connections = net.hosts[1].stack.connections();
        flow.server = connections.find(|c| c.tuple.remote.port() == flow.port).map(|c| c.label);
    }
    if let Some(server) = flow.server {
        flow.received += net.hosts[1].stack.read_with(now, server, usize::MAX, |slice| slice.len()) as u64;
    }
}

/// Bytes that one flow transfers in `time`.
fn goodput(mut net: Net, time: Duration) -> (u64, Net) {
    let mut flows = [flow(1000, Duration::ZERO)];
    run(&mut net, &mut flows, time);
    (flows[0].received, net)
}

#[test]
fn cubic_fills_a_long_fat_path_where_newreno_needs_minutes() {
    // 100 Mbit/s, 100 ms: 1.25 MB in flight, of which NewReno regains 14 kB a second after a loss. One
    // segment in 50,000 is lost. A single run depends on which segments these are, so the sum of several is
    // compared.
    let (rtt, bandwidth) = (Duration::from_millis(100), 12_500_000);
    let (time, seeds) = (Duration::from_secs(60), 1..=4);
    let [newreno, cubic] = [CongestionControl::NewReno, CongestionControl::Cubic].map(|congestion| {
        let bytes = seeds.clone().map(|seed| {
            let mut net = bottleneck(seed, config(1, congestion), rtt, bandwidth, bandwidth / 40);
            net.faults[0].loss = 0.000_02;
            goodput(net, time).0
        });
        bytes.sum::<u64>() as f64 / (bandwidth as f64 * time.as_secs_f64() * seeds.clone().count() as f64)
    });
    println!("NewReno {newreno:.2}, CUBIC {cubic:.2} of the bandwidth");
    assert!(cubic > 1.4 * newreno);
}

#[test]
fn a_flow_that_comes_later_gets_its_share() {
    for congestion in [CongestionControl::NewReno, CongestionControl::Cubic] {
        // 40 Mbit/s, 40 ms, a queue of one bandwidth-delay product.
        let mut net = bottleneck(1, config(1, congestion), Duration::from_millis(40), 5_000_000, 200_000);
        let mut flows = [flow(1000, Duration::ZERO), flow(1001, Duration::from_secs(10))];
        run(&mut net, &mut flows, Duration::from_secs(40));
        let before = [flows[0].received, flows[1].received];
        run(&mut net, &mut flows, Duration::from_secs(40));
        let [a, b] = [0, 1].map(|i| (flows[i].received - before[i]) as f64);
        let jain = (a + b) * (a + b) / (2.0 * (a * a + b * b));
        println!("{congestion:?}: {a} and {b} bytes, Jain's index {jain:.3}");
        assert!(jain > 0.9, "{congestion:?}: {a} and {b}");
        assert!(a + b > 0.9 * 5_000_000.0 * 40.0, "{congestion:?}: {} of 200 MB", a + b);
    }
}

#[test]
fn cubic_leaves_newreno_its_share_where_newreno_does_well() {
    // RFC 9438 §4.3: a small bandwidth-delay product is the Reno-friendly region.
    let mut net =
        bottleneck(1, config(1, CongestionControl::NewReno), Duration::from_millis(20), 1_250_000, 25_000);
    let mut flows = [flow(1000, Duration::ZERO), flow(1001, Duration::ZERO)];
    flows[1].congestion = Some(CongestionControl::Cubic);
    run(&mut net, &mut flows, Duration::from_secs(60));
    let [newreno, cubic] = [flows[0].received as f64, flows[1].received as f64];
    println!("NewReno {newreno}, CUBIC {cubic}");
    assert!(cubic / newreno < 2.0 && newreno / cubic < 2.0, "NewReno {newreno}, CUBIC {cubic}");
}

#[test]
fn pacing_spares_short_queues() {
    // 100 Mbit/s, 50 ms; the queue holds 5 ms of it.
    let (rtt, bandwidth, queue) = (Duration::from_millis(50), 12_500_000, 62_500);
    let [paced, unpaced] = [true, false].map(|pacing| {
        let client = StackConfig { pacing, ..config(1, CongestionControl::Cubic) };
        let (bytes, net) = goodput(bottleneck(1, client, rtt, bandwidth, queue), Duration::from_secs(3));
        println!("pacing {pacing}: {bytes} bytes, {} lost", net.overflows[0]);
        bytes
    });
    assert!(paced as f64 > 1.5 * unpaced as f64, "{paced} {unpaced}");
}

#[test]
fn pacing_costs_nothing_on_a_short_path() {
    for micros in [50, 200, 1_000] {
        let rtt = Duration::from_micros(micros);
        let [paced, unpaced] = [true, false].map(|pacing| {
            let client = StackConfig { pacing, ..config(1, CongestionControl::Cubic) };
            let mut net = bottleneck(1, client, rtt, 1_250_000_000, 1 << 30);
            net.whole_records = true;
            goodput(net, Duration::from_millis(100)).0
        });
        println!("{micros} us: {paced} and {unpaced} bytes");
        assert!(paced as f64 > 0.97 * unpaced as f64, "{micros} us: {paced} for {unpaced}");
    }
}

#[test]
fn a_paced_window_is_spread_over_the_round_trip() {
    let client = config(1, CongestionControl::NewReno);
    let mut net = bottleneck(1, client, Duration::from_millis(100), 1_250_000_000, 1 << 30);
    let mut flows = [flow(1000, Duration::ZERO)];
    run(&mut net, &mut flows, Duration::from_millis(350));
    net.log = Some(Vec::new());
    run(&mut net, &mut flows, Duration::from_millis(100));
    let log = net.log.take().unwrap();
    let cwnd = net.hosts[0].stack.connections().next().unwrap().cwnd as usize;
    let mut worst = 0;
    for (at, ..) in log.iter().filter(|packet| packet.1 == 0) {
        let within = |p: &&(Instant, usize, _, usize)| p.1 == 0 && p.0 >= *at && p.0 < *at + 2 * MILLISECOND;
        worst = worst.max(log.iter().filter(within).map(|packet| packet.3).sum());
    }
    // The window doubles each round trip at twice its rate: two milliseconds carry 2 % of the old one, and
    // bursts are whole segments.
    println!("window {cwnd}, at most {worst} in two milliseconds");
    assert!(cwnd > 100_000 && worst < cwnd / 10, "{worst} of {cwnd}");
}
