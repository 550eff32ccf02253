//! Records of HTTP requests that have ended: a line of the HTTP log as JSON.

use serde::{Deserialize, Serialize};

use crate::Text;

/// Most requests that a trace shows.
pub const HTTP_TRACE_COUNT_MAX: usize = 64;
/// Longest time that a trace waits, in seconds.
pub const HTTP_TRACE_TIMEOUT_S_MAX: u64 = 60;

/// Which requests a trace shows: those that meet all that is named. Parameters of
/// `GET /api/v1/http/trace`, and of the proxies' `GET /v1/http/trace`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTraceQuery {
    /// The service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The host that the client names, whatever its case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The beginning of the path with the query, as the client writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// A network or address of clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Only requests that fail, or that the proxy answers with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
    /// How many, 1 to 64; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// How long to wait for them in seconds, 1 to 60; 10 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

/// Requests that were seen at a proxy, in the order in which they ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HttpTrace {
    /// The requests.
    pub requests: Vec<HttpRecord>,
}

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
    /// What came of the cache: `hit`, `miss`, `expired`, `stale`, `revalidated`, `bypass`; empty: the route
    /// has none.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub cache: Text,
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

fn is_empty(text: &Text) -> bool {
    text.as_str().is_empty()
}
