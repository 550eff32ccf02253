//! Active checks of plain servers.

use csp_config::{Problems, number, port};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest path of a check's request, in bytes.
const HTTP_TEXT_MAX: usize = 512;

/// An active check: a connection now and then, by each proxy worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerCheck {
    /// Milliseconds between two checks.
    #[serde(deserialize_with = "check_time")]
    pub interval_ms: u32,
    /// Milliseconds for a check; at most `interval_ms`.
    #[serde(deserialize_with = "check_time")]
    pub timeout_ms: u32,
    /// Checks in a row that put a server into use.
    #[serde(deserialize_with = "times")]
    pub rise: u8,
    /// Failed checks in a row that put it out of use.
    #[serde(deserialize_with = "times")]
    pub fall: u8,
    /// The port that is asked; absent: the server's.
    #[serde(deserialize_with = "some_port", skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// A request over HTTP/1.1; absent: the connection is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpCheck>,
    /// The start of a TLS handshake; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsCheck>,
}

impl Default for ServerCheck {
    fn default() -> Self {
        ServerCheck {
            interval_ms: 2_000,
            timeout_ms: 1_000,
            rise: 2,
            fall: 3,
            port: None,
            http: None,
            tls: None,
        }
    }
}

/// The request of a check, and the answers by which it passes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpCheck {
    /// Path and query.
    pub path: String,
    /// The `Host` header; absent: the service's VIP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The smallest and the largest status that is right.
    pub status: [u16; 2],
}

impl Default for HttpCheck {
    fn default() -> Self {
        HttpCheck { path: "/".to_owned(), host: None, status: [200, 399] }
    }
}

/// A ClientHello, which passes if the server answers with its ServerHello.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsCheck {
    /// The server's name in it (SNI); absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ServerCheck {
    pub(super) fn check(&self, at: &str, problems: &mut Problems) {
        if self.timeout_ms > self.interval_ms {
            let message = format!("{} ms are more than interval_ms, {}", self.timeout_ms, self.interval_ms);
            problems.add_unless(&[&format!("{at}.interval_ms")], format!("{at}.timeout_ms"), message);
        }
        if self.http.is_some() && self.tls.is_some() {
            let message = "http is asked without TLS, tls asks for no page: one of the two";
            problems.add(format!("{at}.tls"), message.to_owned());
        }
        let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_host = |host: &str| !host.is_empty() && host.len() <= 253 && visible(host);
        let name = self.tls.as_ref().and_then(|tls| tls.name.as_ref());
        if let Some(name) = name.filter(|name| !is_host(name)) {
            problems.add(format!("{at}.tls.name"), format!("{name:?} is no name; allowed is visible ASCII"));
        }
        let Some(HttpCheck { path, host, status }) = &self.http else { return };
        if !path.starts_with('/') || path.len() > HTTP_TEXT_MAX || !visible(path) {
            let message =
                format!("{path:?} is no path; allowed are / and visible ASCII, {HTTP_TEXT_MAX} bytes");
            problems.add(format!("{at}.http.path"), message);
        }
        if let Some(host) = host.as_ref().filter(|host| !is_host(host)) {
            problems.add(format!("{at}.http.host"), format!("{host:?} is no host; allowed is visible ASCII"));
        }
        let [least, most] = *status;
        if !(100..=599).contains(&least) || !(least..=599).contains(&most) {
            let message =
                format!("{least} to {most} are no statuses; allowed are two of 100 to 599 in order");
            problems.add(format!("{at}.http.status"), message);
        }
    }
}

fn some_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    port(deserializer).map(Some)
}

fn check_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 100, 600_000, "a time of a check in milliseconds")? as u32)
}

fn times<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 1, 100, "a number of checks")? as u8)
}
