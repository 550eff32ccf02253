//! Identity of a daemon: its role, node id and version; and its process.

use crate::metrics::{MetricSource, MetricWriter};
use crate::process;

/// Identity of a running daemon, exported as `csp_build_info` and in log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The daemon's role, as in `csp_types::Role::as_str`.
    pub role: String,
    /// The node's id.
    pub node: String,
    /// The workspace's version.
    pub version: String,
}

impl BuildInfo {
    /// Returns the identity of this build for a daemon with `role` and `node`.
    pub fn new(role: &str, node: &str) -> Self {
        BuildInfo {
            role: role.to_owned(),
            node: node.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl MetricSource for BuildInfo {
    fn collect(&self, out: &mut MetricWriter) {
        out.gauge(
            "csp_build_info",
            "Constant 1; the labels name what runs",
            &[("node", &self.node), ("role", &self.role), ("version", &self.version)],
            1.0,
        );
        process::collect(out);
    }
}
