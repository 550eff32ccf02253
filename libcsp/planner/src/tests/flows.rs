//! Conditions on fields of messages.

use super::*;

const FIELDS: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    message: Flight
    schema: &schema |
      <messageSchema id="40" version="1"><types><composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
      <type name="airport" primitiveType="char" length="3"/></types>
      <message name="Flight" id="1"><field name="origin" id="1" type="airport"/><field name="delay" id="2" type="int16"/><field name="gate" id="3" type="int16"/></message>
      <message name="Weather" id="2"><field name="origin" id="1" type="airport"/><field name="wind" id="2" type="double"/><field name="gate" id="3" type="double"/></message>
      </messageSchema>
  - {name: weather, message: Weather, schema: *schema}
channels:
  - {name: airport, vip: 10.76.0.100, port: 5556, formats: [weather, flight]}
  - {name: bulk, vip: 10.76.0.100, port: 5557}
information_flows:
  - {name: late, match: {channel: airport, where: delay > 60 AND origin = 'EWR'}, priority: 9}
  - {name: storm, match: {channel: airport, format: weather, where: wind >= 20.5}}
  - {name: newark, match: {channel: airport, where: origin = 'EWR'}}
link: {mbps: 200}
"#;

#[test]
fn flows_name_fields_of_their_channel_s_formats() {
    let policy = checked(FIELDS, "p.yaml").unwrap();
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
    let catalogue = Catalogue::of(&policy);
    assert_eq!(catalogue.flow_fields(&policy, "airport"), ["delay", "origin", "wind"]);
    assert!(catalogue.flow_fields(&policy, "bulk").is_empty());
    let formats =
        policy.information_flows.iter().map(|flow| catalogue.flow_condition(&policy, flow).unwrap().format);
    // What only one format has is of this format; what all have alike is of all.
    assert_eq!(formats.collect::<Vec<_>>(), [Some(1), Some(0), None]);
    let readers = catalogue.flow_readers(&policy, "airport");
    let numbers = |at: usize| readers[at].1.fields.iter().map(|field| field.0).collect::<Vec<_>>();
    assert_eq!((readers[0].0, numbers(0), readers[1].0, numbers(1)), (1, vec![1, 2], 2, vec![0, 1]));
    let mut other = policy.clone();
    other.information_flows[0].predicate.condition = Some("delay > 61".to_owned());
    let diff = policy.diff(&other).join("\n");
    assert!(diff.contains("+ flow late channel airport where delay > 61 "), "{diff}");
}

#[test]
fn what_is_wrong_with_fields_is_named() {
    let nine = (0..9)
        .map(|at| format!("    <field name=\"f{at}\" id=\"{}\" type=\"int16\"/>", at + 9))
        .collect::<String>();
    let of_nine = (0..9)
        .map(|at| format!("  - {{name: f{at}, match: {{channel: airport, where: f{at} = 1}}}}\n"))
        .collect::<String>();
    for (from, to, expected) in [
        (
            "delay > 60 AND",
            "dely > 60 AND",
            "information_flows[0].match.where: format weather: line 1, column 1: there is no column \"dely\"",
        ),
        (
            "delay > 60 AND",
            "delay > 60 OR",
            "information_flows[0].match.where: format weather: line 1, column 1: there is no column \"delay\"",
        ),
        (
            "wind >= 20.5",
            "wind >= 20.5 OR wind < 1",
            "information_flows[1].match.where: format weather: only comparisons of a field with a constant can stand here",
        ),
        (
            "wind >= 20.5",
            "delay > 1",
            "information_flows[1].match.where: format weather: line 1, column 1: there is no column \"delay\"",
        ),
        (
            "where: origin = 'EWR'",
            "where: gate = 7",
            "information_flows[2].match.where: it fits weather and flight, and not all formats with the same meaning; name one in `format`",
        ),
        (
            "channel: airport, where: origin",
            "channel: bulk, where: origin",
            "information_flows[2].match.where: fields are of messages of a channel with `formats`; name it with `channel`",
        ),
        (
            "channel: airport, where: origin",
            "port: 7, where: origin",
            "information_flows[2].match.where: fields are of messages of a channel with `formats`; name it with `channel`",
        ),
        (
            "where: delay > 60 AND origin = 'EWR'",
            "source_port: 1-2, port: 3-4, format: flight, where: delay > 60 AND gate > 1 AND origin < 'Z'",
            "information_flows[0].match.where: 5 conditions are ranges, ports included; at most 4 can be",
        ),
    ] {
        let text = FIELDS.replacen(from, to, 1);
        assert_ne!(text, FIELDS, "{from}");
        let error = checked(&text, "p.yaml").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}\nexpected {expected}");
    }
    let text = FIELDS.replacen("</message>", &format!("{nine}</message>"), 1).replacen(
        "link:",
        &format!("{of_nine}link:"),
        1,
    );
    let error = checked(&text, "p.yaml").unwrap_err().to_string();
    assert!(
        error.contains(
            "information_flows: flows read 12 fields of messages of \"airport\" (delay, origin, wind, f0"
        ),
        "{error}"
    );
}
