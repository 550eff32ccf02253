//! Services come and go with the policy.

use super::*;

fn spec(name: &str, port: u16, servers: &[u16]) -> ServiceSpec {
    let node = "an-1".parse().unwrap();
    let pool = servers.iter().map(|port| PoolServer::of_node(node, *port)).collect();
    ServiceSpec { pool, ..ServiceSpec::new(name.to_owned(), ([10, 0, 0, 1], port).into()) }
}

#[test]
fn a_dropped_service_goes_with_its_last_connection() {
    let (mut services, mut pools) = (Services::default(), Pools::new());
    let web = services.replace(Instant::ZERO, vec![spec("web", 80, &[8080])], &mut pools).listen[0].1;
    assert!(services.flow_began(web) && services.flow_began(web));
    let gone = services.replace(Instant::ZERO, Vec::new(), &mut pools).gone;
    assert_eq!(gone, [([10, 0, 0, 1], 80).into()]);
    services.flow_ended(web, &mut pools);
    assert!(services.get(web).is_some_and(|s| !s.active), "a connection lives on");
    assert_eq!(pools.len(), 1);
    services.flow_ended(web, &mut pools);
    assert!(services.get(web).is_none() && pools.is_empty() && services.iter().next().is_none());
}

#[test]
fn the_number_of_a_forgotten_service_names_no_other() {
    let (mut services, mut pools) = (Services::default(), Pools::new());
    let old = services.replace(Instant::ZERO, vec![spec("a", 80, &[1])], &mut pools).listen[0].1;
    services.replace(Instant::ZERO, Vec::new(), &mut pools);
    let new = services.replace(Instant::ZERO, vec![spec("b", 81, &[2])], &mut pools).listen[0].1;
    assert!(services.get(old).is_none() && !services.flow_began(old) && services.get(new).is_some());
}

#[test]
fn a_service_that_comes_back_while_its_connections_live_is_the_same() {
    let (mut services, mut pools) = (Services::default(), Pools::new());
    let first = services.replace(Instant::ZERO, vec![spec("a", 80, &[1, 2])], &mut pools).listen[0].1;
    assert!(services.flow_began(first));
    services.replace(Instant::ZERO, Vec::new(), &mut pools);
    let again = services.replace(Instant::ZERO, vec![spec("a", 80, &[2, 3])], &mut pools).listen[0].1;
    assert_eq!((first, pools.len()), (again, 2));
    services.flow_ended(first, &mut pools);
    assert!(services.get(first).is_some_and(|s| s.active));
}

#[test]
fn policies_that_come_and_go_leave_nothing_behind() {
    let (mut services, mut pools) = (Services::default(), Pools::new());
    for round in 0..10_000u32 {
        services.replace(Instant::ZERO, vec![spec(&format!("s{round}"), 80, &[round as u16])], &mut pools);
    }
    assert_eq!((services.iter().count(), pools.len()), (1, 1));
    assert!(services.slots.len() <= 2);
}
