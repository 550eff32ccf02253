//! The schema against policies: what the reader accepts fits the schema, and wrong shapes do not.

use serde::de::IgnoredAny;

use super::*;

/// Documents with policies.
const DOCUMENTS: [&str; 8] = [
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/handlers.md"),
    include_str!("../../../../docs/messages.md"),
    include_str!("../../../../docs/plugins.md"),
    include_str!("../../../../docs/quality.md"),
    include_str!("../../../../docs/queries.md"),
    include_str!("../../../../docs/servers.md"),
    include_str!("../../../../docs/forwarding.md"),
];

/// Whole policies of tests.
const POLICIES: [&str; 4] = [
    include_str!("../../../../libcsp/policy/fixtures/branches.yaml"),
    include_str!("../../../../libcsp/policy/fixtures/paths.yaml"),
    include_str!("../../../../libcsp/policy/fixtures/ticks.yaml"),
    include_str!("../../../../tests/cluster/apps/flights/policy.yaml"),
];

/// Whether a value fits a schema, as far as the schemas made here go; else where it does not.
fn fits(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).expect("a definition");
        return fits(root, target, value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let found = choices.iter().any(|choice| fits(root, choice, value, at).is_ok());
        return found.then_some(()).ok_or(format!("{at}: {value} fits no choice"));
    }
    if let Some(names) = schema["enum"].as_array() {
        return names.contains(value).then_some(()).ok_or(format!("{at}: {value} is not in {names:?}"));
    }
    let types = match &schema["type"] {
        Value::Null => return Ok(()),
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let own: &[&str] = match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(number) if number.is_f64() => &["number"],
        Value::Number(_) => &["number", "integer"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    };
    if !own.iter().any(|name| types.contains(&Value::from(*name))) {
        return Err(format!("{at}: {value} is none of {types:?}"));
    }
    let beyond = |bound: &str, wrong: fn(f64, f64) -> bool| {
        value.as_f64().zip(schema[bound].as_f64()).is_some_and(|(value, bound)| wrong(value, bound))
    };
    if beyond("minimum", |value, min| value < min) || beyond("maximum", |value, max| value > max) {
        return Err(format!("{at}: {value} is out of range"));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            return Err(format!("{at}: {name} is missing"));
        }
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let schema = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
        if schema == &Value::Bool(false) {
            return Err(format!("{at}: {name} is no field"));
        }
        fits(root, schema, value, &format!("{at}/{name}"))?;
    }
    let mut items = value.as_array().into_iter().flatten().enumerate();
    items.try_for_each(|(index, item)| fits(root, &schema["items"], item, &format!("{at}/{index}")))
}

fn check(yaml: &str) -> Result<(), String> {
    let schema = schema();
    let value: Value = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    fits(&schema, &schema, &value, "")
}

#[test]
fn policies_of_the_documents_fit() {
    let mut count = 0;
    for document in DOCUMENTS {
        for block in document.split("```yaml").skip(1).filter_map(|rest| rest.split("```").next()) {
            let block = block.split_once('\n').map_or("", |(_, block)| block);
            if Policy::parse_yaml(block, "block").is_ok() {
                count += 1;
                check(block).unwrap_or_else(|why| panic!("{why}\n{block}"));
            }
        }
    }
    assert!(count >= 10, "{count} policies were found");
}

#[test]
fn policies_of_tests_fit() {
    POLICIES.iter().for_each(|policy| check(policy).unwrap());
}

#[test]
fn wrong_shapes_do_not_fit() {
    let service = "apiVersion: csp/v1\nservices:\n  - {name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}\n";
    check(service).unwrap();
    for (from, to) in [
        ("services", "service"),
        ("port: 80,", "port: 0,"),
        ("port: 80,", "port: 65536,"),
        ("port: 80,", "port: [80],"),
        ("name: web, ", ""),
        ("pool:", "members:"),
        ("pool: [{node: an-1, port: 80}]", "pool: an-1"),
        ("pool:", "via: proxi, pool:"),
        ("pool:", "tcp: {congestion: renoo}, pool:"),
        ("pool:", "tcp: {pacing: 7}, pool:"),
        ("apiVersion: csp/v1\n", ""),
    ] {
        let wrong = service.replacen(from, to, 1);
        assert!(Policy::parse_yaml(&wrong, "wrong").is_err(), "{wrong}");
        assert!(check(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn every_section_and_type_is_described() {
    let schema = schema();
    let sections = schema["properties"].as_object().unwrap();
    assert!(sections.len() >= 15 && sections.contains_key("vip_groups"), "{:?}", sections.keys());
    let known = schema["$defs"].as_object().unwrap();
    assert!(known.values().all(|schema| !schema.is_null()), "{:?}", known.keys());
    assert!(
        known.contains_key("Service") && known.contains_key("PacketRule") && known.contains_key("Query"),
        "{:?}",
        known.keys()
    );
    serde_json::from_str::<IgnoredAny>(&schema.to_string()).unwrap();
}
