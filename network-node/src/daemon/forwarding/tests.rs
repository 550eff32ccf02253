//! Which servers workers get, and when.

use super::*;

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
      - {address: 10.76.0.202, port: 53}
      - {address: 10.76.0.203, port: 53, backup: true}
    servers: {check: {interval_ms: 1000, rise: 2, fall: 3}}
egress:
  - {address: 10.76.0.101, destinations: [10.9.0.0/16]}
";

fn policy(text: &str) -> Policy {
    Policy::parse_yaml(text, "policy.yaml").unwrap()
}

/// The weights of those that are up, in the order of the policy; -1 for those that are down.
fn weights(pools: &Pools) -> Vec<i32> {
    let weight = |server: &PoolServer| if server.up { i32::from(server.weight) } else { -1 };
    pools.all()[0].servers().iter().map(weight).collect()
}

fn servers(text: &str) -> Servers {
    let servers = Servers::default();
    servers.of_policy(&policy(text), 7, &OwnedAddresses::default());
    servers
}

fn fail(servers: &Servers, last: u8, times: usize) {
    note(servers, last, times, Err("connection refused"));
}

fn note(servers: &Servers, last: u8, times: usize, result: Result<(), &str>) {
    let (key, check) =
        servers.checked().into_iter().find(|(key, _)| key.2 == IpAddr::from([10, 76, 0, last])).unwrap();
    for _ in 0..times {
        servers.note(&key, &check, result.map_err(str::to_owned));
    }
}

#[test]
fn a_server_goes_after_fall_checks_and_returns_after_rise() {
    let servers = servers(POLICY);
    let now = || weights(&servers.state().pools());
    assert_eq!(now(), [2, 1, 0]);
    fail(&servers, 201, 2);
    note(&servers, 201, 1, Ok(()));
    fail(&servers, 201, 2);
    assert_eq!(now(), [2, 1, 0], "never three in a row");
    fail(&servers, 201, 1);
    assert_eq!(now(), [-1, 1, 0]);
    let view = servers.view(&[]);
    assert_eq!(view[0].servers[0].down.as_deref(), Some("connection refused"));
    fail(&servers, 202, 3);
    assert_eq!(now(), [-1, -1, 1], "the backup stands in");
    note(&servers, 201, 1, Ok(()));
    assert_eq!(now(), [-1, -1, 1]);
    note(&servers, 201, 1, Ok(()));
    assert_eq!(now(), [2, -1, 0], "the backup keeps what it has");
}

#[test]
fn all_down_serves_all_if_the_policy_says_so() {
    let serve = POLICY.replace("servers: {", "servers: {all_down: serve, ");
    for (text, expected) in [(POLICY, [-1, -1, -1]), (&serve, [2, 1, 0])] {
        let servers = servers(text);
        [201, 202, 203].into_iter().for_each(|last| fail(&servers, last, 3));
        assert_eq!(weights(&servers.state().pools()), expected);
    }
}

#[test]
fn a_server_that_stays_keeps_its_id_and_state() {
    let servers = servers(POLICY);
    fail(&servers, 202, 3);
    let ids = |pools: &Pools| pools.all()[0].servers().iter().map(|s| s.id).collect::<Vec<_>>();
    let before = ids(&servers.state().pools());
    let other = POLICY.replace("10.76.0.201", "10.76.0.204");
    let pools = servers.of_policy(&policy(&other), 8, &OwnedAddresses::default());
    let after = ids(&pools);
    assert_eq!(after.iter().filter(|id| before.contains(id)).count(), 2);
    assert!(after.iter().max() > before.iter().max(), "a new server has a new id");
    let down = pools.all()[0].servers().iter().find(|s| !s.up).unwrap();
    assert_eq!(down.address, IpAddr::from([10, 76, 0, 202]));
    // Without checks nobody says that a server is down.
    let unchecked = other.replace("    servers: {check: {interval_ms: 1000, rise: 2, fall: 3}}\n", "");
    let pools = servers.of_policy(&policy(&unchecked), 9, &OwnedAddresses::default());
    assert!(pools.all()[0].servers().iter().all(|server| server.up));
    let none = servers.of_policy(&policy("apiVersion: csp/v1\n"), 10, &OwnedAddresses::default());
    assert!(none.all().is_empty() && servers.checked().is_empty());
}
