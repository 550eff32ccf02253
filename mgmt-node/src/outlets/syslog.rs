//! A receiver of events by syslog.

use std::sync::{Arc, Mutex, PoisonError};

use csp_api::events::{Event, Page, Severity};
use csp_daemon::syslog::{self, Facility, Head, Level, Sender, Target};
use serde_json::Value;

use super::Failure;
use crate::config::SyslogSection;

/// APP-NAME of events: which program of the origin recorded them is not known.
const APPLICATION: &str = "csp";
/// Fields of an event that become parameters; kinds have fewer.
const FIELDS_MAX: usize = 32;
/// Before the name of a field that has the name of another parameter, such as a node's incarnation.
const OWN_NAME: &str = "field_";

/// A receiver.
#[derive(Clone, Debug)]
pub(super) struct Syslog {
    facility: Facility,
    data_id: String,
    to: Target,
    sender: Arc<Mutex<Sender>>,
}

impl Syslog {
    pub(super) fn new(section: &SyslogSection) -> Syslog {
        Syslog {
            facility: section.facility,
            data_id: section.structured_data_id.clone(),
            to: section.to.clone(),
            sender: Arc::new(Mutex::new(Sender::new(section.to.clone()))),
        }
    }

    /// Sends events, each as a message.
    pub(super) async fn deliver(&self, page: &Page) -> Result<(), Failure> {
        let (this, events, missed) = (self.clone(), page.events.clone(), page.missed);
        // A receiver that does not read holds the sender up.
        let sent = tokio::task::spawn_blocking(move || this.send(&events, missed)).await;
        let reason = match sent {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => format!("{}: {error}", self.to),
            Err(error) => error.to_string(),
        };
        Err(Failure { reason, pause: None, is_refused: false })
    }

    fn send(&self, events: &[Event], missed: u64) -> std::io::Result<()> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = String::new();
        if let Some(event) = events.first().filter(|_| missed > 0) {
            self.write_missed(event.time_ms, missed, &mut message);
            sender.send(message.as_bytes())?;
        }
        for event in events {
            self.write(event, &mut message);
            sender.send(message.as_bytes())?;
        }
        Ok(())
    }

    /// Writes that so many events before the next one are not sent: they were no longer kept.
    fn write_missed(&self, time_ms: u64, missed: u64, out: &mut String) {
        let (facility, level) = (self.facility, Level::Warning);
        let (host, application, kind) = ("-", APPLICATION, "events_missed");
        let head = Head { facility, level, time_ms, host, application, process: None, kind };
        let mut data = std::iter::once(("count".to_owned(), missed.to_string()));
        let text = format!("{missed} events before the next one were no longer kept");
        syslog::write(out, self.to.len_max(), &head, Some((&self.data_id, &mut data)), &text);
    }

    fn write(&self, event: &Event, out: &mut String) {
        let head = Head {
            facility: self.facility,
            level: match event.severity {
                Severity::Info => Level::Info,
                Severity::Warning => Level::Warning,
                Severity::Error => Level::Error,
            },
            time_ms: event.time_ms,
            host: &event.origin,
            application: APPLICATION,
            process: None,
            kind: &event.kind,
        };
        let own = [
            ("origin", event.origin.to_string()),
            ("incarnation", event.incarnation.to_string()),
            ("sequence", event.sequence.to_string()),
            ("object", event.object.to_string()),
        ];
        let is_own = |name: &str| own.iter().any(|(own, _)| *own == name);
        let field = |(name, value): (&String, &Value)| match is_own(name) {
            true => (format!("{OWN_NAME}{name}"), plain(value)),
            false => (name.clone(), plain(value)),
        };
        let fields: Vec<_> = event.fields.iter().take(FIELDS_MAX).map(field).collect();
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut data = own.chain(fields);
        syslog::write(out, self.to.len_max(), &head, Some((&self.data_id, &mut data)), &event.text);
    }
}

/// Returns a value as text: without quotes if it is text.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use csp_api::events::What;

    use super::*;

    #[test]
    fn no_parameter_stands_twice() {
        let section = serde_json::json!({ "to": "/dev/log", "structured_data_id": "csp@1" });
        let syslog = Syslog::new(&serde_json::from_value(section).expect("a section"));
        let (node, role, version) = ("pn-1".into(), "proxy-node".into(), "1".into());
        let what = What::NodeJoined { node, role, version, incarnation: 9 };
        let mut out = String::new();
        syslog.write(&Event::new((&"mgmt-1".into(), 7), 3, 0, &what), &mut out);
        let expected = "<30>1 1970-01-01T00:00:00.000Z mgmt-1 csp - node_joined [csp@1 origin=\"mgmt-1\" incarnation=\"7\" sequence=\"3\" object=\"node/pn-1\" field_incarnation=\"9\" node=\"pn-1\" role=\"proxy-node\" version=\"1\"] proxy-node pn-1 joined, version 1";
        assert_eq!(out, expected);
    }
}
