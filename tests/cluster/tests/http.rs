//! HTTP that the proxy reads: routes to programs under the socket filter and to plain servers, with and
//! without TLS; uploads, WebSocket, answers of the proxy, servers that stop, the log and the metrics.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;

use csp_api::http::HttpRecord;
use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::{P256, SERVING_DEADLINE, certificate, pattern};
use csp_cluster::{Cluster, Far, San, Tier, VIP, testing, wait_until};

const WEB: u16 = 8000;
const SECURE: u16 = 8443;
const PLAIN_SERVER: u16 = 18_082;
const FILE_LEN: usize = 20 << 20;

fn policy() -> String {
    let routes = "
      routes:
      - {name: upload, path: {prefix: /upload}, rewrite: {prefix: /}, to: [{service: upload}]}
      - {name: plain, hosts: [plain.csp.test], to: [{service: plain}]}
      - {name: canary, methods: [GET], headers: [{name: X-Canary, exact: 'yes'}], to: [{service: plain}]}
      - {name: ws, path: {prefix: /ws}, upgrade: true, to: [{service: ws}]}
      - {name: old, path: {prefix: /old}, redirect: {status: 301, path: {prefix: /new}}}
      - {name: no, path: {exact: /no}, respond: {status: 403, body: not here}, response_headers: [{set: X-Why, value: policy}]}
      - {name: none, path: {prefix: /none}, to: [{service: none}], timeouts: {connect_ms: 500}}
      - {name: static, methods: [GET, HEAD], to: [{service: web}]}
      filters: {rules: [{path: {exact: /denied}, deny: {status: 451}}, {path: {exact: /few}, rate: {per_hour: 1}}]}
      request_id: true
";
    format!(
        "apiVersion: csp/v1
services:
  - {{name: web, pool: [{{node: an-1, port: 80}}]}}
  - {{name: upload, pool: [{{node: an-1, port: 8080}}]}}
  - {{name: plain, pool: [{{address: {CLIENT_ADDRESS}, port: {PLAIN_SERVER}}}]}}
  - {{name: ws, pool: [{{node: an-1, port: 8081}}]}}
  - {{name: none, pool: [{{node: an-1, port: 8082}}]}}
  - name: front
    vip: {VIP}
    port: {WEB}
    http:{routes}      h2c: true
  - name: secure
    vip: {VIP}
    port: {SECURE}
    tls: {{certificates: [www.csp.test]}}
    http:{routes}
egress:
  - {{address: 10.76.0.101, destinations: [10.76.0.0/24]}}
http_log: {{}}
"
    )
}

/// A server of WebSocket that sends back what it gets, for one connection after the other.
const ECHO: &str = r#"
import base64, hashlib, socket, struct
listener = socket.create_server(("", 8081))
while True:
    peer, _ = listener.accept()
    with peer, peer.makefile("rb") as stream:
        head = {}
        stream.readline()
        while (line := stream.readline().strip()):
            name, _, value = line.decode().partition(":")
            head[name.lower()] = value.strip()
        key = head["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        peer.sendall(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        while (start := stream.read(2)):
            length = start[1] & 127
            if length == 126:
                length, = struct.unpack(">H", stream.read(2))
            mask = stream.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(stream.read(length)))
            if start[0] & 15 == 8:
                peer.sendall(bytes([0x88, len(data)]) + data)
                break
            peer.sendall(bytes([start[0], 126]) + struct.pack(">H", length) + data)
"#;

