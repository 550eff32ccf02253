//! A node's registration: one record under one lease.

use std::time::{SystemTime, UNIX_EPOCH};

use csp_policy::PluginHost;
use csp_types::{NodeId, OwnedAddresses, Prefix, Role, limits};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::config::{serde_node_id, serde_prefixes};

/// A node's registration at `/csp/v1/nodes/<role>/<id>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node's id.
    #[serde(with = "serde_node_id")]
    pub id: NodeId,
    /// Its role.
    #[serde(serialize_with = "role_text", deserialize_with = "role")]
    pub role: Role,
    /// Version of its software.
    pub version: String,
    /// Different at every start of the daemon; below 2^53, so that every JSON parser keeps it exact.
    pub incarnation: u64,
    /// URL of its admin endpoint, such as `https://10.77.0.2:9102`.
    pub admin: String,
    /// Kernel boot id of its host. Nodes with equal ids share a kernel, and so can share memory.
    pub host: String,
    /// Number of data workers.
    pub workers: u32,
    /// The addresses at which its workers accept SAN links.
    #[serde(default)]
    pub san: Vec<SanAddress>,
    /// Optional features that it supports.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Network nodes only: the networks whose VIPs and egress addresses it serves. Empty means all.
    #[serde(default, with = "serde_prefixes", skip_serializing_if = "Vec::is_empty")]
    pub owns: Vec<Prefix>,
    /// Management nodes only: where they publish events over ZeroMQ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsAddress>,
    /// When it started, in milliseconds of the Unix epoch.
    pub started_unix_ms: u64,
    /// Whether it drains: it gets no new connections, and established ones continue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Set just before a node stops on purpose, so that its end is not mistaken for a failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// Where a management node publishes events over ZeroMQ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventsAddress {
    /// ADDRESS:PORT.
    pub address: String,
    /// Its public CURVE key in Z85; `None`: it asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The addresses at which one worker accepts SAN links.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SanAddress {
    /// The worker's number.
    pub worker: u32,
    /// Unix socket of the shm provider for tunnels, for nodes of the same host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<String>,
    /// Unix socket of the shm provider for channels of application processes on the same host. It is separate
    /// since messages of channels are shorter than those of tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_shm: Option<String>,
    /// ADDRESS:PORT of the tcp provider for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
    /// ADDRESS:PORT of the tcp provider for channels, which agents of other hosts open for their processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_tcp: Option<String>,
    /// ADDRESS:PORT of the ucx provider for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ucx: Option<String>,
    /// ADDRESS:PORT of the verbs provider for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbs: Option<String>,
    /// ADDRESS:PORT of the ucx provider for channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_ucx: Option<String>,
    /// ADDRESS:PORT of the verbs provider for channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_verbs: Option<String>,
}

impl From<&PluginHost> for SanAddress {
    /// Returns the addresses of a plug-in host in the form in which members register theirs.
    fn from(host: &PluginHost) -> Self {
        let PluginHost { shm, tcp, ucx, verbs, .. } = host.clone();
        SanAddress { shm, tcp, ucx, verbs, ..SanAddress::default() }
    }
}

impl NodeRecord {
    /// Returns a record of this process with version, incarnation, host and start time, one worker and no SAN
    /// addresses. `admin` is the URL of its admin endpoint.
    pub fn new(id: NodeId, role: Role, admin: String) -> NodeRecord {
        NodeRecord {
            id,
            role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: rand::random::<u64>() >> 11,
            admin,
            host: boot_id(),
            workers: 1,
            san: Vec::new(),
            capabilities: Vec::new(),
            owns: Vec::new(),
            events: None,
            started_unix_ms: unix_now_ms(),
            draining: false,
            leaving: false,
        }
    }

    /// Returns the addresses that a network node serves.
    pub fn owned(&self) -> OwnedAddresses {
        OwnedAddresses::new(self.owns.clone())
    }

    /// Returns among how many workers a network node distributes the answers to connections that proxies
    /// open, by [`csp_types::steering`].
    pub fn lan_workers(&self) -> u8 {
        match self.capabilities.iter().any(|capability| capability == limits::STEERS_EGRESS) {
            true => u8::try_from(self.workers).unwrap_or(u8::MAX),
            false => 1,
        }
    }
}

/// Returns the kernel's boot id; `unknown` if /proc does not have it.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

/// Returns the present time in milliseconds since the Unix epoch.
pub fn unix_now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn role_text<S: Serializer>(role: &Role, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(role.as_str())
}

fn role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Role, D::Error> {
    let text = String::deserialize(deserializer)?;
    let known = (1..=5).filter_map(Role::from_u8).find(|role| role.as_str() == text);
    known.ok_or_else(|| de::Error::custom(format!("{text:?} is no role")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_node_of_an_earlier_build_has_the_answers_at_its_first_worker() {
        let mut record = NodeRecord::new("nn-1".parse().unwrap(), Role::NetworkNode, String::new());
        (record.workers, record.capabilities) = (4, vec!["tunnel".to_owned()]);
        assert_eq!(record.lan_workers(), 1);
        record.capabilities.push(limits::STEERS_EGRESS.to_owned());
        assert_eq!(record.lan_workers(), 4);
    }
}
