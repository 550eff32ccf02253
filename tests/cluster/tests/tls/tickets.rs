//! Tickets of a proxy that has ended are good at the next one, if both have the secret.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use csp_cluster::testing::{P256, SERVING_DEADLINE, certificate};
use csp_cluster::{Cluster, San, Tier, VIP, testing, wait_until};

use super::{apply, folder, handshake};

const PORT: u16 = 443;

/// Gives the proxy a secret of tickets.
fn with_secret(cluster: &Cluster) {
    let secret = cluster.scratch().join("ticket-secret");
    fs::write(&secret, [0x5a; 48]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let file = cluster.config(Tier::ProxyNode);
    let text = fs::read_to_string(&file).unwrap();
    let with = format!("tls: {{ticket_secret: {}, ", secret.display());
    assert!(text.contains("tls: {"));
    fs::write(file, text.replace("tls: {", &with)).unwrap();
}

fn resumes(cluster: &Cluster, version: &str) -> bool {
    resumed(cluster, version).contains("Reused, TLS")
}

/// Resumes a stored session; returns what openssl prints.
fn resumed(cluster: &Cluster, version: &str) -> String {
    let session = cluster.scratch().join(format!("session{version}"));
    handshake(cluster, "www.csp.test", PORT, &[version, "-sess_in", &session.to_string_lossy()])
}

#[test]
#[ignore = "restarts a proxy, by hand: cargo test -p csp-cluster --test tls -- --ignored"]
fn sessions_outlive_a_proxy() {
    let Some(mut cluster) = testing::lay_out_over("tlstickets", San::Shm) else { return };
    certificate(&folder(&cluster), "www.csp.test", P256, 1).unwrap();
    with_secret(&cluster);
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    let policy = format!(
        "apiVersion: csp/v1
services:
  - {{name: secure, vip: {VIP}, port: {PORT}, tls: {{certificates: [www.csp.test]}}, pool: [{{node: an-1, port: 80}}]}}
"
    );
    apply(&cluster, &policy).unwrap();
    for version in ["-tls1_2", "-tls1_3"] {
        let session = cluster.scratch().join(format!("session{version}"));
        let session = session.to_string_lossy();
        wait_until("a handshake", SERVING_DEADLINE, || {
            let command = format!(
                "(printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 3) | openssl s_client -connect {VIP}:{PORT} -servername www.csp.test \
                 {version} -sess_out {session} 2>&1 | cat"
            );
            let told = cluster.client.run("timeout", &["10", "sh", "-c", &command]).ok()?;
            (told.contains("New, TLS") && resumes(&cluster, version)).then_some(())
        })
        .unwrap_or_else(|error| panic!("{version}: {error}: {}", resumed(&cluster, version)));
    }
    cluster.daemon(Tier::ProxyNode).unwrap().kill();
    cluster.start(Tier::ProxyNode).unwrap();
    cluster.wait_ready(Tier::ProxyNode).unwrap();
    for version in ["-tls1_2", "-tls1_3"] {
        wait_until("a resumed session", SERVING_DEADLINE, || resumes(&cluster, version).then_some(()))
            .unwrap();
    }
    // Another secret: a full handshake, without a restart.
    let secret = cluster.scratch().join("ticket-secret");
    fs::write(&secret, [0x33; 49]).unwrap();
    wait_until("full handshakes", SERVING_DEADLINE, || (!resumes(&cluster, "-tls1_2")).then_some(()))
        .unwrap();
    assert!(handshake(&cluster, "www.csp.test", PORT, &[]).contains("New, TLS"));
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
