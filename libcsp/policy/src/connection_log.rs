//! Which connections and HTTP requests proxies record when they end.

use std::collections::BTreeMap;

use csp_config::Problems;
use serde::{Deserialize, Serialize};

use super::Policy;

/// Largest number of connections of which one is recorded.
pub const LOG_SAMPLE_MAX: u32 = 1_000_000;

/// How much of a client's address a record has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogAddresses {
    /// Address and port.
    #[default]
    Full,
    /// The network of 24 bits (IPv4) or 56 bits (IPv6) that it is in.
    Prefix,
    /// Nothing.
    None,
}

impl LogAddresses {
    fn is_full(&self) -> bool {
        *self == LogAddresses::Full
    }
}

/// `connection_log:` and `http_log:`, where requests stand in the place of connections. Absent: nothing is
/// recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionLog {
    /// Of so many connections that end well one is recorded; 0: none. Those that do not are always recorded.
    #[serde(default = "one")]
    pub sample: u32,
    /// The same for single services, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, u32>,
    /// How much of a client's address is recorded.
    #[serde(default, skip_serializing_if = "LogAddresses::is_full")]
    pub addresses: LogAddresses,
}

impl ConnectionLog {
    /// Returns the sample of a service, or of connections that programs open.
    pub fn sample(&self, service: &str) -> u32 {
        self.services.get(service).copied().unwrap_or(self.sample)
    }

    pub(super) fn summary(&self) -> String {
        let mut parts = vec![format!("sample {}", self.sample)];
        parts.extend(self.services.iter().map(|(name, n)| format!("{name} {n}")));
        match self.addresses {
            LogAddresses::Full => {}
            LogAddresses::Prefix => parts.push("networks of clients only".to_owned()),
            LogAddresses::None => parts.push("no addresses of clients".to_owned()),
        }
        parts.join(", ")
    }
}

fn one() -> u32 {
    1
}

/// Checks the sections of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    let is_service = |name: &str| policy.services.iter().any(|service| service.name == name);
    if let Some(log) = &policy.connection_log {
        log.check("connection_log", "is no service of this policy", is_service, problems);
    }
    let has_http = |name: &str| policy.http_services().any(|(service, _)| service.name == name);
    if let Some(log) = &policy.http_log {
        log.check("http_log", "is no service with http of this policy", has_http, problems);
    }
}

impl ConnectionLog {
    fn check(&self, section: &str, not: &str, is_service: impl Fn(&str) -> bool, problems: &mut Problems) {
        let too_large = |sample: u32| {
            (sample > LOG_SAMPLE_MAX).then(|| format!("{sample}: allowed are 0 to {LOG_SAMPLE_MAX}"))
        };
        if let Some(message) = too_large(self.sample) {
            problems.add(format!("{section}.sample"), message);
        }
        for (name, sample) in &self.services {
            let at = format!("{section}.services.{name}");
            if !is_service(name) {
                problems.add(&at, format!("{name:?} {not}"));
            }
            if let Some(message) = too_large(*sample) {
                problems.add(&at, message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "apiVersion: csp/v1\nservices:\n  - {name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}\n\
                          connection_log: {sample: 10, services: {web: 100}}\n";

    #[test]
    fn a_service_may_have_a_sample_of_its_own() {
        let policy = Policy::parse_yaml(POLICY, "p").unwrap();
        let log = policy.connection_log.as_ref().unwrap();
        assert_eq!((log.sample("web"), log.sample("shop")), (100, 10));
        assert_eq!(Policy::parse_yaml(&policy.to_json(), "again").unwrap(), policy);
        assert!(
            !Policy::empty().to_json().contains("connection_log"),
            "policies of before have their hashes"
        );
        let without = Policy { connection_log: None, ..policy.clone() };
        assert_eq!(crate::diff::diff(&without, &policy), ["+ connection log sample 10, web 100"]);
        let text = POLICY.replace("sample: 10,", "sample: 10, addresses: prefix,");
        let short = Policy::parse_yaml(&text, "p").unwrap();
        let expected = [
            "- connection log sample 10, web 100",
            "+ connection log sample 10, web 100, networks of clients only",
        ];
        assert_eq!(crate::diff::diff(&policy, &short), expected);
        let all = POLICY.replace("{sample: 10, services: {web: 100}}", "{}");
        assert_eq!(Policy::parse_yaml(&all, "p").unwrap().connection_log.unwrap().sample("web"), 1);
        for (from, to, words) in [
            ("web: 100", "shop: 100", "connection_log.services.shop: \"shop\" is no service of this policy"),
            ("sample: 10,", "sample: 10, addresses: some,", "allowed are full, prefix, none"),
            ("sample: 10", "sample: 1000001", "connection_log.sample: 1000001: allowed are 0 to 1000000"),
        ] {
            let error = Policy::parse_yaml(&POLICY.replace(from, to), "p").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
