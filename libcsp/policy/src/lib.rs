//! The policy: the services, their pools, the channels of messages, and how applications leave the cluster.
//!
//! A [`Policy`] that came out of [`Policy::parse_yaml`] or [`Policy::from_json`] is valid in itself: its
//! values, its bounds, and what its objects say of each other. What schemas, queries and parameters of
//! handlers say is text here; `csp-planner` reads it, at the management node before a policy is published,
//! and at the proxies. The canonical form is JSON in field order; generations and hashes are made of that.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod access;
mod acme;
mod bounds;
mod branches;
mod brought_handlers;
mod channel_options;
mod channels;
mod check;
mod connection_log;
mod contexts;
mod curve;
mod diff;
mod event_subscribers;
mod flows;
mod formats;
mod forward;
mod framing;
mod handlers;
mod http;
mod link;
mod paths;
mod placements;
mod plugin_hosts;
mod plugin_places;
mod plugins;
mod queries;
mod redact;
mod requests;
mod servers;
mod sni;
mod sources;
mod tls;
mod vip_groups;
mod warnings;

use std::net::IpAddr;

use csp_config::{
    ConfigError, Problems, ip_address, number, parse_checked, port, serde_node_id, serde_prefixes,
};
use csp_types::options::{CongestionControl, EcnMode};
use csp_types::{NodeId, Prefix, ProgramName};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

pub use access::{ACCESS_MAX, AccessRule, AccessTarget, PortRange, SUBJECTS_MAX, Subject};
pub use acme::{ACME_CERTIFICATES_MAX, ACME_NAMES_MAX, Acme, AcmeCertificate, AcmeChallenge};
pub use branches::{FormatPath, OUTLETS_MAX, StageOutput, stages};
pub use brought_handlers::BroughtHandlers;
pub use channel_options::{KEY_BYTES_MAX, LAST_VALUES_MAX, LastValue};
pub use channels::{CHANNELS_MAX, Channel, ChannelMemory, Pattern, ReceiverQueue, UnknownFormat};
pub use check::check_name;
pub use connection_log::{ConnectionLog, LOG_SAMPLE_MAX, LogAddresses};
pub use contexts::GContext;
pub use curve::{CURVE_CLIENTS_MAX, Curve, CurveClient, Permission};
pub use event_subscribers::{EVENT_SUBSCRIBERS_MAX, EventSubscriber};
pub use flows::{DEFAULT_FLOW, FLOWS_MAX, Flow, FlowContexts, FlowMatch, FlowQueue, FlowReserve};
pub use formats::{CHANNEL_FORMATS_MAX, ChannelTime, FORMAT_LEN_MAX, FORMATS_MAX, Format, TimeUnit};
pub use forward::{FORWARD_POOL_MAX, FORWARDED_MAX, Protocol, Tunnel, Via};
pub use framing::{
    CHANNEL_PORTS_MAX, ChannelPort, Clients, Framing, Headers, LengthCounts, LengthHeader, SOFH_ENCODING,
    SOFH_LEN,
};
pub use handlers::{SUPPLIED_MAX, SuppliedHandler};
pub use http::{
    Cache, CacheQuery, Compress, CompressAlgorithm, Concurrent, Condition, Cors, Deny, ErrorPage, FilterAct,
    FilterRule, Filters, HTTP_ALPN, HeaderEdit, Hsts, Http, HttpLimits, HttpTimeouts, LimitKey, OriginField,
    PathMatch, ROUTES_MAX, Rate, RatePeriod, RedirectTo, Respond, Rewrite, Route, RouteAction, RouteTarget,
    RouteTimeouts, Upstream, UpstreamReuse,
};
pub use link::{Adapt, FlowMonitor, FlowTrigger, Limit, Link, LinkShare, TriggerAction, TriggerWhen};
pub use paths::{GivenUp, PathStage, StagePlacement};
pub use plugin_hosts::{PLUGIN_HOSTS_MAX, PluginHost};
pub use plugin_places::{PluginLevel, PluginPlacement};
pub use plugins::{
    DRIVER_PLUGINS_MAX, OUTPUTS_MAX, PACKET_RULES_MAX, PLUGINS_MAX, PacketPlugin, PacketRule, plugin_manager,
};
pub use queries::{
    MESSAGE_KIB, QUERIES_MAX, QUERY_KIB_MAX, QUERY_ROWS_MAX, QUERY_WAITING_MAX, Query, QueryLimits, RowFormat,
};
pub use requests::{REQUESTED_MAX, Requests};
pub use servers::{
    AllDown, Balance, HttpCheck, ProxyProtocol, Reach, SYSTEM_AUTHORITIES, Server, ServerCheck, ServerHost,
    ServerOptions, ServersTls, TlsCheck, WEIGHT_MAX,
};
pub use sni::{SNI_MAX, SniRoute};
pub use tls::{CertificateField, ServiceClients, ServiceTls, TLS_ALPN_MAX, TLS_CERTIFICATES_MAX, TlsVersion};
pub use vip_groups::{GROUP_NETWORKS_MAX, GROUP_PREFERRED_MAX, VIP_GROUPS_MAX, VipGroup};

