//! Tests of formats and queries of a policy: what is accepted, and the exact words for what is not.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod channels;
mod flows;
mod paths;
mod requests;

use csp_policy::Policy;
use csp_support::yaml_blocks;
use csp_types::PlacementKey;

use crate::{Catalogue, checked};

const AIRPORT: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    schema: |
      <sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="airport" id="40" version="1">
        <types>
          <composite name="messageHeader">
            <type name="blockLength" primitiveType="uint16"/>
            <type name="templateId" primitiveType="uint16"/>
            <type name="schemaId" primitiveType="uint16"/>
            <type name="version" primitiveType="uint16"/>
          </composite>
          <type name="airport" primitiveType="char" length="3"/>
        </types>
        <sbe:message name="Flight" id="1">
          <field name="origin" id="1" type="airport"/>
          <field name="delay" id="2" type="int16"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>
        <sbe:message name="Weather" id="2">
          <field name="origin" id="1" type="airport"/>
          <field name="wind" id="2" type="double"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>
      </sbe:messageSchema>
    message: Flight
  - name: weather
    schema: "@"
    message: Weather
channels:
  - name: flights
    vip: 10.76.0.100
    port: 5601
    formats: [flight]
    time: {field: at, unit: s, lateness_ms: 5000}
  - {name: winds, vip: 10.76.0.100, port: 5602, formats: [weather, flight], time: {field: at, unit: s}}
  - {name: apart, vip: 10.76.0.100, port: 5603, formats: [flight]}
queries:
  - name: late
    sql: SELECT origin, delay FROM flights WHERE delay > 10
    vip: 10.76.0.100
    port: 5611
    output: json
  - name: windy
    vip: 10.76.0.100
    port: 5612
    sql: |
      SELECT f.origin, wind, delay
      FROM flights AS f JOIN winds AS w
        ON f.origin = w.origin WITHIN INTERVAL '1' HOUR
  - {name: again, vip: 10.76.0.100, port: 5613, sql: "SELECT wind FROM windy", context: c2}
"#;

/// `AIRPORT` with the second format's schema, which is the first one's.
fn airport() -> String {
    let schema = &AIRPORT[AIRPORT.find("      <sbe").unwrap()..AIRPORT.find("    message: Flight").unwrap()];
    AIRPORT.replace("\"@\"", &format!("|\n{}", schema.trim_end()))
}

fn parse(text: &str) -> Policy {
    checked(text, "p.yaml").unwrap_or_else(|error| panic!("{error}"))
}

/// The policy with the first `from` replaced by `to` is refused with these lines.
fn refuses(from: &str, to: &str, expected: &str) {
    let text = airport();
    assert!(text.contains(from), "{from}");
    let error = checked(&text.replacen(from, to, 1), "p.yaml").unwrap_err();
    assert_eq!(error.to_string(), format!("p.yaml:{expected}"));
}

#[test]
fn formats_and_queries_are_known() {
    let policy = parse(&airport());
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
    let catalogue = Catalogue::of(&policy);
    assert_eq!(catalogue.formats["weather"].layout().id, 2);
    let first = &catalogue.formats["flight"].schema;
    assert!(
        std::sync::Arc::ptr_eq(first, &catalogue.formats["weather"].schema),
        "equal texts are parsed once"
    );
    let names: Vec<_> = catalogue.channels[1].iter().map(|format| format.name.as_str()).collect();
    assert_eq!(names, ["weather", "flight"]);
    let windy = catalogue.planned(1).unwrap();
    let sources: Vec<_> = windy.sources.iter().map(|s| (s.channel.as_str(), s.format_id)).collect();
    assert_eq!(sources, [("flights", 1), ("winds", 1)]);
    assert_eq!(windy.sources[0].time.as_ref().unwrap().lateness_ms, 5000);
    assert_eq!(windy.result.layout().block.fields.len(), 3);
    assert_eq!(catalogue.planned(2).unwrap().sources[0].channel, "windy", "a query reads another");
    let second = catalogue.source("winds/flight").unwrap();
    assert_eq!((second.format_id, second.format.name.as_str()), (2, "flight"));
    assert!(catalogue.source("winds/late").is_none() && catalogue.source("late").is_none());
}

