//! Groups of VIPs, and the network nodes that hold them.

use csp_api::mgmt::{VipGroupView, VipGroupsView};
use csp_api::network::{Group, Groups};
use csp_policy::VipGroup;
use csp_types::Role;

use super::Cluster;
use crate::fanout::Target;

impl Cluster {
    /// `GET /api/v1/vip-groups`.
    pub async fn vip_groups(&self) -> VipGroupsView {
        let targets = self.targets(&[Role::NetworkNode]);
        let (answers, unreachable) = self.fanout.ask::<Groups>(targets, "/v1/groups", vec![]).await;
        let active = self.policy.known().active;
        let groups = active.iter().flat_map(|record| &record.policy.vip_groups);
        VipGroupsView {
            generation: active.as_ref().map_or(0, |record| record.generation),
            groups: groups.map(|group| view(group, &answers)).collect(),
            unreachable,
        }
    }
}

fn view(group: &VipGroup, answers: &[(Target, Groups)]) -> VipGroupView {
    let of_node = |(target, answer): &'_ (Target, Groups)| {
        let seen = answer.groups.iter().find(|seen| seen.name == *group.name)?.clone();
        Some((target.id.clone(), answer.voters, seen))
    };
    let seen: Vec<_> = answers.iter().filter_map(of_node).collect();
    let holds = |(_, _, group): &&(String, u32, Group)| group.held_ms.is_some();
    let holder = seen.iter().find(holds);
    let latest = holder.or_else(|| seen.iter().max_by_key(|(_, _, group)| group.epoch));
    // The holder may not have answered: the others know it by the votes.
    let elected = latest.and_then(|(_, _, group)| group.holder.as_ref().map(ToString::to_string));
    VipGroupView {
        name: group.name.clone(),
        addresses: group.network_texts(),
        holder: holder.map(|(node, ..)| node.clone()).or(elected),
        others: seen.iter().filter(holds).skip(1).map(|(node, ..)| node.clone()).collect(),
        held_ms: holder.and_then(|(_, _, group)| group.held_ms),
        epoch: latest.map_or(0, |(_, _, group)| group.epoch),
        votes: latest.map_or(0, |(_, _, group)| group.votes),
        voters: latest.map_or(0, |(_, voters, _)| *voters),
        nodes: seen.into_iter().map(|(node, ..)| node).collect(),
    }
}
