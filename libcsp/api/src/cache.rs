//! The cache of HTTP responses: what proxies have stored, and what was purged.

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::mgmt::Unreachable;

/// Most objects in one answer of a node.
pub const OBJECTS_MAX: usize = 1_000;
/// Longest path, prefix or tag of a purge in bytes.
pub const PURGE_LEN_MAX: usize = 4_096;

/// `GET /v1/cache`: what the cache of a proxy has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Whether the proxy has memory for a cache.
    pub enabled: bool,
    /// Stored responses.
    pub objects: u64,
    /// Their memory in bytes.
    pub bytes: u64,
    /// Most memory in bytes.
    pub bytes_max: u64,
    /// Responses that were stored.
    pub stored_total: u64,
    /// Responses that have left, since others needed their memory.
    pub evicted_total: u64,
    /// Responses that were purged, or that a request has made wrong.
    pub purged_total: u64,
}

/// A stored response.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheObject {
    /// The host that clients name.
    pub host: Text,
    /// Path and query, as far as they distinguish responses.
    pub path: String,
    /// The status.
    pub status: u16,
    /// Its age in seconds.
    pub age_s: u64,
    /// For how many seconds it is fresh; 0: it is stale.
    pub fresh_s: u64,
    /// Its memory in bytes.
    pub bytes: u64,
}

/// What is purged: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum PurgeBody {
    /// This path with any query; with `?` in it exactly this path and query. Of any host.
    Path(String),
    /// Paths that begin so, of any host.
    Prefix(String),
    /// What servers have given this tag.
    Tag(String),
    /// Everything.
    All(bool),
}

/// `PUT /v1/cache/purge`: what was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Purged {
    /// Responses.
    pub objects: u64,
    /// Their memory in bytes.
    pub bytes: u64,
}

/// What a proxy has answered.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OfProxy<T> {
    /// The proxy node.
    pub node: Text,
    /// Its answer.
    pub answer: T,
}

/// `GET /api/v1/cache`, `GET /api/v1/cache/objects?prefix=&limit=` and `POST /api/v1/cache/purge`: the
/// answers of all proxies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CacheView<T> {
    /// Those that have answered.
    pub nodes: Vec<OfProxy<T>>,
    /// Those that have not, each with why.
    pub unreachable: Vec<Unreachable>,
}
