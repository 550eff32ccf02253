//! TLS of a service's clients, which ends at the proxies.

use std::collections::HashSet;

use csp_config::Problems;
use serde::{Deserialize, Serialize};

use super::check::check_count;
use super::{Policy, Protocol, Service, Via};

/// Largest number of certificates of one service.
pub const TLS_CERTIFICATES_MAX: usize = 64;
/// Largest number of application protocols of one service.
pub const TLS_ALPN_MAX: usize = 8;
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
    /// `h2` and `http/1.1` if the service has `http`; otherwise what clients offer is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alpn: Vec<String>,
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
        format!("{} (from {version}{alpn})", self.certificates.join(" "))
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
            let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            let is_name =
                (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('.');
            if !is_name {
                let message = format!(
                    "{name:?} names no certificate; allowed are 1 to {NAME_LEN_MAX} of A-Z a-z 0-9 - _ ., no . at the begin"
                );
                problems.add(format!("{at}.certificates[{index}]"), message);
            } else if !names.insert(name) {
                problems
                    .add(format!("{at}.certificates[{index}]"), format!("{name} is in this list already"));
            }
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
        let plain = WEB.lines().filter(|line| !line.contains("tls:")).collect::<Vec<_>>().join("\n");
        let plain = Policy::parse_yaml(&plain, "p.yaml").expect("it is right");
        assert!(!plain.to_json().contains("tls"));
        let expected = "~ service web: tls none -> www.example.com (from 1.3, h2 http/1.1)";
        assert!(plain.diff(&policy).iter().any(|line| line == expected), "{:?}", plain.diff(&policy));
    }

    #[test]
    fn every_mistake_is_named() {
        for (from, to, expected) in [
            ("[www.example.com]", "[]", "tls.certificates: has 0 entries; allowed are 1 to 64"),
            ("[www.example.com]", "['../key']", "tls.certificates[0]: \"../key\" names no certificate"),
            ("[www.example.com]", "[a, a]", "tls.certificates[1]: a is in this list already"),
            ("'1.3'", "'1.1'", "1.1"),
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
