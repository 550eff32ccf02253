//! Each kind, as a node records it, against the schema.

use std::collections::BTreeSet;

use csp_api::ConditionState;
use csp_events::Journal;

use super::*;

/// One of each kind.
fn samples() -> Vec<What> {
    let (a, b, n) = (|| "a".into(), || "b \"]\n".into(), 7);
    vec![
        What::NodeJoined { node: a(), role: b(), version: a(), incarnation: n },
        What::NodeLeft { node: a(), role: b() },
        What::NodeLate { node: a(), role: b() },
        What::NodeDrains { node: a() },
        What::NodeResumes { node: a() },
        What::LeaderElected { node: a() },
        What::ConditionChanged { node: a(), condition: b(), state: ConditionState::Degraded, reason: a() },
        What::VipGroupTaken { group: a() },
        What::VipGroupGiven { group: a() },
        What::PolicyPublished { generation: n, hash: a() },
        What::PolicyActive { generation: n, reason: a() },
        What::PolicyRefused { generation: n, reason: a() },
        What::PolicyStagedHere { generation: n },
        What::PolicyActiveHere { generation: n },
        What::PolicyFailedHere { generation: n, reason: a() },
        What::ServerDown { service: a(), server: b(), reason: a() },
        What::ServerUp { service: a(), server: b() },
        What::LimitReached { reason: a(), count: n, interval_s: n },
        What::HandlerStopped { channel: a(), handler: b(), module: a(), by: b(), state: a(), reasons: b() },
        What::PluginStopped { instance: a(), module: b(), state: a(), reasons: b() },
        What::HandlerMoved { channel: a(), handler: b(), from: a(), to: b(), why: a(), error: b() },
        What::HandlerRefused { channel: a(), handler: b(), context: a(), reason: b() },
        What::HandlerStateRefused { channel: a(), handler: b() },
        What::ChannelMoved { channel: a(), from: b(), to: a(), connections: n, lost: n },
        What::TriggerFired { trigger: a(), fired: true },
        What::LoggedIn { who: a(), access: b() },
        What::ChangeRequested { who: a(), by: b(), method: a(), path: b(), status: 202, result: a() },
        What::CertificateExpires { node: a(), subject: b(), days_left: n, ends: a() },
        What::CertificateIssued { certificate: a(), issuer: b(), ends: a() },
        What::CertificateFailed { certificate: a(), reason: b(), failures: n, days_left: n },
        What::EventsLost { node: a(), count: n },
    ]
}

/// Returns why a value does not fit a schema of a mapping as they are made here.
fn wrong(schema: &Value, value: &Value) -> Option<String> {
    let missing = schema["required"]
        .as_array()?
        .iter()
        .find(|name| name.as_str().is_none_or(|name| value.get(name).is_none()));
    if let Some(name) = missing {
        return Some(format!("{name} is missing"));
    }
    for (name, value) in value.as_object()? {
        let schema = schema["properties"].get(name).cloned().unwrap_or_default();
        let fits = match schema["type"].as_str() {
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("object") => value.is_object(),
            Some("integer") => value.as_u64().is_some_and(|n| n <= schema["maximum"].as_u64().unwrap_or(0)),
            None => schema["enum"].as_array().is_some_and(|names| names.contains(value)),
            Some(other) => return Some(format!("{name}: {other} is not expected")),
        };
        if !fits {
            return Some(format!("{name}: {value} does not fit {schema}"));
        }
    }
    None
}

#[test]
fn each_kind_as_it_is_recorded_fits_the_schema_and_each_is_in_it() {
    let schema = schema();
    let mut journal = Journal::new("pn-1".into(), 7);
    let mut seen = BTreeSet::new();
    for what in samples() {
        let event = serde_json::to_value(journal.record(1, &what)).unwrap();
        let kind = event["kind"].as_str().unwrap().to_owned();
        assert_eq!(wrong(&schema, &event), None, "{event}");
        let fields = &schema["$defs"][&kind];
        assert_eq!(wrong(fields, &event["fields"]), None, "{event}");
        let names = |map: &Value| map.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&fields["properties"]), names(&event["fields"]), "{kind}");
        assert!(wrong(fields, &json!({})).is_some(), "{kind}");
        seen.insert(kind);
    }
    let known: BTreeSet<String> = schema["$defs"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(seen, known);
    assert_eq!(schema["allOf"].as_array().unwrap().len(), known.len());
    assert_eq!(schema["properties"]["severity"], json!({ "enum": ["info", "warning", "error"] }));
    assert_eq!(
        schema["required"],
        json!([
            "origin",
            "incarnation",
            "sequence",
            "time_ms",
            "severity",
            "kind",
            "object",
            "text",
            "fields"
        ])
    );
    assert_eq!(schema["$defs"]["condition_changed"]["properties"]["state"]["enum"][1], "degraded");
}

#[test]
fn the_page_of_events_names_each_kind() {
    let page = include_str!("../../../../docs/operations/events.md");
    let schema = schema();
    for kind in schema["$defs"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("`{kind}`")), "{kind}");
    }
}
