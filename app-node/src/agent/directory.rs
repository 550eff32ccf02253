//! The part of the cluster's state that processes receive: the proxies that they can reach, and the
//! destinations of accelerated connections.

use std::net::SocketAddr;

use csp_control::{Member, MemberState, Membership, SanAddress, SanProvider};
use csp_policy::{AccessRule, Policy, ProgramRule};
use csp_types::{NodeId, ProgramName, Role};
use csp_vi::{ProviderKind, ViAddress};
use csp_wire::agent::{DESTINATIONS_MAX, Destination, LIST_MAX, PATH_LEN_MAX};

use crate::relay::Target;

/// A proxy worker that processes of this host can reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyEntry {
    /// The proxy node.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// Unix socket of its channels: the worker's own, or the one on which the agent relays to it.
    pub path: String,
    /// The provider that carries the channels beyond that socket: `shm`, `tcp`, `ucx` or `verbs`.
    pub provider: &'static str,
    /// The worker's address: the Unix socket again, or ADDRESS:PORT.
    pub address: String,
    /// Address by which processes may connect to it over verbs directly.
    pub direct: Option<SocketAddr>,
    /// Whether it drains: it gets no new connections.
    pub draining: bool,
}

/// The directory as published to processes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Directory {
    /// Proxy workers, at most [`LIST_MAX`].
    pub proxies: Vec<ProxyEntry>,
    /// Destinations of accelerated connections, at most [`DESTINATIONS_MAX`], which is also the limit of a
    /// policy.
    pub connect: Vec<Destination>,
    /// The policy's rules for individual programs.
    pub programs: Vec<ProgramRule>,
    /// The policy's rules for permission to listen and connect.
    pub access: Vec<AccessRule>,
}

/// The proxy workers of a membership, by how they are reached.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Choice {
    /// Reached by the processes themselves.
    pub near: Vec<ProxyEntry>,
    /// Reached through the agent.
    pub far: Vec<Target>,
}

impl Choice {
    /// Chooses a provider for every proxy worker: shared memory on this host (`host` is its boot id), else
    /// the first of the providers that the agent has (`carried`) and the worker offers; `provider` may
    /// restrict the choice. A proxy whose lease expired is kept, because its links decide whether it is
    /// alive; one that has announced its departure is left out.
    pub fn of(
        membership: &Membership,
        host: &str,
        provider: SanProvider,
        carried: &[ProviderKind],
    ) -> Choice {
        let there = |m: &&Member| matches!(m.state, MemberState::Live | MemberState::LeaseExpired);
        let proxies = membership.of_role(Role::ProxyNode).filter(there).filter(|m| !m.record.leaving);
        let mut choice = Choice::default();
        for (record, san) in proxies.flat_map(|m| m.record.san.iter().map(|san| (&m.record, san))) {
            let Ok(worker) = u8::try_from(san.worker) else { continue };
            let shared = provider.allows("shm") && record.host == host;
            let path = san.channel_shm.clone().filter(|p| shared && !p.is_empty() && p.len() <= PATH_LEN_MAX);
            if let Some(path) = path {
                let (provider, address) = (ProviderKind::Shm.as_str(), path.clone());
                let (node, draining) = (record.id, record.draining);
                choice.near.push(ProxyEntry {
                    node,
                    worker,
                    path,
                    provider,
                    address,
                    direct: None,
                    draining,
                });
            } else if let Some((kind, address)) = carried.iter().find_map(|kind| carries(*kind, san)) {
                choice.far.push(Target { node: record.id, worker, provider: kind.as_str(), address });
            }
        }
        choice.near.truncate(LIST_MAX);
        choice.far.truncate(LIST_MAX - choice.near.len());
        choice
    }
}

/// Returns the address where a worker accepts channels over this provider.
fn carries(kind: ProviderKind, san: &SanAddress) -> Option<(ProviderKind, ViAddress)> {
    let address = match kind {
        ProviderKind::Shm => None,
        ProviderKind::Verbs => san.channel_verbs.as_ref(),
        ProviderKind::Tcp => san.channel_tcp.as_ref(),
        ProviderKind::Ucx => san.channel_ucx.as_ref(),
    };
    Some((kind, ViAddress::Ip(address?.parse().ok()?)))
}

const _: () = assert!(csp_policy::DESTINATIONS_MAX <= DESTINATIONS_MAX);

impl Directory {
    /// Returns the listening ports of a program that are accelerated, limited to the node's own list (`None`:
    /// all ports).
    pub fn listen_for(&self, program: &ProgramName, node: Option<&[u16]>) -> Option<Vec<u16>> {
        let rule = ProgramRule::of(&self.programs, program).and_then(|rule| rule.listen.as_deref());
        match (rule, node) {
            (None, None) => None,
            (None, Some(ports)) | (Some(ports), None) => Some(ports.to_vec()),
            (Some(rule), Some(node)) => Some(rule.iter().filter(|p| node.contains(p)).copied().collect()),
        }
    }

