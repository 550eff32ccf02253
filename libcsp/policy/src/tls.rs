//! TLS of a service's clients, which ends at the proxies.

mod clients;

use std::collections::HashSet;

use csp_config::{Problems, number};
use serde::{Deserialize, Deserializer, Serialize};

use super::check::check_count;
use super::{Policy, Protocol, Service, Via};

pub use clients::{CertificateField, ServiceClients};

/// Largest number of certificates of one service.
pub const TLS_CERTIFICATES_MAX: usize = 64;
/// Largest number of application protocols of one service.
pub const TLS_ALPN_MAX: usize = 8;
/// Largest bound of the handshakes of a source.
pub const HANDSHAKES_PER_SOURCE_MAX: u32 = 1_000_000;
/// Longest name of a certificate.
const NAME_LEN_MAX: usize = 253;

/// How clients of a service speak TLS; programs and servers behind the proxies get plaintext.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTls {
    /// Names of certificates, which each proxy has as files. A client gets the one for the name that it asks
    /// for (SNI, RFC 6066 §3), otherwise the first.
    pub certificates: Vec<String>,
    /// The oldest version that clients may speak: `1.2` or `1.3`.
    #[serde(default, skip_serializing_if = "super::framing::is_default")]
    pub min_version: TlsVersion,
    /// Application protocols that are offered (ALPN, RFC 7301), the preferred one first. None:
    /// `h2`, `http/1.1` and `http/1.0` if the service has `http`; otherwise what clients offer is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alpn: Vec<String>,
    /// How clients' certificates are verified. Absent: they are not asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<ServiceClients>,
    /// How many handshakes the clients of an IPv4 address, or of an IPv6 network of 64 bits, may begin in a
    /// second at each worker; further connections are reset. 0, and absent: any number.
    #[serde(default, deserialize_with = "handshakes", skip_serializing_if = "super::framing::is_default")]
    pub handshakes_per_source: u32,
}

/// A version of TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum TlsVersion {
    /// RFC 5246.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

impl ServiceTls {
    /// In one line, for differences of policies.
    pub(super) fn summary(&self) -> String {
        let version = if self.min_version == TlsVersion::Tls12 { "1.2" } else { "1.3" };
        let alpn = if self.alpn.is_empty() { String::new() } else { format!(", {}", self.alpn.join(" ")) };
        let clients = self.clients.as_ref().map(ServiceClients::summary).unwrap_or_default();
        let handshakes = match self.handshakes_per_source {
            0 => String::new(),
            rate => format!(", {rate} handshakes/s of a source"),
        };
        format!("{} (from {version}{alpn}{clients}{handshakes})", self.certificates.join(" "))
    }

    pub(super) fn check(&self, service: &Service, at: &str, problems: &mut Problems) {
        if service.protocol == Protocol::Udp || service.via == Via::Network {
            let message = "tls is for connections that a proxy ends: protocol tcp and via proxy";
            problems.add(format!("{at}.tls"), message.to_owned());
        }
        let at = format!("{at}.tls");
        check_count(
            &format!("{at}.certificates"),
            self.certificates.len(),
            1,
            TLS_CERTIFICATES_MAX,
            problems,
        );
        check_count(&format!("{at}.alpn"), self.alpn.len(), 0, TLS_ALPN_MAX, problems);
        let mut names: HashSet<&str> = HashSet::new();
        for (index, name) in self.certificates.iter().enumerate() {
            if let Some(message) = name_fault(name) {
                problems.add(format!("{at}.certificates[{index}]"), message);
            } else if !names.insert(name) {
                problems
                    .add(format!("{at}.certificates[{index}]"), format!("{name} is in this list already"));
            }
        }
        if let Some(clients) = &self.clients {
            clients.check(service, &format!("{at}.clients"), problems);
        }
        for (index, protocol) in self.alpn.iter().enumerate() {
            let legal = |b: u8| b.is_ascii_graphic();
            if !(1..=255).contains(&protocol.len()) || !protocol.bytes().all(legal) {
                let message = format!("{protocol:?} is no protocol; examples are http/1.1 and h2");
                problems.add(format!("{at}.alpn[{index}]"), message);
            }
        }
    }
}

fn handshakes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let rate = number(deserializer, 0, u64::from(HANDSHAKES_PER_SOURCE_MAX), "a number of handshakes")?;
    Ok(rate as u32)
}

