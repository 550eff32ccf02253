//! The configuration files of the demo cluster.

use std::path::Path;

/// The service address on the LAN.
pub const VIP: &str = "10.76.0.100";
/// The client's address on the LAN.
pub const CLIENT_ADDRESS: &str = "10.76.0.1";
/// Port of the upload service.
pub const UPLOAD_PORT: u16 = 8080;
/// Admin ports of network node, proxy node, app node and management node.
pub const ADMIN_PORTS: [u16; 4] = [9101, 9102, 9103, 9104];

fn common(id: &str, octet: u8, scratch: &Path) -> String {
    let dir = scratch.display();
    let port = 9100 + u16::from(octet);
    format!(
        "node:\n  id: {id}\n  run_dir: {dir}/run\n  state_dir: {dir}/state/{id}\n  cluster_key_file: {dir}/cluster.key\n\
         admin:\n  listen: \"10.77.0.{octet}:{port}\"\nlog:\n  level: info\n  format: text\n"
    )
}

const ETCD: &str = "etcd:\n  endpoints: [\"http://10.77.0.4:2379\"]\n";

/// Returns the network node's configuration.
pub fn network_node(scratch: &Path, provider: &str) -> String {
    let common = common("nn-1", 1, scratch);
    format!(
        "{common}{ETCD}workers: 1\nlan:\n  - interface: lan0\nsan:\n  provider: {provider}\n  address: 10.77.0.1\n"
    )
}

/// Returns the proxy node's configuration.
pub fn proxy_node(scratch: &Path, provider: &str) -> String {
    let common = common("pn-1", 2, scratch);
    format!("{common}{ETCD}workers: 1\nsan:\n  provider: {provider}\n  address: 10.77.0.2\n  port: 7100\n")
}

/// Returns the app node's configuration.
pub fn app_node(scratch: &Path, provider: &str) -> String {
    let common = common("an-1", 3, scratch);
    format!("{common}{ETCD}socket: {}/run/agent.sock\nsan:\n  provider: {provider}\n", scratch.display())
}

/// Returns the management node's configuration; it starts an etcd of its own.
pub fn mgmt_node(scratch: &Path) -> String {
    let common = common("mn-1", 4, scratch);
    format!(
        "{common}etcd:\n  endpoints: []\nprivate_etcd:\n  client: \"10.77.0.4:2379\"\n  peer: \"127.0.0.1:2380\"\n"
    )
}

/// Returns nginx's configuration with the settings that Debian ships (sendfile, tcp_nopush) and two workers.
pub fn nginx(scratch: &Path) -> String {
    let dir = scratch.display();
    format!(
        "user www-data;\nworker_processes 2;\ndaemon off;\npid {dir}/nginx.pid;\nerror_log {dir}/nginx-error.log notice;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  keepalive_requests 100000;\n  client_body_temp_path {dir}/nginx-body;\n  \
         proxy_temp_path {dir}/nginx-proxy;\n  fastcgi_temp_path {dir}/nginx-fastcgi;\n  uwsgi_temp_path {dir}/nginx-uwsgi;\n  \
         scgi_temp_path {dir}/nginx-scgi;\n  server {{\n    listen 80;\n    root {dir}/www;\n  }}\n}}\n"
    )
}

/// Returns the configuration of Apache httpd with one of its multi-processing modules and lines for its sizes.
pub fn apache(scratch: &Path, module: &str, sizes: &str) -> String {
    let dir = scratch.display();
    let load = |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    let modules = load(&format!("mpm_{module}")) + &load("authz_core");
    format!(
        "{modules}ServerRoot {dir}\nServerName {VIP}\nDefaultRuntimeDir {dir}/run\nPidFile {dir}/apache.pid\n\
         ErrorLog {dir}/log/apache.error\nUser www-data\nGroup www-data\nListen 80\nDocumentRoot {dir}/www\n\
         EnableSendfile On\nMaxKeepAliveRequests 0\n{sizes}\
         <Directory {dir}/www>\n  Require all granted\n</Directory>\n"
    )
}

/// Returns the sizes of an Apache of two processes whose event module has a thread for each of `connections`, and never
/// ends a process for having too many. In either case Apache would close kept connections, even with a request in
/// transit.
pub fn apache_wide(connections: usize) -> String {
    let all = 2 * connections;
    format!(
        "ThreadLimit {connections}\nThreadsPerChild {connections}\nServerLimit 2\nStartServers 2\nMaxSpareThreads {all}\n\
         MaxRequestWorkers {all}\n"
    )
}

/// Returns the policy that the demo applies.
pub fn policy() -> String {
    format!(
        "apiVersion: csp/v1\nservices:\n  - name: web\n    vip: {VIP}\n    port: 80\n    pool:\n      - {{node: an-1, port: 80}}\n  \
         - name: upload\n    vip: {VIP}\n    port: {UPLOAD_PORT}\n    pool:\n      - {{node: an-1, port: {UPLOAD_PORT}}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n"
    )
}

/// Returns a policy with a service on each of `ports` of the VIP, and the demo's egress rule.
pub fn policy_for(ports: &[u16]) -> String {
    let services: String = ports
        .iter()
        .map(|port| {
            format!(
                "  - name: s{port}\n    vip: {VIP}\n    port: {port}\n    pool:\n      - {{node: an-1, port: {port}}}\n"
            )
        })
        .collect();
    format!(
        "apiVersion: csp/v1\nservices:\n{services}\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n"
    )
}
