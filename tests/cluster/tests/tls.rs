//! TLS of clients that ends at the proxy: in front of nginx under the socket filter, of Python's http.server,
//! and of a plain server; certificates by name, renewed while it serves, and missing.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

#[path = "tls/clients.rs"]
mod clients;
#[path = "tls/pass.rs"]
mod pass;
#[path = "tls/tickets.rs"]
mod tickets;
#[path = "tls/to_servers.rs"]
mod to_servers;

use std::fs;
use std::path::PathBuf;

use csp_api::connections::ConnectionRecord;
use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::{P256, SERVING_DEADLINE, certificate, pattern};
use csp_cluster::{Cluster, Far, San, Tier, VIP, testing, wait_until};

const WEB: u16 = 443;
const UPLOAD: u16 = 8443;
const PLAIN: u16 = 9443;
/// One that speaks TLS 1.3 only.
const MODERN: u16 = 7443;
const PLAIN_SERVER: u16 = 18_081;
const FILE_LEN: usize = 20 << 20;

fn policy(certificate: &str) -> String {
    format!(
        "apiVersion: csp/v1
services:
  - {{name: web, vip: {VIP}, port: 80, pool: [{{node: an-1, port: 80}}]}}
  - {{name: upload, vip: {VIP}, port: 8080, pool: [{{node: an-1, port: 8080}}]}}
  - name: secure
    vip: {VIP}
    port: {WEB}
    tls: {{certificates: [www.csp.test, {certificate}], alpn: [http/1.1]}}
    pool: [{{node: an-1, port: 80}}]
  - {{name: secure-upload, vip: {VIP}, port: {UPLOAD}, tls: {{certificates: [www.csp.test]}}, pool: [{{node: an-1, port: 8080}}]}}
  - {{name: modern, vip: {VIP}, port: {MODERN}, tls: {{certificates: [www.csp.test], min_version: '1.3'}}, pool: [{{node: an-1, port: 80}}]}}
  - {{name: plain, vip: {VIP}, port: {PLAIN}, tls: {{certificates: [www.csp.test]}}, pool: [{{address: {CLIENT_ADDRESS}, port: {PLAIN_SERVER}}}]}}
{}{}{}egress:
  - {{address: 10.76.0.101, destinations: [10.76.0.0/24]}}
connection_log: {{}}
",
        pass::services(),
        clients::services(),
        to_servers::services()
    )
}

fn folder(cluster: &Cluster) -> PathBuf {
    cluster.scratch().join("tls")
}

fn apply(cluster: &Cluster, policy: &str) -> anyhow::Result<String> {
    let file = cluster.scratch().join("tls.yaml");
    fs::write(&file, policy).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()])
}

/// Runs curl with the certificate of a name trusted, and the name at the VIP.
fn curl(cluster: &Cluster, name: &str, port: u16, path: &str, options: &[&str]) -> anyhow::Result<String> {
    let ca = folder(cluster).join(format!("{name}.pem"));
    let resolve = format!("{name}:{port}:{VIP}");
    let url = format!("https://{name}:{port}{path}");
    let ca = ca.to_string_lossy();
    let mut arguments = vec!["-sSf", "-m", "30", "--cacert", &*ca, "--resolve", &resolve];
    arguments.extend_from_slice(options);
    arguments.push(&url);
    cluster.client.run("curl", &arguments)
}

fn serve(cluster: &mut Cluster) {
    let tls = folder(cluster);
    certificate(&tls, "www.csp.test", P256, 1).unwrap();
    certificate(&tls, "rsa.csp.test", &["rsa:2048"], 2).unwrap();
    fs::write(cluster.scratch().join("www/big"), pattern(FILE_LEN)).unwrap();
    fs::write(cluster.scratch().join("www/1KiB"), pattern(1 << 10)).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    cluster.start_upload().unwrap();
    cluster.start_outside(PLAIN_SERVER).unwrap();
    pass::start(cluster);
    clients::start(cluster);
    to_servers::start(cluster);
    apply(cluster, &policy("rsa.csp.test")).unwrap();
    cluster.wait_served().unwrap();
    for port in [WEB, UPLOAD, PLAIN, MODERN] {
        let get = |options: &[&str]| {
            curl(cluster, "www.csp.test", port, "/1KiB", &[&["-o", "/dev/null"], options].concat())
        };
        wait_until("TLS is served", SERVING_DEADLINE, || get(&[]).ok())
            .unwrap_or_else(|e| panic!("{e}: {:?}", get(&["-v"])));
    }
}

/// Long answers and uploads are whole, by both versions, from each kind of server.
fn bytes_are_whole(cluster: &Cluster) {
    let (got, sent) = (cluster.scratch().join("got"), cluster.scratch().join("www/big"));
    let (to, from) = (got.to_string_lossy(), format!("@{}", sent.display()));
    let sum = cluster.client.run("sha256sum", &[&sent.to_string_lossy()]).unwrap();
    let sum = sum.split_whitespace().next().unwrap();
    for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        for port in [WEB, PLAIN] {
            curl(cluster, "www.csp.test", port, "/big", &[version, &["-o", &to]].concat()).unwrap();
            assert!(fs::read(&got).unwrap() == pattern(FILE_LEN), "{version:?}, port {port}");
        }
        let options = [version, &["-X", "PUT", "-H", "Expect:", "--data-binary", &from]].concat();
        let answer = curl(cluster, "www.csp.test", UPLOAD, "/", &options).unwrap();
        assert_eq!(answer.trim(), sum, "{version:?}");
    }
}

