//! Plain servers: nginx on kernel TCP, on a host without software of the cluster, behind a VIP.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csp_api::connections::ConnectionRecord;
use csp_api::network::Flow;
use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Host, Process, San, Tier, VIP, testing, wait_until};
use csp_types::{FourTuple, steering};

/// Ports of the VIP: a service of plain servers, one with a program of the cluster in its pool, too, and one
/// whose server gets the client's address by the PROXY protocol.
const PLAIN: u16 = 8090;
const MIXED: u16 = 8091;
const TOLD: u16 = 8092;
/// The same behind a balancer, which is on the client's host.
const BEHIND: u16 = 8094;
/// A service whose servers are asked for TLS, which the first has.
const TLS: u16 = 8096;
const SPEAKS_TLS: u16 = 18_084;
const NO_TLS: u16 = 18_085;
/// A service whose server has a name, and a backup.
const NAMED: u16 = 8093;
const NAME: &str = "plain.csp.test";
/// Ports of the servers, and the one that expects the PROXY protocol.
const SERVERS: [u16; 2] = [18_081, 18_082];
const EXPECTS_HEADER: u16 = 18_083;
/// Where the proxy's connections to servers come from.
const EGRESS: &str = "10.76.0.101";
const FILE_LEN: usize = 20 << 20;

fn policy() -> String {
    let plain = |port: u16| format!("{{address: {CLIENT_ADDRESS}, port: {port}}}");
    let [first, second] = SERVERS.map(plain);
    let [told, tls, no_tls] = [EXPECTS_HEADER, SPEAKS_TLS, NO_TLS].map(plain);
    format!(
        "apiVersion: csp/v1
services:
  - {{name: web, vip: {VIP}, port: 80, pool: [{{node: an-1, port: 80}}]}}
  - {{name: plain, vip: {VIP}, port: {PLAIN}, pool: [{first}, {second}]}}
  - {{name: mixed, vip: {VIP}, port: {MIXED}, pool: [{{node: an-1, port: 80}}, {first}]}}
  - {{name: told, vip: {VIP}, port: {TOLD}, pool: [{told}], servers: {{proxy_protocol: v2}}}}
  - name: behind
    vip: {VIP}
    port: {BEHIND}
    accept_proxy_from: [{CLIENT_ADDRESS}/32]
    pool: [{told}]
    servers: {{proxy_protocol: v2}}
  - name: tls
    vip: {VIP}
    port: {TLS}
    pool: [{tls}, {no_tls}]
    servers: {{check: {{interval_ms: 200, timeout_ms: 200, rise: 1, fall: 2, tls: {{name: www.example}}}}}}
  - name: named
    vip: {VIP}
    port: {NAMED}
    pool: [{{name: {NAME}, port: {}}}, {{address: {CLIENT_ADDRESS}, port: {}, backup: true}}]
    servers: {{balance: source, slow_start_ms: 1000}}
egress:
  - {{address: {EGRESS}, destinations: [10.76.0.0/24]}}
connection_log: {{services: {{tls: 0}}}}
",
        SERVERS[0], SERVERS[1]
    )
}

