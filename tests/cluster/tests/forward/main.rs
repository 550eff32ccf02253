//! Services with `via: network`: nginx and a program over UDP on hosts of the LAN that have the service's
//! address and answer clients themselves.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

mod behind;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Host, Process, Tier, VIP, testing, wait_until};

/// The address of the services that are forwarded, and their ports.
const SHARED: &str = "10.76.0.102";
const SHARED6: &str = "2001:db8:76::102";
const HTTP: u16 = 8095;
const UDP: u16 = 5395;
const FILE_LEN: usize = 20 << 20;
/// Answers each datagram by its own name and the datagram.
const ECHO: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[2], int(sys.argv[3])))
while True:
    data, peer = s.recvfrom(65536)
    s.sendto(sys.argv[1].encode() + b' ' + data, peer)
";
/// Sends datagrams from many ports, each twice; prints who answered. The second one is long, and comes in
/// fragments.
const ASK: &str = "
import socket, sys
for n in range(int(sys.argv[3])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.connect((sys.argv[1], int(sys.argv[2])))
    names = set()
    for data in (b'x', b'y' * 4000):
        s.send(data)
        name, echo = s.recv(65536).split(b' ')
        assert echo == data
        names.add(name.decode())
    assert len(names) == 1, names
    print(names.pop())
";
/// Makes a request, waits for a file to appear, and makes another one on the same connection.
const STAYS: &str = "
import http.client, os, sys, time
c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=20)
def ask():
    c.request('GET', '/who')
    return c.getresponse().read().decode().strip()
first = ask()
print(first, flush=True)
while not os.path.exists(sys.argv[3]): time.sleep(0.05)
c.auto_open = 0
assert ask() == first
print('stayed', flush=True)
";

/// A host of the LAN that has the services' address on its loopback interface.
struct Server {
    host: Host,
    name: &'static str,
    running: Vec<Process>,
}

impl Server {
    /// Joins a host to the LAN at `10.76.0.<last>`.
    fn join(cluster: &Cluster, name: &'static str, last: u8) -> Self {
        let host = join_lan(cluster, name);
        // As operators do (docs/forwarding.md): with these settings a server neither answers ARP for the
        // shared address nor asks in its name.
        for setting in ["all.arp_ignore=1", "all.arp_announce=2"] {
            host.run("sysctl", &["-qw", &format!("net.ipv4.conf.{setting}")]).unwrap();
        }
        host.address("lan0", &format!("10.76.0.{last}/24")).unwrap();
        host.ip(&["address", "add", &format!("2001:db8:76::{last}/64"), "dev", "lan0", "nodad"]).unwrap();
        host.address("lo", &format!("{SHARED}/32")).unwrap();
        host.ip(&["address", "add", &format!("{SHARED6}/128"), "dev", "lo", "nodad"]).unwrap();
        Server { host, name, running: Vec::new() }
    }

    fn start(&mut self, cluster: &Cluster) {
        let dir = cluster.scratch().join(self.name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("big"), testing::pattern(FILE_LEN)).unwrap();
        let (shown, name) = (dir.display(), self.name);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {shown}/{kind};\n"))
            .concat();
        let conf = format!(
            "daemon off;\nworker_processes 1;\npid {shown}/pid;\nerror_log {shown}/error.log;\nuser root;\n\
             events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\nclient_max_body_size 100m;\n{temporary}\
             server {{\nlisten {HTTP};\nlisten [::]:{HTTP};\nroot {shown};\n\
             location = /who {{ return 200 \"{name}\\n\"; }}\n\
             location = /length {{ proxy_pass http://127.0.0.1:{HTTP}/length_of_body; }}\n\
             location = /length_of_body {{ return 200 \"$content_length\\n\"; }}\n}}\n}}\n"
        );
        let file = dir.join("nginx.conf");
        fs::write(&file, conf).unwrap();
        let mut nginx = self.host.command("nginx");
        nginx.args(["-c", &file.display().to_string()]);
        let mut echo = self.host.command("python3");
        echo.args(["-c", ECHO, name, SHARED, &UDP.to_string()]);
        self.running = vec![
            Process::spawn("nginx", nginx, &dir.join("log")).unwrap(),
            Process::spawn("echo", echo, &dir.join("echo.log")).unwrap(),
        ];
        let both = format!("ss -ltn | grep -q :{HTTP} && ss -lun | grep -q :{UDP}");
        let listens = || self.host.output("sh", &["-c", &both]).unwrap().status.success().then_some(());
        wait_until("a server of the LAN", SERVING_DEADLINE, listens).unwrap();
    }
}

