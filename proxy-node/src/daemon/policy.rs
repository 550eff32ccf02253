//! Converts a policy to what the workers need of it.

mod channel;
pub mod flows;
mod framing;
mod http;
mod queries;
mod sni;

pub(super) use http::HttpServices;
pub(super) use queries::{formats as channel_formats, outputs as stage_outputs};

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use csp_election::GroupId;
use csp_gateway::HttpService;
use csp_planner::Planned;
use csp_policy::{Channel, ChannelPort, Reach, TcpOptions};
use csp_services::{ContextSpec, MessagesPolicy};
use csp_tls::ClientTls;
use csp_types::{Duration, NodeId};

use crate::WorkerPolicy;
use crate::core::{
    AllDown, BacklogLimits, Balance, CheckSpec, EgressRule, HttpCheck, PoolServer, ProxyHeader, Question,
    ServerHost, ServerOptions, ServiceSpec, ServiceTcp,
};

use csp_wire::tls;

use super::certificates::{Certificates, Towards};
use super::curve_keys::KeyRing;
use super::modules::Modules;
use super::names::Names;

/// The numbers of local services: the same for a name as long as the daemon runs.
#[derive(Debug, Default)]
pub struct Numbers {
    known: HashMap<String, u32>,
    /// The numbers of all channels of the policy, for planners of requests.
    channels: Arc<HashMap<String, u32>>,
    /// Determines the hashes of the keys of queries and operators; random, so that no publisher knows it.
    seed: u64,
    /// The numbers of information flows.
    flows: flows::Known,
    /// Services whose HTTP is read.
    http: HttpServices,
}

impl Numbers {
    /// No numbers yet.
    pub fn new(seed: u64) -> Self {
        Numbers { seed, ..Numbers::default() }
    }

    /// The same for a proxy whose workers share its link and measure what handlers of flows take.
    #[must_use]
    pub fn of_proxy(self, node: NodeId, costs: flows::Costs) -> Self {
        Numbers { flows: flows::Known::new(node, costs), ..self }
    }

    /// Sets whether HTTP requests are recorded at this node.
    pub fn log_http(&mut self, logs: bool) {
        self.http = HttpServices::new(logs);
    }

    fn of(&mut self, name: &str) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(name.to_owned()).or_insert(next)
    }

    /// Returns the services of a policy whose HTTP is read.
    fn http_services(
        &mut self,
        policy: &csp_policy::Policy,
        towards: impl Fn(&csp_policy::Service) -> Option<ClientTls>,
    ) -> Vec<Arc<HttpService>> {
        let mut http = std::mem::take(&mut self.http);
        let services = http.of(policy, (|name: &str| self.of(name), towards));
        self.http = http;
        services.unwrap_or_else(|fault| {
            tracing::error!(fault, "services with http are not served");
            Vec::new()
        })
    }

    /// Collects the numbers of all channels of a policy.
    fn number_channels(&mut self, policy: &csp_policy::Policy) {
        let numbered = policy.all_channels().map(|channel| (self.of(&channel.name), channel.name));
        self.channels = Arc::new(numbered.map(|(number, name)| (name, number)).collect());
    }
}