/// The only `apiVersion` this build understands.
pub const API_VERSION: &str = "csp/v1";
/// Most services of a policy.
pub const SERVICES_MAX: usize = 16_384;
/// Most pool members of a service.
pub const POOL_MAX: usize = 256;
/// Most pool members of a policy, each counted once.
pub const MEMBERS_MAX: usize = 32_768;
/// Most egress entries of a policy.
pub const EGRESS_MAX: usize = 64;
/// Most networks of balancers in front of a service.
pub const BALANCERS_MAX: usize = 64;
/// Most destinations of a policy's egress entries, exceptions included: every process receives them all.
pub const DESTINATIONS_MAX: usize = 128;
/// Most program rules of a policy.
pub const PROGRAMS_MAX: usize = 256;
/// Longest service name, in bytes.
pub const SERVICE_NAME_LEN_MAX: usize = 63;
/// Most connections that a service lets wait at a proxy worker.
pub const BACKLOG_MAX: u32 = 1 << 20;
/// Smallest segment size of TCP options, in bytes: that of the engine.
pub const TCP_MSS_MIN: u16 = 88;
/// Largest segment size of TCP options, in bytes.
pub const TCP_MSS_MAX: u16 = 9_000;
/// Longest keepalive idle time, user timeout and time in a backlog, in seconds (30 days).
pub const TCP_TIME_S_MAX: u32 = 2_592_000;

/// A whole policy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Always [`API_VERSION`].
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// What clients can reach.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Formats of messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<Format>,
    /// Where messages are published and subscribed to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// Continual queries over channels, each a channel of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<Query>,
    /// Handlers that are supplied as WebAssembly modules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<SuppliedHandler>,
    /// Programs that run handlers of channels' paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<GContext>,
    /// Information flows of messages, and what they are promised of `link`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub information_flows: Vec<Flow>,
    /// The link by which messages leave each proxy. Absent: they leave as they come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// How applications' own connections leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Egress>,
    /// Groups of VIPs and egress addresses that move from one network node to another. Addresses in none are
    /// at every node whose configuration owns them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vip_groups: Vec<VipGroup>,
    /// Who may subscribe to the cluster's events over ZeroMQ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_subscribers: Vec<EventSubscriber>,
    /// Which connections proxies record when they end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_log: Option<ConnectionLog>,
    /// Which HTTP requests proxies record when they end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_log: Option<ConnectionLog>,
    /// Certificates of services that are obtained from an authority. Absent: all are files of the proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acme: Option<Acme>,
    /// What is accelerated of which programs; of those that are not named here, all that the rules of their
    /// node allow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramRule>,
    /// Who may listen and connect, enforced by the proxies; the first rule that fits a process counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<AccessRule>,
    /// Programs that run packet plug-ins of level 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugin_hosts: Vec<PluginHost>,
    /// Packet plug-ins of network nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PacketPlugin>,
    /// Rules that lead packets to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PacketRule>,
}

/// Which sockets of a program may leave the kernel, on every application node. A node's own rules can allow
/// less, not more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramRule {
    /// The program's name, whole and as it is written (`nginx`, `php-fpm`): the file name that it was started
    /// by, which `cspctl sockets` shows. A [`ProgramName`]; each once.
    pub program: String,
    /// The listening ports that are accelerated; absent: all, empty: none. A process learns it when it
    /// starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<Vec<u16>>,
    /// Whether its connections to egress destinations are accelerated.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub connect: bool,
}

