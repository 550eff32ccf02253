//! A server behind a router, to which tunnels lead. This kernel has no tunnels: a program takes what raw
//! sockets and a UDP socket receive out of its packet, and gives it to the kernel by a TUN interface.

use std::fs;

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Host, Process, Tier, testing, wait_until};

use super::{HTTP, SHARED, Server, bytes_in_both_directions, join_lan, state_of, widen_lan};

/// Services: by IP in IP, by GUE, and an IPv6 one in packets of IPv4.
const BY_IPIP: &str = "10.76.0.103";
const BY_GUE: &str = "10.76.0.104";
const V6_IN_V4: &str = "2001:db8:76::103";
const SERVER: &str = "10.99.0.7";
const UNPACK: &str = "
import fcntl, os, select, socket, struct
tun = open('/dev/net/tun', 'r+b', buffering=0)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH', b'csp0', 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
os.system('ip link set csp0 up')
raw = [socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol) for protocol in (4, 41)]
gue = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
gue.bind(('', 6080))
print('ready', flush=True)
while True:
    for s in select.select([*raw, gue], [], [])[0]:
        packet = s.recv(65536)
        if s is gue:
            assert packet[0] == 0 and packet[1] in (4, 41) and packet[2:4] == bytes(2), packet[:4]
        tun.write(packet[4:] if s is gue else packet[(packet[0] & 15) * 4:])
";

fn policy() -> String {
    let service = |name: &str, vip: &str, tunnel: &str| {
        let check = "check: {interval_ms: 200, timeout_ms: 200, rise: 2, fall: 2}";
        format!(
            "  - {{name: {name}, vip: \"{vip}\", port: {HTTP}, via: network, \
             pool: [{{address: {SERVER}, port: {HTTP}}}], servers: {{tunnel: {tunnel}, {check}}}}}\n"
        )
    };
    format!(
        "apiVersion: csp/v1\nservices:\n{}{}{}egress:\n  - {{address: 10.76.0.101, destinations: [10.99.0.0/24]}}\n",
        service("ipip", BY_IPIP, "ipip"),
        service("gue", BY_GUE, "gue"),
        service("v6", V6_IN_V4, "ipip"),
    )
}

/// A router between the LAN and the network of the server.
fn router(cluster: &csp_cluster::Cluster, server: &Host) -> Host {
    let router = join_lan(cluster, "router");
    server.join("lan0", &router, "far0").unwrap();
    for (host, interface, address) in [
        (&router, "lan0", "10.76.0.254/24"),
        (&router, "far0", "10.99.0.254/24"),
        (server, "lan0", "10.99.0.7/24"),
        (server, "lo", &format!("{BY_IPIP}/32")),
        (server, "lo", &format!("{BY_GUE}/32")),
        (server, "lo", &format!("{SHARED}/32")),
    ] {
        host.address(interface, address).unwrap();
    }
    for (host, interface, address) in [
        (&router, "lan0", "2001:db8:76::254/64"),
        (&router, "far0", "2001:db8:99::254/64"),
        (server, "lan0", "2001:db8:99::7/64"),
        (server, "lo", &format!("{V6_IN_V4}/128")),
    ] {
        host.ip(&["address", "add", address, "dev", interface, "nodad"]).unwrap();
    }
    let settings = ["ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1", "ipv4.conf.all.rp_filter=0"];
    settings.iter().for_each(|setting| {
        router.run("sysctl", &["-qw", &format!("net.{setting}")]).unwrap();
    });
    // Clients are not behind the tunnel from which their packets come.
    server.run("sysctl", &["-qw", "net.ipv4.conf.all.rp_filter=0"]).unwrap();
    server.ip(&["route", "add", "default", "via", "10.99.0.254"]).unwrap();
    server.ip(&["-6", "route", "add", "default", "via", "2001:db8:99::254"]).unwrap();
    router
}

#[test]
fn a_tunnel_leads_to_a_server_behind_a_router() {
    let Some(mut cluster) = testing::lay_out("tunnel") else { return };
    let config = cluster.config(Tier::NetworkNode);
    let text = fs::read_to_string(&config).unwrap();
    let port = "  - interface: lan0\n";
    let networks = "    on_link: [10.76.0.0/24]\n    gateways: [10.76.0.254]\n";
    assert!(text.contains(port), "{text}");
    fs::write(&config, text.replace(port, &format!("{port}{networks}"))).unwrap();
    widen_lan(&cluster);
    let host = Host::new(&format!("far{}", std::process::id()), "server").unwrap();
    let _router = router(&cluster, &host);
    cluster.host(Tier::NetworkNode).ip(&["route", "add", "10.99.0.0/24", "via", "10.76.0.254"]).unwrap();
    cluster.serve().unwrap();

    let log = cluster.scratch().join("unpack.log");
    let mut unpack = host.command("python3");
    unpack.args(["-c", UNPACK]);
    let unpack = Process::spawn("unpack", unpack, &log).unwrap();
    let is_ready = || fs::read_to_string(&log).unwrap_or_default().contains("ready").then_some(());
    wait_until("the other end of the tunnel", SERVING_DEADLINE, is_ready).unwrap();
    let mut server = Server { host, name: "behind", running: vec![] };
    server.start(&cluster);
    server.running.push(unpack);

    let file = cluster.scratch().join("tunnel.yaml");
    fs::write(&file, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    for address in [BY_IPIP, BY_GUE, &format!("[{V6_IN_V4}]")] {
        let url = format!("http://{address}:{HTTP}/who");
        wait_until("the service", SERVING_DEADLINE, || cluster.answers(&url).then_some(()))
            .unwrap_or_else(|error| panic!("{address}: {error:#}\n{}", cluster.all_logs()));
        // The client finds out by itself that its packets have to be shorter.
        bytes_in_both_directions(&cluster, address);
    }
    assert!(state_of(&cluster, SERVER).contains(" up "), "{}", state_of(&cluster, SERVER));
    let reported = cluster.metric(Tier::NetworkNode, "csp_path_errors_reported_total", "").unwrap();
    assert!(reported > 0.0);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