/// Returns what workers need of a policy. Channels whose secret key is not in `ring` are not served, nor
/// services with TLS, of clients or to servers, whose `certificates` are not here.
pub fn translate(
    planned: &Planned,
    numbers: &mut Numbers,
    (ring, modules): (&KeyRing, &Arc<Modules>),
    (names, certificates): (&Names, &Certificates),
) -> WorkerPolicy {
    let policy = planned.policy();
    let mut reach = Reach::of(policy);
    let towards = |service: &csp_policy::Service| towards(service, names, certificates);
    let http = numbers.http_services(policy, |service| towards(service).map(|tls| tls.calls));
    let mut service = |s: &csp_policy::Service| ServiceSpec {
        name: s.name.clone(),
        address: (s.vip, s.port).into(),
        pool: servers(&s.pool, names, &mut reach),
        local: s.http.as_ref().map(|_| http::local_number(numbers.of(&s.name))),
        between: None,
        accept_proxy_from: s.accept_proxy_from.clone(),
        tls: certificates.of(&s.name),
        handshakes_per_source: s.tls.as_ref().map_or(0, |tls| tls.handshakes_per_source),
        sni: sni::names(&s.sni),
        servers: server_options(&s.servers, s.vip, towards(s)),
        tcp: translate_tcp(&s.tcp),
        backlog: BacklogLimits {
            connections: s.backlog.connections as usize,
            time: (s.backlog.time_s > 0).then(|| Duration::from_secs(s.backlog.time_s.into())),
        },
    };
    let rule = |e: &csp_policy::Egress| EgressRule {
        address: e.address,
        destinations: e.destinations.clone(),
        except: e.except.clone(),
        tcp: translate_tcp(&e.tcp),
    };
    let mut services: Vec<ServiceSpec> =
        policy.proxied().filter(|s| has_certificates(s, certificates)).map(&mut service).collect();
    numbers.number_channels(policy);
    let mut messages = MessagesPolicy::default();
    for of in planned.channels() {
        let channel = &*of.channel;
        services.extend(channel_services(channel, numbers.of(&channel.name)));
        services
            .extend(of.requested.iter().flat_map(|place| channel_services(place, numbers.of(&place.name))));
        if !channel.pool.is_empty() {
            messages.streams.push(framing::stream(channel, numbers.of(&channel.name)));
            continue;
        }
        match channel::translate(planned, &of, numbers, (ring, modules)) {
            Some(channel) => messages.channels.push(channel),
            None => {
                let all = std::iter::once(channel).chain(&of.requested);
                messages.unserved.extend(all.map(|channel| (numbers.of(&channel.name), of.place)));
            }
        }
    }
    for context in &policy.contexts {
        services.push(context_service(context));
        let spec = |number| ContextSpec { number, service: context.service_name() };
        messages.contexts.extend(context.number().map(spec));
    }
    let egress = policy.egress.iter().map(rule).collect();
    let flows = flows::translate(policy, planned.catalogue(), numbers);
    let group = |address: IpAddr| Some((address, GroupId::of(&policy.vip_group(address)?.name)));
    let vip_groups = policy.addresses().into_iter().filter_map(group).collect();
    let log = policy.connection_log.clone();
    let http_addresses = policy.http_log.as_ref().map(|log| log.addresses).unwrap_or_default();
    let challenges = csp_gateway::Challenges::default();
    WorkerPolicy { services, egress, messages, http, challenges, flows, vip_groups, log, http_addresses }
}

/// Returns whether what a service's TLS needs is here, towards clients and servers.
fn has_certificates(service: &csp_policy::Service, certificates: &Certificates) -> bool {
    (service.tls.is_none() || certificates.has(&service.name))
        && (service.servers.tls.is_none() || certificates.towards(&service.name).is_some())
}

/// Returns how the servers of a service are reached over TLS, each by its name if it has one.
fn towards(service: &csp_policy::Service, names: &Names, certificates: &Certificates) -> Option<Towards> {
    service.servers.tls.as_ref()?;
    let Towards { calls, http_checks } = certificates.towards(&service.name)?.clone();
    let named = service.pool.iter().filter_map(|server| Some((server.name.as_deref()?, server.port)));
    let addresses = named.flat_map(|(name, port)| {
        names.addresses(name).into_iter().map(move |address| ((address, port).into(), name))
    });
    let addresses: Vec<_> = addresses.collect();
    let with_names = |tls: ClientTls| tls.with_names(addresses.iter().copied());
    Some(Towards { calls: with_names(calls), http_checks: with_names(http_checks) })
}

/// Returns the services at the ports of a channel.
fn channel_services(channel: &Channel, number: u32) -> Vec<ServiceSpec> {
    let passes = !channel.pool.is_empty();
    let service = |port: ChannelPort| ServiceSpec {
        pool: pool(&channel.pool),
        local: (!passes).then_some(number),
        between: passes.then_some(number),
        tcp: translate_tcp(&channel.tcp),
        ..ServiceSpec::new(channel.service_name(port.port), (channel.vip, port.port).into())
    };
    channel.ports().map(service).collect()
}

/// The service of which a process is a context: nobody but the proxy connects to it.
fn context_service(context: &csp_policy::GContext) -> ServiceSpec {
    ServiceSpec {
        pool: pool(&context.pool),
        ..ServiceSpec::new(context.service_name(), (Ipv4Addr::UNSPECIFIED, 0).into())
    }
}

/// Returns a pool as workers have it: each address of a name is a server.
fn servers(pool: &[csp_policy::Server], names: &Names, reach: &mut Reach<'_>) -> Vec<PoolServer> {
    let mut all: Vec<PoolServer> = Vec::new();
    for of in pool {
        let hosts: Vec<ServerHost> = match of.host() {
            Some(csp_policy::ServerHost::Node(node)) => vec![ServerHost::Node(node)],
            Some(csp_policy::ServerHost::Address(address)) => vec![ServerHost::Address(address)],
            Some(csp_policy::ServerHost::Name(name)) => {
                addresses(&name, of.port, names, reach).map(ServerHost::Address).collect()
            }
            None => Vec::new(),
        };
        for host in hosts {
            if !all.iter().any(|known| (known.host, known.port) == (host, of.port)) {
                all.push(server(of, host));
            }
        }
    }
    all
}

