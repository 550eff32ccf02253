//! The servers of a service: programs of application nodes under the socket filter, and plain servers, which
//! are reached over TCP and run no software of the cluster.

mod checks;
mod tls;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use csp_config::{Problems, number, port};
use csp_types::{NodeId, longest_match};
use serde::{Deserialize, Deserializer, Serialize};

use super::check::{check_count, unicast_fault};
use super::forward::Tunnel;
use super::{POOL_MAX, Policy, PoolMember, Service, Via};

pub use checks::{HttpCheck, ServerCheck, TlsCheck};
pub use tls::{SYSTEM_AUTHORITIES, ServersTls};

/// Largest number of names of plain servers in a policy.
pub const NAMES_MAX: usize = 256;
/// Largest weight of a server.
pub const WEIGHT_MAX: u16 = 256;
/// Largest bound of a server's connections.
pub const CONNECTIONS_MAX: u32 = 1 << 20;
/// Shortest and longest time for a connection to a plain server, in milliseconds.
pub const CONNECT_TIMEOUT_MS: (u32, u32) = (50, 60_000);

/// A server of a service's pool. It has one of a node, an address and a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The application node on which programs listen.
    #[serde(default, with = "some_node_id", skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The address of a plain server.
    #[serde(default, deserialize_with = "some_address", skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The name of a plain server, or of several: each address that it stands for is a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The port that it listens on.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// Its share of the connections, relative to the other servers of the pool, at most [`WEIGHT_MAX`]; 0: no
    /// new ones.
    #[serde(default = "one", deserialize_with = "weight", skip_serializing_if = "is_one")]
    pub weight: u16,
    /// Connections that each proxy worker opens to a plain server at once; further ones wait in the service's
    /// backlog. 0: no bound.
    #[serde(default, deserialize_with = "connections", skip_serializing_if = "is_zero")]
    pub max_connections: u32,
    /// It gets connections only while no server of the pool is up that is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
}

/// Where a server is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ServerHost {
    /// An application node.
    Node(NodeId),
    /// A host of the LAN, or behind it.
    Address(IpAddr),
    /// Such hosts by their name.
    Name(String),
}

impl fmt::Display for ServerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerHost::Node(node) => node.fmt(f),
            ServerHost::Address(address) => address.fmt(f),
            ServerHost::Name(name) => name.fmt(f),
        }
    }
}

/// By what a server is chosen for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// The one with the fewest connections, relative to its weight.
    #[default]
    LeastConnections,
    /// By the client's address: a client gets one server as long as it can be had.
    Source,
}

/// What clients get while no server is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllDown {
    /// They wait for a time, then they are reset.
    #[default]
    Refuse,
    /// Plain servers, as if they were up: what is wrong may be the checks.
    Serve,
}

/// How the servers of a service are chosen, and how proxies reach the plain ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerOptions {
    /// By what a server is chosen.
    #[serde(skip_serializing_if = "is_default")]
    pub balance: Balance,
    /// What clients get while no server is up.
    #[serde(skip_serializing_if = "is_default")]
    pub all_down: AllDown,
    /// Milliseconds for which a plain server that is up again gets less than its share, which grows
    /// meanwhile; 0: the whole at once.
    #[serde(deserialize_with = "slow_start", skip_serializing_if = "is_zero")]
    pub slow_start_ms: u32,
    /// Milliseconds for a connection's establishment, after which the next server is tried.
    #[serde(deserialize_with = "connect_timeout")]
    pub connect_timeout_ms: u32,
    /// The header by which proxies give a server the client's address.
    pub proxy_protocol: ProxyProtocol,
    /// Whether they speak HTTP/2, as servers of gRPC do, when routes of HTTP lead to them: by prior
    /// knowledge (RFC 9113 §3.3), or over TLS by ALPN. Otherwise they get HTTP/1.1.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub http2: bool,
    /// How proxies check them; absent: proxies learn from clients' connections which can be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<ServerCheck>,
    /// TLS towards the plain ones; absent: they get plaintext.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ServersTls>,
    /// How network nodes pack what they forward; absent: they do not, and servers are on their LAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            balance: Balance::default(),
            all_down: AllDown::default(),
            slow_start_ms: 0,
            connect_timeout_ms: 3_000,
            proxy_protocol: ProxyProtocol::Off,
            http2: false,
            check: None,
            tls: None,
            tunnel: None,
        }
    }
}

