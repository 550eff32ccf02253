//! What processes are told of the cluster: its proxies on this host, and which destinations go through it.

use csp_control::{MemberState, Membership, Policy};
use csp_types::{NodeId, Role};
use csp_wire::agent::{LIST_MAX, PATH_LEN_MAX, Prefix};

/// A proxy worker that processes of this host can reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyEntry {
    /// The proxy node.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// Unix socket of its channels.
    pub path: String,
}

/// The directory at one time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Directory {
    /// Proxy workers, at most [`LIST_MAX`].
    pub proxies: Vec<ProxyEntry>,
    /// Destinations of accelerated connections, at most [`LIST_MAX`].
    pub connect: Vec<Prefix>,
}

impl Directory {
    /// The proxies of a membership that share this host (`host` is its boot id). One whose lease lapsed stays: its
    /// links decide whether it is alive; one that says it leaves goes.
    pub fn proxies_of(membership: &Membership, host: &str) -> Vec<ProxyEntry> {
        let near = membership.of_role(Role::ProxyNode).filter(|m| {
            let there = matches!(m.state, MemberState::Live | MemberState::LeaseExpired);
            there && m.record.host == host && !m.record.leaving
        });
        let workers = near.flat_map(|member| {
            member.record.san.iter().filter_map(|san| {
                let path = san.channel_shm.clone().filter(|p| !p.is_empty() && p.len() <= PATH_LEN_MAX)?;
                Some(ProxyEntry { node: member.record.id, worker: u8::try_from(san.worker).ok()?, path })
            })
        });
        workers.take(LIST_MAX).collect()
    }

    /// The destinations of a policy's egress entries.
    pub fn destinations_of(policy: &Policy) -> Vec<Prefix> {
        let all = policy.egress.iter().flat_map(|egress| &egress.destinations);
        all.take(LIST_MAX).map(|p| Prefix { address: p.address(), len: p.length() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_control::{Member, NodeRecord, SanAddress};

    #[test]
    fn only_proxies_of_this_host_that_offer_channels_are_told() {
        let mut membership = Membership::default();
        for (id, host, channel, state) in [
            ("pn-1", "here", Some("/run/pn-1.ch"), MemberState::Live),
            ("pn-2", "there", Some("/run/pn-2.ch"), MemberState::Live),
            ("pn-3", "here", None, MemberState::Live),
            ("pn-4", "here", Some("/run/pn-4.ch"), MemberState::LeaseExpired),
        ] {
            let mut record =
                NodeRecord::new(id.parse().unwrap(), Role::ProxyNode, "127.0.0.1:1".parse().unwrap());
            record.host = host.to_owned();
            let channel_shm = channel.map(str::to_owned);
            record.san.push(SanAddress { channel_shm, ..SanAddress::default() });
            membership.nodes.insert(record.id, Member { record, state });
        }
        let told: Vec<_> = Directory::proxies_of(&membership, "here").into_iter().map(|p| p.path).collect();
        assert_eq!(told, ["/run/pn-1.ch", "/run/pn-4.ch"], "a lapsed lease is no death");
    }
}
