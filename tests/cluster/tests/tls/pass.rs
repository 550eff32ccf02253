//! Pass-through by the server's name: connections go on, still encrypted, to servers of TLS of either kind,
//! beside names whose TLS ends at the proxy, at one port.

use std::fs;

use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::{P256, SERVING_DEADLINE, certificate};
use csp_cluster::{Cluster, Tier, VIP, wait_until};

use super::{curl, folder, handshake};

/// The port of all names.
pub const FRONT: u16 = 6443;
/// Where servers of TLS listen: one under the socket filter, and a plain one.
const ACCELERATED: u16 = 5443;
const PLAIN: u16 = 18_443;

/// Their services in the policy.
pub fn services() -> String {
    format!(
        "  - name: front
    vip: {VIP}
    port: {FRONT}
    sni:
      - {{names: [db.csp.test], service: db}}
      - {{names: ['*.lan.csp.test'], service: lan}}
    tls: {{certificates: [www.csp.test]}}
    pool: [{{node: an-1, port: 80}}]
  - {{name: db, pool: [{{node: an-1, port: {ACCELERATED}}}]}}
  - {{name: lan, pool: [{{address: {CLIENT_ADDRESS}, port: {PLAIN}}}]}}
"
    )
}

/// Starts the servers.
pub fn start(cluster: &mut Cluster) {
    let keys = cluster.scratch().join("servers");
    let script = cluster.scratch().join("tls_server.py");
    fs::write(&script, include_str!("../../apps/tls_server.py")).unwrap();
    for (name, address, port) in
        [("db.csp.test", "0.0.0.0", ACCELERATED), ("a.lan.csp.test", CLIENT_ADDRESS, PLAIN)]
    {
        certificate(&keys, name, P256, 5).unwrap();
        // Clients trust what is in the proxies' folder, where its key is not.
        fs::create_dir_all(folder(cluster)).unwrap();
        fs::copy(keys.join(format!("{name}.pem")), folder(cluster).join(format!("{name}.pem"))).unwrap();
        let [chain, key] = ["pem", "key"].map(|suffix| keys.join(format!("{name}.{suffix}")));
        let (script, port) = (script.to_string_lossy(), port.to_string());
        let (chain, key) = (chain.to_string_lossy(), key.to_string_lossy());
        let arguments = [&*script, address, &port, &*chain, &*key];
        if name == "db.csp.test" {
            cluster.run_accelerated("tls-server", "/usr/bin/python3", &arguments).unwrap();
        } else {
            let mut server = cluster.client.command("/usr/bin/python3");
            server.args(arguments);
            cluster.spawn("tls-outside", server).unwrap();
        }
    }
}

/// Each name leads to its server, which speaks TLS with the client itself.
pub fn names_lead_to_servers(cluster: &Cluster) {
    for name in ["db.csp.test", "a.lan.csp.test"] {
        let get = || curl(cluster, name, FRONT, "/", &["--tlsv1.3"]);
        let told = wait_until("an answer", SERVING_DEADLINE, || get().ok())
            .unwrap_or_else(|e| panic!("{e}: {:?}: {}", get(), cluster.program_logs(5)));
        assert_eq!(told.trim(), format!("asked for {name}"));
    }
    let got = curl(cluster, "www.csp.test", FRONT, "/1KiB", &["-o", "/dev/null", "-w", "%{size_download}"]);
    assert_eq!(got.unwrap(), "1024", "others end at the proxy");
    let told = handshake(cluster, "lan.csp.test", FRONT, &[]);
    assert!(told.contains("DNS:www.csp.test") || told.contains("Server certificate"), "{told}");
    let services = cluster.cspctl(&["services"]).unwrap();
    assert!(services.contains("db") && services.contains("lan"), "{services}");
    let opened = |service: &str| {
        let label = format!("service=\"{service}\"");
        cluster.metric(Tier::ProxyNode, "csp_proxy_service_connections_total", &label).unwrap_or(0.0)
    };
    assert!(opened("db") > 0.0 && opened("lan") > 0.0 && opened("front") > 0.0);
}