/// One service: a virtual address and port, and the pool that serves it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// 1 to 63 of `a-z 0-9 -`, unique in the policy.
    pub name: String,
    /// The address clients connect to. Absent together with `port`: routes of other services lead here.
    #[serde(
        default = "http::no_vip",
        deserialize_with = "ip_address",
        skip_serializing_if = "IpAddr::is_unspecified"
    )]
    pub vip: IpAddr,
    /// The port clients connect to.
    #[serde(default, deserialize_with = "port", skip_serializing_if = "framing::is_default")]
    pub port: u16,
    /// TCP or UDP.
    #[serde(default, skip_serializing_if = "framing::is_default")]
    pub protocol: Protocol,
    /// Who passes on what clients send.
    #[serde(default, skip_serializing_if = "framing::is_default")]
    pub via: Via,
    /// The servers; at least one, each once. None if the service has `http`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<Server>,
    /// Networks of balancers in front: their connections begin with a header of the PROXY protocol, version 1
    /// or 2, which names the client.
    #[serde(default, with = "serde_prefixes", skip_serializing_if = "Vec::is_empty")]
    pub accept_proxy_from: Vec<Prefix>,
    /// Connections that go on to the pools of other services, still encrypted, by the name of the server that
    /// their client asks for. Others stay with this service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sni: Vec<SniRoute>,
    /// TLS of its clients, which ends at the proxies. Absent: their bytes are passed on as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ServiceTls>,
    /// Requests of HTTP, which the proxies read and lead to other services. Absent: bytes go to the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// How the plain servers of the pool are reached.
    #[serde(default, skip_serializing_if = "framing::is_default")]
    pub servers: ServerOptions,
    /// How connections behave.
    #[serde(default)]
    pub tcp: TcpOptions,
    /// How many connections wait for a server, and how long.
    #[serde(default, skip_serializing_if = "Backlog::is_default")]
    pub backlog: Backlog,
}

/// What a service lets wait while its servers are busy, at each proxy worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backlog {
    /// Connections that wait at once; clients beyond them get no answer to their SYN and try again, as with a
    /// full listen(2) backlog.
    #[serde(deserialize_with = "backlog_connections")]
    pub connections: u32,
    /// Seconds that a connection waits before it is reset, while servers of the service listen; 0: as long as
    /// its client does. Where no server listens it is 3 seconds at most.
    #[serde(deserialize_with = "seconds")]
    pub time_s: u32,
}

impl Default for Backlog {
    fn default() -> Self {
        Backlog { connections: 4096, time_s: 60 }
    }
}

impl Backlog {
    fn is_default(&self) -> bool {
        *self == Backlog::default()
    }
}

/// Listeners on one port of one application node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolMember {
    /// The application node.
    #[serde(with = "serde_node_id")]
    pub node: NodeId,
    /// The port the application listens on.
    #[serde(deserialize_with = "port")]
    pub port: u16,
}

/// TCP behaviour of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpOptions {
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: EcnMode,
    /// Whether data leaves at the rate of congestion control instead of a window at once.
    pub pacing: bool,
    /// Idle seconds before keepalive probes (RFC 9293 §3.8.4); 0 turns them off.
    #[serde(deserialize_with = "seconds")]
    pub keepalive_s: u32,
    /// Seconds that sent data may stay unacknowledged (RFC 5482); 0 leaves it to retransmission limits.
    #[serde(deserialize_with = "seconds")]
    pub user_timeout_s: u32,
    /// Largest segment in bytes: in the MSS option that clients get, and towards them. `None`: that of the
    /// LAN's MTU. Restricts the segments of clients behind links with a small MTU from which no path MTU
    /// discovery comes back.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "mss")]
    pub mss: Option<u16>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        TcpOptions {
            congestion: CongestionControl::Cubic,
            ecn: EcnMode::Passive,
            pacing: true,
            keepalive_s: 7200,
            user_timeout_s: 0,
            mss: None,
        }
    }
}

/// Where applications' own connections to some destinations come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// The cluster's address that destinations see.
    #[serde(deserialize_with = "ip_address")]
    pub address: IpAddr,
    /// The networks reached this way, of the address's family; at least one.
    #[serde(with = "serde_prefixes")]
    pub destinations: Vec<Prefix>,
    /// Networks within these that are not: applications reach them by the kernel, unless a longer prefix of
    /// some entry has them.
    #[serde(default, with = "serde_prefixes", skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<Prefix>,
    /// How these connections behave.
    #[serde(default)]
    pub tcp: TcpOptions,
}

