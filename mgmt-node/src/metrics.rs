//! The management node's own metrics.

use std::sync::Arc;

use csp_control::{AckState, NodeAck};
use csp_telemetry::{MetricSource, MetricWriter};

use crate::leader::Leadership;
use crate::views::Cluster;

/// Reads the cluster's state at each scrape.
#[derive(Debug)]
pub struct ClusterMetrics(pub Arc<Cluster>);

impl MetricSource for ClusterMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let cluster = &self.0;
        csp_daemon::control_metrics(out, &cluster.status.borrow());
        let leads = matches!(*cluster.leadership.borrow(), Leadership::Own { .. });
        out.gauge("csp_mgmt_leader", "1 while this management node leads", &[], f64::from(u8::from(leads)));
        let nodes = cluster.nodes();
        let connected = f64::from(u8::from(nodes.etcd.connected));
        out.gauge("csp_mgmt_etcd_connected", "1 while etcd answers", &[], connected);
        for node in &nodes.nodes {
            let labels = [("role", node.role.as_str()), ("state", node.state.as_str())];
            out.gauge("csp_members", "Members of the cluster by role and state", &labels, 1.0);
        }
        let policy = cluster.policy.known();
        let newest = policy.history.first().map_or(0, |g| g.generation);
        let active = policy.active.as_ref().map_or(0, |g| g.generation);
        for (state, generation) in [("active", active), ("newest", newest)] {
            let help = "Policy generations as last read from etcd";
            out.gauge("csp_policy_generation", help, &[("state", state)], generation as f64);
        }
        for (record, ack) in &policy.followers {
            let refused = |ack: &NodeAck| ack.state == AckState::Refused && ack.generation == newest;
            let refused = f64::from(u8::from(ack.as_ref().is_some_and(refused)));
            let help = "1 while a member's word on the newest generation is that it refuses it";
            out.gauge("csp_member_policy_refused", help, &[("member", record.id.as_str())], refused);
        }
        let active = policy.active.iter().map(|record| &record.policy);
        let with_pool = |policy: &csp_policy::Policy| {
            let channels = policy.channels.iter().flat_map(csp_policy::Channel::pool_services);
            policy
                .services
                .iter()
                .filter(|service| service.http.is_none())
                .map(|service| service.name.clone())
                .chain(channels.map(|service| service.name))
                .collect::<Vec<_>>()
        };
        let named: Vec<String> = active.flat_map(with_pool).collect();
        cluster.poller.services.collect(out, &named.iter().map(String::as_str).collect());
    }
}