/// Starts nginx without the filter on the client's host; every answer names its port.
fn server(cluster: &Cluster, port: u16) -> Process {
    let dir = cluster.scratch().join(format!("plain-{port}"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("big"), big()).unwrap();
    let listen = if port == EXPECTS_HEADER { format!("{port} proxy_protocol") } else { port.to_string() };
    let shown = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {shown}/{kind};\n"))
        .concat();
    let conf = format!(
        "daemon off;\nworker_processes 1;\npid {shown}/pid;\nerror_log {shown}/error.log;\nuser root;\n\
         events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\nclient_max_body_size 100m;\n{temporary}\
         server {{\nlisten {listen};\nroot {shown};\n\
         location = /who {{ return 200 \"{port} $proxy_protocol_addr\\n\"; }}\n\
         location = /length {{ proxy_pass http://127.0.0.1:{port}/length_of_body; }}\n\
         location = /length_of_body {{ return 200 \"$content_length\\n\"; }}\n}}\n}}\n"
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, conf).unwrap();
    let mut command = cluster.client.command("nginx");
    command.args(["-c", &file.display().to_string()]);
    let server = Process::spawn("a plain nginx", command, &dir.join("log")).unwrap();
    let listens = || cluster.client.output("sh", &["-c", &format!("ss -ltn | grep -q :{port}")]).unwrap();
    wait_until("a plain nginx", SERVING_DEADLINE, || listens().status.success().then_some(())).unwrap();
    server
}

fn big() -> Vec<u8> {
    (0..FILE_LEN).map(|n| (n as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Makes requests, each on a connection of its own; returns how many got which answer.
fn answers(cluster: &Cluster, port: u16, requests: u32) -> BTreeMap<String, u32> {
    answers_with(cluster, port, requests, "")
}

/// As [`answers`], with options of curl; `$n` is the request's number.
fn answers_with(cluster: &Cluster, port: u16, requests: u32, options: &str) -> BTreeMap<String, u32> {
    let url = format!("http://{VIP}:{port}/who");
    let loop_ =
        format!("for n in $(seq {requests}); do curl -s -m 10 {options} {url} || echo failed $?; done");
    let out = cluster.client.run("sh", &["-c", &loop_]).unwrap();
    let mut counts = BTreeMap::new();
    for line in out.lines() {
        *counts.entry(line.trim().to_owned()).or_insert(0) += 1;
    }
    counts
}

fn both(counts: &BTreeMap<String, u32>, requests: u32) -> bool {
    SERVERS.iter().all(|port| counts.get(&port.to_string()).is_some_and(|count| *count >= requests / 3))
        && counts.values().sum::<u32>() == requests
        && counts.len() == 2
}

fn bytes_in_both_directions(cluster: &Cluster) {
    let into = cluster.scratch().join("got");
    let shown = into.display().to_string();
    cluster
        .client
        .run("curl", &["-sS", "-m", "60", "-o", &shown, &format!("http://{VIP}:{PLAIN}/big")])
        .unwrap();
    assert!(fs::read(&into).unwrap() == big(), "the download differs");
    let file = format!("@{}", cluster.scratch().join(format!("plain-{}/big", SERVERS[0])).display());
    let url = format!("http://{VIP}:{PLAIN}/length");
    let out = cluster.client.run("curl", &["-sS", "-m", "60", "--data-binary", &file, &url]).unwrap();
    assert_eq!(out.trim(), FILE_LEN.to_string(), "the upload arrives");
}

/// The names that a host knows, beside those of DNS: a file that `ip netns exec` puts in the place of
/// `/etc/hosts`.
struct HostsFile(PathBuf);

impl HostsFile {
    fn of(host: &Host) -> Self {
        let folder = Path::new("/etc/netns").join(host.namespace());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("hosts"), "127.0.0.1 localhost\n").unwrap();
        fs::write(folder.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
        HostsFile(folder)
    }

    fn add(&self, name: &str, address: &str) {
        // Written in place: the file is mounted, not its name.
        let text = format!("127.0.0.1 localhost\n{address} {name}\n");
        fs::write(self.0.join("hosts"), text).unwrap();
    }
}

impl Drop for HostsFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server by its name, which nobody knows at first: the backup serves, then the server does.
fn a_named_server(cluster: &Cluster, hosts: &HostsFile) {
    let [named, backup] = SERVERS.map(|port| port.to_string());
    assert_eq!(answers(cluster, NAMED, 10), BTreeMap::from([(backup, 10)]), "the name is not known");
    hosts.add(NAME, CLIENT_ADDRESS);
    let known = || answers(cluster, NAMED, 10).contains_key(&named).then_some(());
    wait_until("the name to be looked up again", Duration::from_secs(60), known).unwrap();
    assert_eq!(answers(cluster, NAMED, 10), BTreeMap::from([(named, 10)]), "the backup is not used");
}

fn state_of(cluster: &Cluster, port: u16) -> String {
    let out = cluster.cspctl(&["services"]).unwrap();
    let of = |line: &&str| line.contains(&format!("{CLIENT_ADDRESS}:{port}"));
    out.lines().find(of).unwrap_or_default().to_owned()
}

/// A server dies and comes back: no request fails, and its state can be seen.
fn a_dead_server(cluster: &Cluster, first: Process) -> Process {
    drop(first);
    let counts = answers(cluster, PLAIN, 60);
    assert_eq!(counts, BTreeMap::from([(SERVERS[1].to_string(), 60)]), "nobody sees the dead one");
    let state = state_of(cluster, SERVERS[0]);
    assert!(state.contains("down (pn-1: connection refused)"), "{state}");
    let first = server(cluster, SERVERS[0]);
    let up = || both(&answers(cluster, PLAIN, 30), 30).then_some(());
    wait_until("the server to be used again", Duration::from_secs(45), up).unwrap();
    let state = state_of(cluster, SERVERS[0]);
    assert!(state.contains(" up ") && !state.contains("down"), "{state}");
    let object = format!("server/plain/{CLIENT_ADDRESS}:{}", SERVERS[0]);
    let events = cluster.cspctl(&["events", "--object", &object]).unwrap();
    let (down, up) = (
        format!(
            "{object}  server {CLIENT_ADDRESS}:{} of service plain is down: connection refused",
            SERVERS[0]
        ),
        format!("{object}  server {CLIENT_ADDRESS}:{} of service plain is up", SERVERS[0]),
    );
    assert!(events.find(&down).zip(events.find(&up)).is_some_and(|(down, up)| down < up), "{events}");
    first
}

/// Starts nginx with a certificate of its own.
fn server_of_tls(cluster: &Cluster) -> Process {
    let dir = cluster.scratch().join("tls");
    fs::create_dir_all(&dir).unwrap();
    let file = |name: &str| dir.join(name).display().to_string();
    let (key, certificate) = (file("key.pem"), file("certificate.pem"));
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=www.example"];
    let openssl = [&request[..], &["-keyout", &key, "-out", &certificate]].concat();
    cluster.client.run("openssl", &openssl).unwrap();
    let conf = format!(
        "daemon off;\nworker_processes 1;\npid {};\nerror_log {};\nuser root;\n\
         events {{ worker_connections 64; }}\nhttp {{\naccess_log off;\nserver {{\nlisten {SPEAKS_TLS} ssl;\n\
         ssl_certificate {certificate};\nssl_certificate_key {key};\n\
         location = /who {{ return 200 \"{SPEAKS_TLS}\n\"; }}\n}}\n}}\n",
        file("pid"),
        file("error.log")
    );
    fs::write(file("nginx.conf"), conf).unwrap();
    let mut command = cluster.client.command("nginx");
    command.args(["-c", &file("nginx.conf")]);
    Process::spawn("an nginx with TLS", command, &dir.join("log")).unwrap()
}

/// The server that does not speak TLS is put out of use; the other one serves HTTPS through the VIP.
fn a_check_over_tls(cluster: &Cluster) {
    let _servers = [server_of_tls(cluster), server(cluster, NO_TLS)];
    let row = |port: u16| {
        let rows = cluster.cspctl(&["services"]).unwrap();
        let service = rows.lines().skip_while(|line| !line.starts_with("tls ")).collect::<Vec<_>>();
        let server = format!("{CLIENT_ADDRESS}:{port}");
        service.iter().find(|line| line.contains(&server)).map(|line| line.to_string()).unwrap_or_default()
    };
    wait_until("the results of checks over TLS", SERVING_DEADLINE, || {
        (row(SPEAKS_TLS).contains(" up ") && row(NO_TLS).contains("down (")).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", row(SPEAKS_TLS), row(NO_TLS)));
    for _ in 0..4 {
        let url = format!("https://{VIP}:{TLS}/who");
        let answer = cluster.client.run("curl", &["-sSk", "-m", "10", &url]).unwrap();
        assert_eq!(answer.trim(), SPEAKS_TLS.to_string());
    }
}

/// A request as a balancer sends it, in two parts; prints the answer's last line.
const BALANCER: &str = "
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
header = b'PROXY TCP4 192.0.2.7 10.76.0.100 258 80\\r\\n'
for part in header[:9], header[9:] + b'GET /who HTTP/1.0\\r\\n\\r\\n':
    s.sendall(part)
    time.sleep(0.1)
print(b''.join(iter(lambda: s.recv(4096), b'')).splitlines()[-1].decode())
";

/// The server sees the client that the balancer names; who names none is reset.
fn a_balancer_in_front(cluster: &Cluster) {
    let seen = cluster.client.run("python3", &["-c", BALANCER, VIP, &BEHIND.to_string()]).unwrap();
    assert_eq!(seen.trim(), format!("{EXPECTS_HEADER} 192.0.2.7"));
    assert_eq!(answers(cluster, BEHIND, 1), BTreeMap::from([("failed 56".to_owned(), 1)]));
    wait_until("the reset to be counted", SERVING_DEADLINE, || {
        let refused = cluster.metric(Tier::ProxyNode, "csp_drops_total", "no_proxy_header").ok()?;
        (refused >= 1.0).then_some(())
    })
    .unwrap();
}

/// Sends a part of a request, and resets the connection.
const LEAVER: &str = "
import socket, struct, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.sendall(b'GET /who HTT')
time.sleep(0.2)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
s.close()
";

/// The proxy's log has each connection that has ended, with who had it and who ended it.
fn the_log_of_connections(cluster: &Cluster) {
    cluster.client.run("python3", &["-c", LEAVER, VIP, &PLAIN.to_string()]).unwrap();
    let file = cluster.scratch().join("connections-pn-1.log");
    let records = || -> Vec<ConnectionRecord> {
        let text = fs::read_to_string(&file).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    };
    let of = |service: &'static str| records().into_iter().filter(move |record| record.service == *service);
    wait_until("the reset to be recorded", SERVING_DEADLINE, || {
        of("plain").any(|record| record.end == "client_reset" && record.code == "CR").then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{:#?}", of("plain").collect::<Vec<_>>()));
    let well: Vec<_> = of("plain").filter(|record| record.code.ends_with('-')).collect();
    assert!(well.len() >= 62, "60 requests, a download, an upload: {}", well.len());
    for record in &well {
        let [first, second] = SERVERS.map(|port| format!("{CLIENT_ADDRESS}:{port}"));
        assert!(record.server == *first.as_str() || record.server == *second.as_str(), "{record:?}");
        assert!(record.client.starts_with(CLIENT_ADDRESS) && record.vip == format!("{VIP}:{PLAIN}"));
        let wait = record.wait_us.expect("a server had it");
        let byte = record.first_byte_us.expect("it answered");
        assert!(wait <= byte && byte <= record.total_us && record.rtt_us.is_some(), "{record:?}");
        assert!(record.bytes_in > 0 && record.bytes_out > 0 && record.proxy == "pn-1", "{record:?}");
    }
    let download = well.iter().map(|record| record.bytes_out).max();
    assert!(download >= Some(FILE_LEN as u64), "{download:?}");
    let nginx = of("mixed").find(|record| record.process.starts_with("nginx"));
    assert_eq!(nginx.expect("a program of the cluster had some").server, "an-1:80");
    let written = cluster.metric(Tier::ProxyNode, "csp_connection_log_records_total", "").unwrap();
    assert!(written >= records().len() as f64 * 0.9, "{written}");
    assert_eq!(cluster.metric(Tier::ProxyNode, "csp_connection_log_lost_total", "busy").unwrap(), 0.0);
}

fn apply(cluster: &Cluster, path: &Path) {
    fs::write(path, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &path.to_string_lossy()]).unwrap();
}

#[test]
fn plain_servers_stand_behind_a_vip_beside_programs_of_the_cluster() {
    let Some(mut cluster) = testing::lay_out("servers") else { return };
    let hosts = HostsFile::of(cluster.host(Tier::ProxyNode));
    cluster.serve().unwrap();
    let first = server(&cluster, SERVERS[0]);
    let second = server(&cluster, SERVERS[1]);
    let told = server(&cluster, EXPECTS_HEADER);
    apply(&cluster, &cluster.scratch().join("servers.yaml"));
    let counts = answers(&cluster, PLAIN, 60);
    assert!(both(&counts, 60), "{counts:?}\n{}", cluster.all_logs());
    bytes_in_both_directions(&cluster);
    let counts = answers(&cluster, MIXED, 40);
    let plain = counts.get(&SERVERS[0].to_string()).copied().unwrap_or(0);
    assert!((10..=30).contains(&plain), "the program of the cluster gets the others: {counts:?}");
    let counts = answers(&cluster, TOLD, 3);
    assert_eq!(counts, BTreeMap::from([(format!("{EXPECTS_HEADER} {CLIENT_ADDRESS}"), 3)]));
    a_balancer_in_front(&cluster);
    the_log_of_connections(&cluster);
    a_named_server(&cluster, &hosts);
    a_check_over_tls(&cluster);
    let first = a_dead_server(&cluster, first);
    assert!(cluster.metric(Tier::ProxyNode, "csp_joined_bytes_total", "").unwrap() >= 2.0 * FILE_LEN as f64);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
    drop((first, second, told));
}

/// Serves with two workers of network node and proxy each; checks that the connections to servers use both
/// workers of the network node, each the one that receives the server's segments. Returns them.
fn connections_of_all_workers(mut cluster: Cluster) -> Vec<Flow> {
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        cluster.set_workers(tier, 2).unwrap();
    }
    let _hosts = HostsFile::of(cluster.host(Tier::ProxyNode));
    cluster.serve().unwrap();
    let servers = SERVERS.map(|port| server(&cluster, port));
    apply(&cluster, &cluster.scratch().join("servers.yaml"));
    // Linux connects from ports of one parity, which lead to one of two workers.
    let counts = answers_with(&cluster, PLAIN, 60, "--local-port $((20000 + n))");
    assert!(both(&counts, 60), "{counts:?}\n{}", cluster.all_logs());
    let text = cluster.ask(Tier::NetworkNode, "/v1/flows?limit=1000").unwrap();
    let mut flows: Vec<Flow> = serde_json::from_str(&text).expect("the network node's flows");
    flows.retain(|flow| flow.server.ip().to_string() == EGRESS);
    let mut used = [0; 2];
    for flow in &flows {
        let tuple = FourTuple { local: flow.server, remote: flow.client };
        assert_eq!(flow.worker, u32::from(steering::worker_of(&tuple, 2)), "{flow:?}");
        assert!(flow.segments_in > 0 && flow.segments_out > 0, "{flow:?}");
        used[flow.worker as usize] += 1;
    }
    assert!(used.iter().all(|flows| *flows >= 10), "{used:?}");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
    drop(servers);
    flows
}

#[test]
fn connections_to_servers_use_all_workers_of_a_network_node() {
    let Some(cluster) = testing::lay_out("allworkers") else { return };
    let flows = connections_of_all_workers(cluster);
    let crosses = |flow: &Flow| flow.worker != flow.proxy_worker;
    assert!(flows.iter().any(crosses), "each worker of the proxy uses both");
}

#[test]
fn in_an_edge_connections_to_servers_stay_in_a_thread() {
    let Some(cluster) = testing::lay_out_edge("edgeservers", San::Shm) else { return };
    let crosses = |flow: &Flow| flow.worker != flow.proxy_worker;
    let crossing: Vec<_> = connections_of_all_workers(cluster).into_iter().filter(crosses).collect();
    assert!(crossing.is_empty(), "{crossing:?}");
}
