//! Derives from the membership the proxy workers that a worker connects to, and how it reaches the policy's
//! plug-in hosts.

use std::collections::HashMap;

use csp_control::{Member, MemberState, Membership, SanAddress, SanProvider};
use csp_plugins::EnvironmentId;
use csp_policy::PluginHost;
use csp_types::{NodeId, Role};
use csp_vi::ViAddress;

use crate::links::{DialSpec, HostSpec, ProxySpec};

/// Indices of a worker's endpoints by provider; `None` if the worker lacks the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Endpoints {
    /// Shared memory.
    pub shm: Option<usize>,
    /// Kernel TCP.
    pub tcp: Option<usize>,
    /// UCX.
    pub ucx: Option<usize>,
    /// RDMA.
    pub verbs: Option<usize>,
}

/// Returns the proxies of a membership with the addresses of their workers on `provider`. `auto` selects shm
/// on this host (`host` is this kernel's boot id), else verbs, else tcp, else ucx. Workers without a usable
/// address are left out.
pub fn proxy_specs(
    membership: &Membership,
    provider: SanProvider,
    host: &str,
    endpoints: Endpoints,
) -> Vec<ProxySpec> {
    let spec = |member: &Member| {
        let near = member.record.host == host;
        let dial = |san: &SanAddress| dial_spec(san, near, provider, endpoints);
        ProxySpec {
            node: member.record.id,
            incarnation: member.record.incarnation,
            draining: member.record.draining,
            dial: member.state == MemberState::Live && !member.record.leaving,
            workers: member.record.san.iter().filter_map(dial).collect(),
        }
    };
    membership.of_role(Role::ProxyNode).map(spec).collect()
}

/// Application nodes that are or were members, each with whether it is on this host. A node whose
/// registration has expired is kept, since the plug-in host on its host may still be alive.
pub type Neighbours = HashMap<NodeId, bool>;

/// Adds the application nodes of a membership; `host` is this kernel's boot id.
pub fn note_neighbours(neighbours: &mut Neighbours, membership: &Membership, host: &str) {
    let members = membership.of_role(Role::AppNode).map(|member| &member.record);
    neighbours.extend(members.map(|record| (record.id, record.host == host)));
}

/// Returns the plug-in hosts that are reachable by `provider`, each with its address. As for [`proxy_specs`],
/// shm is used if the application node is on this host.
pub fn host_specs(
    neighbours: &Neighbours,
    provider: SanProvider,
    endpoints: Endpoints,
    hosts: &[(EnvironmentId, PluginHost)],
) -> Vec<HostSpec> {
    let spec = |(environment, named): &(EnvironmentId, PluginHost)| {
        let near = neighbours.get(&named.node) == Some(&true);
        let dial = dial_spec(&SanAddress::from(named), near, provider, endpoints)?;
        Some(HostSpec { environment: *environment, node: named.node, dial })
    };
    hosts.iter().filter_map(spec).collect()
}

fn dial_spec(san: &SanAddress, near: bool, provider: SanProvider, endpoints: Endpoints) -> Option<DialSpec> {
    let worker = u8::try_from(san.worker).ok()?;
    let shm = || {
        let address = ViAddress::Path(san.shm.as_ref()?.into());
        Some(DialSpec { worker, endpoint: endpoints.shm?, address })
    };
    let at = |address: &Option<String>, endpoint: Option<usize>| {
        let address = ViAddress::Ip(address.as_ref()?.parse().ok()?);
        Some(DialSpec { worker, endpoint: endpoint?, address })
    };
    let verbs = || at(&san.verbs, endpoints.verbs);
    let tcp = || at(&san.tcp, endpoints.tcp);
    let ucx = || at(&san.ucx, endpoints.ucx);
    match provider {
        SanProvider::Auto if near => shm().or_else(verbs).or_else(tcp).or_else(ucx),
        SanProvider::Auto => verbs().or_else(tcp).or_else(ucx),
        SanProvider::Tcp => tcp(),
        SanProvider::Ucx => ucx(),
        SanProvider::Shm => shm(),
        SanProvider::Verbs => verbs(),
    }
}

#[cfg(test)]
mod tests {
    use csp_control::NodeRecord;

    use super::*;

    fn membership(host: &str, shm: bool, verbs: bool) -> Membership {
        let mut record =
            NodeRecord::new("pn-1".parse().unwrap(), Role::ProxyNode, "http://127.0.0.1:1".to_owned());
        record.host = host.to_owned();
        record.san.push(SanAddress {
            shm: shm.then(|| "/run/csp/pn-1.sock".to_owned()),
            tcp: Some("10.77.0.2:7100".to_owned()),
            ucx: Some("10.77.0.2:7612".to_owned()),
            verbs: verbs.then(|| "10.77.0.2:7100".to_owned()),
            ..SanAddress::default()
        });
        let mut membership = Membership::default();
        membership.nodes.insert(record.id, Member { record, state: MemberState::Live });
        membership
    }

    #[test]
    fn the_provider_follows_host_and_configuration() {
        let all = Endpoints { shm: Some(0), ucx: Some(1), verbs: Some(2), tcp: Some(3) };
        let both = Endpoints { verbs: None, ..all };
        let no_tcp = Endpoints { tcp: None, ..both };
        let only_shm = Endpoints { ucx: None, ..no_tcp };
        for (host, provider, endpoints, expected) in [
            ("here", SanProvider::Auto, all, Some(0)),
            ("there", SanProvider::Auto, all, Some(2)),
            ("here", SanProvider::Verbs, all, Some(2)),
            ("there", SanProvider::Ucx, all, Some(1)),
            ("there", SanProvider::Verbs, both, None),
            ("here", SanProvider::Auto, both, Some(0)),
            ("there", SanProvider::Auto, both, Some(3)),
            ("there", SanProvider::Tcp, all, Some(3)),
            ("there", SanProvider::Tcp, no_tcp, None),
            ("there", SanProvider::Auto, no_tcp, Some(1)),
            ("here", SanProvider::Ucx, both, Some(1)),
            ("there", SanProvider::Shm, both, Some(0)),
            ("there", SanProvider::Auto, only_shm, None),
        ] {
            let specs = proxy_specs(&membership(host, true, true), provider, "here", endpoints);
            assert_eq!(specs[0].workers.first().map(|w| w.endpoint), expected, "{host} {provider:?}");
        }
        // A proxy that does not offer shared memory is reached by tcp even on this host.
        let specs = proxy_specs(&membership("here", false, false), SanProvider::Auto, "here", all);
        assert_eq!(specs[0].workers[0].address.to_string(), "10.77.0.2:7100");
    }
}