/// A client of it: ten messages, then the close; prints `ok`.
const ASK: &str = r#"
import os, socket, struct, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
peer.sendall(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
stream = peer.makefile("rb")
assert stream.readline().startswith(b"HTTP/1.1 101 "), "status"
head = b"".join(iter(stream.readline, b"\r\n"))
assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head, head
for n in range(10):
    data, mask = os.urandom(1000 + n), os.urandom(4)
    masked = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
    peer.sendall(bytes([0x82, 0x80 | 126]) + struct.pack(">H", len(data)) + mask + masked)
    start = stream.read(4)
    assert start == bytes([0x82, 126]) + struct.pack(">H", len(data)), start
    assert stream.read(len(data)) == data
peer.sendall(bytes([0x88, 0x82]) + b"\0\0\0\0" + b"\x03\xe8")
assert stream.read(4) == b"\x88\x02\x03\xe8"
assert stream.read() == b""
print("ok")
"#;

/// A way to a service: with or without TLS, by a version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way(u16, &'static str);

impl Way {
    const ALL: [Way; 4] = [
        Way(WEB, "--http1.1"),
        Way(SECURE, "--http1.1"),
        Way(SECURE, "--http2"),
        Way(WEB, "--http2-prior-knowledge"),
    ];

    fn url(self, path: &str) -> String {
        let scheme = if self.0 == SECURE { "https" } else { "http" };
        format!("{scheme}://www.csp.test:{}{path}", self.0)
    }
}

/// Runs curl; returns what it prints.
fn curl(cluster: &Cluster, way: Way, path: &str, options: &[&str]) -> anyhow::Result<String> {
    let ca = cluster.scratch().join("tls/www.csp.test.pem");
    let (ca, resolve) = (ca.to_string_lossy(), format!("www.csp.test:{}:{VIP}", way.0));
    let url = way.url(path);
    let mut arguments =
        vec![way.1, "-sS", "-m", "30", "--path-as-is", "--cacert", &*ca, "--resolve", &resolve];
    arguments.extend_from_slice(options);
    arguments.push(&url);
    cluster.client.run("curl", &arguments)
}

fn serve(cluster: &mut Cluster) {
    certificate(&cluster.scratch().join("tls"), "www.csp.test", P256, 1).unwrap();
    fs::write(cluster.scratch().join("www/big"), pattern(FILE_LEN)).unwrap();
    fs::write(cluster.scratch().join("www/1KiB"), pattern(1 << 10)).unwrap();
    let echo = cluster.scratch().join("echo.py");
    fs::write(&echo, ECHO).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    cluster.start_upload().unwrap();
    cluster.run_accelerated("ws", "/usr/bin/python3", &[&echo.to_string_lossy()]).unwrap();
    cluster.start_outside(PLAIN_SERVER).unwrap();
    let file = cluster.scratch().join("http.yaml");
    fs::write(&file, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    for way in Way::ALL {
        let get =
            |options: &[&str]| curl(cluster, way, "/1KiB", &[&["-f", "-o", "/dev/null"], options].concat());
        wait_until("HTTP is served", SERVING_DEADLINE, || get(&[]).ok())
            .unwrap_or_else(|e| panic!("{e}: {:?}\n{}", get(&["-v"]), cluster.all_logs()));
    }
}

/// The status, and what a route did.
fn routes(cluster: &Cluster, way: Way) {
    let plain = ["-H", "Host: plain.csp.test"];
    let canary = ["-H", "X-Canary: yes"];
    for (path, options, expected) in [
        ("/1KiB", &[][..], "200 nginx"),
        ("/x/../1KiB", &[], "200 nginx"),
        ("/missing", &[], "404 nginx"),
        ("/1KiB", &plain, "200 SimpleHTTP"),
        ("/1KiB", &canary, "200 SimpleHTTP"),
        ("/no", &[], "403 "),
        ("/denied", &[], "451 "),
        ("/old/page?q=1", &[], "301 "),
        ("/1KiB", &["-I"], "200 nginx"),
        ("/1KiB", &["-X", "DELETE"], "404 "),
        ("/none", &[], "503 "),
    ] {
        let shown = ["-o", "/dev/null", "-w", "%{http_code} %header{server}"];
        let got = curl(cluster, way, path, &[&shown, options].concat()).unwrap();
        assert!(got.starts_with(expected), "{path} {options:?}: {got}");
    }
    let location =
        curl(cluster, way, "/old/page?q=1", &["-o", "/dev/null", "-w", "%header{location}"]).unwrap();
    assert_eq!(location, way.url("/new/page?q=1"));
    let answer = curl(cluster, way, "/no", &["-w", " %header{x-why}"]).unwrap();
    assert_eq!(answer, "not here policy");
    let few = || curl(cluster, way, "/few", &["-o", "/dev/null", "-w", "%{http_code} %header{retry-after}"]);
    let (_, second) = (few().unwrap(), few().unwrap());
    let wait_s = second.strip_prefix("429 ").and_then(|wait_s| wait_s.parse::<u32>().ok());
    assert!(wait_s.is_some_and(|wait_s| (1..=3_600).contains(&wait_s)), "{second}");
}

/// Long answers and uploads are whole, from servers of both kinds, several requests on a connection.
fn bytes_are_whole(cluster: &Cluster, way: Way) {
    let (got, sent) = (cluster.scratch().join("got"), cluster.scratch().join("www/big"));
    let (to, from) = (got.to_string_lossy(), format!("@{}", sent.display()));
    let sum = cluster.client.run("sha256sum", &[&sent.to_string_lossy()]).unwrap();
    let sum = sum.split_whitespace().next().unwrap();
    for host in ["www.csp.test", "plain.csp.test"] {
        let host = format!("Host: {host}");
        curl(cluster, way, "/big", &["-H", &host, "-o", &to]).unwrap();
        assert!(fs::read(&got).unwrap() == pattern(FILE_LEN), "{way:?}, {host}");
    }
    for framing in [&[][..], &["-H", "Expect:"]] {
        let options = [framing, &["-X", "PUT", "--data-binary", &from]].concat();
        let answer = curl(cluster, way, "/upload", &options).unwrap();
        assert_eq!(answer.trim(), sum, "{framing:?}");
    }
    if way.1 == "--http2-prior-knowledge" {
        return; // curl 7.88 fails at its second request, with nginx, too
    }
    let twice = way.url("/1KiB");
    let options = ["-o", "/dev/null", "-o", "/dev/null", "-w", "%{num_connects} ", &twice];
    assert_eq!(curl(cluster, way, "/1KiB", &options).unwrap(), "1 0 ", "one connection for both");
}

/// What two programs could read in two ways goes to no server.
fn refused(cluster: &Cluster) {
    let options = ["-H", "Content-Length: 1", "-H", "Transfer-Encoding: chunked", "-w", " %{http_code}"];
    let answer = curl(cluster, Way::ALL[0], "/1KiB", &options).unwrap();
    assert!(answer.starts_with("two-lengths: ") && answer.ends_with(" 400"), "{answer}");
}

fn tunnels(cluster: &Cluster) {
    let script = cluster.scratch().join("ask.py");
    fs::write(&script, ASK).unwrap();
    for _ in 0..3 {
        let port = WEB.to_string();
        let said = cluster.client.run("/usr/bin/python3", &[&script.to_string_lossy(), VIP, &port]).unwrap();
        assert_eq!(said.trim(), "ok");
    }
}

/// A server that stops and comes back: kept connections that it has closed fail no request.
fn server_restarts(cluster: &mut Cluster) {
    for _ in 0..3 {
        cluster.remove_program("nginx");
        cluster.start_nginx().unwrap();
        let get = |cluster: &Cluster| {
            curl(cluster, Way::ALL[0], "/1KiB", &["-o", "/dev/null", "-w", "%{http_code}"]).unwrap()
        };
        wait_until("nginx serves again", SERVING_DEADLINE, || (get(cluster) == "200").then_some(())).unwrap();
    }
}

fn is_logged(cluster: &Cluster) {
    let log = cluster.scratch().join("requests-pn-1.log");
    let records = || -> Vec<HttpRecord> {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    wait_until("records", SERVING_DEADLINE, || {
        let records = records();
        let has = |route: &str, status: u16, code: &str| {
            records.iter().any(|r| &*r.route == route && r.status == status && &*r.code == code)
        };
        let all = has("static", 200, "ok")
            && has("no", 403, "answer")
            && has("old", 301, "redirect")
            && has("ws", 101, "ok")
            && has("", 404, "no-route")
            && has("none", 503, "connect-timeout");
        all.then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", fs::read_to_string(&log).unwrap_or_default()));
    let of_upload = records().into_iter().find(|r| &*r.route == "upload" && r.status == 200).unwrap();
    assert_eq!(
        (of_upload.bytes_in, &*of_upload.server, &*of_upload.method),
        (FILE_LEN as u64, "an-1:8080", "PUT")
    );
    assert!(of_upload.request_id.len() == 32 && of_upload.trace_id.len() == 32, "{of_upload:?}");
    let metrics = cluster.ask(Tier::ProxyNode, "/metrics").unwrap();
    for line in [
        "csp_http_requests_total{class=\"2xx\",route=\"static\",service=\"front\"}",
        "csp_http_answers_total{code=\"no-route\",route=\"-\",service=\"secure\"}",
        "csp_http_request_seconds_count{route=\"plain\",service=\"secure\"}",
    ] {
        let value = metrics.lines().find_map(|l| l.strip_prefix(line)).map(|rest| rest.trim().parse::<f64>());
        assert!(value.is_some_and(|value| value.unwrap() > 0.0), "{line}:\n{metrics}");
    }
}

/// `cspctl routes test` says what the proxies do, and `cspctl http trace` what they have done.
fn is_shown(cluster: &Cluster) {
    let url = Way::ALL[1].url("/old/page?q=1");
    let tested = cluster.cspctl(&["routes", "test", &url, "-o", "json"]).unwrap();
    let tested: serde_json::Value = serde_json::from_str(&tested).unwrap();
    assert_eq!(tested[0]["route"], "old");
    assert_eq!(tested[0]["location"], Way::ALL[1].url("/new/page?q=1"));
    let ask = ["http", "trace", "--route", "upload", "--timeout", "60", "-o", "json"];
    let traced = std::thread::scope(|threads| {
        let traced = threads.spawn(|| cluster.cspctl(&ask));
        // Each is one request; the trace sees one of those that end while it waits.
        while !traced.is_finished() {
            curl(cluster, Way::ALL[2], "/upload", &["-X", "PUT", "-d", "abc"]).unwrap();
        }
        traced.join().unwrap().unwrap()
    });
    let traced: serde_json::Value = serde_json::from_str(&traced).unwrap();
    let request = &traced["requests"][0];
    assert_eq!((&request["server"], &request["bytes_in"]), (&"an-1:8080".into(), &3.into()), "{traced}");
}

fn run(name: &str, san: San, edge: bool) {
    let cluster = if edge { testing::lay_out_edge(name, san) } else { testing::lay_out_over(name, san) };
    let Some(mut cluster) = cluster else { return };
    serve(&mut cluster);
    for way in Way::ALL {
        routes(&cluster, way);
        bytes_are_whole(&cluster, way);
    }
    refused(&cluster);
    tunnels(&cluster);
    server_restarts(&mut cluster);
    is_logged(&cluster);
    is_shown(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn requests_are_routed_over_shm() {
    run("httpshm", San::Shm, false);
}

#[test]
fn requests_are_routed_by_the_edge_over_tcp() {
    run("httpedge", San::Apart(Far::Tcp), true);
}
