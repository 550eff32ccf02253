//! TLS from the proxies to the plain servers of a service.

use std::collections::HashMap;
use std::net::IpAddr;

use csp_config::Problems;
use serde::{Deserialize, Serialize};

use super::{ServerHost, name_fault};
use crate::tls::{TlsVersion, name_fault as file_fault};
use crate::{Policy, Protocol, Service, Via};

/// The authority that stands for those of the proxy's system.
pub const SYSTEM_AUTHORITIES: &str = "system";

/// How plain servers are reached over TLS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServersTls {
    /// The name that certificates of all servers of the pool must be for, which is also asked for (SNI).
    /// Absent: a server's `name`; one by `address` must have a certificate for that address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The authority that has signed their certificates: each proxy has it as file `NAME.ca.pem`. Absent or
    /// `system`: the authorities of the proxy's system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// The certificate by which proxies name themselves to servers that ask for one, of the files as those of
    /// services. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The oldest version.
    #[serde(skip_serializing_if = "crate::framing::is_default")]
    pub min_version: TlsVersion,
    /// Whether certificates are verified. If not, whoever answers is believed to be the server.
    #[serde(skip_serializing_if = "crate::is_yes")]
    pub verify: bool,
}

impl Default for ServersTls {
    fn default() -> Self {
        let min_version = TlsVersion::default();
        ServersTls { name: None, authority: None, certificate: None, min_version, verify: true }
    }
}

impl ServersTls {
    /// Returns the authority's name, unless it is the system's or none is needed.
    pub fn own_authority(&self) -> Option<&str> {
        self.authority.as_deref().filter(|name| *name != SYSTEM_AUTHORITIES && self.verify)
    }

    /// In one line, for differences of policies.
    pub(crate) fn summary(&self) -> String {
        let version = if self.min_version == TlsVersion::Tls12 { "1.2" } else { "1.3" };
        let name = self.name.as_ref().map(|name| format!(" as {name}")).unwrap_or_default();
        let own = self.certificate.as_ref().map(|name| format!(" with {name}")).unwrap_or_default();
        match self.verify {
            true => {
                let authority = self.authority.as_deref().unwrap_or(SYSTEM_AUTHORITIES);
                format!("of {authority}{name}{own} from {version}")
            }
            false => format!("not verified{name}{own} from {version}"),
        }
    }

    pub(super) fn check(&self, service: &Service, at: &str, problems: &mut Problems) {
        if service.protocol == Protocol::Udp || service.via == Via::Network {
            let message = "tls is for connections that a proxy opens: protocol tcp and via proxy";
            problems.add(format!("{at}.tls"), message.to_owned());
        } else if let Some(index) = service.pool.iter().position(|server| server.node.is_some()) {
            let message = format!(
                "pool[{index}] is of programs of a node, which get plaintext over the SAN: give them a service of their own"
            );
            problems.add(format!("{at}.tls"), message);
        }
        if service.servers.check.as_ref().is_some_and(|check| check.tls.is_some() && check.port.is_none()) {
            let message = "with servers.tls checks make a whole handshake: leave tls out of the check";
            problems.add(format!("{at}.check.tls"), message.to_owned());
        }
        let at = format!("{at}.tls");
        let is_address = |name: &String| name.parse::<IpAddr>().is_ok();
        if let Some(message) = self.name.as_ref().filter(|name| !is_address(name)).and_then(|n| name_fault(n))
        {
            problems.add(format!("{at}.name"), message);
        }
        for (field, name) in [("authority", &self.authority), ("certificate", &self.certificate)] {
            if let Some(message) = name.as_ref().and_then(|name| file_fault(name)) {
                problems.add(format!("{at}.{field}"), message);
            }
        }
        if !self.verify && self.authority.is_some() {
            let message = "without verify no authority is asked: leave one of the two out";
            problems.add(format!("{at}.authority"), message.to_owned());
        }
    }
}

impl Policy {
    /// Returns the services whose plain servers are reached over TLS.
    pub fn services_to_tls(&self) -> impl Iterator<Item = (&Service, &ServersTls)> {
        self.services.iter().filter_map(|service| Some((service, service.servers.tls.as_ref()?)))
    }

    /// Returns a warning for each service that believes whoever answers to be its server.
    pub(crate) fn unverified_servers(&self) -> impl Iterator<Item = String> {
        let unverified = self.services_to_tls().filter(|(_, tls)| !tls.verify);
        unverified.map(|(service, _)| {
            format!(
                "service {}: servers.tls.verify is false: whoever answers at a server's address gets its requests; name an authority instead",
                service.name
            )
        })
    }

