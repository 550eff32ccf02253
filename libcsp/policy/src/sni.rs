//! Pass-through of TLS by the name of the server that a client asks for (SNI, RFC 6066 §3).

use std::collections::HashMap;
use std::net::IpAddr;

use csp_config::Problems;
use serde::{Deserialize, Serialize};

use super::check::check_count;
use super::{Policy, Protocol, ServerOptions, Service, Via};

/// Largest number of entries of `sni` of a service, and of names of an entry.
pub const SNI_MAX: usize = 64;
/// Longest name and longest label in bytes (RFC 1035 §2.3.4).
const NAME_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;

/// Names whose connections go on as they are, encrypted by the client, to the pool of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SniRoute {
    /// Names of servers; `*.example.com` stands for all names below it, at any depth. An exact name comes
    /// before a wildcard, a longer wildcard before a shorter one.
    pub names: Vec<String>,
    /// The service with the pool.
    pub service: String,
}

/// In one line, for differences of policies.
pub(super) fn summary(routes: &[SniRoute]) -> String {
    let route = |route: &SniRoute| format!("{} -> {}", route.names.join(" "), route.service);
    match routes {
        [] => "none".to_owned(),
        routes => routes.iter().map(route).collect::<Vec<_>>().join("; "),
    }
}

/// Notes what is wrong with the names of all services, and with what they lead to.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    let services = policy.by_name();
    for (index, service) in policy.services.iter().enumerate() {
        let at = format!("services[{index}].sni");
        check_count(&at, service.sni.len(), 0, SNI_MAX, problems);
        if service.protocol == Protocol::Udp && !service.sni.is_empty() {
            problems.add(at.clone(), "sni is for connections: protocol tcp and via proxy".to_owned());
        }
        let mut names = HashMap::new();
        for (index, route) in service.sni.iter().enumerate() {
            let at = format!("{at}[{index}]");
            check_names(route, &mut names, &at, problems);
            if let Some(message) = target_fault(service, &route.service, &services) {
                problems.add(format!("{at}.service"), message);
            }
        }
    }
}

fn check_names(route: &SniRoute, known: &mut HashMap<String, String>, at: &str, problems: &mut Problems) {
    check_count(&format!("{at}.names"), route.names.len(), 1, SNI_MAX, problems);
    for (index, name) in route.names.iter().enumerate() {
        let at = format!("{at}.names[{index}]");
        if let Some(message) = name_fault(name) {
            problems.add(at, message);
            continue;
        }
        let entry = known.entry(name.to_ascii_lowercase());
        if let std::collections::hash_map::Entry::Occupied(first) = &entry {
            problems.add(at, format!("{name} is {} already; names are unique in a service", first.get()));
        } else {
            entry.or_insert(at.rsplit_once("].sni").map_or(at.clone(), |(_, at)| format!("sni{at}")));
        }
    }
}

/// Returns why no client asks for a name, if so.
fn name_fault(name: &str) -> Option<String> {
    let bare = name.strip_prefix("*.").unwrap_or(name);
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| (1..=LABEL_LEN_MAX).contains(&label.len()) && label.bytes().all(legal);
    if name.parse::<IpAddr>().is_ok() {
        return Some(format!("{name} is an address; clients name servers by DNS names only (RFC 6066 §3)"));
    }
    let is_name = bare.len() <= NAME_LEN_MAX && bare.split('.').all(is_label);
    (!is_name).then(|| {
        format!("{name:?} is no server's name; allowed are db.example.com and *.example.com, without a dot at the end")
    })
}