/// Returns the addresses of a name at which servers can be.
fn addresses(name: &str, port: u16, names: &Names, reach: &mut Reach<'_>) -> impl Iterator<Item = IpAddr> {
    let mut addresses = names.addresses(name);
    addresses.retain(|address| match reach.refuses(*address, port) {
        None => true,
        Some(fault) => {
            tracing::warn!(name, %address, fault, "an address of a name of servers is left out");
            false
        }
    });
    addresses.into_iter()
}

fn server(server: &csp_policy::Server, host: ServerHost) -> PoolServer {
    let bound = Some(server.max_connections).filter(|bound| *bound > 0);
    let connections_max = bound.unwrap_or(u32::MAX);
    let csp_policy::Server { port, weight, backup, .. } = *server;
    PoolServer { host, port, weight, connections_max, backup }
}

fn server_options(options: &csp_policy::ServerOptions, vip: IpAddr, tls: Option<Towards>) -> ServerOptions {
    let header = match options.proxy_protocol {
        csp_policy::ProxyProtocol::Off => None,
        csp_policy::ProxyProtocol::V1 => Some(ProxyHeader::V1),
        csp_policy::ProxyProtocol::V2 => Some(ProxyHeader::V2),
    };
    let connect_timeout = Duration::from_millis(options.connect_timeout_ms.into());
    // What listens at another port is not what clients reach.
    let check = |check: &csp_policy::ServerCheck| CheckSpec {
        tls: tls.as_ref().filter(|_| check.port.is_none()).map(|tls| match check.http {
            Some(_) => tls.http_checks.clone(),
            None => tls.calls.clone(),
        }),
        ..server_check(check, header, vip)
    };
    let check = options.check.as_ref().map(|of| Arc::new(check(of)));
    let balance = match options.balance {
        csp_policy::Balance::LeastConnections => Balance::LeastConnections,
        csp_policy::Balance::Source => Balance::Source,
    };
    let all_down = match options.all_down {
        csp_policy::AllDown::Refuse => AllDown::Refuse,
        csp_policy::AllDown::Serve => AllDown::Serve,
    };
    let slow_start = Duration::from_millis(options.slow_start_ms.into());
    ServerOptions {
        balance,
        all_down,
        slow_start,
        connect_timeout,
        header,
        check,
        tls: tls.map(|tls| tls.calls),
    }
}

fn server_check(check: &csp_policy::ServerCheck, header: Option<ProxyHeader>, vip: IpAddr) -> CheckSpec {
    let request = |http: &csp_policy::HttpCheck| {
        let default = match vip {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        let (path, host) = (&http.path, http.host.as_ref().unwrap_or(&default));
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: csp-check\r\nConnection: close\r\n\r\n")
    };
    let http = check.http.as_ref().map(|http| {
        let [least, most] = http.status;
        Question::Http(HttpCheck { request: request(http).into_bytes().into(), status: least..=most })
    });
    let hello = |check: &csp_policy::TlsCheck| {
        let mut bytes = [0; tls::HELLO_LEN_MAX];
        let len = tls::client_hello(check.name.as_deref(), &mut bytes)?;
        Some(Question::Tls(bytes[..len].into()))
    };
    let question = http.or_else(|| check.tls.as_ref().and_then(hello));
    let ms = |ms: u32| Duration::from_millis(ms.into());
    let (interval, timeout) = (ms(check.interval_ms), ms(check.timeout_ms));
    let (rise, fall, port) = (check.rise, check.fall, check.port);
    CheckSpec { interval, timeout, rise, fall, port, header, question, tls: None }
}

fn pool(members: &[csp_policy::PoolMember]) -> Vec<PoolServer> {
    members.iter().map(|m| PoolServer::of_node(m.node, m.port)).collect()
}

fn translate_tcp(tcp: &TcpOptions) -> ServiceTcp {
    ServiceTcp {
        congestion: Some(tcp.congestion),
        ecn: Some(tcp.ecn),
        pacing: Some(tcp.pacing),
        keepalive_s: Some(tcp.keepalive_s),
        user_timeout_s: Some(tcp.user_timeout_s),
        mss: tcp.mss,
    }
}

#[cfg(test)]
mod tests {
    use csp_tcp::{CongestionControl, EcnMode};

    use super::*;

    #[test]
    fn all_that_policy_says_of_a_service_s_connections_reaches_them() {
        let tcp = TcpOptions {
            congestion: CongestionControl::NewReno,
            ecn: EcnMode::Active,
            pacing: false,
            keepalive_s: 30,
            user_timeout_s: 0,
            mss: Some(1_200),
        };
        let expected = ServiceTcp {
            congestion: Some(CongestionControl::NewReno),
            ecn: Some(EcnMode::Active),
            pacing: Some(false),
            keepalive_s: Some(30),
            user_timeout_s: Some(0),
            mss: Some(1_200),
        };
        assert_eq!(translate_tcp(&tcp), expected);
    }
}
