//! Services that network nodes forward.

use crate::{Policy, Via};

const POLICY: &str = "\
apiVersion: csp/v1
services:
  - name: dns
    vip: 10.76.0.102
    port: 53
    protocol: udp
    via: network
    pool:
      - {address: 10.76.0.201, port: 53, weight: 2}
      - {address: 10.76.0.202, port: 53, backup: true}
    servers: {all_down: serve, check: {interval_ms: 1000}}
  - name: dns-tcp
    vip: 10.76.0.102
    port: 53
    pool:
      - {node: an-1, port: 53}
egress:
  - {address: 10.76.0.101, destinations: [10.9.0.0/16]}
";

#[test]
fn udp_and_tcp_of_a_port_are_two_services_each_with_its_way() {
    let policy = Policy::parse_yaml(POLICY, "policy.yaml").unwrap();
    assert_eq!(policy.forwarded().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["dns"]);
    assert_eq!(policy.proxied().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["dns-tcp"]);
    assert_eq!(Policy::from_json(&policy.to_json(), "").unwrap(), policy);
    assert_eq!(policy.to_json().matches("via").count(), 1, "as before there was a choice");
    let mut proxied = policy.clone();
    proxied.services.remove(0);
    let lines = proxied.diff(&policy);
    let expected = "+ service dns 10.76.0.102 port 53 udp via network pool 10.76.0.201:53 weight 2, 10.76.0.202:53 backup";
    assert_eq!(lines, [expected]);
    let mut other = policy.clone();
    other.services[1].via = Via::Network;
    assert_eq!(policy.diff(&other), ["~ service dns-tcp: via proxy -> network"]);
}

#[test]
fn what_cannot_be_forwarded_is_refused_with_its_reason() {
    for (from, to, problem) in [
        ("    via: network\n", "", "services[0].protocol: a proxy ends TCP only; UDP needs via: network"),
        (
            "{address: 10.76.0.201,",
            "{node: an-2,",
            "services[0].pool[0]: packets are forwarded to an `address`; a node or a name needs via: proxy",
        ),
        (
            "10.76.0.201, port: 53",
            "10.76.0.201, port: 5353",
            "services[0].pool[0].port: packets arrive as they were sent, for port 53: the server has to listen there, not on 5353",
        ),
        (
            "address: 10.76.0.201",
            "address: 10.76.0.102",
            "services[0].pool[0].address: 10.76.0.102 is the cluster's own: packets would go round",
        ),
        (
            "address: 10.76.0.201",
            "address: 2001:db8::1",
            "services[0].pool[0].address: 2001:db8::1 is not of the family of 10.76.0.102, the service's address",
        ),
        (
            "address: 10.76.0.201",
            "address: 127.0.0.1",
            "services[0].pool[0].address: 127.0.0.1 is a loopback",
        ),
        (
            "all_down: serve,",
            "balance: source,",
            "services[0].servers.balance: servers.balance is for connections that a proxy ends",
        ),
        ("weight: 2", "max_connections: 9", "services[0].pool[0].max_connections: max_connections is for"),
        ("    via: network\n", "    via: network\n    tcp: {mss: 536}\n", "services[0].tcp: tcp is for"),
        (
            "    port: 53\n    pool",
            "    port: 53\n    protocol: udp\n    via: network\n    pool",
            "services[1].vip",
        ),
        (
            "egress:\n  - {address: 10.76.0.101, destinations: [10.9.0.0/16]}\n",
            "",
            "services[0].vip: the LAN is asked for the servers in the name of an egress address, and there is no IPv4 one",
        ),
        ("address: 10.76.0.101", "address: 10.76.0.102", "services[0].vip: 10.76.0.102 is an egress address"),
        (
            "    port: 53\n    pool",
            "    port: 53\n    servers: {tunnel: ipip}\n    pool",
            "services[1].servers.tunnel: tunnels",
        ),
        (
            "all_down: serve,",
            "tunnel: gre,",
            "services[0].servers.tunnel: `gre` is not known; allowed are ipip, gue",
        ),
        ("via: network", "via: both", "services[0].via: `both` is not known; allowed are proxy, network"),
    ] {
        let text = POLICY.replacen(from, to, 1);
        assert_ne!(text, POLICY);
        let error = Policy::parse_yaml(&text, "policy.yaml").unwrap_err().to_string();
        assert!(error.contains(problem), "{problem}\n{error}");
    }
}

#[test]
fn a_tunnel_leads_to_servers_of_either_family() {
    let text = POLICY.replace("all_down: serve,", "tunnel: gue,").replace("10.76.0.201", "2001:db8::201");
    let error = Policy::parse_yaml(&text, "policy.yaml").unwrap_err().to_string();
    assert!(error.contains("services[0].vip: the LAN is asked for the servers in the name of an egress address, and there is no IPv6 one"), "{error}");
    let egress = "egress:\n  - {address: 2001:db8::101, destinations: [2001:db8:9::/48]}\n";
    let policy = Policy::parse_yaml(&text.replace("egress:\n", egress), "policy.yaml").unwrap();
    assert_eq!(Policy::from_json(&policy.to_json(), "").unwrap(), policy);
    let mut plain = policy.clone();
    plain.services[0].servers.tunnel = None;
    assert_eq!(policy.diff(&plain), ["~ service dns: servers.tunnel gue -> none"]);
}
