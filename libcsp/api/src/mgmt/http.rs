//! Requests of HTTP of the whole cluster.

use serde::{Deserialize, Serialize};

use super::cluster::Unreachable;
use crate::http::HttpRecord;

/// `GET /api/v1/http/trace`, with the parameters of [`crate::http::HttpTraceQuery`]; for operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpTraceView {
    /// Requests; fewer than were asked for if no more ended in time.
    pub requests: Vec<HttpRecord>,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
}
