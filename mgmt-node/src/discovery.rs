//! `GET /api/v1/discovery`: the members as targets of Prometheus, in the format of its `http_sd_configs`.
//!
//! Every member is a target, also one whose lease has expired: that a scrape fails is what an alert is made
//! of. A node that stopped on purpose, and was removed from the membership by that, is none.

use std::collections::BTreeMap;

use csp_control::Membership;
use reqwest::Url;
use serde::Serialize;

/// Targets with the same labels: here always one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TargetGroup {
    /// `ADDRESS:PORT` of the admin endpoint.
    pub targets: Vec<String>,
    /// Labels that all series of the target get, by name. `__scheme__` is consumed by Prometheus.
    pub labels: BTreeMap<&'static str, String>,
}

/// Returns one group for each member, ordered by the text of its id. A member whose registered address is no
/// URL of HTTP is left out, as nobody could scrape it.
pub fn targets(membership: &Membership) -> Vec<TargetGroup> {
    let group = |member: &csp_control::Member| {
        let record = &member.record;
        let url = Url::parse(&record.admin).ok()?;
        let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https"))?;
        let labels = BTreeMap::from([
            ("__scheme__", url.scheme().to_owned()),
            ("host", host.trim_matches(['[', ']']).to_owned()),
            ("node", record.id.to_string()),
            ("tier", record.role.to_string()),
        ]);
        Some(TargetGroup { targets: vec![format!("{host}:{}", url.port_or_known_default()?)], labels })
    };
    let mut groups: Vec<TargetGroup> = membership.nodes.values().filter_map(group).collect();
    // Ids are not ordered as text.
    groups.sort_by(|a, b| a.labels.get("node").cmp(&b.labels.get("node")));
    groups
}

#[cfg(test)]
mod tests {
    use csp_control::{Member, MemberState, NodeRecord};
    use csp_types::Role;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_member_is_a_target_also_without_a_lease() {
        let mut membership = Membership::default();
        for (id, role, admin, state) in [
            ("pn-1", Role::ProxyNode, "https://10.77.0.2:9102", MemberState::Live),
            ("nn-1", Role::NetworkNode, "https://[2001:db8::1]:9101", MemberState::LeaseExpired),
            ("an-100", Role::AppNode, "http://127.0.0.1", MemberState::Live),
            ("an-20", Role::AppNode, "unix:/run/admin", MemberState::Live),
        ] {
            let record = NodeRecord::new(id.parse().expect("an id"), role, admin.to_owned());
            membership.nodes.insert(record.id, Member { record, state });
        }
        let expected = json!([
            {"targets": ["127.0.0.1:80"],
             "labels": {"__scheme__": "http", "host": "127.0.0.1", "node": "an-100", "tier": "app-node"}},
            {"targets": ["[2001:db8::1]:9101"],
             "labels": {"__scheme__": "https", "host": "2001:db8::1", "node": "nn-1", "tier": "network-node"}},
            {"targets": ["10.77.0.2:9102"],
             "labels": {"__scheme__": "https", "host": "10.77.0.2", "node": "pn-1", "tier": "proxy-node"}},
        ]);
        assert_eq!(serde_json::to_value(targets(&membership)).expect("JSON"), expected);
    }
}
