//! What makes a policy valid beyond the form of its fields.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use csp_config::Problems;
use csp_types::{Prefix, ProgramName};

use crate::{
    ACCESS_MAX, API_VERSION, BALANCERS_MAX, DESTINATIONS_MAX, EGRESS_MAX, MEMBERS_MAX, SERVICE_NAME_LEN_MAX,
    SERVICES_MAX,
};
use crate::{CHANNELS_MAX, Channel, Egress, PROGRAMS_MAX, Policy, Protocol, Server, Service};

impl Policy {
    /// Returns the services by their names.
    pub(crate) fn by_name(&self) -> HashMap<&str, &Service> {
        self.services.iter().map(|service| (service.name.as_str(), service)).collect()
    }

    /// Notes everything that makes the policy invalid.
    pub fn check(&self, problems: &mut Problems) {
        if self.api_version != API_VERSION {
            let message = format!("{:?} is not known; allowed is {API_VERSION}", self.api_version);
            problems.add("apiVersion", message);
        }
        check_count("services", self.services.len(), 0, SERVICES_MAX, problems);
        check_count("egress", self.egress.len(), 0, EGRESS_MAX, problems);
        let mut reach = crate::servers::Reach::of(self);
        for (index, service) in self.services.iter().enumerate() {
            let at = format!("services[{index}]");
            check_name(&service.name, "service", &at, problems);
            crate::http::check_end(service, &at, problems);
            crate::servers::check_pool(&mut reach, service, &at, problems);
            check_balancers(self, service, &at, problems);
            service.tls.iter().for_each(|tls| tls.check(service, &at, problems));
        }
        crate::forward::check(self, problems);
        crate::http::check(self, problems);
        crate::sni::check(self, problems);
        crate::acme::check(self, problems);
        crate::servers::check_names(self, problems);
        check_count("channels", self.channels.len(), 0, CHANNELS_MAX, problems);
        for (index, channel) in self.channels.iter().enumerate() {
            check_channel(channel, &format!("channels[{index}]"), problems);
        }
        crate::handlers::check(self, problems);
        crate::formats::check(self, problems);
        crate::requests::check(self, problems);
        crate::queries::check(self, problems);
        self.check_ends_are_distinct(problems);
        crate::contexts::check(self, problems);
        crate::paths::check(self, problems);
        crate::branches::check(self, problems);
        crate::bounds::check(self, problems);
        crate::flows::check(self, problems);
        let members = self.contexts.iter().flat_map(|context| &context.pool);
        let members = members.chain(crate::framing::members(&self.channels)).copied().map(Server::from);
        let members = members.chain(self.services.iter().flat_map(|service| &service.pool).cloned());
        let members: HashSet<_> = members.map(|server| (server.host(), server.port)).collect();
        if members.len() > MEMBERS_MAX {
            let message =
                format!("the pools have {} members; allowed are {MEMBERS_MAX} in all", members.len());
            problems.add("services", message);
        }
        for (index, egress) in self.egress.iter().enumerate() {
            check_egress(egress, &format!("egress[{index}]"), problems);
        }
        let prefixes: usize = self.egress.iter().map(|egress| egress.prefixes().count()).sum();
        if prefixes > DESTINATIONS_MAX {
            let message = format!(
                "the entries have {prefixes} destinations and exceptions; allowed are {DESTINATIONS_MAX} in all"
            );
            problems.add("egress", message);
        }
        crate::vip_groups::check(self, problems);
        crate::event_subscribers::check(self, problems);
        crate::connection_log::check(self, problems);
        self.check_programs(problems);
        check_count("access", self.access.len(), 0, ACCESS_MAX, problems);
        for (index, rule) in self.access.iter().enumerate() {
            rule.check(&format!("access[{index}]"), problems);
        }
        crate::plugin_hosts::check(self, problems);
        crate::plugins::check(self, problems);
    }

