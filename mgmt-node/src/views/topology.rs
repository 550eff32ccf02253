//! Which nodes have links to which.

use std::collections::BTreeMap;

use csp_api::mgmt::{PathView, TopologyView};
use csp_api::{app, network};
use csp_types::Role;

use super::Cluster;

/// Links in one answer: 64 proxies for each of as many nodes.
const LINKS_MAX: usize = 4096;

impl Cluster {
    /// `GET /api/v1/topology`: the tunnels of network nodes, and the proxies that app nodes reach.
    pub async fn topology(&self) -> TopologyView {
        let (networks, apps) = (self.targets(&[Role::NetworkNode]), self.targets(&[Role::AppNode]));
        let (networks, apps) = tokio::join!(
            self.fanout.ask::<Vec<network::Tunnel>>(networks, "/v1/tunnels", vec![]),
            self.fanout.ask::<Vec<app::Proxy>>(apps, "/v1/proxies", vec![]),
        );
        // Links, and those that are up, by node, proxy and provider.
        let mut links: BTreeMap<(String, String, String), (u64, u64)> = BTreeMap::new();
        let mut add = |node: &str, proxy: &str, provider: &str, up: bool| {
            let key = (node.to_owned(), proxy.to_owned(), provider.to_owned());
            if links.len() < LINKS_MAX || links.contains_key(&key) {
                let sums = links.entry(key).or_default();
                *sums = (sums.0 + 1, sums.1 + u64::from(up));
            }
        };
        for (node, tunnels) in &networks.0 {
            for tunnel in tunnels {
                add(&node.id, tunnel.proxy.as_str(), tunnel.provider.as_str(), tunnel.state == *"up");
            }
        }
        for (node, proxies) in &apps.0 {
            for proxy in proxies {
                add(&node.id, proxy.proxy.as_str(), proxy.provider.as_str(), true);
            }
        }
        let view = |((node, proxy, provider), (links, up))| PathView { node, proxy, provider, links, up };
        TopologyView {
            links: links.into_iter().map(view).collect(),
            unreachable: [networks.1, apps.1].concat(),
        }
    }
}
