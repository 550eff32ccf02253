//! Channels of a plan, each with what follows for it.

use crate::{Origin, Planned};

const BRANCHES: &str = include_str!("../../../policy/fixtures/branches.yaml");

#[test]
fn each_channel_comes_with_what_follows_for_it() {
    let requests = "    formats: [flight, weather]\n    requests: {port: 5650, queries: 2}\n";
    let text = BRANCHES.replacen("    formats: [flight, weather]\n", requests, 1);
    let query = "queries: [{name: soon, vip: 10.76.0.100, port: 5611, sql: SELECT number FROM late}]\n";
    let planned = Planned::parse_yaml(&format!("{text}{query}"), "p.yaml").unwrap();
    let channels = planned.channels();
    let names: Vec<&str> = channels.iter().map(|of| of.channel.name.as_str()).collect();
    assert_eq!(names, ["flights", "late", "board", "soon"], "in the order of the policy, queries last");
    let requested: Vec<usize> = channels.iter().map(|of| of.requested.len()).collect();
    assert_eq!(requested, [2, 0, 0, 0]);
    assert_eq!(channels[0].requested[1].name, "flights.2");
    let Origin::Publishers { formats } = channels[0].origin else { panic!("{:?}", channels[0].origin) };
    assert_eq!(formats.iter().map(|format| format.name.as_str()).collect::<Vec<_>>(), ["flight", "weather"]);
    for derived in &channels[1..3] {
        let Origin::Outputs { of, formats } = derived.origin else { panic!("{:?}", derived.origin) };
        assert_eq!((of.name.as_str(), formats.len()), ("flights", 2), "of {}", derived.channel.name);
    }
    let Origin::Query { query, plan: Some(plan) } = channels[3].origin else {
        panic!("{:?}", channels[3].origin)
    };
    assert_eq!((query.name.as_str(), plan.sources[0].channel.as_str()), ("soon", "late"));
    // Channels and queries that belong together live at the place of the one with the least name.
    let places: Vec<_> = channels.iter().map(|of| of.place).collect();
    assert_eq!(places, [channels[2].channel.placement(); 4]);
}
