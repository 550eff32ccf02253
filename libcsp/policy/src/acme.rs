//! Certificates that the leading management node obtains from an authority (ACME, RFC 8555).

use std::collections::HashSet;
use std::net::IpAddr;

use csp_config::Problems;
use serde::{Deserialize, Serialize};

use super::check::check_count;
use super::{Policy, ServiceTls};

/// Largest number of certificates of `acme`.
pub const ACME_CERTIFICATES_MAX: usize = 256;
/// Largest number of DNS names of a certificate: that of Let's Encrypt.
pub const ACME_NAMES_MAX: usize = 100;
/// Largest number of addresses of people.
const CONTACTS_MAX: usize = 8;
/// Longest URL and longest contact in bytes.
const TEXT_LEN_MAX: usize = 512;
/// Longest name and longest label in bytes (RFC 1035 §2.3.4).
const NAME_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;
/// The ports at which authorities look (RFC 8555 §8.3, RFC 8737 §3).
const HTTP_PORT: u16 = 80;
const TLS_PORT: u16 = 443;

/// `acme:` the authority, and the certificates that are obtained from it and renewed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acme {
    /// The authority's directory, a URL of https.
    pub directory: String,
    /// Whom the authority may write to, such as `mailto:ops@example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contact: Vec<String>,
    /// `true`: the operator agrees to the authority's terms of service. Without that nothing is ordered.
    pub terms_agreed: bool,
    /// How the authority finds out that the names are this cluster's, unless a certificate says otherwise.
    #[serde(default, skip_serializing_if = "super::framing::is_default")]
    pub challenge: AcmeChallenge,
    /// The certificates, which services name in `tls.certificates`.
    pub certificates: Vec<AcmeCertificate>,
}

/// A certificate that is obtained.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmeCertificate {
    /// Its name in `tls.certificates`.
    pub name: String,
    /// Its DNS names. None: `name` alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// As `acme.challenge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<AcmeChallenge>,
}

/// How an authority finds out whose a name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum AcmeChallenge {
    /// By a handshake at port 443 (RFC 8737).
    #[default]
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// By a request at port 80 (RFC 8555 §8.3).
    #[serde(rename = "http-01")]
    Http01,
}

impl AcmeChallenge {
    /// Returns the name of RFC 8555 §9.7.8.
    pub const fn as_str(self) -> &'static str {
        match self {
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
            AcmeChallenge::Http01 => "http-01",
        }
    }
}

impl AcmeCertificate {
    /// Returns its DNS names in lower case, the first one first.
    pub fn dns_names(&self) -> Vec<String> {
        match &self.names[..] {
            [] => vec![self.name.to_ascii_lowercase()],
            names => names.iter().map(|name| name.to_ascii_lowercase()).collect(),
        }
    }
}

impl Acme {
    /// Returns how the authority finds out whose the names of a certificate are.
    pub fn challenge_of(&self, certificate: &AcmeCertificate) -> AcmeChallenge {
        certificate.challenge.unwrap_or(self.challenge)
    }

    /// In one line, for differences of policies.
    pub(super) fn summary(&self) -> String {
        let one = |of: &AcmeCertificate| {
            format!("{} ({}, {})", of.name, of.dns_names().join(" "), self.challenge_of(of).as_str())
        };
        let all: Vec<String> = self.certificates.iter().map(one).collect();
        let agreed = if self.terms_agreed { "" } else { ", terms not agreed" };
        format!("{}{agreed}, {}: {}", self.directory, self.contact.join(" "), all.join("; "))
    }
}

impl Policy {
    /// Returns what is obtained under the name of a certificate; `None`: it is a file of the proxies.
    pub fn acme_certificate(&self, name: &str) -> Option<&AcmeCertificate> {
        self.acme.as_ref()?.certificates.iter().find(|of| of.name == name)
    }
}

/// Notes what is wrong with what is obtained.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    let Some(acme) = &policy.acme else { return };
    check_authority(acme, problems);
    check_count("acme.certificates", acme.certificates.len(), 1, ACME_CERTIFICATES_MAX, problems);
    let used = policy.tls_services().flat_map(|(_, tls): (_, &ServiceTls)| &tls.certificates);
    let used: HashSet<&str> = used.map(String::as_str).collect();
    let mut known = HashSet::new();
    for (index, certificate) in acme.certificates.iter().enumerate() {
        let at = format!("acme.certificates[{index}]");
        if let Some(message) = super::tls::name_fault(&certificate.name) {
            problems.add(format!("{at}.name"), message);
        } else if !known.insert(certificate.name.as_str()) {
            problems.add(format!("{at}.name"), format!("{} is in this list already", certificate.name));
        } else if !used.contains(certificate.name.as_str()) {
            let message = format!("no service has {} in its tls.certificates", certificate.name);
            problems.add(format!("{at}.name"), message);
        }
        check_names(certificate, &at, problems);
        if let Some(message) = end_fault(policy, acme.challenge_of(certificate)) {
            problems.add(at, message);
        }
    }
}

fn check_authority(acme: &Acme, problems: &mut Problems) {
    let rest = acme.directory.strip_prefix("https://");
    let legal = |text: &str| text.len() <= TEXT_LEN_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    if !rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')) || !legal(&acme.directory) {
        let message = format!(
            "{:?} is no directory of an authority; allowed is a URL such as https://acme-v02.api.letsencrypt.org/directory",
            acme.directory
        );
        problems.add("acme.directory", message);
    }
    if !acme.terms_agreed {
        let message = "nothing is ordered unless it is true: read the authority's terms of service first";
        problems.add("acme.terms_agreed", message.to_owned());
    }
    check_count("acme.contact", acme.contact.len(), 0, CONTACTS_MAX, problems);
    for (index, contact) in acme.contact.iter().enumerate() {
        let is_address = contact.strip_prefix("mailto:").is_some_and(|of| of.contains('@'));
        if !is_address || !legal(contact) {
            let message = format!("{contact:?} is no address; allowed is one such as mailto:ops@example.com");
            problems.add(format!("acme.contact[{index}]"), message);
        }
    }
}

