//! Requests of HTTP, over all proxies.

use std::time::Duration;

use csp_api::http::{HTTP_TRACE_COUNT_MAX, HTTP_TRACE_TIMEOUT_S_MAX, HttpTrace, HttpTraceQuery};
use csp_api::mgmt::{HttpTraceView, Unreachable};
use csp_types::Role;
use tokio::task::JoinSet;

use super::Cluster;
use crate::limits::FANOUT_TIMEOUT;

impl Cluster {
    /// Returns whether the active policy has the service's requests read.
    pub fn has_http(&self, name: &str) -> bool {
        let active = self.policy.known().active;
        active.iter().any(|record| record.policy.http_services().any(|(service, _)| service.name == name))
    }

    /// `GET /api/v1/http/trace`: the next requests that meet the query, at whichever proxy. Proxies that have
    /// none are not waited for when the others have enough.
    pub async fn trace_http(&self, asked: HttpTraceQuery) -> HttpTraceView {
        let count = asked.count.unwrap_or(1).clamp(1, HTTP_TRACE_COUNT_MAX);
        let seconds = asked.timeout_s.unwrap_or(10).clamp(1, HTTP_TRACE_TIMEOUT_S_MAX);
        let within = Duration::from_secs(seconds) + FANOUT_TIMEOUT;
        let query = parameters(asked);
        let mut running = JoinSet::new();
        for target in self.targets(&[Role::ProxyNode]) {
            let (fanout, query) = (self.fanout.clone(), query.clone());
            running.spawn(async move {
                let answer = fanout.slow_body::<HttpTrace>(&target, "/v1/http/trace", &query, within);
                (answer.await, target)
            });
        }
        let mut view = HttpTraceView::default();
        while let Some(done) = running.join_next().await {
            let Ok((answer, target)) = done else { continue };
            match answer {
                Ok(trace) => view.requests.extend(trace.requests),
                Err(e) => view.unreachable.push(Unreachable { node: target.id, error: e.to_string() }),
            }
            if view.requests.len() >= count {
                break;
            }
        }
        view.requests.sort_by(|a, b| a.time.cmp(&b.time));
        view.requests.truncate(count);
        view
    }
}

/// Returns the parameters of a query for a proxy.
fn parameters(asked: HttpTraceQuery) -> Vec<(&'static str, String)> {
    let HttpTraceQuery { service, route, host, path, method, source, failed, count, timeout_s } = asked;
    let named = [
        ("service", service),
        ("route", route),
        ("host", host),
        ("path", path),
        ("method", method),
        ("source", source),
        ("failed", failed.map(|failed| failed.to_string())),
        ("count", count.map(|count| count.to_string())),
        ("timeout_s", timeout_s.map(|seconds| seconds.to_string())),
    ];
    named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