/// The PROXY protocol: a header with the client's address before the first byte to a plain server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// None.
    #[default]
    Off,
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
}

impl Server {
    /// Where it is. A checked policy's server has a node, an address or a name.
    pub fn host(&self) -> Option<ServerHost> {
        let plain = || self.address.map(ServerHost::Address);
        let named = || self.name.clone().map(ServerHost::Name);
        self.node.map(ServerHost::Node).or_else(plain).or_else(named)
    }

    /// What it is in lines for people, such as `an-1:80` and `10.1.2.3:8080 weight 2`.
    pub(crate) fn summary(&self) -> String {
        let Server { port, weight, max_connections, backup, .. } = *self;
        let host = match self.host() {
            Some(ServerHost::Address(IpAddr::V6(v6))) => format!("[{v6}]"),
            Some(host) => host.to_string(),
            None => String::new(),
        };
        let weight = if weight == 1 { String::new() } else { format!(" weight {weight}") };
        let most =
            if max_connections == 0 { String::new() } else { format!(" max_connections {max_connections}") };
        let backup = if backup { " backup" } else { "" };
        format!("{host}:{port}{weight}{most}{backup}")
    }

    /// The member of an application node, which several pools can share.
    pub(crate) fn member(&self) -> Option<PoolMember> {
        self.node.map(|node| PoolMember { node, port: self.port })
    }
}

impl From<PoolMember> for Server {
    fn from(PoolMember { node, port }: PoolMember) -> Self {
        Server {
            node: Some(node),
            address: None,
            name: None,
            port,
            weight: 1,
            max_connections: 0,
            backup: false,
        }
    }
}

/// What of a policy says whether an address can be a plain server's, for many of them.
pub struct Reach<'p> {
    policy: &'p Policy,
    ends: HashSet<(IpAddr, u16)>,
    reached: HashMap<IpAddr, bool>,
}

impl<'p> Reach<'p> {
    /// What `policy` says.
    pub fn of(policy: &'p Policy) -> Self {
        Reach { policy, ends: policy.ends().collect(), reached: HashMap::new() }
    }

    /// Returns whether an entry of egress reaches an address.
    fn reaches(&mut self, address: IpAddr) -> bool {
        *self.reached.entry(address).or_insert_with(|| {
            let entries = self.policy.egress.iter();
            let entries = entries.flat_map(|egress| egress.prefixes().map(move |(p, out)| (p, out, egress)));
            longest_match(entries, address).is_some()
        })
    }

    /// Returns why no plain server can be at an address and port, if so.
    pub fn refuses(&mut self, address: IpAddr, port: u16) -> Option<String> {
        if let Some(fault) = unicast_fault(address) {
            return Some(fault);
        }
        if self.ends.contains(&(address, port)) {
            let fault =
                format!("{address} port {port} is served by the cluster itself: connections would go round");
            return Some(fault);
        }
        (!self.reaches(address)).then(|| {
            format!("no entry of egress reaches {address}; one of its destinations must contain it, and its address is what the server sees")
        })
    }
}

