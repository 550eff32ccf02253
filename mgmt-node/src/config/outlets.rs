//! `events:` where events go beside the API.

use std::net::SocketAddr;
use std::path::PathBuf;

use csp_api::events::Severity;
use csp_control::config::Problems;
use csp_daemon::syslog::{Facility, Target};
use csp_events::Filter;
use reqwest::Url;
use serde::Deserialize;

/// Name of the outlet by syslog; no webhook has it.
pub const SYSLOG: &str = "syslog";
/// Webhooks of a management node.
const WEBHOOKS_MAX: usize = 16;
/// Kinds and objects that an outlet may name.
const NAMED_MAX: usize = 64;
/// Longest name of an outlet, in bytes.
const NAME_LEN_MAX: usize = 32;

/// `events:` of `mgmt-node.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsSection {
    /// Where subscribers over ZeroMQ connect. Absent: there are none.
    #[serde(default, deserialize_with = "super::some_address")]
    pub listen: Option<SocketAddr>,
    /// File with this node's pair of CURVE keys, as `cspctl channel-key` writes it. Without one nobody is
    /// asked for a key, which is allowed on loopback only.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Where events are posted to.
    #[serde(default)]
    pub webhooks: Vec<WebhookSection>,
    /// Which syslog they are sent to. Absent: to none.
    #[serde(default)]
    pub syslog: Option<SyslogSection>,
}

/// One receiver of events over HTTP.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSection {
    /// Its name, in metrics and conditions, and for the place up to which it has events.
    pub name: String,
    /// Where to post.
    #[serde(default)]
    pub url: Option<String>,
    /// File with the URL in place of `url`, for one that has a secret in it; mode 600.
    #[serde(default)]
    pub url_file: Option<PathBuf>,
    /// At least this severity. Absent: all.
    #[serde(default)]
    pub min_severity: Option<Severity>,
    /// Objects that begin with one of these, such as `server/web/`. Empty: all.
    #[serde(default)]
    pub objects: Vec<String>,
    /// Of these kinds. Empty: all.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// File with the secret by which bodies are signed, `whsec_` and base64; mode 600. Absent: they are not.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// File with the authorities that may have issued the receiver's certificate.
    #[serde(default = "authorities")]
    pub ca_file: PathBuf,
}

/// The receiver of events by syslog.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyslogSection {
    /// The socket or address.
    pub to: Target,
    /// The facility.
    #[serde(default)]
    pub facility: Facility,
    /// SD-ID of an event's fields, `NAME@ENTERPRISE` (RFC 5424 §7.2.2).
    #[serde(default = "data_id")]
    pub structured_data_id: String,
    /// At least this severity. Absent: all.
    #[serde(default)]
    pub min_severity: Option<Severity>,
    /// Objects that begin with one of these, such as `server/web/`. Empty: all.
    #[serde(default)]
    pub objects: Vec<String>,
    /// Of these kinds. Empty: all.
    #[serde(default)]
    pub kinds: Vec<String>,
}

/// 32473 is the number for documents (RFC 5612): this project has none.
fn data_id() -> String {
    "csp@32473".to_owned()
}

pub(super) fn authorities() -> PathBuf {
    PathBuf::from("/etc/ssl/certs/ca-certificates.crt")
}

/// Checks which events the outlet at `at` is to get.
fn check_filter(filter: &Filter, at: &str, problems: &mut Problems) {
    for (name, len) in [("objects", filter.objects.len()), ("kinds", filter.kinds.len())] {
        if len > NAMED_MAX {
            problems.add(format!("{at}.{name}"), format!("{len} entries; allowed are {NAMED_MAX}"));
        }
    }
    for kind in filter.kinds.iter().filter(|kind| !is_word(kind, 64, b'_')) {
        let message = format!("{kind:?} is no kind of events: those have lower-case letters and _");
        problems.add(format!("{at}.kinds"), message);
    }
}

/// Reads a URL of HTTP. The error does not name it: it may have a secret in it.
pub fn http_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
    url.ok_or("is no URL of HTTP; allowed is one such as https://hooks.example.org/csp")
}

/// Returns whether `text` has lower-case letters, digits and `with` only, and at most so many.
fn is_word(text: &str, len_max: usize, with: u8) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == with;
    (1..=len_max).contains(&text.len()) && text.bytes().all(allowed)
}

/// Returns whether `text` may name structured data of one's own, RFC 5424 §7.2.2.
fn is_data_id(text: &str) -> bool {
    let number = |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.len() <= NAME_LEN_MAX
        && text.split_once('@').is_some_and(|(name, n)| is_word(name, NAME_LEN_MAX, b'-') && number(n))
}

impl SyslogSection {
    /// Returns the filter of the events that are sent.
    pub fn filter(&self) -> Filter {
        let (objects, kinds) = (self.objects.clone(), self.kinds.clone());
        Filter { severity: self.min_severity, objects, kinds }
    }
}

impl EventsSection {
    pub(super) fn check(&self, problems: &mut Problems) {
        match (self.listen, &self.key) {
            (Some(listen), None) if !listen.ip().is_loopback() => {
                let message = format!(
                    "{listen} is reached by others, and there is no events.key: make one with `cspctl channel-key`, or listen on 127.0.0.1"
                );
                problems.add("events.listen", message);
            }
            (None, Some(_)) => {
                problems.add("events.listen", "events.key is of no use without an address to listen on");
            }
            _ => {}
        }
        if self.webhooks.len() > WEBHOOKS_MAX {
            let message = format!("{} webhooks; allowed are {WEBHOOKS_MAX}", self.webhooks.len());
            problems.add("events.webhooks", message);
        }
        for (number, webhook) in self.webhooks.iter().enumerate() {
            let at = format!("events.webhooks[{number}]");
            webhook.check(&at, problems);
            let same = |other: &WebhookSection| other.name == webhook.name;
            if webhook.name == SYSLOG || self.webhooks[..number].iter().any(same) {
                let message = format!("{:?} is the name of another outlet, too", webhook.name);
                problems.add(format!("{at}.name"), message);
            }
        }
        if let Some(syslog) = &self.syslog {
            check_filter(&syslog.filter(), "events.syslog", problems);
            if !is_data_id(&syslog.structured_data_id) {
                let message = format!(
                    "{:?} is no SD-ID; allowed is NAME@NUMBER with up to 32 characters, such as csp@32473",
                    syslog.structured_data_id
                );
                problems.add("events.syslog.structured_data_id", message);
            }
        }
    }
}

impl WebhookSection {
    /// Returns the filter of the events that it gets.
    pub fn filter(&self) -> Filter {
        let (objects, kinds) = (self.objects.clone(), self.kinds.clone());
        Filter { severity: self.min_severity, objects, kinds }
    }

    fn check(&self, at: &str, problems: &mut Problems) {
        if !is_word(&self.name, NAME_LEN_MAX, b'-') {
            let message = format!(
                "{:?} is no name; allowed are up to {NAME_LEN_MAX} of a-z, 0-9 and -, such as pager",
                self.name
            );
            problems.add(format!("{at}.name"), message);
        }
        if self.url.is_some() == self.url_file.is_some() {
            problems
                .add(format!("{at}.url"), "allowed is one of both: url, or url_file with a file that has it");
        }
        if let Some(Err(message)) = self.url.as_deref().map(http_url) {
            problems.add(format!("{at}.url"), message);
        }
        check_filter(&self.filter(), at, problems);
    }
}