    fn check_programs(&self, problems: &mut Problems) {
        check_count("programs", self.programs.len(), 0, PROGRAMS_MAX, problems);
        let mut names = HashMap::new();
        for (index, rule) in self.programs.iter().enumerate() {
            let (name, at) = (rule.program.as_str(), format!("programs[{index}]"));
            if let Err(error) = name.parse::<ProgramName>() {
                problems.add(format!("{at}.program"), format!("{name:?} is no program's name: {error}"));
            }
            if let Some(first) = names.insert(name, index) {
                let message = format!("{name:?} has programs[{first}] already; one rule for each program");
                problems.add(format!("{at}.program"), message);
            }
            if rule.listen.iter().flatten().any(|port| *port == 0) {
                problems.add(format!("{at}.listen"), "port 0 is none; allowed are 1 to 65535".to_owned());
            }
        }
    }

    /// Names and addresses of services, channels and queries are unique among all of them.
    fn check_ends_are_distinct(&self, problems: &mut Problems) {
        let tcp = Protocol::Tcp;
        let end = |s: &Service| s.has_end().then_some((s.vip, s.port));
        let services = self.services.iter().enumerate();
        let services =
            services.map(|(at, s)| (format!("services[{at}]"), Some(s.name.as_str()), end(s), s.protocol));
        let channels = self.channels.iter().enumerate();
        let channels = channels
            .map(|(at, c)| (format!("channels[{at}]"), Some(c.name.as_str()), Some((c.vip, c.port)), tcp));
        let queries = self.queries.iter().enumerate();
        let queries = queries
            .map(|(at, q)| (format!("queries[{at}]"), Some(q.name.as_str()), Some((q.vip, q.port)), tcp));
        let further = self.channels.iter().enumerate().flat_map(|(at, c)| {
            let ports = c.listen.iter().enumerate();
            ports.map(move |(n, p)| (format!("channels[{at}].listen[{n}]"), None, Some((c.vip, p.port)), tcp))
        });
        let requested = self.requested_channels().map(|(at, place)| {
            (format!("channels[{at}].requests"), None, Some((place.vip, place.port)), tcp)
        });
        let (mut names, mut ends) = (HashMap::new(), HashMap::new());
        for (at, name, end, protocol) in
            services.chain(channels).chain(queries).chain(further).chain(requested)
        {
            if let Some(name) = name
                && let Some(first) = names.insert(name, at.clone())
            {
                let message = format!("{name:?} is the name of {first} already; names are unique");
                problems.add(format!("{at}.name"), message);
            }
            if let Some((vip, port)) = end
                && let Some(first) = ends.insert((vip, port, protocol), at.clone())
            {
                let message = format!("{vip} port {port} belongs to {first} already");
                let parts = [(&first, "vip"), (&first, "port"), (&at, "port")];
                let parts = parts.map(|(at, part)| format!("{at}.{part}"));
                let depends_on = parts.each_ref().map(String::as_str);
                // A further port has no address of its own.
                let field = if name.is_some() { "vip" } else { "port" };
                problems.add_unless(&depends_on, format!("{at}.{field}"), message);
            }
        }
    }
}

pub(crate) fn check_channel(channel: &Channel, at: &str, problems: &mut Problems) {
    check_name(&channel.name, "channel", at, problems);
    check_unicast(channel.vip, &format!("{at}.vip"), problems);
    channel.check_ports(at, problems);
    let memory = channel.memory;
    if memory.guaranteed_mib > memory.max_mib {
        let message = format!("{} MiB are more than max_mib, {}", memory.guaranteed_mib, memory.max_mib);
        problems.add_unless(
            &[&format!("{at}.memory.max_mib")],
            format!("{at}.memory.guaranteed_mib"),
            message,
        );
    }
    let (room, which) = match channel.holds_back() {
        true => {
            (memory.guaranteed_mib, "memory.guaranteed_mib, which a channel that holds back publishers needs")
        }
        false => (memory.max_mib, "memory.max_mib"),
    };
    let last = channel.last_value.map_or(0, |last| last.kib);
    if channel.message_kib.saturating_add(last) > room << 10 {
        let beside = if last > 0 { format!(" and {last} KiB of last values") } else { String::new() };
        let message = format!("{} KiB{beside} do not fit {room} MiB of {which}", channel.message_kib);
        problems.add(format!("{at}.message_kib"), message);
    }
    if let Some(last) = &channel.last_value {
        last.check(channel, at, problems);
    }
    if let Some(curve) = &channel.curve {
        curve.check(&format!("{at}.curve"), problems);
        curve.check_ports(channel, at, problems);
    }
}