/// Notes what is wrong with the pool of a service.
pub(crate) fn check_pool(reach: &mut Reach<'_>, service: &Service, at: &str, problems: &mut Problems) {
    let least = usize::from(service.http.is_none() && (service.sni.is_empty() || service.tls.is_some()));
    check_count(&format!("{at}.pool"), service.pool.len(), least, POOL_MAX, problems);
    if service.pool.iter().all(|server| server.weight == 0) && !service.pool.is_empty() {
        problems.add(format!("{at}.pool"), "all weights are 0: no server gets connections".to_owned());
    }
    if service.pool.iter().all(|server| server.backup) && !service.pool.is_empty() {
        let message = "every server is a backup: for none of them there is one that it stands in for";
        problems.add(format!("{at}.pool"), message.to_owned());
    }
    if let Some(check) = &service.servers.check {
        check.check(&format!("{at}.servers.check"), problems);
    }
    if let Some(tls) = &service.servers.tls {
        tls.check(service, &format!("{at}.servers"), problems);
    }
    let mut hosts = HashSet::new();
    for (index, server) in service.pool.iter().enumerate() {
        let at = format!("{at}.pool[{index}]");
        let kinds = [server.node.is_some(), server.address.is_some(), server.name.is_some()];
        let Some(host) = server.host().filter(|_| kinds.into_iter().filter(|kind| *kind).count() == 1) else {
            let message =
                "a server has one of a node, of a program under the socket filter, an address and a name";
            problems.add(at, message.to_owned());
            continue;
        };
        if !hosts.insert((host.clone(), server.port)) {
            problems.add(at.clone(), format!("{host} port {} is in this pool already", server.port));
        }
        match host {
            // What the network node forwards has rules of its own.
            _ if service.via == Via::Network => {}
            ServerHost::Address(address) => {
                if let Some(message) = reach.refuses(address, server.port) {
                    let field = format!("{at}.address");
                    problems.add_unless(&[&field, "egress"], field.clone(), message);
                }
            }
            ServerHost::Name(name) => {
                if let Some(message) = name_fault(&name) {
                    problems.add(format!("{at}.name"), message);
                }
            }
            ServerHost::Node(_) if server.max_connections != 0 => {
                let message = "programs of a node bound their connections by what they accept; max_connections is for a plain server";
                problems.add_unless(&[&at], format!("{at}.max_connections"), message.to_owned());
            }
            ServerHost::Node(_) => {}
        }
    }
}

/// Notes whether a policy has too many names.
pub(crate) fn check_names(policy: &Policy, problems: &mut Problems) {
    let names = policy.server_names().len();
    if names > NAMES_MAX {
        problems.add("services", format!("the pools have {names} names; allowed are {NAMES_MAX} in all"));
    }
}

/// Returns what is wrong with a name of hosts (RFC 1123 §2.1; `_` as it is used), if anything.
fn name_fault(name: &str) -> Option<String> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let is_label = |label: &str| {
        let ends = label.starts_with('-') || label.ends_with('-');
        (1..=63).contains(&label.len()) && !ends && label.bytes().all(is_letter)
    };
    let labels = name.strip_suffix('.').unwrap_or(name);
    if name.parse::<IpAddr>().is_ok() {
        return Some(format!("{name} is an address: write `address`"));
    }
    let is_name = name.len() <= 253 && labels.split('.').all(is_label);
    (!is_name).then(|| {
        format!("{name:?} is no name of a host; allowed are labels of a-z, 0-9, - and _ with dots between them, 253 bytes")
    })
}

impl Policy {
    /// The names of plain servers, each once, in order.
    pub fn server_names(&self) -> BTreeSet<&str> {
        let servers = self.services.iter().flat_map(|service| &service.pool);
        servers.filter_map(|server| server.name.as_deref()).collect()
    }
}

/// Serde for the id of a node that may be absent.
mod some_node_id {
    use csp_types::NodeId;
    use serde::{Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde gives a reference")]
    pub(super) fn serialize<S: Serializer>(id: &Option<NodeId>, serializer: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => serializer.serialize_some(id.as_str()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<NodeId>, D::Error> {
        csp_config::serde_node_id::deserialize(deserializer).map(Some)
    }
}

fn some_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    csp_config::ip_address(deserializer).map(Some)
}

pub(crate) fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 0, WEIGHT_MAX.into(), "a weight")? as u16)
}

fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, CONNECTIONS_MAX.into(), "a number of connections (0: no bound)")? as u32)
}

fn connect_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let (least, most) = CONNECT_TIMEOUT_MS;
    Ok(number(deserializer, least.into(), most.into(), "a time in milliseconds")? as u32)
}

fn slow_start<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 3_600_000, "a time in milliseconds")? as u32)
}

pub(crate) const fn one() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) const fn is_one(weight: &u16) -> bool {
    *weight == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(bound: &u32) -> bool {
    *bound == 0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
