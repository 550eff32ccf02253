//! The sections that the configuration files of all daemons share.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use csp_config::{ConfigError, Problems, ip_address, port, serde_node_id};
use csp_identity::{Credentials, IdentityRole};
use csp_types::options::LogFormat;
use csp_types::spin::SpinSetting;
use csp_types::{NodeId, Role};
use serde::{Deserialize, Deserializer, de};

/// `node:` identity and directories of this daemon.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// The node's id, unique in the cluster.
    #[serde(with = "serde_node_id")]
    pub id: NodeId,
    #[serde(default)]
    run_dir: Option<PathBuf>,
    #[serde(default)]
    state_dir: Option<PathBuf>,
    #[serde(default)]
    cluster_key_file: Option<PathBuf>,
    /// Folder of this node's certificate, as `cspctl pki issue` writes it. Default: `/etc/csp/identity` if it
    /// exists. A node without an identity is reachable from its own host only.
    #[serde(default = "default_identity")]
    pub identity: Option<PathBuf>,
}

/// `etcd:` the endpoints of etcd.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdSection {
    /// URLs such as `https://10.77.0.4:2379`. Only the management node may leave it empty.
    #[serde(default)]
    pub endpoints: Vec<String>,
}

/// `admin:` the HTTP endpoint for metrics, health and queries.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminSection {
    /// Address and port to listen on.
    #[serde(deserialize_with = "socket_address")]
    pub listen: SocketAddr,
}

/// `log:` level and format of log lines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// error, warn, info, debug or trace, or a filter such as `info,csp_control=debug`.
    #[serde(default = "default_level")]
    pub level: String,
    /// Format of the lines.
    #[serde(default)]
    pub format: LogFormat,
}

impl Default for LogSection {
    fn default() -> Self {
        LogSection { level: default_level(), format: LogFormat::Text }
    }
}

/// `san:` this node's connection to the system area network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanSection {
    /// Which provider carries the links.
    #[serde(default)]
    pub provider: SanProvider,
    /// This node's address on the SAN.
    #[serde(deserialize_with = "ip_address")]
    pub address: IpAddr,
    /// SAN port of the first worker. Worker `n` listens on `port + n` for tunnels and on `port + 256 + n` for
    /// channels; with `auto`, UCX has `port + 512 + n` and `port + 768 + n`.
    #[serde(default = "default_san_port", deserialize_with = "port")]
    pub port: u16,
}

/// Provider of SAN links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SanProvider {
    /// `shm` within a host; between hosts `verbs` where both have it, else `tcp`, else `ucx`.
    #[default]
    Auto,
    /// `shm` only: all peers are on this host.
    Shm,
    /// `tcp` always.
    Tcp,
    /// `ucx` always.
    Ucx,
    /// `verbs` always.
    Verbs,
}

impl SanProvider {
    /// Returns whether links may use the provider with this name (`shm`, `tcp`, `ucx`, `verbs`).
    pub fn allows(self, name: &str) -> bool {
        match self {
            SanProvider::Auto => true,
            SanProvider::Shm => name == "shm",
            SanProvider::Tcp => name == "tcp",
            SanProvider::Ucx => name == "ucx",
            SanProvider::Verbs => name == "verbs",
        }
    }

    /// Returns whether the host may lack that provider. A provider that is configured by name must work, and
    /// `shm` works on every host.
    pub fn may_lack(self, name: &str) -> bool {
        self == SanProvider::Auto && name != "shm"
    }
}

impl NodeSection {
    /// Returns the directory of sockets, which need not survive a restart. Default: the one of this role
    /// under systemd, else `/run/csp`.
    pub fn run_dir(&self, role: Role) -> PathBuf {
        let of_unit = || of_role(of_unit("RUNTIME_DIRECTORY").collect(), role);
        self.run_dir.clone().or_else(of_unit).unwrap_or_else(|| PathBuf::from("/run/csp"))
    }

    /// Returns the directory of persistent state, such as the last-known-good policy. Default: the one of
    /// this role under systemd, else `/var/lib/csp`.
    pub fn state_dir(&self, role: Role) -> PathBuf {
        let of_unit = || of_role(of_unit("STATE_DIRECTORY").collect(), role);
        self.state_dir.clone().or_else(of_unit).unwrap_or_else(|| PathBuf::from("/var/lib/csp"))
    }

    /// Returns the file with the SAN keys of this node: a proxy node has the cluster's keys, other nodes the
    /// ones derived for them. Default: under systemd the unit's credential with the name of this role, such
    /// as `proxy-node.key`, or `cluster.key`; else `/etc/csp/cluster.key`.
    pub fn cluster_key_file(&self, role: Role) -> PathBuf {
        let names = [format!("{role}.key"), "cluster.key".to_owned()];
        let of_unit = || {
            let folder = of_unit("CREDENTIALS_DIRECTORY").next()?;
            names.iter().map(|name| folder.join(name)).find(|key| key.exists())
        };
        let given = self.cluster_key_file.clone().or_else(of_unit);
        given.unwrap_or_else(|| PathBuf::from("/etc/csp/cluster.key"))
    }

    /// Opens this node's identity and checks its role and id. Returns `None` for a node without one.
    pub fn credentials(&self, role: Role) -> Result<Option<Credentials>, ConfigError> {
        let Some(folder) = &self.identity else { return Ok(None) };
        let wrong = |problem: String| ConfigError::new("the configuration", "node.identity", problem);
        let credentials = Credentials::open(folder).map_err(|error| wrong(error.to_string()))?;
        let found = credentials.current().holder.identity;
        if Some(found.role) != IdentityRole::of_node(role) || found.id != self.id {
            return Err(wrong(format!(
                "{} is for {found}; this node is {role}/{}",
                folder.display(),
                self.id
            )));
        }
        Ok(Some(credentials))
    }