/// Returns why a name is that of no file, if so.
pub(crate) fn name_fault(name: &str) -> Option<String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_name =
        (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('.');
    (!is_name).then(|| {
        format!(
            "{name:?} names no certificate; allowed are 1 to {NAME_LEN_MAX} of A-Z a-z 0-9 - _ ., no . at the begin"
        )
    })
}

impl Policy {
    /// Returns the services with TLS.
    pub fn tls_services(&self) -> impl Iterator<Item = (&Service, &ServiceTls)> {
        self.services.iter().filter_map(|service| Some((service, service.tls.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const WEB: &str = "apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 443
    tls: {certificates: [www.example.com], min_version: '1.3', alpn: [h2, http/1.1]}
    pool: [{node: an-1, port: 80}]
";

    fn error(yaml: &str) -> String {
        Policy::parse_yaml(yaml, "p.yaml").expect_err("it is wrong").to_string()
    }

    #[test]
    fn what_is_written_comes_back_and_shows_as_a_difference() {
        let policy = Policy::parse_yaml(WEB, "p.yaml").expect("it is right");
        let again = Policy::from_json(&policy.to_json(), "p.json").expect("it was written");
        assert_eq!(policy, again);
        let bounded = WEB.replace("'1.3'", "'1.3', handshakes_per_source: 20");
        let bounded = Policy::parse_yaml(&bounded, "p.yaml").expect("it is right");
        assert_eq!(bounded, Policy::from_json(&bounded.to_json(), "p.json").expect("it was written"));
        assert!(policy.diff(&bounded).iter().any(|line| line.contains("20 handshakes/s of a source")));
        let plain = WEB.lines().filter(|line| !line.contains("tls:")).collect::<Vec<_>>().join("\n");
        let plain = Policy::parse_yaml(&plain, "p.yaml").expect("it is right");
        assert!(!plain.to_json().contains("tls"));
        let expected = "~ service web: tls none -> www.example.com (from 1.3, h2 http/1.1)";
        assert!(plain.diff(&policy).iter().any(|line| line == expected), "{:?}", plain.diff(&policy));
    }

    #[test]
    fn clients_certificates_are_read_shown_and_checked() {
        let clients = "alpn: [h2], clients: {authority: staff, required: false, revocation: true}";
        let of_clients = WEB.replace("alpn: [h2, http/1.1]", clients);
        let policy = Policy::parse_yaml(&of_clients, "p.yaml").expect("it is right");
        assert_eq!(policy, Policy::from_json(&policy.to_json(), "p.json").expect("it was written"));
        let before = Policy::parse_yaml(WEB, "p.yaml").expect("it is right");
        let line = "(from 1.3, h2, clients perhaps of staff with revocation)";
        assert!(before.diff(&policy).iter().any(|of| of.contains(line)), "{:?}", before.diff(&policy));
        for (from, to, expected) in [
            ("authority: staff", "authority: ../a", "tls.clients.authority: \"../a\" names no certificate"),
            ("authority: staff, ", "", "clients: missing field `authority`"),
            ("revocation: true", "fields: [client-cert]", "tls.clients.fields: fields are of requests"),
            ("revocation: true", "fields: [x-ssl-client, x-ssl-client]", "tls.clients.fields[1]: is in"),
            ("revocation: true", "fields: [x]", "allowed are client-cert, x-ssl-client"),
        ] {
            let error = error(&of_clients.replace(from, to));
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn every_mistake_is_named() {
        for (from, to, expected) in [
            ("[www.example.com]", "[]", "tls.certificates: has 0 entries; allowed are 1 to 64"),
            ("[www.example.com]", "['../key']", "tls.certificates[0]: \"../key\" names no certificate"),
            ("[www.example.com]", "[a, a]", "tls.certificates[1]: a is in this list already"),
            ("'1.3'", "'1.1'", "1.1"),
            ("'1.3'", "'1.3', handshakes_per_source: 1000001", "1000001 is not a number of handshakes"),
            ("h2,", "'',", "tls.alpn[0]: \"\" is no protocol"),
            (
                "port: 443",
                "port: 443\n    protocol: udp\n    via: network",
                "tls: tls is for connections that a proxy ends",
            ),
        ] {
            let error = error(&WEB.replace(from, to));
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