/// Checks the name of something.
pub fn check_name(name: &str, what: &str, at: &str, problems: &mut Problems) {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > SERVICE_NAME_LEN_MAX || !name.bytes().all(legal) {
        let message =
            format!("{name:?} is no {what} name; allowed are 1 to {SERVICE_NAME_LEN_MAX} of a-z 0-9 -");
        problems.add(format!("{at}.name"), message);
    }
}

fn check_balancers(policy: &Policy, service: &Service, at: &str, problems: &mut Problems) {
    let networks = &service.accept_proxy_from;
    check_count(&format!("{at}.accept_proxy_from"), networks.len(), 0, BALANCERS_MAX, problems);
    for (index, network) in networks.iter().enumerate() {
        if network.address().is_ipv4() != service.vip.is_ipv4() {
            let message = format!(
                "{network} is not of the family of {}: no connection to it comes from there",
                service.vip
            );
            problems.add_unless(&[&format!("{at}.vip")], format!("{at}.accept_proxy_from[{index}]"), message);
        }
        if let Some(egress) = policy.egress.iter().find(|egress| network.contains(egress.address)) {
            let message = format!(
                "{network} contains {}, an egress address: programs of the cluster begin their connections without a header",
                egress.address
            );
            problems.add_unless(&["egress"], format!("{at}.accept_proxy_from[{index}]"), message);
        }
    }
}

fn check_egress(egress: &Egress, at: &str, problems: &mut Problems) {
    check_unicast(egress.address, &format!("{at}.address"), problems);
    check_count(&format!("{at}.destinations"), egress.destinations.len(), 1, DESTINATIONS_MAX, problems);
    for (index, prefix) in egress.except.iter().enumerate() {
        let inside = |wider: &Prefix| wider.length() <= prefix.length() && wider.contains(prefix.address());
        if !egress.destinations.iter().any(inside) {
            let message = format!("{prefix} lies in none of this entry's destinations");
            problems.add_unless(&[&format!("{at}.destinations")], format!("{at}.except[{index}]"), message);
        }
    }
    for (index, prefix) in egress.destinations.iter().enumerate() {
        if prefix.address().is_ipv4() != egress.address.is_ipv4() {
            let message =
                format!("{prefix} is not of the family of {}; both are IPv4 or both IPv6", egress.address);
            problems.add_unless(&[&format!("{at}.address")], format!("{at}.destinations[{index}]"), message);
        }
    }
}

pub(crate) fn check_count(at: &str, count: usize, min: usize, max: usize, problems: &mut Problems) {
    if count < min || count > max {
        problems.add(at, format!("has {count} entries; allowed are {min} to {max}"));
    }
}

/// The address must be one that a host on the LAN can have.
pub(crate) fn check_unicast(address: IpAddr, at: &str, problems: &mut Problems) {
    if let Some(fault) = unicast_fault(address) {
        problems.add(at, fault);
    }
}

/// Returns why no host on the LAN can have an address, if so.
pub(crate) fn unicast_fault(address: IpAddr) -> Option<String> {
    let kind = match address {
        _ if address.is_unspecified() => "the unspecified address",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        // RFC 1122 §3.2.1.3 (a) and RFC 1112 §4: "this network" and class E are nobody's address.
        IpAddr::V4(v4) if v4.octets()[0] == 0 || v4.octets()[0] >= 240 => "a reserved address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4-mapped address; write it as IPv4",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        _ => return None,
    };
    Some(format!("{address} is {kind}; allowed are unicast addresses"))
}
