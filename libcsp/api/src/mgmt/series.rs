//! Figures of the last hour, and how the nodes are connected.

use serde::{Deserialize, Serialize};

use super::Unreachable;

/// `GET /api/v1/series`: figures of some objects over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesView {
    /// Time between two values, in ms.
    pub interval_ms: u64,
    /// When the last values were read, Unix time in ms; 0 before the first.
    pub end_unix_ms: u64,
    /// The objects that are known, in the order in which they were asked for.
    pub objects: Vec<ObjectSeries>,
}

/// The figures of one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObjectSeries {
    /// `service/NAME` or `node/ID`.
    pub object: String,
    /// Its figures.
    pub figures: Vec<FigureSeries>,
}

/// One figure over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FigureSeries {
    /// Name, whose end is the unit, such as `connections_per_s`.
    pub name: String,
    /// Values, oldest first; the last one is that of `end_unix_ms`. `null` where none was read.
    pub values: Vec<Option<f32>>,
}

/// `GET /api/v1/topology`: which nodes have links to which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyView {
    /// Links, by their ends.
    pub links: Vec<PathView>,
    /// Nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// The links between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// A network node or an app node.
    pub node: String,
    /// The proxy node that it uses.
    pub proxy: String,
    /// `shm`, `tcp`, `ucx`, `verbs` or `memory`.
    pub provider: String,
    /// Links: tunnels of a network node's workers, workers of the proxy that an app node knows.
    pub links: u64,
    /// Of them, those that are up.
    pub up: u64,
}
