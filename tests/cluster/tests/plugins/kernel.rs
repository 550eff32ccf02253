//! The host's own services behind an AF_XDP port: they get what the plug-ins of levels 2 and 3 let pass, by
//! TCP and UDP, and nothing that they drop; what no rule matches reaches them directly. The host as a router,
//! too.

use std::fs;
use std::time::Duration;

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Process, Tier, wait_until};

use super::{BLOCKED, OTHERS, cluster, control, fetch, host, level};

/// The addresses of the network node's host on the LAN.
const HOST: [&str; 2] = ["10.76.0.2", "2001:db8:76::2"];
/// Beyond it, in the SAN: the proxy's host.
const BEYOND: &str = "10.77.0.2";

/// Answers on port 8001, by UDP with the codepoint and the length of each datagram, by TCP with the length of
/// what it has received.
const SERVER: &str = r#"
import socket, threading
def udp(s):
    while True:
        data, control, _, peer = s.recvmsg(65535, 256)
        tos = [int.from_bytes(c[2][:1], "little") for c in control]
        s.sendto(f"{tos[0] >> 2} {len(data)}".encode(), peer)
def tcp(s):
    while True:
        c, _ = s.accept()
        total = 0
        while data := c.recv(65536):
            total += len(data)
        c.sendall(f"{total}".encode())
        c.close()
for family in (socket.AF_INET, socket.AF_INET6):
    v6 = family == socket.AF_INET6
    u, t = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family)
    for s in (u, t):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if v6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind(("::" if v6 else "0.0.0.0", 8001))
    if v6:
        u.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
    else:
        u.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    t.listen()
    threading.Thread(target=udp, args=(u,)).start()
    threading.Thread(target=tcp, args=(t,)).start()
print("ready", flush=True)
"#;

/// Sends to port 8001 and prints the answer: KIND SOURCE DESTINATION SECONDS.
const PROBE: &str = r#"
import socket, sys
kind, source, destination, seconds = sys.argv[1:5]
v6, tcp = ":" in source, kind == "tcp"
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
s.settimeout(float(seconds))
s.bind((source, 0))
if kind == "option" and v6:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
elif kind == "option":
    s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1, 1, 1, 0]))
s.connect((destination, 8001))
if tcp:
    s.sendall(b"x" * 100000)
    s.shutdown(socket.SHUT_WR)
else:
    s.send(b"x" * (3000 if kind == "long" else 100))
print(s.recv(100).decode())
"#;

