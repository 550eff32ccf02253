//! Certificates of clients: curl with one of the authority, without, with a revoked one, and with one that is
//! revoked while the proxy serves.

use std::fs;
use std::path::{Path, PathBuf};

use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, VIP, wait_until};

use super::{curl, folder};

/// The port of those with a certificate, and the server that says what it gets.
const STAFF: u16 = 4443;
const FIELDS: u16 = 18_444;

/// The services in the policy.
pub fn services() -> String {
    format!(
        "  - name: staff
    vip: {VIP}
    port: {STAFF}
    tls:
      certificates: [www.csp.test]
      clients: {{authority: staff, revocation: true, fields: [client-cert, x-ssl-client]}}
    http: {{routes: [{{name: all, to: [{{service: fields}}]}}]}}
  - {{name: fields, pool: [{{address: {CLIENT_ADDRESS}, port: {FIELDS}}}]}}
"
    )
}

fn keys(cluster: &Cluster) -> PathBuf {
    cluster.scratch().join("staff")
}

/// Runs openssl in the folder of keys.
fn openssl(cluster: &Cluster, arguments: &str) {
    let command = format!("cd {} && openssl {arguments} 2>&1", keys(cluster).display());
    cluster.client.run("sh", &["-c", &command]).unwrap();
}

/// Replaces the list of revoked certificates by one of these serial numbers.
fn revoke(cluster: &Cluster, serials: &[&str]) {
    let line = |serial: &&str| format!("R\t350101000000Z\t260101000000Z\t{serial}\tunknown\t/CN=x\n");
    fs::write(keys(cluster).join("index"), serials.iter().map(line).collect::<String>()).unwrap();
    openssl(cluster, "ca -config ca.cnf -gencrl -keyfile ca.key -cert ca.pem -out crl.pem");
    let new = folder(cluster).join("staff.crl.pem.new");
    fs::copy(keys(cluster).join("crl.pem"), &new).unwrap();
    fs::rename(new, folder(cluster).join("staff.crl.pem")).unwrap();
}

/// Makes the authority and three certificates, and starts the server.
pub fn start(cluster: &mut Cluster) {
    let keys = keys(cluster);
    fs::create_dir_all(&keys).unwrap();
    fs::create_dir_all(folder(cluster)).unwrap();
    let text = "[ca]\ndefault_ca = c\n[c]\ndatabase = index\ncrlnumber = number\ndefault_md = sha256\ndefault_crl_days = 2\n";
    fs::write(keys.join("ca.cnf"), text).unwrap();
    fs::write(keys.join("number"), "01\n").unwrap();
    let new = "req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1";
    openssl(cluster, &format!("{new} -subj /O=Example/CN=Staff -keyout ca.key -out ca.pem"));
    for (name, serial) in [("alice", 10), ("bob", 11)] {
        let by = "-CA ca.pem -CAkey ca.key -addext basicConstraints=CA:FALSE";
        let own =
            format!("-subj /O=Example/CN={name} -set_serial {serial} -keyout {name}.key -out {name}.pem");
        openssl(cluster, &format!("{new} {by} {own}"));
    }
    openssl(cluster, &format!("{new} -subj /CN=mallory -keyout mallory.key -out mallory.pem"));
    fs::copy(keys.join("ca.pem"), folder(cluster).join("staff.ca.pem")).unwrap();
    revoke(cluster, &["0B"]);
    let script = cluster.scratch().join("fields.py");
    fs::write(&script, include_str!("../../apps/fields.py")).unwrap();
    let mut server = cluster.client.command("/usr/bin/python3");
    server.arg(&script).args([CLIENT_ADDRESS, &FIELDS.to_string()]);
    cluster.spawn("fields", server).unwrap();
}

/// Asks with the certificate of somebody.
fn ask(cluster: &Cluster, name: &str, options: &[&str]) -> anyhow::Result<String> {
    let of = |suffix: &str| keys(cluster).join(format!("{name}.{suffix}")).to_string_lossy().into_owned();
    let (chain, key) = (of("pem"), of("key"));
    let with: &[&str] = if Path::new(&chain).exists() { &["--cert", &chain, "--key", &key] } else { &[] };
    curl(cluster, "www.csp.test", STAFF, "/", &[with, options].concat())
}

pub fn certificates_decide(cluster: &Cluster) {
    let forged = ["-H", "X-SSL-Client-Subject: CN=root", "-H", "Client-Cert: :forged:"];
    for options in [&["--tls-max", "1.2"][..], &["--http2"]] {
        let told = wait_until("an answer", SERVING_DEADLINE, || {
            ask(cluster, "alice", &[options, &forged].concat()).ok()
        })
        .unwrap_or_else(|e| panic!("{e}: {:?}: {}", ask(cluster, "alice", &["-v"]), cluster.program_logs(5)));
        let lines: Vec<String> = told.lines().map(str::to_lowercase).collect();
        let has = |line: &str| lines.iter().any(|of| of.starts_with(line));
        assert!(
            has("x-ssl-client-verify: success") && has("x-ssl-client-subject: cn=alice,o=example"),
            "{told}"
        );
        assert!(has("x-ssl-client-issuer: cn=staff,o=example") && has("x-ssl-client-serial: 0a"), "{told}");
        assert!(has("client-cert: :mi") && !told.contains("forged") && !told.contains("root"), "{told}");
        for name in ["bob", "mallory", "nobody"] {
            // With TLS 1.3 the client learns it behind its handshake: an alert, or the reset that follows.
            assert!(ask(cluster, name, options).is_err(), "{name} is let in");
        }
    }
    let log = cluster.scratch().join("connections-pn-1.log");
    wait_until("records", SERVING_DEADLINE, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let has = |what: &[&str]| text.lines().any(|line| what.iter().all(|text| line.contains(text)));
        (has(&["\"staff\"", "\"client_subject\":\"CN=alice,O=Example\""])
            && has(&["\"staff\"", "\"CH\"", "\"fault\"", "Revoked"]))
        .then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", fs::read_to_string(&log).unwrap_or_default()));
    // Revoked since.
    revoke(cluster, &["0B", "0A"]);
    wait_until("that alice is refused", SERVING_DEADLINE, || {
        ask(cluster, "alice", &[]).is_err().then_some(())
    })
    .unwrap();
}
