//! Bodies of the network node.

use std::net::{IpAddr, SocketAddr};

use csp_types::FlowLabel;
use serde::{Deserialize, Serialize};

use crate::Text;

/// A flow in the table of one worker: an element of `/v1/flows`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flow {
    /// Label; `00000000` until the proxy has given one.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Client's address.
    pub client: SocketAddr,
    /// Virtual address and port.
    pub server: SocketAddr,
    /// Node id of the proxy that the flow goes to; empty when the proxy has left.
    pub proxy: Text,
    /// Worker of that proxy.
    pub proxy_worker: u32,
    /// `bound` when the flow has a label, else `unlabelled`.
    pub state: Text,
    /// LAN interface behind which the client is.
    pub interface: Option<Text>,
    /// Ethernet address of the client or its router, such as `02:00:00:00:00:01`, once known.
    pub peer_mac: Option<Text>,
    /// Segments from the LAN; segments that the kernel coalesced count once.
    pub segments_in: u64,
    /// Segments to the LAN; large segments count once.
    pub segments_out: u64,
    /// Age of the entry in milliseconds.
    pub age_ms: u64,
    /// Milliseconds since a segment last passed, either way.
    pub idle_ms: u64,
    /// Worker of this network node.
    pub worker: u32,
}

/// The VIP groups that a network node may hold: the body of `/v1/groups`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Groups {
    /// Proxies whose votes count.
    pub voters: u32,
    /// Those that the node has heard within the last second.
    pub voters_heard: u32,
    /// The groups.
    pub groups: Vec<Group>,
}

/// A VIP group as one network node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its name.
    pub name: Text,
    /// The network node that most of the heard proxies vote for; `null` if they vote for none.
    pub holder: Option<Text>,
    /// How many proxies vote for the holder.
    pub votes: u32,
    /// The highest epoch that the node has heard of.
    pub epoch: u64,
    /// How long this node has held the group, in milliseconds; `null` if it does not.
    pub held_ms: Option<u64>,
}

/// A service whose packets the node forwards: an element of `/v1/forwarded`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forwarded {
    /// Its name.
    pub name: Text,
    /// The servers, in the policy's order.
    pub servers: Vec<ForwardedServer>,
}

/// A server that packets are forwarded to, over all workers of the node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForwardedServer {
    /// Its address.
    pub address: IpAddr,
    /// Why it gets no packets; `null` if it does.
    pub down: Option<Text>,
    /// Flows that it was given since the node knows it.
    pub flows_total: u64,
    /// Packets that were forwarded to it; those that a device put together count once.
    pub packets_total: u64,
    /// Bytes of these IP packets.
    pub bytes_total: u64,
}

/// A tunnel from one worker to a worker of a proxy: an element of `/v1/tunnels`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tunnel {
    /// Node id of the proxy.
    pub proxy: Text,
    /// Worker of that proxy.
    pub proxy_worker: u32,
    /// Provider that carries the tunnel: `shm`, `tcp`, `ucx`, `verbs` or `memory`.
    pub provider: Text,
    /// Address that is dialled: a Unix socket's path or ADDRESS:PORT.
    pub address: Text,
    /// `up` or `down`.
    pub state: Text,
    /// Worker of this network node.
    pub worker: u32,
}
