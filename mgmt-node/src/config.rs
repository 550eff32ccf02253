//! The configuration file of `csp-mgmt-node`: one reader, strict, with every default in one place.

mod acme;
mod outlets;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use csp_control::config::{self, ConfigError, Problems};
use csp_control::{AdminSection, EtcdSection, LogSection, NodeSection};
use serde::{Deserialize, Deserializer};

pub use acme::{AcmeSection, ExternalAccount};
pub use outlets::{EventsSection, SYSLOG, SyslogSection, WebhookSection, http_url};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MgmtConfig {
    /// Identity of this node.
    pub node: NodeSection,
    /// Where etcd is. Without endpoints a private etcd is started.
    #[serde(default)]
    pub etcd: EtcdSection,
    /// How to start a private etcd.
    #[serde(default)]
    pub private_etcd: PrivateEtcdSection,
    /// The HTTP API, the operations page and metrics.
    pub admin: AdminSection,
    /// DNS names by which browsers and cspctl may address this node. Its addresses and `localhost` need no
    /// entry.
    #[serde(default)]
    pub names: Vec<String>,
    /// Where events go beside the API.
    #[serde(default)]
    pub events: EventsSection,
    /// Files for the authority that the policy names.
    #[serde(default)]
    pub acme: AcmeSection,
    /// Logging.
    #[serde(default)]
    pub log: LogSection,
}

/// `private_etcd:` where the etcd that this node starts listens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateEtcdSection {
    /// Where clients (all nodes of the cluster) connect.
    #[serde(default = "default_client", deserialize_with = "address")]
    pub client: SocketAddr,
    /// Where other members would connect; nobody does.
    #[serde(default = "default_peer", deserialize_with = "address")]
    pub peer: SocketAddr,
    /// The etcd program.
    #[serde(default = "default_binary")]
    pub binary: PathBuf,
}

impl Default for PrivateEtcdSection {
    fn default() -> Self {
        PrivateEtcdSection { client: default_client(), peer: default_peer(), binary: default_binary() }
    }
}

impl MgmtConfig {
    /// Reads and checks the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        config::load_checked(path, MgmtConfig::check)
    }

    fn check(&self, problems: &mut Problems) {
        self.etcd.check_urls("etcd", problems);
        self.node.check_exposure(&self.admin, &self.etcd, problems);
        if self.node.identity.is_none() && !self.private_etcd.client.ip().is_loopback() {
            let message = format!(
                "{} is reached by others, and this node has no node.identity by which to know them",
                self.private_etcd.client
            );
            problems.add("private_etcd.client", message);
        }
        if self.admin.listen.ip().is_unspecified() {
            // The address goes into the registration: followers send cspctl there.
            let message = format!(
                "{} cannot be registered for other nodes; allowed is an address of this host, such as 10.77.0.4:9104",
                self.admin.listen
            );
            problems.add("admin.listen", message);
        }
        self.events.check(problems);
        self.acme.check(problems);
        if self.private_etcd.client == self.private_etcd.peer {
            problems.add("private_etcd.peer", "must differ from private_etcd.client in address or port");
        }
        if self.private_etcd.client == self.admin.listen {
            problems.add("private_etcd.client", "must differ from admin.listen in address or port");
        }
    }
}

fn default_client() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 2379))
}

fn default_peer() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 2380))
}

fn default_binary() -> PathBuf {
    PathBuf::from("/usr/bin/etcd")
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = text.parse::<SocketAddr>().ok().filter(|address| address.port() > 0);
    parsed.ok_or_else(|| {
        let message =
            format!("{text:?} is no address to listen on; allowed is ADDRESS:PORT, such as 127.0.0.1:2379");
        serde::de::Error::custom(message)
    })
}

fn some_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    address(deserializer).map(Some)
}
