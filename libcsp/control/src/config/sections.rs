//! The sections that the daemons' configuration files have in common.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use csp_config::{ConfigError, Problems, ip_address, port, serde_node_id};
use csp_identity::{Credentials, IdentityRole};
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
    /// Directory of sockets; may be empty at start. Default: the unit's under systemd, else `/run/csp`.
    #[serde(default = "default_run_dir")]
    pub run_dir: PathBuf,
    /// Directory of what must outlive the daemon, such as the last-known-good policy. Default: the unit's under systemd,
    /// else `/var/lib/csp`.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// File with this node's keys of the SAN: of proxy nodes the cluster's, of others those derived for them. Default: the
    /// unit's credential `cluster.key` under systemd, else `/etc/csp/cluster.key`.
    #[serde(default = "default_cluster_key_file")]
    pub cluster_key_file: PathBuf,
    /// Folder of this node's certificate, which `cspctl pki issue` makes. Default: `/etc/csp/identity` if it exists. A node
    /// without one is reached from its own host only.
    #[serde(default = "default_identity")]
    pub identity: Option<PathBuf>,
}

/// `etcd:` where etcd is.
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

/// `log:` what is logged and how.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// error, warn, info, debug or trace, or a filter such as `info,csp_control=debug`.
    #[serde(default = "default_level")]
    pub level: String,
    /// How lines look.
    #[serde(default)]
    pub format: LogFormat,
}

impl Default for LogSection {
    fn default() -> Self {
        LogSection { level: default_level(), format: LogFormat::Text }
    }
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// `san:` this node on the storage area network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanSection {
    /// Which provider carries the links.
    #[serde(default)]
    pub provider: SanProvider,
    /// This node's address on the SAN.
    #[serde(deserialize_with = "ip_address")]
    pub address: IpAddr,
    /// Port of the first worker; worker `n` listens on `port + n` for tunnels, on `port + 256 + n` for channels.
    #[serde(default = "default_san_port", deserialize_with = "port")]
    pub port: u16,
}

/// How links over the SAN are carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SanProvider {
    /// shm on one host; else verbs where both hosts have it; else ucx.
    #[default]
    Auto,
    /// Shared memory only: peers on this host.
    Shm,
    /// UCX always.
    Ucx,
    /// RDMA always.
    Verbs,
}

impl SanProvider {
    /// Whether links may be carried by the provider of this name (`shm`, `ucx`, `verbs`).
    pub fn allows(self, name: &str) -> bool {
        match self {
            SanProvider::Auto => true,
            SanProvider::Shm => name == "shm",
            SanProvider::Ucx => name == "ucx",
            SanProvider::Verbs => name == "verbs",
        }
    }

    /// Whether the host may lack it: what is chosen by name must work, and shm is everywhere.
    pub fn may_lack(self, name: &str) -> bool {
        self == SanProvider::Auto && name != "shm"
    }
}

impl NodeSection {
    /// Opens this node's identity, and checks that it is one of `role` and for this id. `None` for a node without one.
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

    /// Notes what would let strangers control this node: an admin endpoint or an etcd that others reach, without identity
    /// or without TLS.
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

/// Whether an endpoint is a loopback address.
fn is_of_this_host(url: &str) -> bool {
    let authority = url.trim_start_matches("http://").trim_end_matches('/');
    let address = authority.parse::<SocketAddr>().map(|address| address.ip().is_loopback());
    address.unwrap_or_else(|_| authority.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"))
}

impl AdminSection {
    /// Returns the URL under which others reach it.
    pub fn url(&self, node: &NodeSection) -> String {
        let scheme = if node.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }
}

impl EtcdSection {
    /// Notes endpoints that are no URLs, and a missing list. `field` is where the section stands, usually `etcd`.
    pub fn check(&self, field: &str, problems: &mut Problems) {
        if self.endpoints.is_empty() {
            problems.add(
                format!("{field}.endpoints"),
                "is empty; name at least one, such as https://10.77.0.4:2379",
            );
        }
        self.check_urls(field, problems);
    }

    /// Notes endpoints that are no URLs; an empty list is fine (management node: a private etcd is started).
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

/// Reads an IP address with port.
fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        let message =
            format!("{text:?} is no address to listen on; allowed is ADDRESS:PORT, such as 10.77.0.2:9102");
        serde::de::Error::custom(message)
    })
}

/// Reads a [`SpinSetting`]: `auto`, or microseconds.
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

fn default_run_dir() -> PathBuf {
    of_unit("RUNTIME_DIRECTORY").unwrap_or_else(|| PathBuf::from("/run/csp"))
}

fn default_state_dir() -> PathBuf {
    of_unit("STATE_DIRECTORY").unwrap_or_else(|| PathBuf::from("/var/lib/csp"))
}

fn default_cluster_key_file() -> PathBuf {
    let of_unit = of_unit("CREDENTIALS_DIRECTORY").map(|folder| folder.join("cluster.key"));
    of_unit.filter(|key| key.exists()).unwrap_or_else(|| PathBuf::from("/etc/csp/cluster.key"))
}

fn default_identity() -> Option<PathBuf> {
    let folder = PathBuf::from("/etc/csp/identity");
    folder.exists().then_some(folder)
}

/// Returns the directory that systemd has made for this unit (systemd.exec(5)), the first if there are several.
fn of_unit(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable)?;
    let first = value.as_encoded_bytes().split(|byte| *byte == b':').next()?;
    let path = PathBuf::from(OsStr::from_bytes(first));
    path.is_absolute().then_some(path)
}

fn default_level() -> String {
    "info".to_owned()
}

fn default_san_port() -> u16 {
    7100
}