impl ProgramRule {
    /// The rule for a program among `rules`, if it has one.
    pub fn of<'a>(rules: &'a [ProgramRule], program: &ProgramName) -> Option<&'a ProgramRule> {
        rules.iter().find(|rule| rule.program.as_bytes() == program.as_bytes())
    }
}

impl Egress {
    /// Its networks, each with whether it is an exception.
    pub fn prefixes(&self) -> impl Iterator<Item = (Prefix, bool)> {
        let exceptions = self.except.iter().map(|prefix| (*prefix, true));
        self.destinations.iter().map(|prefix| (*prefix, false)).chain(exceptions)
    }
}

impl Policy {
    /// A policy without services.
    pub fn empty() -> Policy {
        Policy {
            api_version: API_VERSION.to_owned(),
            services: Vec::new(),
            formats: Vec::new(),
            channels: Vec::new(),
            queries: Vec::new(),
            handlers: Vec::new(),
            contexts: Vec::new(),
            information_flows: Vec::new(),
            link: None,
            egress: Vec::new(),
            vip_groups: Vec::new(),
            event_subscribers: Vec::new(),
            connection_log: None,
            http_log: None,
            acme: None,
            programs: Vec::new(),
            access: Vec::new(),
            plugin_hosts: Vec::new(),
            plugins: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Reads and validates the policy in YAML `text`; `file` is its name for errors.
    pub fn parse_yaml(text: &str, file: &str) -> Result<Policy, ConfigError> {
        parse_checked(text, file, Policy::check)
    }

    /// Reads and validates a policy in JSON, such as [`Policy::to_json`] wrote; `origin` names it for errors.
    pub fn from_json(text: &str, origin: &str) -> Result<Policy, ConfigError> {
        let policy: Policy = csp_config::from_json(text, origin)?;
        policy.validate(origin)?;
        Ok(policy)
    }

    /// Validates the policy in itself; `origin` names it for errors.
    pub fn validate(&self, origin: &str) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.check(&mut problems);
        ConfigError::from_problems(origin, &problems)
    }

    /// The canonical JSON text.
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists only: nothing that JSON cannot hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// SHA-256 of the canonical JSON, in 64 hex digits.
    pub fn hash(&self) -> String {
        sha256(self.to_json())
    }

    /// What is different in `new`, in lines for people: `+` added, `-` removed, `~` changed.
    pub fn diff(&self, new: &Policy) -> Vec<String> {
        diff::diff(self, new)
    }

    /// The service at `vip:port`.
    pub fn service_at(&self, vip: IpAddr, port: u16) -> Option<&Service> {
        self.services.iter().find(|service| service.vip == vip && service.port == port)
    }

    /// Every address and port that clients connect to: those of services, of channels, then those of queries.
    pub fn ends(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        let channels = self.channels.iter();
        let channels = channels.flat_map(|channel| channel.ports().map(|port| (channel.vip, port.port)));
        let queries = self.queries.iter().map(|query| (query.vip, query.port));
        let requested = self.requested_ends();
        let services = self.services.iter().filter(|service| service.has_end());
        let services = services.map(|service| (service.vip, service.port));
        services.chain(channels).chain(queries).chain(requested)
    }

    /// Every address the cluster answers for, each once: VIPs and egress addresses.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let vips = self.ends().map(|(vip, _)| vip);
        let mut addresses: Vec<IpAddr> =
            vips.chain(self.egress.iter().map(|egress| egress.address)).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }
}

/// SHA-256 in 64 hex digits.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_yes(value: &bool) -> bool {
    *value
}

fn mss<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let (least, most) = (TCP_MSS_MIN.into(), TCP_MSS_MAX.into());
    Ok(Some(number(deserializer, least, most, "a segment size in bytes")? as u16))
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let seconds = number(deserializer, 0, u64::from(TCP_TIME_S_MAX), "a number of seconds (0: off)")?;
    Ok(seconds as u32)
}

fn backlog_connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, u64::from(BACKLOG_MAX), "a number of connections")? as u32)
}

#[cfg(test)]
mod tests;