/// Joins a host to the LAN, without an address.
fn join_lan(cluster: &Cluster, name: &str) -> Host {
    let host = Host::new(&format!("fwd{}", std::process::id()), name).unwrap();
    let port = format!("to-{name}");
    host.join("lan0", &cluster.client, &port).unwrap();
    cluster.client.ip(&["link", "set", &port, "master", "lan"]).unwrap();
    host
}

/// The client's end of the LAN becomes a bridge, so that there is room for servers.
fn widen_lan(cluster: &Cluster) {
    let client = &cluster.client;
    client.ip(&["link", "add", "lan", "type", "bridge"]).unwrap();
    client.ip(&["address", "flush", "dev", "lan0"]).unwrap();
    client.ip(&["link", "set", "lan0", "master", "lan"]).unwrap();
    client.ip(&["link", "set", "lan", "up"]).unwrap();
    client.address("lan", "10.76.0.1/24").unwrap();
    client.ip(&["address", "add", "2001:db8:76::1/64", "dev", "lan", "nodad"]).unwrap();
    // From here the network node checks servers.
    cluster.host(Tier::NetworkNode).address("lan0", "10.76.0.9/24").unwrap();
}

fn policy(weight: u16) -> String {
    let check = "{all_down: refuse, check: {interval_ms: 200, timeout_ms: 200, rise: 2, fall: 2, http: {path: /who}}}";
    let pool = |port: u16| {
        format!(
            "[{{address: 10.76.0.201, port: {port}, weight: {weight}}}, {{address: 10.76.0.202, port: {port}}}]"
        )
    };
    format!(
        "apiVersion: csp/v1
services:
  - {{name: web, vip: {VIP}, port: 80, pool: [{{node: an-1, port: 80}}]}}
  - {{name: shared, vip: {SHARED}, port: {HTTP}, via: network, pool: {}, servers: {check}}}
  - {{name: echo, vip: {SHARED}, port: {UDP}, protocol: udp, via: network, pool: {}}}
  - name: shared6
    vip: \"{SHARED6}\"
    port: {HTTP}
    via: network
    pool: [{{address: \"2001:db8:76::201\", port: {HTTP}}}, {{address: \"2001:db8:76::202\", port: {HTTP}}}]
egress:
  - {{address: 10.76.0.101, destinations: [10.9.0.0/16]}}
  - {{address: \"2001:db8:76::101\", destinations: [\"2001:db8:9::/48\"]}}
",
        pool(HTTP),
        pool(UDP)
    )
}

fn apply(cluster: &Cluster, weight: u16) {
    let path = cluster.scratch().join("forward.yaml");
    fs::write(&path, policy(weight)).unwrap();
    cluster.cspctl(&["policy", "apply", &path.to_string_lossy()]).unwrap();
}

/// Makes requests, each on a connection of its own; returns how many got which answer.
fn answers(cluster: &Cluster, address: &str, requests: u32) -> BTreeMap<String, u32> {
    let url = format!("http://{address}:{HTTP}/who");
    let loop_ = format!("for n in $(seq {requests}); do curl -s -g -m 10 '{url}' || echo failed $?; done");
    count(&cluster.client.run("sh", &["-c", &loop_]).unwrap())
}

fn count(lines: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for line in lines.lines() {
        *counts.entry(line.trim().to_owned()).or_insert(0) += 1;
    }
    counts
}

fn both_answer(counts: &BTreeMap<String, u32>, requests: u32) {
    let of = |name| counts.get(name).copied().unwrap_or(0);
    assert_eq!(of("first") + of("second"), requests, "{counts:?}");
    assert!(of("first") > requests / 6 && of("second") > requests / 6, "{counts:?}");
}

fn bytes_in_both_directions(cluster: &Cluster, address: &str) {
    let into = cluster.scratch().join("got");
    let shown = into.display().to_string();
    let url = |path: &str| format!("http://{address}:{HTTP}/{path}");
    cluster.client.run("curl", &["-sSg", "-m", "60", "-o", &shown, &url("big")]).unwrap();
    assert!(fs::read(&into).unwrap() == testing::pattern(FILE_LEN), "the download differs");
    let file = format!("@{}", into.display());
    let out =
        cluster.client.run("curl", &["-sSg", "-m", "60", "--data-binary", &file, &url("length")]).unwrap();
    assert_eq!(out.trim(), FILE_LEN.to_string(), "the upload arrives");
}

/// The line of a service and a server in `cspctl services`.
fn state_of(cluster: &Cluster, server: &str) -> String {
    let out = cluster.cspctl(&["services"]).unwrap();
    out.lines().find(|line| line.contains(server)).unwrap_or_default().to_owned()
}

fn wait_state(cluster: &Cluster, server: &str, state: &str) {
    wait_until(&format!("{server} to be {state}"), SERVING_DEADLINE, || {
        state_of(cluster, server).contains(state).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", state_of(cluster, server)));
}

/// A server dies: after its checks no request fails. It comes back.
fn a_dead_server(cluster: &Cluster, first: &mut Server) {
    first.running.clear();
    let server = format!("10.76.0.201:{HTTP}");
    wait_state(cluster, &server, "down (nn-1: Connection refused");
    assert_eq!(answers(cluster, SHARED, 60), BTreeMap::from([("second".to_owned(), 60)]));
    first.start(cluster);
    wait_state(cluster, &server, " up ");
    both_answer(&answers(cluster, SHARED, 60), 60);
}

/// A server gets weight 0: its connections stay, new ones go elsewhere.
fn a_server_that_drains(cluster: &Cluster) {
    let go_on = cluster.scratch().join("go-on");
    let log = |n: usize| cluster.scratch().join(format!("stays-{n}"));
    let stays = |n: usize| {
        let mut command = cluster.client.command("python3");
        command.args(["-c", STAYS, SHARED, &HTTP.to_string(), &go_on.display().to_string()]);
        Process::spawn("a connection that stays", command, &log(n)).unwrap()
    };
    let mut clients: Vec<Process> = (0..12).map(stays).collect();
    let said = |n: usize| fs::read_to_string(log(n)).unwrap_or_default();
    wait_until("their first answers", SERVING_DEADLINE, || {
        (0..12).all(|n| said(n).ends_with('\n')).then_some(())
    })
    .unwrap();
    assert!((0..12).any(|n| said(n).starts_with("first")));
    apply(cluster, 0);
    wait_until("the weight to be in force", SERVING_DEADLINE, || {
        (answers(cluster, SHARED, 20) == BTreeMap::from([("second".to_owned(), 20)])).then_some(())
    })
    .unwrap();
    fs::write(&go_on, "").unwrap();
    wait_until("all to go on", SERVING_DEADLINE, || {
        clients.iter_mut().all(|client| client.exited().is_some()).then_some(())
    })
    .unwrap();
    (0..12).for_each(|n| assert!(said(n).ends_with("stayed\n"), "{}", said(n)));
}

fn asks(cluster: &Cluster, requests: u32) -> BTreeMap<String, u32> {
    let arguments = ["-c", ASK, SHARED, &UDP.to_string(), &requests.to_string()];
    count(&cluster.client.run("python3", &arguments).unwrap())
}

#[test]
fn packets_are_forwarded_to_servers_that_answer_themselves() {
    let Some(mut cluster) = testing::lay_out("forward") else { return };
    cluster.set_workers(Tier::NetworkNode, 3).unwrap();
    widen_lan(&cluster);
    cluster.serve().unwrap();
    let mut first = Server::join(&cluster, "first", 201);
    let mut second = Server::join(&cluster, "second", 202);
    first.start(&cluster);
    second.start(&cluster);
    apply(&cluster, 1);
    let url = format!("http://{SHARED}:{HTTP}/who");
    wait_until("the service", SERVING_DEADLINE, || cluster.answers(&url).then_some(()))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.all_logs()));
    both_answer(&answers(&cluster, SHARED, 60), 60);
    both_answer(&answers(&cluster, &format!("[{SHARED6}]"), 30), 30);
    both_answer(&asks(&cluster, 40), 40);
    bytes_in_both_directions(&cluster, SHARED);
    a_dead_server(&cluster, &mut first);
    a_server_that_drains(&cluster);
    drop((first, second));
    wait_state(&cluster, &format!("10.76.0.202:{HTTP}"), "down (nn-1: ");
    assert_eq!(answers(&cluster, SHARED, 3), BTreeMap::from([("failed 7".to_owned(), 3)]), "refused at once");
    let forwarded = cluster.metric(Tier::NetworkNode, "csp_forwarded_bytes_total", "").unwrap();
    assert!(forwarded > FILE_LEN as f64, "the upload passed here: {forwarded}");
    assert!(forwarded < 2.0 * FILE_LEN as f64, "the download did not: {forwarded}");
    wait_until("the other services", Duration::from_secs(5), || {
        cluster.answers(&format!("http://{VIP}/1KiB")).then_some(())
    })
    .unwrap();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
