//! Certificates from pebble, an ACME authority for tests, by real daemons: `make test-acme`.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use csp_api::certificates::{CertificateState, CertificateView, CertificatesView};
use csp_cluster::{Cluster, San, Tier, VIP, testing, wait_until};

/// Where pebble is: on the clients' host, which only the management node's host reaches by this address.
const PEBBLE: &str = "10.79.0.2";
const NAMES: [&str; 2] = ["one.csp.test", "two.csp.test"];
/// An order takes seconds; a first one that failed comes again after two minutes.
const DEADLINE: Duration = Duration::from_secs(240);

fn policy() -> String {
    let [one, two] = NAMES;
    format!(
        "apiVersion: csp/v1
services:
  - name: secure
    vip: {VIP}
    port: 443
    tls: {{certificates: [{one}, {two}]}}
    pool: [{{node: an-1, port: 80}}]
  - name: plain
    vip: {VIP}
    port: 80
    http: {{routes: [{{name: all, redirect: {{status: 301, scheme: https}}}}]}}
acme:
  directory: https://{PEBBLE}:14000/dir
  contact: [mailto:ops@csp.test]
  terms_agreed: true
  certificates:
  - {{name: {one}}}
  - {{name: {two}, challenge: http-01}}
"
    )
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes the certificate of pebble's own server, and starts it with a resolver that knows every name.
fn start_pebble(cluster: &mut Cluster, programs: &Path) {
    let scratch = cluster.scratch().to_owned();
    let file = |name: &str| scratch.join(name).to_string_lossy().into_owned();
    let (ca, ca_key, own, own_key) = (file("ca.pem"), file("ca.key"), file("own.pem"), file("own.key"));
    let (csr, extensions) = (file("own.csr"), file("own.ext"));
    fs::write(&extensions, format!("subjectAltName=IP:{PEBBLE}\nbasicConstraints=CA:FALSE\n")).unwrap();
    let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    openssl(
        &[&["req", "-x509", "-days", "2", "-subj", "/CN=ca", "-out", &ca, "-keyout", &ca_key], &new[..]]
            .concat(),
    );
    openssl(&[&["req", "-subj", "/CN=pebble", "-out", &csr, "-keyout", &own_key], &new[..]].concat());
    openssl(&[
        "x509",
        "-req",
        "-in",
        &csr,
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        &extensions,
        "-out",
        &own,
    ]);
    let config = serde_json::json!({ "pebble": {
        "listenAddress": format!("{PEBBLE}:14000"),
        "managementListenAddress": format!("{PEBBLE}:15000"),
        "certificate": own, "privateKey": own_key, "httpPort": 80, "tlsPort": 443,
        "ocspResponderURL": "", "externalAccountBindingRequired": false,
        "profiles": { "default": { "description": "for tests", "validityPeriod": 7_776_000 } },
    }});
    fs::write(file("pebble.json"), config.to_string()).unwrap();
    let mut names = cluster.client.command(&programs.join("pebble-challtestsrv").to_string_lossy());
    names.args(["-defaultIPv4", VIP, "-defaultIPv6", "", "-dnsserver", "127.0.0.1:8053"]);
    names.args([
        "-http01",
        "",
        "-https01",
        "",
        "-tlsalpn01",
        "",
        "-doh",
        "",
        "-management",
        "127.0.0.1:8055",
    ]);
    cluster.spawn("names", names).unwrap();
    let mut pebble = cluster.client.command(&programs.join("pebble").to_string_lossy());
    pebble.args(["-config", &file("pebble.json"), "-dnsserver", "127.0.0.1:8053"]);
    pebble.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "10");
    cluster.spawn("pebble", pebble).unwrap();
    let root = wait_until("pebble", DEADLINE, || {
        cluster.client.run("curl", &["-sSfk", "-m", "5", &format!("https://{PEBBLE}:15000/roots/0")]).ok()
    });
    fs::write(file("root.pem"), root.unwrap()).unwrap();
}

fn certificates(cluster: &Cluster) -> Option<Vec<CertificateView>> {
    let text = cluster.cspctl(&["certificates", "--output", "json"]).ok()?;
    Some(serde_json::from_str::<CertificatesView>(&text).unwrap().certificates)
}

/// Waits until all certificates are there, and returns when each ends.
fn all_valid(cluster: &Cluster) -> Vec<i64> {
    let found = wait_until("certificates", DEADLINE, || {
        let all = certificates(cluster)?;
        let is_well = |of: &CertificateView| of.state == CertificateState::Valid && of.lacking.is_empty();
        all.iter().all(is_well).then(|| all.iter().map(|of| of.not_after_s).collect())
    });
    found.unwrap_or_else(|error| {
        let logs = [Tier::MgmtNode, Tier::ProxyNode].map(|tier| cluster.log_tail(tier));
        panic!("{error}: {:#?}\n{}\n{}", certificates(cluster), logs.join("\n"), cluster.program_logs(30));
    })
}

