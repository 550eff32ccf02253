//! JSON from publishers, a path that begins with `from-json`, and SBE to subscribers and queries.

use super::*;

fn policy(path: &str) -> String {
    POLICY.replacen("formats: [flight],", &format!("formats: [flight], path: [{path}],"), 1)
}

const FROM_JSON: &str = "{handler: from-json}";

#[test]
fn json_and_records_of_one_channel_reach_subscribers_and_queries_as_records() {
    let mut w = World::new("");
    w.apply(&policy(&format!("{FROM_JSON}, {{handler: select, parameters: \"delay > 5\"}}")), &late());
    w.connect(1, "flights", "PUB");
    w.connect(2, "flights", "SUB");
    w.connect(3, "late", "SUB");
    let texts: [&[u8]; 4] = [
        br#"{"$message": "Flight", "origin": "EWR", "delay": 11, "at": 1}"#,
        br#"{"$message": "Flight", "origin": "JFK", "delay": 7, "at": 2}"#,
        br#"{"$message": "Flight", "origin": "LGA", "delay": 1, "at": 3}"#,
        b"no JSON at all",
    ];
    for text in texts {
        w.arrive(1, &message(&[b"United", text]));
    }
    w.arrive(1, &message(&[b"Delta", &record(1, "BOS", 12, 4)]));
    let taken = w.taken(2);
    let expected = [("United", "EWR", 11, 1), ("United", "JFK", 7, 2), ("Delta", "BOS", 12, 4)];
    let expected: Vec<Vec<Vec<u8>>> = expected
        .iter()
        .map(|(topic, origin, delay, at)| vec![topic.as_bytes().to_vec(), record(1, origin, *delay, *at)])
        .collect();
    assert_eq!(taken, expected);
    assert_eq!(
        w.texts(3),
        [
            r#"{"$message":"Row","origin":"EWR","delay":11}"#,
            r#"{"$message":"Row","origin":"BOS","delay":12}"#
        ]
    );
}

#[test]
fn a_path_on_which_json_does_not_reach_from_json_is_refused() {
    let refused =
        |text: String| Planned::parse_yaml(&format!("{text}{}", late()), "p.yaml").unwrap_err().to_string();
    let behind = refused(policy(&format!("{{handler: select, parameters: \"delay > 5\"}}, {FROM_JSON}")));
    assert!(behind.contains("pass `select` by before it: put `from-json` first"), "{behind}");
    let dropped = policy(FROM_JSON).replacen("port: 5601,", "port: 5601, unknown: drop,", 1);
    let dropped = refused(dropped);
    assert!(dropped.contains("`unknown: drop` drops before it: leave `unknown` out"), "{dropped}");
    let several = refused(policy(FROM_JSON).replacen("formats: [flight]", "formats: [flight, weather]", 1));
    assert!(several.contains("name the message that a text has, such as Flight or Weather"), "{several}");
    // Behind handlers that take all messages, and behind to-json, it gets its texts.
    for path in ["{handler: forward}, {handler: from-json}", "{handler: to-json}, {handler: from-json}"] {
        Planned::parse_yaml(&format!("{}{}", policy(path), late()), "p.yaml").unwrap();
    }
}
