//! Tests of ports and pools of channels: defaults, and the exact words for what is wrong.

use crate::Policy;

use super::*;

fn channel(fields: &str) -> String {
    format!("apiVersion: csp/v1\nchannels:\n  - {{name: ticks, vip: 10.76.0.100, port: 5556, {fields}}}\n")
}

fn good(fields: &str) -> Channel {
    Policy::parse_yaml(&channel(fields), "p.yaml").unwrap().channels.remove(0)
}

/// The mistakes of a channel with these fields, each as field and message.
fn mistakes(fields: &str) -> Vec<(String, String)> {
    let error = Policy::parse_yaml(&channel(fields), "p.yaml").unwrap_err();
    error.problems.iter().map(|problem| (problem.field.clone(), problem.message.clone())).collect()
}

#[test]
fn a_channel_has_one_port_with_zmtp_unless_it_says_otherwise() {
    let plain = good("message_kib: 8");
    let ports: Vec<_> = plain.ports().collect();
    assert_eq!(ports.len(), 1);
    assert_eq!((ports[0].port, ports[0].framing, ports[0].header_len()), (5556, Framing::Zmtp, None));
    let json = serde_json::to_string(&plain).unwrap();
    assert!(!json.contains("framing") && !json.contains("listen") && !json.contains("pool"), "{json}");
}

#[test]
fn ports_have_framings_of_their_own() {
    let text = "listen: [{port: 5557, framing: sofh, header: strip, encoding: 0xf000}, \
         {port: 5558, framing: {length: {offset: 2, bytes: 2, order: little, header: 8, counts: rest}}, clients: publish}]";
    let found = good(text);
    let ports: Vec<_> = found.ports().collect();
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [5556, 5557, 5558]);
    assert_eq!(
        (ports[1].framing, ports[1].header, ports[1].encoding),
        (Framing::Sofh, Headers::Strip, Some(0xf000))
    );
    let Framing::Length(header) = ports[2].framing else { panic!("{:?}", ports[2]) };
    assert_eq!(
        (header.header_len(), header.counted_from(), ports[2].clients),
        (8, 4, Some(Clients::Publish))
    );
    for (counts, from) in [(LengthCounts::Body, 8), (LengthCounts::Message, 0)] {
        assert_eq!(LengthHeader { counts, ..header }.counted_from(), from);
    }
    let policy = Policy::parse_yaml(&channel(text), "p.yaml").unwrap();
    assert_eq!(Policy::from_json(&policy.to_json(), "x").unwrap(), policy);
    let ends: Vec<u16> = policy.ends().map(|(_, port)| port).collect();
    assert_eq!(ends, [5556, 5557, 5558], "clients reach all of them");
    let added = Policy::empty().diff(&policy);
    assert!(added[0].contains("port 5557 Sofh Strip") && added[0].contains("port 5558 Length("), "{added:?}");
}

#[test]
fn all_mistakes_of_a_port_are_found_at_once() {
    let found = mistakes(
        "clients: both, header: strip, encoding: 7, listen: [\
           {port: 5556, framing: sofh, encoding: 7}, \
           {port: 5558, framing: {length: {offset: 60, bytes: 3, header: 4}}}, \
           {port: 5559, framing: {length: {offset: 61, bytes: 4}}}]",
    );
    let allowed = "allowed with sofh and length";
    let expected = [
        (
            "channels[0].clients",
            format!("ZeroMQ peers say by the type of their socket what they do; {allowed}"),
        ),
        ("channels[0].header", format!("messages of ZeroMQ peers have no such header; {allowed}")),
        (
            "channels[0].encoding",
            "new headers have it where header is strip and framing is sofh; elsewhere it is the publisher's"
                .into(),
        ),
        ("channels[0].listen[0].port", "10.76.0.100 port 5556 belongs to channels[0] already".into()),
        (
            "channels[0].listen[0].encoding",
            "new headers have it where header is strip and framing is sofh; elsewhere it is the publisher's"
                .into(),
        ),
        (
            "channels[0].listen[1].framing.length.bytes",
            "3 is no width of a length field; allowed are 1, 2, 4, 8".into(),
        ),
        (
            "channels[0].listen[1].framing.length.header",
            "a header of 4 bytes; allowed are 63, where the length field ends, to 64".into(),
        ),
        (
            "channels[0].listen[2].framing.length.offset",
            "a header of 65 bytes; allowed are 65, where the length field ends, to 64".into(),
        ),
    ];
    let mut found = found;
    found.sort();
    let mut expected: Vec<_> = expected.map(|(field, message)| (field.to_owned(), message)).to_vec();
    expected.sort();
    assert_eq!(found, expected);
    let word = &mistakes("framing: fix")[0];
    assert_eq!(word.1, "`fix` is not known; allowed are zmtp, sofh, length");
    let missing = &mistakes("framing: {length: {offset: 2}}")[0];
    assert!(missing.1.contains("bytes"), "{missing:?}");
}

#[test]
fn pushers_say_which_side_they_are() {
    let found = mistakes("framing: sofh, pattern: push");
    let words = "with pattern push, clients of a length-prefixed port either push or pull; allowed are publish, subscribe";
    assert_eq!(found, [("channels[0].clients".to_owned(), words.to_owned())]);
    good("framing: sofh, pattern: push, clients: publish");
}

#[test]
fn a_pool_is_for_length_prefixed_messages() {
    let pool = "pool: [{node: an-1, port: 9000}, {node: an-2, port: 9000}]";
    let found = good(&format!("framing: sofh, listen: [{{port: 9, framing: sofh}}], {pool}"));
    let services: Vec<(String, u16, usize)> =
        found.pool_services().map(|service| (service.name, service.port, service.pool.len())).collect();
    assert_eq!(services, [("ticks".to_owned(), 5556, 2), ("ticks:9".to_owned(), 9, 2)]);
    assert_eq!(good("framing: sofh").pool_services().count(), 0);
    let found = mistakes(&format!(
        "pattern: push, listen: [{{port: 1, framing: sofh, clients: publish, header: strip}}], {pool}"
    ));
    let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    let expected = [
        "channels[0].framing",
        "channels[0].listen[0].clients",
        "channels[0].listen[0].header",
        "channels[0].pool",
    ];
    assert_eq!(fields, expected, "{found:?}");
    let twice = mistakes("framing: sofh, pool: [{node: an-1, port: 9000}, {node: an-1, port: 9000}]");
    assert_eq!(twice[0].0, "channels[0].pool[1]");
}
