//! Queries on request in a policy.

use csp_policy::BroughtHandlers;

use super::*;

fn policy(requests: &str) -> String {
    let line = "    formats: [flight]\n";
    let text = airport();
    assert!(text.contains(line));
    text.replace(line, &format!("{line}    requests: {{{requests}}}\n"))
}

#[test]
fn places_for_queries_on_request_live_where_the_channel_does() {
    let policy = checked(&policy("port: 5620, queries: 3, with: [apart]"), "p.yaml").unwrap();
    let places: Vec<_> = policy.requested_channels().map(|(at, c)| (at, c.name, c.port)).collect();
    let expected = (1..=3).map(|n| (0, format!("flights.{n}"), 5619 + n));
    assert_eq!(places, expected.collect::<Vec<_>>());
    assert_eq!(policy.ends().filter(|(_, port)| (5620..5623).contains(port)).count(), 3);
    let keys = policy.placements();
    // `apart` has the least name of all that is tied together.
    let key = PlacementKey::of_address(([10, 76, 0, 100], 5603).into());
    assert!(["flights", "winds", "apart", "flights.1", "flights.3"].iter().all(|name| keys[*name] == key));
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
}

#[test]
fn wrong_requests_are_refused() {
    for (requests, expected) in [
        ("port: 5620, queries: 65", "65 is not a number of queries"),
        ("port: 65535", "8 ports from 65535 on reach beyond 65535"),
        ("port: 5602", "10.76.0.100 port 5602 belongs to"),
        ("port: 5620, with: [apat]", "there is no channel \"apat\"; the nearest is \"apart\""),
        ("port: 5620, with: [flights]", "flights is read anyway"),
        ("port: 5620, context: c9", "`c9` is no context"),
        ("port: 5620, queue: {full: block}", "a query holds back nobody"),
        ("port: 5620, formats: 9", "9 is not a number of formats"),
        ("port: 5620, handlers: {}", "nobody may bring any: give the channel keys"),
        ("port: 5620, handlers: {anyone: true, each: 65}", "65 is not a number of handlers"),
        ("port: 5620, handlers: {anyone: true, fuel: 10}", "10 is not fuel of a call"),
        ("port: 5620, handlers: {anyone: true, memory_kib: 8192}", "8192 is not memory of a module"),
        (
            "port: 5620, handlers: {anyone: true, module_kib: 1009}",
            "1009 KiB need a `message_kib` of 1025, which is 1024",
        ),
        ("port: 5620, handlers: {anyone: true, on_stop: ask}", "`ask` is not known"),
        ("port: 5620, memory: {guaranteed_mib: 9, max_mib: 8}", "9 MiB are more than max_mib, 8"),
    ] {
        let found = checked(&policy(requests), "p.yaml").unwrap_err().to_string();
        assert!(found.contains(expected), "{requests}: {found}");
    }
}

#[test]
fn who_may_bring_handlers_stands_in_the_policy() {
    let open = checked(&policy("port: 5620, handlers: {anyone: true}"), "p.yaml").unwrap();
    let requests = open.channels[0].requests.as_ref().unwrap();
    let expected = BroughtHandlers { anyone: true, ..BroughtHandlers::default() };
    assert_eq!(requests.handlers, Some(expected));
    assert_eq!(Policy::from_json(&open.to_json(), "p.json").unwrap(), open);
    // A message of the channel and the topic go to the places, and the difference shows what has changed.
    assert_eq!(open.requested_channels().next().unwrap().1.message_kib, 1_025);
    let less = policy("port: 5620, handlers: {anyone: true, fuel: 5000}");
    let less = checked(&less, "p.yaml").unwrap();
    assert!(open.diff(&less).join("\n").contains("5000 fuel"));
    // With keys, these decide.
    let keyed = |anyone: &str| {
        let text = format!(
            "apiVersion: csp/v1\nchannels:\n  - name: raw\n    vip: 10.76.0.100\n    port: 5601\n    curve: {{server_key: \
             \"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{{hID\", any: [supply]}}\n    requests: {{port: 5620, handlers: {{{anyone}}}}}\n"
        );
        checked(&text, "p.yaml").map_err(|error| error.to_string())
    };
    assert!(keyed("").is_ok(), "{:?}", keyed(""));
    let error = keyed("anyone: true").unwrap_err();
    assert!(error.contains("the channel has keys: give the right `supply`"), "{error}");
}