#[test]
fn a_query_lives_where_its_channels_do() {
    let policy = parse(&airport());
    let placements = Policy::placements;
    let keys = placements(&policy);
    let own = |port: u16| PlacementKey::of_address(([10, 76, 0, 100], port).into());
    for name in ["flights", "winds", "late", "windy", "again"] {
        assert_eq!(keys[name], own(5601), "{name}: that of the channel with the least name");
    }
    assert_eq!(keys["apart"], own(5603));
    // The order in the policy does not count.
    let mut other = policy.clone();
    other.channels.reverse();
    assert_eq!(placements(&other), keys);
    // Without the join each channel has its own.
    other.queries.truncate(1);
    let keys = placements(&other);
    assert_eq!((keys["winds"], keys["flights"], keys["late"]), (own(5602), own(5601), own(5601)));
}

#[test]
fn operators_of_a_path_fit_the_channel_s_formats() {
    let with = |path: &str| airport().replacen("port: 5603,", &format!("port: 5603, path: {path},"), 1);
    let projects =
        with("[{handler: select, parameters: delay > 5}, {handler: project, parameters: origin AS place}]");
    let policy = parse(&projects.replace("FROM windy", "FROM apart").replace("SELECT wind", "SELECT place"));
    let catalogue = Catalogue::of(&policy);
    let source = &catalogue.planned(2).unwrap().sources[0];
    assert_eq!(
        (&*source.format.message, source.format_id),
        ("Row", csp_operators::DERIVED_FIRST),
        "what the path makes"
    );
    let refused = |path: &str, formats: &str| {
        let text = with(path).replacen("port: 5603, path", &format!("port: 5603{formats}, path"), 1);
        let text = if formats.is_empty() { text } else { text.replacen(", formats: [flight]}", "}", 1) };
        checked(&text, "p.yaml").unwrap_err().to_string()
    };
    assert_eq!(
        refused("[{handler: select, parameters: dely > 5}]", ""),
        "p.yaml:58:86: channels[2].path[0].parameters: for messages \"Flight\": line 1, column 1: there is no column \"dely\"; the nearest is \"delay\""
    );
    assert_eq!(
        refused("[{handler: select, parameters: delay > 5}]", ", formats: [flight, weather]"),
        "p.yaml:58:84: channels[2].path[0]: `select` does not fit format weather of the channel"
    );
    assert_eq!(
        refused("[{handler: sample}]", ", formats: []"),
        "p.yaml:58:79: channels[2].path[0].handler: `sample` works on formats; name the channel's in `formats`"
    );
}

#[test]
fn policies_without_them_keep_their_hash() {
    let plain = parse("apiVersion: csp/v1\nchannels:\n  - {name: ticks, vip: 10.76.0.100, port: 5556}\n");
    let json = plain.to_json();
    assert!(!json.contains("formats") && !json.contains("queries") && !json.contains("time\""), "{json}");
    assert_eq!(plain.hash(), "fec2d91d6f8a9f7a8d2caef60043e7dbcfb985b5e54b5b850b8386abde730c79");
}

#[test]
fn differences_show_formats_and_queries() {
    let policy = parse(&airport());
    let mut other = policy.clone();
    other.queries[0].sql = "SELECT origin,\n  delay FROM flights WHERE delay > 20".to_owned();
    other.channels[0].time = None;
    other.formats[1].name = "meteo".to_owned();
    let diff = policy.diff(&other);
    assert!(diff[0].starts_with("- format weather message Weather, "), "{diff:#?}");
    assert!(diff[1].starts_with("+ format meteo message"), "{diff:#?}");
    assert!(diff[2].contains(", formats flight, time at in s, late by 5000 ms"), "{diff:#?}");
    assert!(diff[3].ends_with(", formats flight"), "{diff:#?}");
    let query = "+ query late 10.76.0.100 port 5611 as json on c0: SELECT origin, delay FROM flights WHERE delay > 20; keeps 8192 rows";
    assert!(diff[5].starts_with(query), "{diff:#?}");
    assert_eq!(diff.len(), 6);
}

