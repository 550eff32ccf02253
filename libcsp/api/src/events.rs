//! Events: what happened in the cluster, as nodes record it, push it to management nodes, and as these
//! publish it.
//!
//! An event is named by its origin, the origin's incarnation (another one at each start) and a sequence
//! number, which counts from 1 without gaps. [`What`] has the kinds and their fields; a reader passes on
//! kinds that it does not know, since a node may be of a later release.

mod what;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Text;

pub use what::What;

/// Most events of a [`Push`] or a [`Page`].
pub const EVENTS_MAX: usize = 500;
/// Longest `fields` of an event that are accepted from another node, in bytes of JSON.
pub const FIELDS_LEN_MAX: usize = 8 << 10;

/// How much an event matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// What operations bring with them.
    Info,
    /// Something is worse than it should be, and clients are served.
    Warning,
    /// Clients are not served, or something is lost.
    Error,
}

impl Severity {
    /// Returns the name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }

    /// Returns the severity with this name.
    pub fn named(name: &str) -> Option<Severity> {
        [Severity::Info, Severity::Warning, Severity::Error].into_iter().find(|one| one.as_str() == name)
    }
}

/// One event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Id of the node that recorded it.
    pub origin: Text,
    /// That node's incarnation, below 2^53.
    pub incarnation: u64,
    /// Number among the events of the incarnation, from 1.
    pub sequence: u64,
    /// When it was recorded, in milliseconds of the Unix epoch by the origin's clock.
    pub time_ms: u64,
    /// How much it matters.
    pub severity: Severity,
    /// Its kind: the name of a variant of [`What`].
    pub kind: Text,
    /// What it is about, such as `node/nn-1`, `server/web/10.76.1.4:80` or `policy/7`.
    pub object: Text,
    /// What happened, in a sentence for people.
    pub text: Text,
    /// The fields of its kind.
    pub fields: Map<String, Value>,
}

impl Event {
    /// Returns an event of `what` with the name that its origin gives it.
    pub fn new((origin, incarnation): (&Text, u64), sequence: u64, time_ms: u64, what: &What) -> Event {
        let (kind, fields) = what.parts();
        Event {
            origin: origin.clone(),
            incarnation,
            sequence,
            time_ms,
            severity: what.severity(),
            kind,
            object: what.object(),
            text: what.text(),
            fields,
        }
    }

    /// Returns what happened; `None` for a kind of a later release.
    pub fn what(&self) -> Option<What> {
        let tagged = serde_json::json!({ "kind": self.kind, "fields": self.fields });
        serde_json::from_value(tagged).ok()
    }
}

/// Body of `POST /v1/events` of a management node: events of one node, in their order. Empty ones ask what
/// the management node has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Push {
    /// The node.
    pub origin: Text,
    /// Its incarnation.
    pub incarnation: u64,
    /// The first event that the node can still give; what was before is lost.
    pub first: u64,
    /// The events.
    pub events: Vec<Event>,
}

/// Answer to [`Push`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pushed {
    /// The last event of this incarnation that the management node has; it has all before it that could be
    /// had.
    pub known: u64,
}

/// Answer to `GET /api/v1/events`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Page {
    /// Events, in the order in which they arrived here.
    pub events: Vec<Event>,
    /// For `since=` of the next request, at this management node or another one.
    pub cursor: String,
    /// Events after the given cursor that are no longer kept, or were lost on the way.
    pub missed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written_and_unknown_kinds_are_kept() {
        let origin = Text::from("pn-1");
        let what = What::ServerDown {
            service: "web".into(),
            server: "10.0.0.1:80".into(),
            reason: "connection refused".into(),
        };
        let event = Event::new((&origin, 7), 1, 5, &what);
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(
            (&json["kind"], &json["fields"]["server"]),
            (&"server_down".into(), &"10.0.0.1:80".into())
        );
        assert_eq!(json["object"], "server/web/10.0.0.1:80");
        let read: Event = serde_json::from_value(json.clone()).unwrap();
        assert_eq!((read.what(), &read), (Some(what), &event));
        let mut later = json;
        (later["kind"], later["fields"]["odd"]) = ("server_melted".into(), 3.into());
        let read: Event = serde_json::from_value(later.clone()).unwrap();
        assert_eq!((read.what(), serde_json::to_value(&read).unwrap()), (None, later));
    }
}
