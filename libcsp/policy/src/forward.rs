//! Services whose packets the network nodes forward to servers, without a proxy in between.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use csp_config::Problems;
use csp_types::{Encapsulation, Transport};
use serde::{Deserialize, Serialize};

use super::check::unicast_fault;
use super::servers::{Balance, ProxyProtocol, ServerHost};
use super::{Backlog, Policy, ServerOptions, Service, TcpOptions};

/// Most services of a policy whose packets are forwarded: each takes a table at each worker.
pub const FORWARDED_MAX: usize = 256;
/// Most servers of such a service.
pub const FORWARD_POOL_MAX: usize = 160;

/// Who passes on what clients send to a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// A proxy ends the client's connection and has another one to the server.
    #[default]
    Proxy,
    /// The network node forwards each packet to the server, which answers the client itself.
    Network,
}

/// The transport protocol of a service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP. Only a service that is forwarded has it.
    Udp,
}

/// How a packet is packed on its way to a server behind a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tunnel {
    /// IP in IP.
    Ipip,
    /// Generic UDP Encapsulation, to port 6080.
    Gue,
}

impl From<Tunnel> for Encapsulation {
    fn from(tunnel: Tunnel) -> Self {
        match tunnel {
            Tunnel::Ipip => Encapsulation::IpIp,
            Tunnel::Gue => Encapsulation::Gue,
        }
    }
}

impl From<Protocol> for Transport {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Transport::from(*self).fmt(f)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Proxy => "proxy",
            Via::Network => "network",
        })
    }
}

impl Policy {
    /// The services that proxies end.
    pub fn proxied(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(|service| service.via == Via::Proxy)
    }

    /// The services whose packets network nodes forward.
    pub fn forwarded(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(|service| service.via == Via::Network)
    }
}

/// Notes what is wrong with services that are forwarded.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    let count = policy.forwarded().count();
    if count > FORWARDED_MAX {
        let message = format!("{count} services have via: network; allowed are {FORWARDED_MAX}");
        problems.add("services", message);
    }
    let forwarded: HashSet<IpAddr> = policy.forwarded().map(|service| service.vip).collect();
    let mut own: Option<HashSet<IpAddr>> = None;
    for (index, service) in policy.services.iter().enumerate() {
        let at = format!("services[{index}]");
        match service.via {
            Via::Proxy if service.protocol == Protocol::Udp => {
                let message = "a proxy ends TCP only; UDP needs via: network";
                problems.add_unless(&[&format!("{at}.via")], format!("{at}.protocol"), message.to_owned());
            }
            Via::Proxy if service.servers.tunnel.is_some() => {
                let message = "tunnels lead to servers that network nodes forward to, with via: network";
                let at = format!("{at}.servers.tunnel");
                problems.add_unless(&[&format!("{at}.via")], at, message.to_owned());
            }
            Via::Proxy => {}
            Via::Network => {
                let own = own.get_or_insert_with(|| policy.addresses().into_iter().collect());
                check_address((policy, &forwarded), service, &at, problems);
                check_options(service, &at, problems);
                check_servers(service, own, &at, problems);
            }
        }
    }
}

/// Network nodes ask the LAN for servers in the name of an egress address: of the service's address servers
/// believe that it is their own.
fn check_address(
    (policy, forwarded): (&Policy, &HashSet<IpAddr>),
    service: &Service,
    at: &str,
    problems: &mut Problems,
) {
    let Service { vip, .. } = service;
    let group = |address: IpAddr| policy.vip_group(address).map(|group| &group.name);
    let egress = || policy.egress.iter().map(|egress| egress.address);
    if egress().any(|address| address == *vip) {
        let message =
            format!("{vip} is an egress address: answers to connections from it would be forwarded");
        problems.add_unless(&["egress"], format!("{at}.vip"), message);
    }
    let asks = |address: IpAddr, v4: bool| {
        let moves_with_it = group(address).is_none() || group(address) == group(*vip);
        address.is_ipv4() == v4 && moves_with_it && !forwarded.contains(&address)
    };
    let servers = || service.pool.iter().filter_map(|server| server.address);
    for (v4, family) in [(true, "IPv4"), (false, "IPv6")] {
        let is_used = vip.is_ipv4() == v4 && service.servers.tunnel.is_none();
        if !is_used && !servers().any(|server| server.is_ipv4() == v4) || egress().any(|a| asks(a, v4)) {
            continue;
        }
        let and_group =
            group(*vip).map(|name| format!(" of the VIP group {name}, or of none")).unwrap_or_default();
        let message = format!(
            "the LAN is asked for the servers in the name of an egress address, and there is no {family} one{and_group}"
        );
        problems.add_unless(&["egress"], format!("{at}.vip"), message);
    }
}

/// Options of connections that a proxy ends mean nothing here, and would be missed.
fn check_options(service: &Service, at: &str, problems: &mut Problems) {
    let ServerOptions { balance, slow_start_ms, connect_timeout_ms, proxy_protocol, .. } = &service.servers;
    let usual = ServerOptions::default();
    for (field, is_usual) in [
        ("tcp", service.tcp == TcpOptions::default()),
        ("backlog", service.backlog == Backlog::default()),
        ("accept_proxy_from", service.accept_proxy_from.is_empty()),
        ("sni", service.sni.is_empty()),
        ("servers.balance", *balance == Balance::default()),
        ("servers.slow_start_ms", *slow_start_ms == 0),
        ("servers.connect_timeout_ms", *connect_timeout_ms == usual.connect_timeout_ms),
        ("servers.proxy_protocol", *proxy_protocol == ProxyProtocol::Off),
        ("servers.http2", !service.servers.http2),
    ] {
        if !is_usual {
            let message =
                format!("{field} is for connections that a proxy ends; this service has via: network");
            problems.add_unless(&[&format!("{at}.via")], format!("{at}.{field}"), message);
        }
    }
}

fn check_servers(service: &Service, own: &HashSet<IpAddr>, at: &str, problems: &mut Problems) {
    if service.pool.len() > FORWARD_POOL_MAX {
        let message =
            format!("has {} entries; allowed with via: network are {FORWARD_POOL_MAX}", service.pool.len());
        problems.add(format!("{at}.pool"), message);
    }
    for (index, server) in service.pool.iter().enumerate() {
        let at = format!("{at}.pool[{index}]");
        let address = match server.host() {
            Some(ServerHost::Address(address)) => address,
            Some(_) => {
                let message = "packets are forwarded to an `address`; a node or a name needs via: proxy";
                problems.add(at, message.to_owned());
                continue;
            }
            // Said already.
            None => continue,
        };
        let field = format!("{at}.address");
        if let Some(message) = unicast_fault(address) {
            problems.add(field, message);
        } else if own.contains(&address) {
            problems.add(field, format!("{address} is the cluster's own: packets would go round"));
        } else if address.is_ipv4() != service.vip.is_ipv4() && service.servers.tunnel.is_none() {
            let message = format!(
                "{address} is not of the family of {}, the service's address: only a tunnel leads there",
                service.vip
            );
            problems.add(field, message);
        }
        if server.port != service.port {
            let message = format!(
                "packets arrive as they were sent, for port {}: the server has to listen there, not on {}",
                service.port, server.port
            );
            problems.add(format!("{at}.port"), message);
        }
        if server.max_connections != 0 {
            let message =
                "max_connections is for connections that a proxy opens; this service has via: network";
            problems.add(format!("{at}.max_connections"), message.to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