#[test]
fn a_wrong_schema_is_refused_at_its_line() {
    refuses(
        "type=\"airport\"",
        "type=\"airprot\"",
        "16:45: formats[0].schema: line 12, column 39: no type is called \"airprot\"; the nearest is \"airport\"",
    );
    refuses(
        "message: Flight",
        "message: Fligth",
        "26:14: formats[0].message: the schema has no \"Fligth\"; the nearest is \"Flight\"",
    );
    refuses(
        "    message: Flight\n",
        "",
        "3:5: formats[0]: name the message in `message`; the schema has Flight, Weather",
    );
    refuses(
        "name: weather",
        "name: flight",
        "27:11: formats[1].name: \"flight\" is the name of formats[0] already; names are unique\np.yaml:57:59: channels[1].formats[0]: there is no format \"weather\"",
    );
}

#[test]
fn wrong_formats_of_a_channel_are_refused() {
    refuses(
        "formats: [flight]",
        "formats: [fligth]",
        "55:15: channels[0].formats[0]: there is no format \"fligth\"; the nearest is \"flight\"",
    );
    refuses(
        "[weather, flight]",
        "[weather, flight, weather]",
        "57:76: channels[1].formats[2]: has the schema id and template id of \"weather\": messages of both look alike",
    );
    refuses(
        "field: at",
        "field: att",
        "56:19: channels[0].time.field: format flight: \"Flight\" has no \"att\"; the nearest is \"at\"",
    );
    refuses(
        "field: at",
        "field: origin",
        "56:19: channels[0].time.field: \"origin\" of format flight is no whole number of the root block",
    );
    refuses(
        "lateness_ms: 5000",
        "lateness_ms: 3600001",
        "56:45: channels[0].time.lateness_ms: 3600001 is not a time in milliseconds; allowed is 0 to 3600000",
    );
    refuses(
        "port: 5603, formats: [flight]",
        "port: 5603, framing: sofh, formats: [flight]",
        "58:5: channels[2].header: a record begins with its own header: with formats, `header: strip` removes this one",
    );
}

#[test]
fn a_wrong_query_is_refused_at_its_column() {
    refuses(
        "SELECT origin, delay",
        "SELECT orgin, delay",
        "61:17: queries[0].sql: line 1, column 8: there is no column \"orgin\"; the nearest is \"origin\"",
    );
    refuses(
        "w.origin WITHIN",
        "w.orign WITHIN",
        "71:23: queries[1].sql: line 3, column 17: there is no column \"orign\"; the nearest is \"origin\"",
    );
    refuses(
        "FROM windy",
        "FROM late",
        "72:72: queries[2].sql: line 1, column 18: \"late\" has rows in JSON, which queries do not read",
    );
    refuses(
        "context: c2",
        "context: c9",
        "72:89: queries[2].context: `c9` is no context; there are c0 to c7",
    );
    refuses(
        "name: again",
        "name: winds",
        "72:12: queries[2].name: \"winds\" is the name of channels[1] already; names are unique",
    );
    refuses(
        "port: 5613",
        "port: 5601",
        "72:24: queries[2].vip: 10.76.0.100 port 5601 belongs to channels[0] already",
    );
    refuses(
        "output: json",
        "queue: {full: block}",
        "64:19: queries[0].queue.full: a query holds back nobody: its channels' publishers go on; allowed are drop-newest, drop-oldest",
    );
    let keys = "formats: [flight], curve: {server_key: \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\", any: [subscribe]}";
    refuses(
        "[weather, flight]",
        &format!("[weather, flight], {}", &keys[19..keys.len()]),
        "65:5: queries[1]: reads winds, which has keys, and needs `curve` itself",
    );
    refuses(
        ", time: {field: at, unit: s}}",
        "}",
        "69:7: queries[1].sql: f has the time of a field and w that of arrival: they cannot be compared",
    );
    refuses(
        "sql: SELECT origin, delay FROM flights WHERE delay > 10",
        "limits: {groups: 1000000}\n    sql: SELECT origin, COUNT(*) AS n FROM flights GROUP BY origin WINDOW INTERVAL '1' HOUR",
        "61:13: queries[0].limits: queries in c0 keep up to 129096 KiB, and it has 16384 KiB",
    );
    let unread = |channel: &str| format!("SELECT origin FROM {channel}");
    for (channel, why) in [
        ("again", "72:74: queries[2].sql: line 1, column 20: \"again\" is no query above this one"),
        (
            "\\\"winds/meteo\\\"",
            "72:74: queries[2].sql: line 1, column 20: \"winds\" has the formats weather, flight",
        ),
    ] {
        refuses("SELECT wind FROM windy", &unread(channel), why);
    }
}