/// What a client is told of the server, by openssl.
fn handshake(cluster: &Cluster, name: &str, port: u16, options: &[&str]) -> String {
    let at = format!("{VIP}:{port}");
    let mut arguments = vec!["s_client", "-connect", &at, "-servername", name];
    arguments.extend_from_slice(options);
    let command = format!("openssl {} </dev/null 2>&1 | cat", arguments.join(" "));
    cluster.client.run("timeout", &["10", "sh", "-c", &command]).unwrap()
}

fn names_and_versions(cluster: &Cluster) {
    for name in ["www.csp.test", "rsa.csp.test"] {
        assert_eq!(
            curl(cluster, name, WEB, "/1KiB", &["-o", "/dev/null", "-w", "%{http_code}"]).unwrap(),
            "200"
        );
    }
    assert!(curl(cluster, "rsa.csp.test", UPLOAD, "/", &[]).is_err(), "the default is another's");
    let told = handshake(cluster, "www.csp.test", WEB, &["-alpn", "h2,http/1.1"]);
    assert!(told.contains("ALPN protocol: http/1.1") && told.contains("TLSv1.3"), "{told}");
    let told = handshake(cluster, "www.csp.test", MODERN, &["-tls1_2"]);
    assert!(told.contains("alert protocol version"), "{told}");
    let told = handshake(cluster, "www.csp.test", WEB, &["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]);
    assert!(told.contains("alert") && told.contains("Cipher is (NONE)"), "{told}");
    // The second connection is not a full handshake.
    let session = cluster.scratch().join("session");
    let session = session.to_string_lossy();
    let first = handshake(cluster, "www.csp.test", WEB, &["-tls1_2", "-sess_out", &session]);
    let second = handshake(cluster, "www.csp.test", WEB, &["-tls1_2", "-sess_in", &session]);
    assert!(first.contains("New, TLSv1.2") && second.contains("Reused, TLSv1.2"), "{first} {second}");
    // What is no TLS gets no answer of the server.
    let told = cluster.client.output("curl", &["-sS", "-m", "5", &format!("http://{VIP}:{WEB}/")]).unwrap();
    assert!(!told.status.success() && told.stdout.is_empty());
}

/// A certificate that is renewed is for new connections; requests beside it do not fail.
fn is_renewed(cluster: &Cluster) {
    let serial = || {
        let told = handshake(cluster, "www.csp.test", WEB, &["-showcerts"]);
        let file = cluster.scratch().join("shown.pem");
        let (from, to) = (told.find("-----BEGIN").unwrap(), told.find("-----END CERTIFICATE-----").unwrap());
        fs::write(&file, format!("{}-----END CERTIFICATE-----\n", &told[from..to])).unwrap();
        let file = file.to_string_lossy();
        cluster.client.run("openssl", &["x509", "-noout", "-serial", "-in", &file]).unwrap()
    };
    assert_eq!(serial().trim(), "serial=01");
    let (tls, aside) = (folder(cluster), cluster.scratch().join("renewed"));
    certificate(&aside, "www.csp.test", P256, 77).unwrap();
    // First only one of the two files, as a tool may write them.
    fs::rename(aside.join("www.csp.test.pem"), tls.join("www.csp.test.pem")).unwrap();
    fs::rename(aside.join("www.csp.test.key"), tls.join("www.csp.test.key")).unwrap();
    wait_until("the renewed certificate", SERVING_DEADLINE, || {
        (serial().trim() == "serial=4D").then_some(())
    })
    .unwrap();
    curl(cluster, "www.csp.test", WEB, "/1KiB", &["-o", "/dev/null"]).unwrap();
}

/// A policy whose certificate no proxy has is refused, with its name and what to do.
fn lacking_certificate(cluster: &Cluster) {
    let error = apply(cluster, &policy("none.csp.test")).unwrap_err().to_string();
    assert!(
        error.contains("none.csp.test") && error.contains(&folder(cluster).display().to_string()),
        "{error}"
    );
    curl(cluster, "www.csp.test", WEB, "/1KiB", &["-o", "/dev/null"]).unwrap();
}

/// What became of the handshakes, in the log and in the metrics.
fn is_logged(cluster: &Cluster) {
    let log = cluster.scratch().join("connections-pn-1.log");
    let records = || -> Vec<ConnectionRecord> {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    wait_until("records", SERVING_DEADLINE, || {
        let records = records();
        let has = |service: &str, code: &str| {
            records.iter().any(|record| &*record.service == service && &*record.code == code)
        };
        (has("secure", "CH") && has("modern", "CH") && has("secure", "C-")).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", fs::read_to_string(&log).unwrap_or_default()));
    let metrics = cluster.ask(Tier::ProxyNode, "/metrics").unwrap();
    for name in ["csp_tls_handshakes_total", "csp_tls_handshakes_failed_total"] {
        let sum: f64 = metrics
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        assert!(sum > 0.0, "{name}");
    }
}

fn run(name: &str, san: San, edge: bool) {
    let cluster = if edge { testing::lay_out_edge(name, san) } else { testing::lay_out_over(name, san) };
    let Some(mut cluster) = cluster else { return };
    serve(&mut cluster);
    names_and_versions(&cluster);
    pass::names_lead_to_servers(&cluster);
    clients::certificates_decide(&cluster);
    to_servers::certificates_of_servers_decide(&cluster);
    bytes_are_whole(&cluster);
    lacking_certificate(&cluster);
    is_renewed(&cluster);
    is_logged(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
fn tls_ends_at_the_proxy_over_shm() {
    run("tlsshm", San::Shm, false);
}

#[test]
fn tls_ends_at_the_edge_over_tcp() {
    run("tlsedge", San::Apart(Far::Tcp), true);
}