fn check_names(certificate: &AcmeCertificate, at: &str, problems: &mut Problems) {
    check_count(&format!("{at}.names"), certificate.names.len(), 0, ACME_NAMES_MAX, problems);
    let mut known = HashSet::new();
    for (index, name) in certificate.dns_names().iter().enumerate() {
        let at = match certificate.names.is_empty() {
            true => format!("{at}.name"),
            false => format!("{at}.names[{index}]"),
        };
        if let Some(message) = name_fault(name) {
            problems.add(at, message);
        } else if !known.insert(name.clone()) {
            problems.add(at, format!("{name} is in this list already"));
        }
    }
}

/// Returns why no certificate is obtained for a name, if so.
fn name_fault(name: &str) -> Option<String> {
    if name.starts_with("*.") {
        return Some(format!(
            "{name}: authorities issue wildcards by dns-01 only, which is not there; list the names, or use a file of the proxies"
        ));
    }
    if name.parse::<IpAddr>().is_ok() {
        return Some(format!("{name} is an address; allowed are DNS names"));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        (1..=LABEL_LEN_MAX).contains(&label.len())
            && label.bytes().all(legal)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_name = name.len() <= NAME_LEN_MAX && name.contains('.') && name.split('.').all(is_label);
    (!is_name).then(|| {
        format!("{name:?} is no DNS name; allowed is one such as www.example.com, without a dot at the end")
    })
}

/// Returns why the authority finds no answer, if so.
fn end_fault(policy: &Policy, challenge: AcmeChallenge) -> Option<String> {
    let mut services = policy.services.iter().filter(|service| !service.vip.is_unspecified());
    match challenge {
        AcmeChallenge::Http01 => {
            let answers = services.any(|of| of.port == HTTP_PORT && of.http.is_some() && of.tls.is_none());
            (!answers).then(|| {
                "http-01 is asked for at port 80: no service with http and without tls has that port"
                    .to_owned()
            })
        }
        AcmeChallenge::TlsAlpn01 => {
            let answers = services.any(|of| of.port == TLS_PORT && of.tls.is_some());
            (!answers)
                .then(|| "tls-alpn-01 is asked for at port 443: no service with tls has that port".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 443
    tls: {certificates: [www.example.com, own]}
    pool: [{node: an-1, port: 80}]
  - name: plain
    vip: 10.76.0.100
    port: 80
    http: {routes: [{name: all, redirect: {scheme: https}}]}
acme:
  directory: https://acme-v02.api.letsencrypt.org/directory
  contact: [mailto:ops@example.com]
  terms_agreed: true
  certificates:
  - {name: www.example.com, names: [WWW.example.com, example.com], challenge: http-01}
";

    #[test]
    fn what_is_written_comes_back_and_shows_as_a_difference() {
        let policy = Policy::parse_yaml(WEB, "p.yaml").expect("it is right");
        assert_eq!(policy, Policy::from_json(&policy.to_json(), "p.json").expect("it was written"));
        let certificate = policy.acme_certificate("www.example.com").expect("it is there");
        assert_eq!(certificate.dns_names(), ["www.example.com", "example.com"]);
        assert!(policy.acme_certificate("own").is_none());
        let without = Policy::parse_yaml(WEB.split("acme:").next().unwrap_or_default(), "p.yaml");
        let lines = without.expect("it is right").diff(&policy);
        let expected = "+ acme https://acme-v02.api.letsencrypt.org/directory, mailto:ops@example.com: \
                        www.example.com (www.example.com example.com, http-01)";
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }

    #[test]
    fn every_mistake_is_named() {
        for (from, to, expected) in [
            ("https://acme", "http://acme", "13:14: acme.directory: \"http://acme-v02"),
            ("terms_agreed: true", "terms_agreed: false", "15:17: acme.terms_agreed: nothing is ordered"),
            ("mailto:ops", "ops", "acme.contact[0]: \"ops@example.com\" is no address"),
            ("{name: www.example.com", "{name: other", "acme.certificates[0].name: no service has other"),
            ("{name: www.example.com", "{name: ../x", "acme.certificates[0].name: \"../x\" names no cert"),
            ("WWW.example.com", "'*.example.com'", "names[0]: *.example.com: authorities issue wildcards"),
            ("WWW.example.com", "10.1.2.3", "names[0]: 10.1.2.3 is an address"),
            ("WWW.example.com", "'a..b'", "names[0]: \"a..b\" is no DNS name"),
            ("WWW.example.com", "Example.com", "names[1]: example.com is in this list already"),
            ("port: 80\n", "port: 81\n", "acme.certificates[0]: http-01 is asked for at port 80"),
            ("http-01}", "dns-01}", "dns-01"),
            ("challenge: http-01}", "chall: 1}", "unknown field `chall`"),
        ] {
            assert!(WEB.contains(from), "{from}");
            let error = Policy::parse_yaml(&WEB.replacen(from, to, 1), "p.yaml").expect_err("it is wrong");
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
        let tls = WEB.replace(", challenge: http-01}", "}").replace("port: 443", "port: 444");
        let error = Policy::parse_yaml(&tls, "p.yaml").expect_err("it is wrong").to_string();
        assert!(error.contains("tls-alpn-01 is asked for at port 443"), "{error}");
    }
}
