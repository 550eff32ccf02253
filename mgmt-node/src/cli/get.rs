//! `cspctl get`: a section of the active policy, as the policy has it.

use csp_api::mgmt::PolicyView;
use serde_json::{Map, Value};

use super::Context;
use super::args::GetArgs;
use super::error::CliError;

/// `cspctl get`.
pub(super) async fn get(context: &Context, args: &GetArgs) -> Result<(), CliError> {
    let view: PolicyView = context.client.get("/api/v1/policy", &[]).await?;
    let found = pick(&view.policy, &args.section, args.name.as_deref()).map_err(CliError::Failed)?;
    context.show(&found, |found| written(&args.section, found))
}

/// Returns a section, or its entry of that name; null if the policy does not have the section.
fn pick(policy: &Value, section: &str, name: Option<&str>) -> Result<Value, String> {
    let whole = policy.get(section).cloned().unwrap_or(Value::Null);
    let Some(name) = name else { return Ok(whole) };
    let entries = whole.as_array().map_or(&[][..], Vec::as_slice);
    let name_of = |entry: &Value| entry["name"].as_str().map(str::to_owned);
    let found: Vec<Value> =
        entries.iter().filter(|entry| name_of(entry).as_deref() == Some(name)).cloned().collect();
    if found.is_empty() {
        let names: Vec<String> = entries.iter().filter_map(name_of).collect();
        let known = match names.as_slice() {
            [] => "it has no entries with names".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        return Err(format!("the active policy has no {name:?} in `{section}`; {known}"));
    }
    Ok(Value::Array(found))
}

/// The section as YAML, such that it can be put into a policy.
fn written(section: &str, found: &Value) -> String {
    if found.is_null() {
        return format!("# The active policy has no `{section}`.\n");
    }
    let whole = Map::from_iter([(section.to_owned(), found.clone())]);
    let mut text = serde_saphyr::to_string(&whole).unwrap_or_default();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use csp_policy::Policy;

    use super::*;

    const POLICY: &str = "apiVersion: csp/v1\nchannels:\n  - {name: gates, vip: 10.76.0.100, port: 5561}\ninformation_flows:\n  - {name: gates, match: \
                          {channel: gates, source: 10.0.0.0/8}, priority: 9, reserve: {mbps: 50}, message_bytes: 1500}\n  - {name: default, \
                          message_bytes: 1500, before: [sample-10]}\nlink: {mbps: 200, scheme: RR}\n";

    #[test]
    fn a_section_is_written_as_a_policy_has_it() {
        let policy = Policy::parse_yaml(POLICY, "p.yaml").unwrap();
        let value: Value = serde_json::from_str(&policy.to_json()).unwrap();
        let sections = ["channels", "information_flows", "link"]
            .map(|section| written(section, &pick(&value, section, None).unwrap()));
        let again = format!("apiVersion: csp/v1\n{}", sections.concat());
        assert_eq!(Policy::parse_yaml(&again, "again.yaml").unwrap(), policy, "{again}");
        let one = pick(&value, "information_flows", Some("default")).unwrap();
        assert_eq!((one.as_array().unwrap().len(), &one[0]["before"][0]), (1, &Value::from("sample-10")));
        assert_eq!(
            written("queries", &pick(&value, "queries", None).unwrap()),
            "# The active policy has no `queries`.\n"
        );
        let error = pick(&value, "information_flows", Some("gate")).unwrap_err();
        assert_eq!(
            error,
            "the active policy has no \"gate\" in `information_flows`; there are gates, default"
        );
        let error = pick(&value, "link", Some("gate")).unwrap_err();
        assert_eq!(error, "the active policy has no \"gate\" in `link`; it has no entries with names");
    }
}
