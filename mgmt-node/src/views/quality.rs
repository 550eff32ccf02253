//! Information flows, over all proxies.

use csp_api::quality::{NodeQuality, Quality, QualityView};
use csp_types::Role;

use super::Cluster;

impl Cluster {
    /// `GET /api/v1/quality`.
    pub async fn quality(&self) -> QualityView {
        let targets = self.targets(&[Role::ProxyNode]);
        let (answers, unreachable) = self.fanout.ask::<Quality>(targets, "/v1/quality", vec![]).await;
        let node = |(target, quality): (crate::fanout::Target, Quality)| NodeQuality {
            node: target.id.to_string(),
            quality,
        };
        QualityView { nodes: answers.into_iter().map(node).collect(), unreachable }
    }
}
