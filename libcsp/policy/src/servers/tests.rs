//! Pools with plain servers.

use crate::{Policy, Reach};

/// A policy with a plain server in a pool beside a program's.
const PLAIN: &str = "\
apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 80
    pool:
      - {node: an-1, port: 80}
      - {address: 10.1.2.3, port: 8080, weight: 2, max_connections: 100}
    servers: {connect_timeout_ms: 500, proxy_protocol: v2}
egress:
  - address: 10.76.0.120
    destinations: [10.1.0.0/16]
";

#[test]
fn a_pool_has_programs_and_plain_servers() {
    let policy = Policy::parse_yaml(PLAIN, "policy.yaml").unwrap();
    let hosts: Vec<String> =
        policy.services[0].pool.iter().filter_map(|server| Some(server.host()?.to_string())).collect();
    assert_eq!(hosts, ["an-1", "10.1.2.3"]);
    assert_eq!(Policy::from_json(&policy.to_json(), "").unwrap(), policy);
    assert!(policy.to_json().contains(r#"{"node":"an-1","port":80}"#), "as before there were plain servers");
    let other = PLAIN.replace("weight: 2, max_connections: 100", "weight: 3").replace("v2", "v1");
    let other = Policy::parse_yaml(&other, "").unwrap();
    let expected = [
        "~ service web: servers.proxy_protocol v2 -> v1",
        "~ service web: pool - 10.1.2.3:8080 weight 2 max_connections 100",
        "~ service web: pool + 10.1.2.3:8080 weight 3",
    ];
    assert_eq!(policy.diff(&other), expected);
    let chosen = PLAIN
        .replace("proxy_protocol: v2", "balance: source, all_down: serve, slow_start_ms: 10000")
        .replace("max_connections: 100", "backup: true");
    let chosen = Policy::parse_yaml(&chosen, "").unwrap();
    assert_eq!(Policy::from_json(&chosen.to_json(), "").unwrap(), chosen);
    assert!(!policy.to_json().contains("balance"), "as before it could be chosen");
    assert!(chosen.services[0].pool[1].summary().ends_with("weight 2 backup"));
}

#[test]
fn balancers_in_front_name_the_client() {
    let behind =
        PLAIN.replace("    pool:\n", "    accept_proxy_from: [10.9.0.0/16, 10.8.0.1/32]\n    pool:\n");
    let policy = Policy::parse_yaml(&behind, "").unwrap();
    assert_eq!(Policy::from_json(&policy.to_json(), "").unwrap(), policy);
    let before = Policy::parse_yaml(PLAIN, "").unwrap();
    assert!(!before.to_json().contains("accept_proxy_from"));
    let expected = "~ service web: accept_proxy_from [] -> [10.9.0.0/16, 10.8.0.1/32]";
    assert_eq!(before.diff(&policy), [expected]);
    let refused = |text: &str| Policy::parse_yaml(text, "").unwrap_err().to_string();
    let error = refused(&behind.replace("10.8.0.1/32", "2001:db8::/32"));
    assert!(
        error.contains("services[0].accept_proxy_from[1]: 2001:db8::/32 is not of the family of"),
        "{error}"
    );
    let error = refused(&behind.replace("10.8.0.1/32", "10.76.0.0/16"));
    assert!(
        error.contains("accept_proxy_from[1]: 10.76.0.0/16 contains 10.76.0.120, an egress address"),
        "{error}"
    );
    let many = format!("[{}]", vec!["10.9.0.0/16"; 65].join(", "));
    let error = refused(&behind.replace("[10.9.0.0/16, 10.8.0.1/32]", &many));
    assert!(error.contains("accept_proxy_from: has 65 entries; allowed are 0 to 64"), "{error}");
}

#[test]
fn servers_may_have_names() {
    let named = PLAIN.replace("address: 10.1.2.3", "name: web-1.example.");
    let policy = Policy::parse_yaml(&named, "").unwrap();
    assert_eq!(policy.server_names().into_iter().collect::<Vec<_>>(), ["web-1.example."]);
    assert!(policy.services[0].pool[1].summary().starts_with("web-1.example.:8080 weight 2"));
    let mut reach = Reach::of(&policy);
    assert_eq!(reach.refuses([10, 1, 9, 9].into(), 80), None);
    for (address, fault) in [
        ([127, 0, 0, 1], "127.0.0.1 is a loopback address"),
        ([10, 2, 0, 1], "no entry of egress reaches 10.2.0.1"),
        ([10, 76, 0, 100], "10.76.0.100 port 80 is served by the cluster itself"),
    ] {
        let found = reach.refuses(address.into(), 80).unwrap();
        assert!(found.starts_with(fault), "{found}");
    }
}

#[test]
fn a_wrong_plain_server_is_refused() {
    let refuses = |old: &str, new: &str, expected: &str| {
        assert!(PLAIN.contains(old), "{old}");
        let error = Policy::parse_yaml(&PLAIN.replacen(old, new, 1), "p").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let server = "address: 10.1.2.3, port: 8080, weight: 2, max_connections: 100";
    refuses(server, "port: 80", "8:9: services[0].pool[1]: a server has one of a node");
    refuses(server, "node: an-2, address: 10.1.2.3, port: 80", "a server has one of a node");
    refuses(server, "name: www, address: 10.1.2.3, port: 80", "a server has one of a node");
    refuses("address: 10.1.2.3", "name: 10.1.2.3", "10.1.2.3 is an address: write `address`");
    refuses("address: 10.1.2.3", "name: a..b", "\"a..b\" is no name of a host");
    refuses("address: 10.1.2.3", "name: Www", "\"Www\" is no name of a host");
    refuses("node: an-1, port: 80", server, "10.1.2.3 port 8080 is in this pool already");
    refuses("node: an-1, port: 80", "node: an-1, port: 80, max_connections: 3", "is for a plain server");
    refuses("10.1.2.3", "127.0.0.1", "127.0.0.1 is a loopback address");
    refuses("10.1.2.3", "www", "\"www\" is no address");
    refuses("10.1.2.3", "10.2.2.3", "services[0].pool[1].address: no entry of egress reaches 10.2.2.3");
    let http = |http: &str| format!("proxy_protocol: v2, check: {{http: {{{http}}}}}");
    let v2 = "proxy_protocol: v2";
    refuses(v2, &http("path: status"), "servers.check.http.path: \"status\" is no path");
    refuses(v2, &http("host: a b"), "\"a b\" is no host");
    refuses(v2, &http("status: [300, 200]"), "300 to 200 are no statuses");
    refuses(
        v2,
        "check: {interval_ms: 500}",
        "servers.check.timeout_ms: 1000 ms are more than interval_ms, 500",
    );
    refuses(v2, "check: {rise: 0}", "0 is not a number of checks; allowed is 1 to 100");
    refuses("weight: 2", "weight: 257", "257 is not a weight; allowed is 0 to 256");
    refuses(
        "port: 80}\n      - {address: 10.1.2.3, port: 8080, weight: 2",
        "port: 80, weight: 0}\n      - {address: 10.1.2.3, port: 8080, weight: 0",
        "services[0].pool: all weights are 0",
    );
    let backup = "port: 80, backup: true}\n      - {address: 10.1.2.3, port: 8080, backup: true, weight: 2";
    refuses(
        "port: 80}\n      - {address: 10.1.2.3, port: 8080, weight: 2",
        backup,
        "every server is a backup",
    );
    refuses(v2, "balance: random", "`random` is not known; allowed are least-connections, source");
    refuses(v2, "slow_start_ms: 4000000", "4000000 is not a time in milliseconds; allowed is 0 to 3600000");
    refuses(v2, "check: {http: {}, tls: {}}", "services[0].servers.check.tls: http is asked without TLS");
    refuses(v2, "check: {tls: {name: a b}}", "services[0].servers.check.tls.name: \"a b\" is no name");
    let tls = PLAIN.replace(v2, "check: {tls: {name: www.example}}");
    let tls = Policy::parse_yaml(&tls, "").unwrap();
    assert_eq!(Policy::from_json(&tls.to_json(), "").unwrap(), tls);
    refuses("proxy_protocol: v2", "proxy_protocol: v3", "`v3` is not known; allowed are off, v1, v2");
    refuses("timeout_ms: 500", "timeout_ms: 5", "5 is not a time in milliseconds; allowed is 50 to 60000");
    let itself = PLAIN.replace("10.1.2.3, port: 8080", "10.76.0.100, port: 80").replace("10.1.0", "10.0.0");
    let error = Policy::parse_yaml(&itself.replace(".0/16", ".0/8"), "p").unwrap_err().to_string();
    assert!(error.contains("10.76.0.100 port 80 is served by the cluster itself"), "{error}");
}