/// What a probe is answered; `None` if it is not answered within so many seconds.
fn probe(cluster: &Cluster, kind: &str, from: &str, to: &str, seconds: &str) -> Option<String> {
    let output = cluster.client.output("/usr/bin/python3", &["-c", PROBE, kind, from, to, seconds]).unwrap();
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn serve(cluster: &Cluster, tier: Tier) -> Process {
    let mut command = cluster.host(tier).command("/usr/bin/python3");
    command.args(["-c", SERVER]);
    let log = cluster.scratch().join(format!("log/server-{}.log", tier.daemon()));
    let server = Process::spawn("server", command, &log).unwrap();
    wait_until("the server", SERVING_DEADLINE, || server.log_tail(1).contains("ready").then_some(()))
        .unwrap();
    server
}

/// Workers publish their numbers ten times a second.
const PUBLISHED: Duration = Duration::from_millis(300);

/// Frames that the host's kernel got from the workers, once the number stands.
fn given(cluster: &Cluster) -> f64 {
    let read = || cluster.metric(Tier::NetworkNode, "csp_kernel_frames_total", "").unwrap();
    let mut last = read();
    wait_until("a number that stands", SERVING_DEADLINE, || {
        std::thread::sleep(PUBLISHED);
        let now = read();
        (core::mem::replace(&mut last, now) == now).then_some(now)
    })
    .unwrap()
}

/// All kinds of packets reach the host from the one address and, if `blocked`, none from the other.
fn others_reach_the_host(cluster: &Cluster, blocked: bool, dscp: u8, what: &str) {
    for ((other, stranger), to) in OTHERS.iter().zip(BLOCKED).zip(HOST) {
        for (kind, len) in [("udp", 100), ("option", 100), ("long", 3000)] {
            let answer = probe(cluster, kind, other, to, "5");
            assert_eq!(
                answer,
                Some(format!("{dscp} {len}")),
                "{what}: {kind} {other}\n{}",
                cluster.log_tail(Tier::NetworkNode)
            );
            if blocked {
                assert_eq!(probe(cluster, kind, stranger, to, "0.2"), None, "{what}: {kind} {stranger}");
            }
        }
        assert_eq!(probe(cluster, "tcp", other, to, "5").as_deref(), Some("100000"), "{what}: {other}");
        let answer = probe(cluster, "tcp", stranger, to, if blocked { "0.2" } else { "5" });
        assert_eq!(answer.as_deref(), (!blocked).then_some("100000"), "{what}: {stranger}");
    }
}

fn block(cluster: &Cluster, list: &str) {
    for address in BLOCKED {
        control(cluster, &format!("blocks add {address} --plugin {list} --time 1h --from test"));
    }
}

/// The host as a router: the way to another host, which answers by it.
fn forwards(cluster: &Cluster) {
    let (router, beyond) = (cluster.host(Tier::NetworkNode), cluster.host(Tier::ProxyNode));
    router.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"]).unwrap();
    cluster.client.ip(&["route", "add", BEYOND, "via", HOST[0]]).unwrap();
    beyond.ip(&["route", "add", "10.76.0.0/24", "via", "10.77.0.1"]).unwrap();
    let _server = serve(cluster, Tier::ProxyNode);
    let before = given(cluster);
    assert_eq!(probe(cluster, "udp", OTHERS[0], BEYOND, "5").as_deref(), Some("46 100"));
    assert_eq!(probe(cluster, "tcp", OTHERS[0], BEYOND, "5").as_deref(), Some("100000"));
    assert_eq!(probe(cluster, "udp", BLOCKED[0], BEYOND, "0.2"), None);
    wait_until("forwarded frames are counted", SERVING_DEADLINE, || {
        (given(cluster) > before + 10.0).then_some(())
    })
    .unwrap();
}

#[test]
fn the_hosts_own_services_get_what_plug_ins_let_pass() {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return csp_support::skip("needs /dev/net/tun");
    }
    let cluster = cluster("kernel", |cluster| {
        let file = cluster.config(Tier::NetworkNode);
        let text = fs::read_to_string(&file).unwrap();
        let text = text.replace("interface: lan0\n", "interface: lan0\n    port: af_xdp\n");
        fs::write(&file, text.replace("workers: 1\n", "workers: 2\n")).unwrap();
        let node = cluster.host(Tier::NetworkNode);
        node.address("lan0", &format!("{}/24", HOST[0])).unwrap();
        node.ip(&["address", "add", &format!("{}/64", HOST[1]), "dev", "lan0", "nodad"]).unwrap();
    });
    let Some(mut cluster) = cluster else { return };
    let _server = serve(&cluster, Tier::NetworkNode);
    others_reach_the_host(&cluster, false, 0, "without rules");
    assert_eq!(given(&cluster), 0.0, "the kernel has its frames directly");

    for line in [
        "plugin create blocked block-list prefixes_max=1000",
        "plugin create mark dscp dscp=46",
        "plugin connect blocked 0 mark",
        "rule add udp proto udp dport 8001 ingress plugin blocked",
        "rule add tcp proto tcp dport 8001 ingress plugin blocked",
    ] {
        control(&cluster, line);
    }
    block(&cluster, "blocked");
    others_reach_the_host(&cluster, true, 46, "at level 2");
    let (at, packets) = level(&cluster, "tcp");
    assert!(at == 2 && packets > 100, "{packets} packets");
    let served = |from| super::URLS.iter().zip(from).all(|(url, from): (_, &str)| fetch(&cluster, url, from));
    assert!(served(OTHERS) && served(BLOCKED), "other rules, other packets");
    forwards(&cluster);

    // A list in the driver alone: what is not plain meets its copy in the worker.
    for line in [
        "plugin create early block-list --level 1",
        "rule del udp tcp",
        "rule add early dport 8001 ingress plugin early",
    ] {
        control(&cluster, line);
    }
    block(&cluster, "early");
    others_reach_the_host(&cluster, true, 0, "at level 1");
    assert_eq!(level(&cluster, "early").0, 1);
    control(&cluster, "rule del early");

    let mut plugin_host = host::start(&cluster);
    for line in
        ["plugin move mark 3", "plugin move blocked 3", "rule add far dport 8001 ingress plugin blocked"]
    {
        control(&cluster, line);
    }
    host::wait_running(&cluster, true);
    block(&cluster, "blocked");
    others_reach_the_host(&cluster, true, 46, "at level 3");
    // Without it the rule's fallback lets packets pass: to the kernel, too.
    assert!(plugin_host.stop().unwrap().success());
    host::wait_running(&cluster, false);
    others_reach_the_host(&cluster, false, 0, "by the fallback");

    control(&cluster, "rule del far");
    let before = given(&cluster);
    others_reach_the_host(&cluster, false, 0, "after the last rule");
    assert_eq!(given(&cluster), before, "directly again");
    assert_eq!(cluster.metric(Tier::NetworkNode, "csp_drops_total", "plugin_kernel").unwrap(), 0.0);
    assert_eq!(cluster.casualties(), "");
    let taps = |cluster: &Cluster| cluster.host(Tier::NetworkNode).run("ip", &["-o", "link"]).unwrap();
    assert!(taps(&cluster).contains("csp-lan0"));
    let node = cluster.host(Tier::NetworkNode).borrow();
    cluster.daemon(Tier::NetworkNode).unwrap().stop().unwrap();
    assert!(
        !node.run("ip", &["-o", "link"]).unwrap().contains("csp-lan0"),
        "the device ends with the daemon"
    );
    for (from, to) in OTHERS.iter().zip(HOST) {
        assert!(probe(&cluster, "tcp", from, to, "5").is_some(), "the host's services do not need the node");
    }
    cluster.stop().unwrap();
}