    /// Reports settings by which others could control this node: an admin endpoint or an etcd that other
    /// hosts reach, without an identity or without TLS.
    pub fn check_exposure(&self, admin: &AdminSection, etcd: &EtcdSection, problems: &mut Problems) {
        let bare = self.identity.is_none();
        if bare && !admin.listen.ip().is_loopback() {
            let message = format!(
                "{} is reached by others, and this node has no node.identity by which to know them; make one with \
                 `cspctl pki issue`, or listen on 127.0.0.1",
                admin.listen
            );
            problems.add("admin.listen", message);
        }
        for (index, url) in etcd.endpoints.iter().enumerate() {
            let field = format!("etcd.endpoints[{index}]");
            match (url.starts_with("http://") && !is_of_this_host(url), bare) {
                (true, true) => {
                    let message = format!("{url:?} is on another host, and this node has no node.identity");
                    problems.add(field, message);
                }
                (true, false) => {
                    problems
                        .add(field, format!("{url:?} goes to another host without TLS; allowed is https://"));
                }
                (false, true) if url.starts_with("https://") => {
                    problems.add(field, format!("{url:?} needs a node.identity"));
                }
                _ => {}
            }
        }
    }
}

/// Returns whether an endpoint is a loopback address.
fn is_of_this_host(url: &str) -> bool {
    let authority = url.trim_start_matches("http://").trim_end_matches('/');
    let address = authority.parse::<SocketAddr>().map(|address| address.ip().is_loopback());
    address.unwrap_or_else(|_| authority.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"))
}

impl AdminSection {
    /// Returns the URL at which others reach the admin endpoint.
    pub fn url(&self, node: &NodeSection) -> String {
        let scheme = if node.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }
}

impl EtcdSection {
    /// Reports an empty list and endpoints that are not URLs. `field` is the section's path, usually `etcd`.
    pub fn check(&self, field: &str, problems: &mut Problems) {
        if self.endpoints.is_empty() {
            problems.add(
                format!("{field}.endpoints"),
                "is empty; name at least one, such as https://10.77.0.4:2379",
            );
        }
        self.check_urls(field, problems);
    }

    /// Reports endpoints that are not URLs. The list may be empty: the management node then starts a private
    /// etcd.
    pub fn check_urls(&self, field: &str, problems: &mut Problems) {
        for (index, url) in self.endpoints.iter().enumerate() {
            let authority = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let authority = authority.unwrap_or_default();
            let port = authority.rsplit_once(':').and_then(|(host, port)| {
                let port = port.trim_end_matches('/').parse::<u16>().ok()?;
                (!host.is_empty()).then_some(port)
            });
            if port.is_none_or(|port| port == 0) {
                let field = format!("{field}.endpoints[{index}]");
                problems.add(field, format!("{url:?} is no endpoint; allowed is https://ADDRESS:PORT"));
            }
        }
    }
}

/// Parses an IP address with port.
fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        let message =
            format!("{text:?} is no address to listen on; allowed is ADDRESS:PORT, such as 10.77.0.2:9102");
        serde::de::Error::custom(message)
    })
}

/// Parses a [`SpinSetting`]: `auto`, or microseconds.
pub fn spin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SpinSetting, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(i64),
        Text(String),
    }
    let text = match Written::deserialize(deserializer)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    };
    text.parse().map_err(|error| de::Error::custom(format!("{text:?} is {error}")))
}

fn default_identity() -> Option<PathBuf> {
    let folder = PathBuf::from("/etc/csp/identity");
    folder.exists().then_some(folder)
}

/// Returns the directories that systemd has created for this unit (systemd.exec(5)).
fn of_unit(variable: &str) -> impl Iterator<Item = PathBuf> {
    let value = std::env::var_os(variable).unwrap_or_default();
    directories(&value).into_iter()
}

fn directories(value: &OsStr) -> Vec<PathBuf> {
    let parts = value.as_encoded_bytes().split(|byte| *byte == b':');
    parts.map(|part| PathBuf::from(OsStr::from_bytes(part))).filter(|path| path.is_absolute()).collect()
}

/// Returns the directory of a node of `role` among those of its unit: a unit that runs several nodes has one
/// for each, with the role as its name.
fn of_role(directories: Vec<PathBuf>, role: Role) -> Option<PathBuf> {
    let own = directories.iter().find(|path| path.ends_with(role.as_str())).cloned();
    own.or_else(|| directories.into_iter().next())
}

fn default_level() -> String {
    "info".to_owned()
}

fn default_san_port() -> u16 {
    7100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_several_nodes_has_a_directory_for_each() {
        let of = |value: &str, role| of_role(directories(OsStr::new(value)), role);
        let both = "/var/lib/csp/network-node:/var/lib/csp/proxy-node";
        assert_eq!(of(both, Role::NetworkNode), Some("/var/lib/csp/network-node".into()));
        assert_eq!(of(both, Role::ProxyNode), Some("/var/lib/csp/proxy-node".into()));
        assert_eq!(of("/var/lib/mine", Role::ProxyNode), Some("/var/lib/mine".into()));
        assert_eq!(of("", Role::ProxyNode), None);
        assert_eq!(of("relative", Role::ProxyNode), None);
    }
}
