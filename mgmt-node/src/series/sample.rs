//! Reads the figures every ten seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csp_api::mgmt::{ServicesView, Unreachable};
use csp_control::{MemberState, Membership};
use csp_daemon::clock::unix_now_ms;
use csp_types::Role;

use super::figures::{of_node, of_service};
use super::{Reading, Readings};
use crate::limits::SERIES_INTERVAL;
use crate::views::Cluster;

/// Reads forever.
pub async fn run(cluster: Arc<Cluster>) {
    let mut beat = tokio::time::interval(SERIES_INTERVAL);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = Reporters::default();
    loop {
        beat.tick().await;
        let read = read(&cluster, &mut before).await;
        cluster.poller.series.add(unix_now_ms(), read);
    }
}

async fn read(cluster: &Cluster, before: &mut Reporters) -> BTreeMap<String, Readings> {
    let health = cluster.poller.health();
    let samples = health.iter().filter_map(|(id, health)| Some((id, &health.sample.as_ref()?.1)));
    let mut read: BTreeMap<String, Readings> =
        samples.map(|(id, sample)| (format!("node/{id}"), of_node(sample))).collect();
    let membership = cluster.membership.borrow().clone();
    let services = cluster.services().await;
    let now = Reporters::new(&membership, &services.unreachable);
    read.extend(of_services(&services, &now, before));
    *before = now;
    read
}

/// The nodes that have reported services: proxies for those with `via: proxy`, network nodes for the others.
#[derive(Default)]
struct Reporters {
    proxies: Answers,
    network_nodes: Answers,
}

/// The nodes of one role that have answered.
#[derive(Default)]
struct Answers {
    /// With their incarnations.
    from: BTreeSet<(String, u64)>,
    /// Whether a node did not answer whose registration is alive. One whose lease has expired is dead, or
    /// answers all the same.
    misses_some: bool,
}

impl Answers {
    /// The nodes that sums of counters were read of; none if they were not.
    fn summed(&self) -> Option<&BTreeSet<(String, u64)>> {
        (!self.misses_some && !self.from.is_empty()).then_some(&self.from)
    }
}

impl Reporters {
    /// Of these members, which were asked for services, some in vain.
    fn new(members: &Membership, unreachable: &[Unreachable]) -> Self {
        let of_role = |role| {
            let mut answers = Answers::default();
            for member in members.of_role(role) {
                let id = member.record.id.to_string();
                if unreachable.iter().any(|node| node.node == id) {
                    answers.misses_some |= member.state == MemberState::Live;
                } else {
                    answers.from.insert((id, member.record.incarnation));
                }
            }
            answers
        };
        Reporters { proxies: of_role(Role::ProxyNode), network_nodes: of_role(Role::NetworkNode) }
    }

    fn of(&self, via: &str) -> &Answers {
        if via == "proxy" { &self.proxies } else { &self.network_nodes }
    }
}