/// Returns why connections cannot go on to a service, if so.
fn target_fault(from: &Service, name: &str, services: &HashMap<&str, &Service>) -> Option<String> {
    if name == from.name {
        return Some(format!("{name} is this service itself; names that are in no entry stay with it"));
    }
    let Some(service) = services.get(name) else {
        return Some(format!("{name:?} is no service of this policy"));
    };
    let fault = match service {
        Service { http: Some(_), .. } => "has http: encrypted bytes cannot be read",
        Service { tls: Some(_), .. } => "has tls, which would end there; without it bytes go on as they are",
        Service { sni, .. } if !sni.is_empty() => "has sni itself: a name is looked at once",
        Service { servers: ServerOptions { tls: Some(_), .. }, .. } => {
            "has servers.tls: the client's TLS would go inside another session; without it bytes go on as they are"
        }
        Service { via: Via::Network, .. } => "has via: network: no proxy reaches its servers",
        Service { protocol: Protocol::Udp, .. } => "has protocol: udp",
        Service { pool, .. } if pool.is_empty() => "has no pool",
        _ => return None,
    };
    Some(format!("{name} {fault}"))
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const FRONT: &str = "apiVersion: csp/v1
services:
  - name: front
    vip: 10.76.0.100
    port: 443
    sni:
      - {names: [db.example.com, '*.db.example.com'], service: db}
      - {names: [mail.example.com], service: mail}
    tls: {certificates: [www.example.com]}
    pool: [{node: an-1, port: 80}]
  - {name: db, pool: [{node: an-1, port: 5433}]}
  - {name: mail, vip: 10.76.0.100, port: 465, pool: [{node: an-1, port: 465}]}
";

    fn error(from: &str, to: &str) -> String {
        assert!(FRONT.contains(from), "{from}");
        Policy::parse_yaml(&FRONT.replacen(from, to, 1), "p.yaml").expect_err("it is wrong").to_string()
    }

    #[test]
    fn what_is_written_comes_back_and_shows_as_a_difference() {
        let policy = Policy::parse_yaml(FRONT, "p.yaml").expect("it is right");
        assert_eq!(policy, Policy::from_json(&policy.to_json(), "p.json").expect("it was written"));
        // A service may be nothing but names.
        let only = FRONT
            .replace("    tls: {certificates: [www.example.com]}\n    pool: [{node: an-1, port: 80}]\n", "");
        let only = Policy::parse_yaml(&only, "p.yaml").expect("it is right");
        assert!(only.diff(&policy).iter().any(|line| line.contains("tls none")), "{:?}", only.diff(&policy));
        let fewer = FRONT.replace("      - {names: [mail.example.com], service: mail}\n", "");
        let fewer = Policy::parse_yaml(&fewer, "p.yaml").expect("it is right");
        let expected = "~ service front: sni db.example.com *.db.example.com -> db \
                        -> db.example.com *.db.example.com -> db; mail.example.com -> mail";
        assert!(fewer.diff(&policy).iter().any(|line| line == expected), "{:?}", fewer.diff(&policy));
    }

    #[test]
    fn every_mistake_is_named() {
        for (from, to, expected) in [
            ("service: db}", "service: dbs}", "sni[0].service: \"dbs\" is no service of this policy"),
            ("service: db}", "service: front}", "sni[0].service: front is this service itself"),
            ("names: [mail.example.com]", "names: []", "sni[1].names: has 0 entries; allowed are 1 to 64"),
            (
                "names: [mail.example.com]",
                "names: [DB.example.com]",
                "8:18: services[0].sni[1].names[0]: DB.example.com is sni[0].names[0] already",
            ),
            ("mail.example.com]", "10.1.2.3]", "names[0]: 10.1.2.3 is an address"),
            ("mail.example.com]", "'a..b']", "\"a..b\" is no server's name"),
            ("mail.example.com]", "'mail.*.com']", "\"mail.*.com\" is no server's name"),
            ("mail.example.com]", "'mail.']", "\"mail.\" is no server's name"),
            (
                "port: 465, pool",
                "port: 465, tls: {certificates: [a]}, pool",
                "sni[1].service: mail has tls, which would end there",
            ),
            (
                "port: 465, pool: [{node: an-1, port: 465}]",
                "port: 465, servers: {tls: {}}, pool: [{address: 10.1.2.3, port: 465}]",
                "sni[1].service: mail has servers.tls: the client's TLS would go inside another session",
            ),
            (
                "port: 465, pool: [{node: an-1, port: 465}]",
                "port: 465, sni: [{names: [a], service: db}]",
                "sni[1].service: mail has sni itself",
            ),
            (
                "{name: db, pool",
                "{name: db, sni: [{names: [a], service: mail}], pool",
                "sni is for a service that",
            ),
            ("    pool: [{node: an-1, port: 80}]\n", "", "services[0].pool: has 0 entries"),
            (
                "      - {names: [db.example.com, '*.db.example.com'], service: db}\n",
                "",
                "nor a name of sni leads",
            ),
        ] {
            let error = error(from, to);
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
