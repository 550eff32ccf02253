//! Contexts, paths and handlers, over all proxies.

use csp_api::contexts::{Contexts, ContextsView, NodeContexts};
use csp_types::Role;

use super::Cluster;

impl Cluster {
    /// `GET /api/v1/contexts`.
    pub async fn contexts(&self) -> ContextsView {
        let targets = self.targets(&[Role::ProxyNode]);
        let (answers, unreachable) = self.fanout.ask::<Contexts>(targets, "/v1/contexts", vec![]).await;
        let node = |(target, contexts): (crate::fanout::Target, Contexts)| NodeContexts {
            node: target.id.to_string(),
            contexts,
        };
        ContextsView { nodes: answers.into_iter().map(node).collect(), unreachable }
    }
}
