//! A router on the client's path whose next link carries less than the LAN's 1500 bytes: its ICMP errors reach the
//! proxy's engine, and downloads are complete (RFC 1191).
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;

use csp_cluster::{Cluster, Digest, Host, Tier, VIP, testing};

const LOWERED: &str = "csp_tcp_path_mtu_lowered_total";
const ERRORS: &str = "csp_icmp_errors_received_total";

/// Creates a host behind the client's, which becomes its router; the link between them has an MTU of 1300 bytes.
fn behind_a_narrow_link(cluster: &Cluster) -> Host {
    let (far, router) = (Host::new("path", &format!("far{}", std::process::id())).unwrap(), &cluster.client);
    router.join("far0", &far, "eth0").unwrap();
    router.address("far0", "10.78.0.1/24").unwrap();
    router.ip(&["link", "set", "far0", "mtu", "1300"]).unwrap();
    router.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).unwrap();
    far.address("eth0", "10.78.0.2/24").unwrap();
    far.ip(&["route", "add", "default", "via", "10.78.0.1"]).unwrap();
    far
}

fn download(cluster: &Cluster, host: &Host, name: &str) {
    let to = cluster.scratch().join("fetched");
    let url = format!("http://{VIP}/{name}");
    host.run("curl", &["-sSf", "-m", "30", "-o", &to.to_string_lossy(), &url])
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
    let file = cluster.scratch().join("www").join(name);
    assert_eq!(Digest::of_file(&to).unwrap(), Digest::of_file(&file).unwrap());
}

#[test]
fn downloads_pass_a_narrow_link_that_the_client_does_not_know_of() {
    let Some(mut cluster) = testing::lay_out("path") else { return };
    cluster.serve().unwrap();
    fs::write(cluster.scratch().join("www/1MiB"), testing::pattern(1 << 20)).unwrap();
    let far = behind_a_narrow_link(&cluster);
    let metric = |tier, name| cluster.metric(tier, name, "").unwrap();
    assert_eq!((metric(Tier::ProxyNode, LOWERED), metric(Tier::NetworkNode, ERRORS)), (0.0, 0.0));
    download(&cluster, &far, "1MiB");
    let settled = || metric(Tier::ProxyNode, LOWERED) >= 1.0 && metric(Tier::NetworkNode, ERRORS) >= 1.0;
    csp_cluster::wait_until("a lowered path MTU", testing::SERVING_DEADLINE, || settled().then_some(()))
        .unwrap();
    // The next connections to the same host start with the path MTU found.
    (0..3).for_each(|_| download(&cluster, &far, "1MiB"));
    // Others are not affected.
    download(&cluster, &cluster.client, "1MiB");
    assert_eq!(metric(Tier::ProxyNode, LOWERED), 1.0);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
