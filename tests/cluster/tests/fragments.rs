//! A client behind a link with a small MTU that does no path MTU discovery: routers (or, in IPv6, the client
//! itself) cut its packets, and the network node reassembles them, whichever worker has the flow. And the
//! option by which clients' segments stay small.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

#[path = "fragments/v6.rs"]
mod v6;

use std::fs;

use csp_cluster::{Cluster, Host, Tier, VIP, testing};

const FAR: &str = "10.78.0.2";
/// Of the link behind the router, towards the network node.
const NARROW: &str = "600";

/// Creates a host behind the client's, which becomes its router. The far host sets no DF, so that the router
/// fragments what is longer than [`NARROW`] bytes.
fn behind_a_narrow_link(cluster: &Cluster, name: &str) -> Host {
    let (far, router) = (Host::new(name, &format!("frag{}", std::process::id())).unwrap(), &cluster.client);
    router.join("far0", &far, "eth0").unwrap();
    router.address("far0", "10.78.0.1/24").unwrap();
    router.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).unwrap();
    router.ip(&["route", "add", VIP, "dev", "lan0", "mtu", "lock", NARROW]).unwrap();
    far.address("eth0", &format!("{FAR}/24")).unwrap();
    far.ip(&["route", "add", "default", "via", "10.78.0.1"]).unwrap();
    far.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_no_pmtu_disc"]).unwrap();
    far
}

fn use_af_xdp(cluster: &Cluster) {
    let config = cluster.config(Tier::NetworkNode);
    let text = fs::read_to_string(&config).unwrap();
    let other = text.replace("interface: lan0\n", "interface: lan0\n    port: af_xdp\n");
    assert_ne!(text, other);
    fs::write(&config, other).unwrap();
}

/// Uploads a file from each of these ports, which no other connection is given by chance; what arrives is
/// what was sent.
fn upload(cluster: &Cluster, from: &Host, ports: core::ops::Range<u16>, url: &str) {
    let file = cluster.scratch().join("sent");
    fs::write(&file, testing::pattern(300_000)).unwrap();
    let sum = cluster.client.run("sha256sum", &[&file.to_string_lossy()]).unwrap();
    let sum = sum.split_whitespace().next().unwrap().to_owned();
    let data = format!("@{}", file.display());
    for port in ports.map(|port| port.to_string()) {
        let arguments = ["-sSf", "-m", "60", "--local-port", &port, "--data-binary", &data, url];
        let answer = from
            .run("curl", &arguments)
            .map_err(|error| error.context(format!("port {port}\n{}", cluster.all_logs())))
            .unwrap();
        assert_eq!(answer.trim(), sum, "{}", cluster.log_tail(Tier::NetworkNode));
    }
}

/// Waits until the node has reassembled `least` datagrams. How many there are depends on what the sender's
/// kernel had coalesced. Both workers receive all fragments; each datagram is processed once. Workers publish
/// their numbers from time to time.
fn reassembled(cluster: &Cluster, least: f64) -> f64 {
    let metric = |name: &str, label: &str| cluster.metric(Tier::NetworkNode, name, label).unwrap();
    let datagrams = csp_cluster::wait_until("the counters of fragments", testing::SERVING_DEADLINE, || {
        let fragments = metric("csp_fragments_received_total", "");
        let datagrams = metric("csp_datagrams_reassembled_total", "");
        let elsewhere = metric("csp_datagrams_elsewhere_total", "");
        (datagrams > least && fragments >= 2.0 * datagrams && elsewhere > 0.0).then_some(datagrams)
    });
    let datagrams = datagrams.unwrap();
    // A datagram whose fragment was lost may meet a later connection's with the same identification (RFC 6864
    // §5.3): at most two fragments of the one and three of the other are dropped. Without a loss nothing
    // overlaps.
    let dropped = |reason: &str| metric("csp_drops_total", &format!("reason=\"{reason}\""));
    let (overlaps, lost) = (dropped("fragment_overlap"), dropped("lan_receive_overrun"));
    assert!(overlaps <= 5.0 * lost, "{overlaps} overlaps, {lost} frames were lost");
    datagrams
}

/// Uploads files from ports of both workers, over IPv4 and IPv6.
fn uploads_arrive(cluster: &mut Cluster, name: &str) {
    cluster.set_workers(Tier::NetworkNode, 2).unwrap();
    cluster.serve().unwrap();
    let far = behind_a_narrow_link(cluster, name);
    upload(cluster, &far, 20_000..20_004, &format!("http://{VIP}:{}/", csp_cluster::UPLOAD_PORT));
    let before = reassembled(cluster, 100.0);
    let _cutter = v6::fragment(cluster);
    upload(cluster, &cluster.client, 20_000..20_008, v6::URL);
    reassembled(cluster, before + 200.0);
    assert_eq!(cluster.casualties(), "");
}

#[test]
fn uploads_pass_a_narrow_link_whose_router_fragments() {
    let Some(mut cluster) = testing::lay_out("frag") else { return };
    uploads_arrive(&mut cluster, "frag");
    cluster.stop().unwrap();
}

#[test]
fn the_same_through_ports_of_af_xdp() {
    let Some(mut cluster) = testing::lay_out("xfrag") else { return };
    use_af_xdp(&cluster);
    uploads_arrive(&mut cluster, "xfrag");
    cluster.stop().unwrap();
}

/// `tcp.mss` of the policy: in the SYN/ACK, and for what is sent.
#[test]
fn a_service_keeps_segments_small() {
    let Some(mut cluster) = testing::lay_out("mss") else { return };
    cluster.serve().unwrap();
    let mss = |cluster: &Cluster| {
        let script = format!(
            "import socket\ns = socket.create_connection(('{VIP}', 80))\nprint(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))"
        );
        cluster.client.run("/usr/bin/python3", &["-c", &script]).unwrap().trim().parse::<u32>().unwrap()
    };
    // Without the 12 bytes of timestamps.
    assert_eq!(mss(&cluster), 1_448);
    let policy = cluster.scratch().join("demo.yaml");
    let text = fs::read_to_string(&policy).unwrap();
    let small = text.replacen("    port: 80\n", "    port: 80\n    tcp: {mss: 512}\n", 1);
    assert_ne!(text, small, "{text}");
    fs::write(&policy, small).unwrap();
    cluster.apply_policy().unwrap();
    csp_cluster::wait_until("the smaller segments", testing::SERVING_DEADLINE, || {
        (mss(&cluster) == 500).then_some(())
    })
    .unwrap();
    cluster.wait_answer("1KiB").unwrap();
    cluster.stop().unwrap();
}