/// The figures of services: nothing where no node reports the service. A rate needs two sums over the same
/// nodes: a node that is missing would look like a fall, and one that is there again like a rise.
fn of_services(services: &ServicesView, now: &Reporters, before: &Reporters) -> BTreeMap<String, Readings> {
    let mut read = BTreeMap::new();
    for service in &services.services {
        let answers = now.of(&service.via);
        if answers.from.is_empty() {
            continue;
        }
        let mut readings = of_service(service);
        let others = before.of(&service.via).summed().is_some_and(|summed| *summed != answers.from);
        if answers.misses_some || others {
            readings.retain(|(_, reading)| matches!(reading, Reading::Now(_)));
        }
        read.insert(format!("service/{}", service.name), readings);
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_api::mgmt::{PoolMemberView, ServiceView};
    use csp_control::{Member, NodeRecord};

    fn members(nodes: &[(&str, Role, u64, MemberState)]) -> Membership {
        let member = |(id, role, incarnation, state): &(&str, Role, u64, MemberState)| {
            let id = id.parse().unwrap();
            let record = NodeRecord::new(id, *role, "http://10.77.0.2:9102".to_owned());
            (id, Member { record: NodeRecord { incarnation: *incarnation, ..record }, state: *state })
        };
        Membership { revision: 1, synced: true, nodes: nodes.iter().map(member).collect() }
    }

    fn services(via: &str) -> ServicesView {
        let member = PoolMemberView {
            node: "an-1".into(),
            address: None,
            names: Vec::new(),
            down_at: Vec::new(),
            port: 80,
            processes: Some(1),
            open_connections: Some(3),
            connections_total: Some(100),
            accept_credit: Some(5),
            packets_total: None,
        };
        let service = ServiceView {
            name: "web".into(),
            vip: "10.76.0.100".into(),
            port: 80,
            protocol: "tcp".into(),
            via: via.into(),
            pending: 0,
            leads_to: Vec::new(),
            pool: vec![member],
            figures: None,
        };
        let services = vec![service];
        ServicesView { generation: 1, services, total: 1, troubled: 0, unreachable: Vec::new() }
    }

    /// Which figures of a service are read where these nodes do not answer: values of the moment, rates.
    fn read(via: &str, members: &Membership, missing: &[&str], before: &mut Reporters) -> (bool, bool) {
        let not = |id: &&str| Unreachable { node: (*id).into(), error: "no answer".into() };
        let now = Reporters::new(members, &missing.iter().map(not).collect::<Vec<_>>());
        let read = of_services(&services(via), &now, before);
        *before = now;
        let has = |name: &str| read.get("service/web").is_some_and(|all| all.iter().any(|(n, _)| *n == name));
        (has("open_connections"), has("connections_per_s"))
    }

    #[test]
    fn services_have_figures_while_a_proxy_does_not_answer() {
        use MemberState::{LeaseExpired, Live};
        let cluster = |state| {
            let proxies = [("pn-1", Role::ProxyNode, 1, Live), ("pn-2", Role::ProxyNode, 1, state)];
            members(&[&proxies[..], &[("nn-1", Role::NetworkNode, 1, Live)]].concat())
        };
        let (both, expired) = (cluster(Live), cluster(LeaseExpired));
        let mut before = Reporters::default();
        let proxies = |members: &Membership, missing: &[&str], before: &mut Reporters| {
            read("proxy", members, missing, before)
        };
        assert_eq!(proxies(&both, &[], &mut before), (true, true));
        assert_eq!(proxies(&both, &["pn-2"], &mut before), (true, false), "its part is not in the sum");
        assert_eq!(proxies(&both, &["pn-2"], &mut before), (true, false));
        assert_eq!(proxies(&expired, &["pn-2"], &mut before), (true, true), "pn-1 is all that is left");
        assert_eq!(proxies(&expired, &[], &mut before), (true, false), "pn-2 is there again");
        assert_eq!(proxies(&both, &[], &mut before), (true, true));
        assert_eq!(proxies(&both, &["pn-1", "pn-2"], &mut before), (false, false));
        assert_eq!(proxies(&both, &["nn-1"], &mut before), (true, true), "network nodes do not report it");
        assert_eq!(read("network", &both, &["nn-1"], &mut before), (false, false));
        assert_eq!(read("network", &both, &["pn-1"], &mut before), (true, true));
    }

    #[test]
    fn a_restarted_proxys_counters_are_not_compared_with_those_of_before() {
        let at = |incarnation| members(&[("pn-1", Role::ProxyNode, incarnation, MemberState::Live)]);
        let mut before = Reporters::default();
        read("proxy", &at(1), &[], &mut before);
        assert_eq!(read("proxy", &at(1), &[], &mut before), (true, true));
        assert_eq!(read("proxy", &at(2), &[], &mut before), (true, false));
        assert_eq!(read("proxy", &at(2), &[], &mut before), (true, true));
    }
}