    /// Returns the destinations of a program's accelerated connections.
    pub fn connect_for(&self, program: &ProgramName) -> &[Destination] {
        if ProgramRule::of(&self.programs, program).is_none_or(|rule| rule.connect) {
            &self.connect
        } else {
            &[]
        }
    }

    /// Returns the destinations of a policy's egress entries.
    pub fn destinations_of(policy: &Policy) -> Vec<Destination> {
        let all = policy.egress.iter().flat_map(csp_policy::Egress::prefixes);
        all.map(|(prefix, except)| Destination { prefix, except }).collect()
    }
}

#[cfg(test)]
mod tests {
    use csp_control::NodeRecord;

    use super::*;
    use ProviderKind::{Tcp, Ucx, Verbs};

    /// Checks how one proxy worker is reached: by its path, or by provider and address.
    fn check(host: &str, san: SanAddress, provider: SanProvider, carried: &[ProviderKind], expected: &str) {
        let record =
            NodeRecord::new("pn-1".parse().unwrap(), Role::ProxyNode, "http://127.0.0.1:1".to_owned());
        let record = NodeRecord { host: host.to_owned(), san: vec![san], ..record };
        let mut membership = Membership::default();
        membership.nodes.insert(record.id, Member { record, state: MemberState::Live });
        let choice = Choice::of(&membership, "here", provider, carried);
        let near = choice.near.iter().map(|entry| entry.path.clone());
        let far = choice.far.iter().map(|target| format!("{} {}", target.provider, target.address));
        assert_eq!(
            near.chain(far).collect::<Vec<_>>().join(", "),
            expected,
            "{host} {provider:?} {carried:?}"
        );
    }

    #[test]
    fn a_proxy_is_reached_by_shm_on_this_host_and_else_by_what_both_have() {
        let all = || SanAddress {
            channel_shm: Some("/run/pn-1.ch".to_owned()),
            channel_tcp: Some("10.77.0.2:7355".to_owned()),
            channel_ucx: Some("10.77.0.2:7356".to_owned()),
            channel_verbs: Some("10.77.0.2:7357".to_owned()),
            ..SanAddress::default()
        };
        let (auto, both) = (SanProvider::Auto, [Verbs, Ucx]);
        check("here", all(), auto, &both, "/run/pn-1.ch");
        check("here", all(), SanProvider::Shm, &[], "/run/pn-1.ch");
        check("there", all(), SanProvider::Shm, &[], "");
        check("there", all(), auto, &both, "verbs 10.77.0.2:7357");
        check("there", all(), auto, &[Ucx], "ucx 10.77.0.2:7356");
        check("there", all(), auto, &[Tcp, Ucx], "tcp 10.77.0.2:7355");
        check("there", SanAddress { channel_tcp: None, ..all() }, auto, &[Tcp, Ucx], "ucx 10.77.0.2:7356");
        check("there", all(), auto, &[], "");
        check("here", all(), SanProvider::Ucx, &[Ucx], "ucx 10.77.0.2:7356");
        check("there", SanAddress { channel_verbs: None, ..all() }, auto, &both, "ucx 10.77.0.2:7356");
        check("here", SanAddress { channel_shm: None, ..all() }, auto, &[Ucx], "ucx 10.77.0.2:7356");
        check("there", SanAddress { channel_ucx: Some("nonsense".to_owned()), ..all() }, auto, &[Ucx], "");
    }

    #[test]
    fn a_lapsed_lease_is_no_death_and_leaving_is() {
        let mut membership = Membership::default();
        for (id, state, leaving) in [
            ("pn-1", MemberState::Live, false),
            ("pn-2", MemberState::LeaseExpired, false),
            ("pn-3", MemberState::Live, true),
        ] {
            let admin = "http://127.0.0.1:1".to_owned();
            let mut record = NodeRecord::new(id.parse().unwrap(), Role::ProxyNode, admin);
            record.leaving = leaving;
            record.draining = id == "pn-2";
            let channel_shm = Some(format!("/run/{id}.ch"));
            record.san.push(SanAddress { channel_shm, ..SanAddress::default() });
            membership.nodes.insert(record.id, Member { record, state });
        }
        let host = csp_control::NodeRecord::new(
            "an-1".parse().unwrap(),
            Role::AppNode,
            "http://127.0.0.1:1".to_owned(),
        );
        let choice = Choice::of(&membership, &host.host, SanProvider::Auto, &[]);
        let paths: Vec<_> = choice.near.iter().map(|p| (p.path.as_str(), p.draining)).collect();
        assert_eq!(paths, [("/run/pn-1.ch", false), ("/run/pn-2.ch", true)]);
    }
}