/// Windows over rows that have lost the time of their channels would silently be of the time at which the
/// rows are made.
#[test]
fn windows_over_a_query_use_the_time_of_its_rows_or_are_refused() {
    let windowed = "SELECT COUNT(*) AS n FROM windy WINDOW 1 HOUR";
    refuses(
        "SELECT wind FROM windy",
        windowed,
        "72:54: queries[2].sql: the time of windy: its rows do not have that of its channels: select it there, or WINDOW_START",
    );
    let rows = "SELECT COUNT(*) AS n FROM windy WINDOW 100 ROWS";
    parse(&airport().replacen("SELECT wind FROM windy", rows, 1));
    let text = airport().replacen("SELECT wind FROM windy", windowed, 1);
    // A pair is an hour late at most, and the flights are 5 s.
    let carried = text.replacen("SELECT f.origin, wind, delay", "SELECT f.origin, f.at AS since", 1);
    let time = |text: &str| Catalogue::of(&parse(text)).planned(2).unwrap().sources[0].time.clone().unwrap();
    let found = time(&carried);
    assert_eq!((found.field.as_str(), found.lateness_ms), ("since", 3_605_000));
    let of_windows = text.replacen(
        "ON f.origin = w.origin WITHIN INTERVAL '1' HOUR",
        "ON f.origin = w.origin WITHIN 1 HOUR WINDOW 5 MINUTES",
        1,
    );
    let of_windows =
        of_windows.replacen("SELECT f.origin, wind, delay", "SELECT WINDOW_START AS begin, COUNT(*) AS n", 1);
    let found = time(&of_windows);
    assert_eq!((found.field.as_str(), found.lateness_ms), ("begin", 0));
}

#[test]
fn the_examples_of_the_documentation_are_valid() {
    let formats = yaml_blocks(include_str!("../../../docs/formats.md"))[0];
    let queries = yaml_blocks(include_str!("../../../docs/queries.md"))[0];
    let policy = parse(&format!("{formats}{queries}"));
    assert_eq!((policy.formats.len(), policy.queries.len(), Catalogue::of(&policy).queries.len()), (2, 2, 2));
    let wrong = format!("{formats}{}", queries.replacen("SELECT origin", "SELECT orgin", 1));
    let error = checked(&wrong, "policy.yaml").unwrap_err().to_string();
    let shown = include_str!("../../../docs/queries.md");
    // As `cspctl` prints it.
    let printed = |error: &str, field: &str| error.replacen(field, &format!("field `{field}`"), 1);
    assert!(shown.contains(&printed(&error, "queries[0].sql")), "{error}");
    let wrong = formats.replacen("type=\"airport\"", "type=\"airprot\"", 1);
    let error = checked(&wrong, "policy.yaml").unwrap_err().to_string();
    let printed = printed(&error, "formats[0].schema");
    assert!(include_str!("../../../docs/formats.md").contains(&printed), "{printed}");
}