/// Every name is served by a certificate that pebble has issued; returns their serial numbers.
fn served(cluster: &Cluster) -> Vec<String> {
    let root = cluster.scratch().join("root.pem");
    let root = root.to_string_lossy();
    let serial = |name: &str| {
        let resolve = format!("{name}:443:{VIP}");
        let url = format!("https://{name}/1KiB");
        let arguments =
            ["-sSf", "-m", "10", "--cacert", &*root, "--resolve", &resolve, "-o", "/dev/null", &url];
        wait_until("an answer over TLS", Duration::from_secs(30), || {
            cluster.client.run("curl", &arguments).ok()
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", cluster.client.run("curl", &arguments)));
        let shown = format!(
            "openssl s_client -connect {VIP}:443 -servername {name} </dev/null 2>/dev/null | openssl x509 -noout -serial"
        );
        cluster.client.run("sh", &["-c", &shown]).unwrap()
    };
    NAMES.map(serial).to_vec()
}

fn issued_total(cluster: &Cluster) -> String {
    let metrics = cluster.ask(Tier::MgmtNode, "/metrics").unwrap();
    let line = metrics.lines().find(|line| line.starts_with("csp_acme_orders_total{result=\"issued\"}"));
    line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
}

/// Removes what a node has of certificates.
fn lose(cluster: &Cluster, id: &str, folder: &str) {
    let state = cluster.scratch().join("state").join(id);
    let folders = Command::new("find").arg(&state).args(["-name", folder, "-type", "d"]).output().unwrap();
    let folders = String::from_utf8(folders.stdout).unwrap();
    assert_eq!(folders.lines().count(), 1, "{folders}");
    fs::remove_dir_all(folders.trim()).unwrap();
}

#[test]
#[ignore = "builds pebble: make test-acme"]
fn certificates_are_obtained_renewed_and_survive() {
    let programs = PathBuf::from(std::env::var("CSP_PEBBLE").expect("CSP_PEBBLE: the folder of pebble"));
    let Some(mut cluster) = testing::lay_out_over("acme", San::Shm) else { return };
    cluster.host(Tier::MgmtNode).join("acme0", &cluster.client, "acme0").unwrap();
    cluster.host(Tier::MgmtNode).address("acme0", "10.79.0.1/24").unwrap();
    cluster.client.address("acme0", &format!("{PEBBLE}/24")).unwrap();
    start_pebble(&mut cluster, &programs);
    let config = cluster.config(Tier::MgmtNode);
    let ca = cluster.scratch().join("ca.pem");
    let text = fs::read_to_string(&config).unwrap() + &format!("acme: {{ca_file: {}}}\n", ca.display());
    fs::write(&config, text).unwrap();
    fs::write(cluster.scratch().join("www/1KiB"), [b'a'; 1024]).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    let file = cluster.scratch().join("acme.yaml");
    fs::write(&file, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    let ends = all_valid(&cluster);
    let first = served(&cluster);
    println!("issued by both challenges: {first:?}");

    cluster.cspctl(&["certificates", "renew", NAMES[1]]).unwrap();
    wait_until("another certificate", DEADLINE, || (served(&cluster)[1] != first[1]).then_some(())).unwrap();
    let second = served(&cluster);
    assert_eq!(first[0], second[0]);
    println!("renewed: {second:?}");

    // A proxy that has lost its files gets them again, before it is ready.
    cluster.daemon(Tier::ProxyNode).unwrap().stop().unwrap();
    lose(&cluster, "pn-1", "certificates");
    cluster.start(Tier::ProxyNode).unwrap();
    cluster.wait_ready(Tier::ProxyNode).unwrap();
    assert_eq!(served(&cluster), second);

    // So does a leader, which orders nothing.
    cluster.daemon(Tier::MgmtNode).unwrap().kill();
    assert_eq!(served(&cluster), second, "no management node is needed to serve");
    lose(&cluster, "mn-1", "acme");
    cluster.start(Tier::MgmtNode).unwrap();
    cluster.wait_ready(Tier::MgmtNode).unwrap();
    assert_eq!(all_valid(&cluster).len(), ends.len());
    assert_eq!(issued_total(&cluster), "0");
    assert_eq!(served(&cluster), second);
    cluster.stop().unwrap();
}
