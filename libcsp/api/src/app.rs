//! Bodies of the app node's agent.
//!
//! Programs, sockets and counters are the word of the processes themselves: the agent reads them from a page
//! that each process writes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use csp_types::FlowLabel;
use serde::{Deserialize, Serialize};

use crate::Text;

/// A process that attached to the agent: an element of `/v1/processes`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Id in the cluster, such as `nginx-42-1`; unique on this node for the agent's life.
    pub process: Text,
    /// Process id in the agent's namespace.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Program name.
    pub program: Text,
    /// Time of its attachment, in milliseconds of the Unix epoch.
    pub attached_unix_ms: u64,
    /// Time of its end, likewise; `null` while it runs.
    pub exited_unix_ms: Option<u64>,
    /// Counters of the socket filter by name (`csp_wire::agent::page::COUNTER_NAMES`).
    pub counters: BTreeMap<Text, u64>,
}

/// A proxy worker that processes of this host can reach: an element of `/v1/proxies`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proxy {
    /// Node id of the proxy.
    pub proxy: Text,
    /// Its worker.
    pub worker: u32,
    /// Unix socket that processes connect to: the proxy's, or the agent's for a proxy of another host.
    pub socket: Text,
    /// Provider that carries the channels from there on: `shm`, `tcp`, `ucx` or `verbs`.
    pub provider: Text,
    /// Address of the channels: the Unix socket again, or ADDRESS:PORT.
    pub address: Text,
    /// Address at which processes may reach the proxy by verbs themselves; `null` where they may not.
    pub direct: Option<SocketAddr>,
}

/// A socket of a process: an element of `/v1/sockets`, and of `/v1/flows` (there connections only).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Socket {
    /// Id of the process in the cluster.
    pub process: Text,
    /// Process id in the agent's namespace.
    pub pid: u32,
    /// Program name.
    pub program: Text,
    /// `listener`, `connection`, `kernel-listener` or `kernel-connection`.
    pub kind: Text,
    /// `accelerated`, or why the kernel carries the socket.
    pub reason: Text,
    /// Descriptor when the socket was made; 0 when that is no longer known.
    pub fd: u32,
    /// Label; `null` for listeners and for sockets that the kernel carries.
    #[serde(with = "crate::label::option")]
    pub label: Option<FlowLabel>,
    /// The process's end.
    pub local: SocketAddr,
    /// The other end; equals `local` for listeners.
    pub remote: SocketAddr,
    /// Last error of the connection, such as `ECONNRESET`; `null` where it had none.
    pub error: Option<Text>,
    /// Accept queue of an accelerated listener; `null` for other sockets.
    pub queue: Option<AcceptQueue>,
}

/// The accept queue of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AcceptQueue {
    /// Connections that wait to be accepted.
    pub waiting: u64,
    /// Connections that may wait: the argument of listen(2).
    pub backlog: u64,
}
