//! The configuration files of the demo cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use csp_identity::IdentityRole;

use crate::identities;

/// The service address on the LAN.
pub const VIP: &str = "10.76.0.100";
/// The client's address on the LAN.
pub const CLIENT_ADDRESS: &str = "10.76.0.1";
/// Port of the upload service.
pub const UPLOAD_PORT: u16 = 8080;
/// Admin ports of network node, proxy node, app node and management node.
pub const ADMIN_PORTS: [u16; 4] = [9101, 9102, 9103, 9104];

/// A daemon's place in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its node id.
    pub id: &'static str,
    /// Last octet of its address on the SAN; its admin port is 9100 plus this.
    pub octet: u8,
    /// Data workers, of network nodes and proxy nodes.
    pub workers: u8,
}

const NETWORK: Place = Place { id: "nn-1", octet: 1, workers: 1 };
const PROXY: Place = Place { id: "pn-1", octet: 2, workers: 1 };
const APP: Place = Place { id: "an-1", octet: 3, workers: 0 };
/// The management node's place, with its etcd.
pub const MGMT: Place = Place { id: "mn-1", octet: 4, workers: 0 };

impl Place {
    /// Returns the address of its admin endpoint.
    pub fn admin(&self) -> String {
        format!("10.77.0.{}:{}", self.octet, 9100 + u16::from(self.octet))
    }

    /// Returns the network node's configuration for this place.
    pub fn network_node(&self, scratch: &Path, provider: &str) -> String {
        let (common, Place { octet, workers, .. }) = (self.common(scratch, IdentityRole::NetworkNode), self);
        format!(
            "{common}{ETCD}workers: {workers}\nlan:\n  - interface: lan0\nsan:\n  provider: {provider}\n  address: 10.77.0.{octet}\n"
        )
    }

    /// Returns where this place's proxy node records HTTP requests.
    pub fn http_log(&self, scratch: &Path) -> PathBuf {
        self.connection_log(scratch).with_file_name(format!("requests-{}.log", self.id))
    }

    /// Returns the proxy node's configuration for this place.
    pub fn proxy_node(&self, scratch: &Path, provider: &str) -> String {
        let (common, Place { octet, workers, .. }) = (self.common(scratch, IdentityRole::ProxyNode), self);
        let log = self.connection_log(scratch);
        format!(
            "{common}{ETCD}workers: {workers}\nconnection_log: {{file: {}}}\nhttp_log: {{file: {}}}\ntls: {{certificates: {}}}\nsan:\n  provider: {provider}\n  address: 10.77.0.{octet}\n  port: 7100\n",
            log.display(),
            self.http_log(scratch).display(),
            scratch.join("tls").display()
        )
    }

    /// Returns where the proxy node of this place records connections, if the policy says so.
    pub fn connection_log(&self, scratch: &Path) -> PathBuf {
        scratch.join(format!("connections-{}.log", self.id))
    }

    /// Returns the app node's configuration for this place, with the agent's `socket`.
    pub fn app_node(&self, scratch: &Path, provider: &str, socket: &Path) -> String {
        let (common, socket) = (self.common(scratch, IdentityRole::AppNode), socket.display());
        let address = self.address();
        format!("{common}{ETCD}socket: {socket}\nsan:\n  provider: {provider}\n  address: {address}\n")
    }

    /// Returns its address on the SAN.
    pub fn address(&self) -> IpAddr {
        Ipv4Addr::new(10, 77, 0, self.octet).into()
    }

    fn common(&self, scratch: &Path, role: IdentityRole) -> String {
        let (id, dir, admin) = (self.id, scratch.display(), self.admin());
        let identity = identities::folder(scratch, role, id);
        let (identity, key) = (identity.display(), crate::keys::path(scratch, role, id));
        let key = key.display();
        format!(
            "node:\n  id: {id}\n  run_dir: {dir}/run\n  state_dir: {dir}/state/{id}\n  cluster_key_file: {key}\n  identity: {identity}\n\
             admin:\n  listen: \"{admin}\"\nlog:\n  level: info\n  format: text\n"
        )
    }
}

/// The demo cluster's nodes.
pub const NODES: [(IdentityRole, Place); 4] = [
    (IdentityRole::NetworkNode, NETWORK),
    (IdentityRole::ProxyNode, PROXY),
    (IdentityRole::AppNode, APP),
    (IdentityRole::MgmtNode, MGMT),
];

const ETCD: &str = "etcd:\n  endpoints: [\"https://10.77.0.4:2379\"]\n";

/// Returns the network node's configuration.
pub fn network_node(scratch: &Path, provider: &str) -> String {
    NETWORK.network_node(scratch, provider)
}

/// Returns the proxy node's configuration.
pub fn proxy_node(scratch: &Path, provider: &str) -> String {
    PROXY.proxy_node(scratch, provider)
}

/// Returns the app node's configuration.
pub fn app_node(scratch: &Path, provider: &str) -> String {
    APP.app_node(scratch, provider, &scratch.join("run/agent.sock"))
}

/// Returns the management node's configuration; it starts an etcd of its own.
pub fn mgmt_node(scratch: &Path) -> String {
    let common = MGMT.common(scratch, IdentityRole::MgmtNode);
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

/// Returns the configuration of Apache httpd with one of its multi-processing modules and lines for its
/// sizes.
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

/// Returns the sizes of an Apache of two processes whose event module has a thread for each of `connections`,
/// and never ends a process for having too many. In either case Apache would close kept connections, even
/// with a request in transit.
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
