//! Records of HTTP requests that have ended: a line of the HTTP log as JSON.

use serde::{Deserialize, Serialize};

use crate::Text;

/// A request that has ended at a proxy.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HttpRecord {
    /// When it ended, in UTC (RFC 3339).
    pub time: String,
    /// The proxy node.
    pub proxy: Text,
    /// Its worker.
    pub worker: u8,
    /// The label of the client's connection, eight hex digits: `cspctl flow trace LABEL`.
    pub label: String,
    /// Address and port of the client; its network, or nothing, if the policy says so.
    pub client: String,
    /// The client's address as trusted proxies in front say, if it is another one than `client`'s; empty: it
    /// is not.
    #[serde(default)]
    pub source: String,
    /// The service.
    pub service: Text,
    /// The route; empty: none names the request, or its head could not be read.
    pub route: Text,
    /// The host that the client named.
    pub host: String,
    /// The method.
    pub method: String,
    /// The path with the query, as the client wrote it; its first 512 bytes.
    pub path: String,
    /// The version: `1.0`, `1.1` or `2`.
    pub version: Text,
    /// The status that the client received; 499: it received none, since it was gone.
    pub status: u16,
    /// `ok`, or why the proxy has answered or ended it (docs/limits.md).
    pub code: Text,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the response's body.
    pub bytes_out: u64,
    /// The server that was asked last: NODE:PORT, or ADDRESS:PORT of a plain server; empty: none.
    pub server: Text,
    /// Whether its connection had served another request before.
    pub reused: bool,
    /// Connections that were asked for or used.
    pub attempts: u8,
    /// From the first byte of the request to the end of its head, in microseconds.
    pub head_us: u64,
    /// From there until a server's connection was there, in microseconds.
    pub connect_us: u64,
    /// From there to the head of the response, in microseconds; absent: none came of a server.
    pub first_byte_us: Option<u64>,
    /// From the end of the request's head to the end, in microseconds.
    pub total_us: u64,
    /// `User-Agent`; its first 192 bytes.
    pub user_agent: String,
    /// `Referer`; its first 256 bytes.
    pub referer: String,
    /// The trace's id, 32 hex digits; empty: none.
    pub trace_id: String,
    /// The request's id; empty: none.
    pub request_id: String,
}