    /// Returns a warning for each server that two services name and reach in different ways: it is one member
    /// for both, up or down.
    pub(crate) fn servers_reached_twice(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut known: HashMap<(ServerHost, u16), &Service> = HashMap::new();
        let proxied = self.services.iter().filter(|service| service.via == Via::Proxy);
        for service in proxied {
            for server in service.pool.iter().filter(|server| server.node.is_none()) {
                let Some(host) = server.host() else { continue };
                let first = *known.entry((host, server.port)).or_insert(service);
                if first.servers.tls != service.servers.tls {
                    let place = server.name.clone().or(server.address.map(|address| address.to_string()));
                    warnings.push(format!(
                        "services {} and {} have the server {} port {} with different servers.tls: it is down for both when it cannot be reached by one",
                        first.name,
                        service.name,
                        place.unwrap_or_default(),
                        server.port
                    ));
                }
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const POLICY: &str = "apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 80
    pool: [{address: 10.1.2.3, port: 8443}, {name: b.example, port: 8443}]
    servers:
      tls: {name: web.internal, authority: internal, certificate: proxy, min_version: '1.3'}
egress: [{address: 10.76.0.120, destinations: [10.1.0.0/16]}]
";

    #[test]
    fn what_is_written_comes_back_and_shows_as_a_difference() {
        let policy = Policy::parse_yaml(POLICY, "p.yaml").expect("it is right");
        assert_eq!(policy, Policy::from_json(&policy.to_json(), "p.json").expect("it was written"));
        assert!(policy.warnings().is_empty());
        let loose = POLICY.replace("authority: internal", "verify: false");
        let loose = Policy::parse_yaml(&loose, "p.yaml").expect("it is right");
        let expected = "~ service web: servers.tls of internal as web.internal with proxy from 1.3 -> not verified as web.internal with proxy from 1.3";
        assert_eq!(policy.diff(&loose), [expected]);
        assert!(loose.warnings()[0].contains("service web: servers.tls.verify is false"));
        let plain: Vec<&str> = POLICY.lines().filter(|line| !line.contains("tls:")).collect();
        let plain = Policy::parse_yaml(&plain.join("\n").replace("servers:", "servers: {}"), "p.yaml");
        assert!(!plain.expect("it is right").to_json().contains("tls"));
        let least = POLICY.replace(
            "{name: web.internal, authority: internal, certificate: proxy, min_version: '1.3'}",
            "{}",
        );
        let least = Policy::parse_yaml(&least, "p.yaml").expect("it is right");
        assert!(least.to_json().contains(r#""tls":{}"#));
    }

    #[test]
    fn a_server_of_two_services_with_different_tls_is_a_warning() {
        let other = "    pool: [{address: 10.1.2.3, port: 8443}, {name: b.example, port: 8444}]\n";
        let with = |servers: &str| {
            let other =
                format!("  - name: other\n    vip: 10.76.0.100\n    port: 81\n{other}{servers}egress:");
            Policy::parse_yaml(&POLICY.replace("egress:", &other), "p.yaml").expect("it is right").warnings()
        };
        let expected = "services web and other have the server 10.1.2.3 port 8443 with different servers.tls: it is down for both when it cannot be reached by one";
        assert_eq!(with(""), [expected]);
        assert_eq!(with("    servers: {tls: {authority: internal}}\n"), [expected]);
        let same = "    servers:\n      tls: {name: web.internal, authority: internal, certificate: proxy, min_version: '1.3'}\n";
        assert_eq!(with(same), [""; 0]);
    }

    #[test]
    fn every_mistake_is_named() {
        for (from, to, expected) in [
            ("name: web.internal", "name: 'WEB!'", "servers.tls.name: \"WEB!\" is no name of a host"),
            (
                "authority: internal",
                "authority: ../a",
                "servers.tls.authority: \"../a\" names no certificate",
            ),
            ("certificate: proxy", "certificate: .p", "servers.tls.certificate: \".p\" names no certificate"),
            ("'1.3'", "'1.1'", "1.1"),
            ("certificate: proxy", "verify: false", "servers.tls.authority: without verify"),
            ("certificate: proxy", "ciphers: all", "unknown field `ciphers`"),
            ("{name: b.example, port: 8443}", "{node: an-1, port: 80}", "pool[1] is of programs of a node"),
            ("servers:\n", "servers:\n      check: {tls: {}}\n", "servers.check.tls: with servers.tls"),
        ] {
            assert!(POLICY.contains(from), "{from}");
            let error = Policy::parse_yaml(&POLICY.replace(from, to), "p.yaml").expect_err(to).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
