//! What workers count of HTTP, by service and route.

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_gateway::{CacheResult, LATENCY_BOUNDS_NS, RuleCounters, Snapshot};
use csp_telemetry::{MetricSource, MetricWriter, SnapshotCell};

use crate::ProxyWorker;

/// Routes that have metrics; further ones, by their services and names, have none.
pub const ROUTES_SHOWN_MAX: usize = 1_024;
/// Of so many publications of a worker, which it makes ten times a second, one copies the counters.
const PUBLICATIONS: u32 = 5;
/// The route of requests that fall under none.
const NO_ROUTE: &str = "-";
/// Labels of the classes of statuses.
const CLASSES: [&str; csp_gateway::CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What a worker has counted of HTTP. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HttpBoard(Arc<SnapshotCell<Board>>);

#[derive(Debug, Default)]
struct Board {
    snapshot: Snapshot,
    publications: u32,
}

impl HttpBoard {
    /// Copies what a worker has counted, now and then; not while the board is being read.
    pub(crate) fn publish(&self, worker: &ProxyWorker) {
        self.0.update(|board| {
            if board.publications.is_multiple_of(PUBLICATIONS) {
                board.snapshot = worker.gateway().snapshot();
            }
            board.publications = board.publications.wrapping_add(1);
        });
    }
}

/// What all workers have counted of HTTP.
pub struct HttpMetrics(pub Vec<HttpBoard>);

/// A service: connections that have begun, those that are open, and how many workers have it.
#[derive(Default)]
struct Sum {
    connections: u64,
    open: u64,
    workers: usize,
    /// Keys of limits that had no place, in tables that all workers share.
    lost: u64,
    /// By name, and how many workers have it.
    routes: BTreeMap<Arc<str>, (RuleCounters, usize)>,
}

impl HttpMetrics {
    /// Sums of the services and routes that all workers have: while some have followed a policy and others
    /// have not, a sum would fall.
    fn sums(&self) -> BTreeMap<Arc<str>, Sum> {
        let none: Arc<str> = NO_ROUTE.into();
        let mut sums: BTreeMap<Arc<str>, Sum> = BTreeMap::new();
        for board in &self.0 {
            for (service, counters) in &board.0.lock().snapshot.services {
                let sum = sums.entry(Arc::clone(&service.name)).or_default();
                sum.workers += 1;
                sum.lost = sum.lost.max(service.filter_losses());
                sum.connections += counters.connections;
                sum.open += counters.open;
                let names = service.rules().iter().map(|rule| &rule.name).chain([&none]);
                for (name, counters) in names.zip(&counters.rules) {
                    let (of_route, workers) = sum.routes.entry(Arc::clone(name)).or_default();
                    of_route.add(counters);
                    *workers += 1;
                }
            }
        }
        let all = self.0.len();
        sums.retain(|_, sum| sum.workers == all);
        sums.values_mut().for_each(|sum| sum.routes.retain(|_, (_, workers)| *workers == all));
        sums
    }
}

impl MetricSource for HttpMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let sums = self.sums();
        for (service, sum) in &sums {
            let labels = [("service", &**service)];
            let help = "Connections of clients whose HTTP is read, by service";
            out.counter("csp_http_connections_total", help, &labels, sum.connections);
            let help = "Connections of clients whose HTTP is read that are open, by service";
            out.gauge("csp_http_open_connections", help, &labels, sum.open as f64);
            let help =
                "Keys of limits of HTTP filters that a full table has evicted, or not counted, by service";
            out.counter("csp_http_filter_lost_total", help, &labels, sum.lost);
        }
        let routes = || sums.iter().flat_map(|(service, sum)| sum.routes.iter().map(move |of| (service, of)));
        let left_out = routes().count().saturating_sub(ROUTES_SHOWN_MAX);
        let help = "Routes without metrics of their own, since there are too many";
        out.gauge("csp_http_routes_left_out", help, &[], left_out as f64);
        for (service, (route, (counters, _))) in routes().take(ROUTES_SHOWN_MAX) {
            collect_route(out, service, route, counters);
        }
        self.collect_upstreams(out);
    }
}

impl HttpMetrics {
    fn collect_upstreams(&self, out: &mut MetricWriter) {
        for (worker, board) in self.0.iter().enumerate() {
            let (board, worker) = (board.0.lock(), worker.to_string());
            let (upstreams, labels) = (board.snapshot.upstreams, [("worker", &*worker)]);
            let help = "HTTP requests that are in progress";
            out.gauge("csp_http_requests_in_progress", help, &labels, board.snapshot.exchanges as f64);
            for (state, count) in
                [("idle", upstreams.idle), ("used", upstreams.open.saturating_sub(upstreams.idle))]
            {
                let labels = [("worker", &*worker), ("state", state)];
                let help = "Connections to servers for HTTP requests: kept and idle, or in use";
                out.gauge("csp_http_upstream_connections", help, &labels, count as f64);
            }
            let help = "Connections to servers that were opened for HTTP requests";
            out.counter("csp_http_upstream_opened_total", help, &labels, upstreams.opened);
            let help = "Connections to servers for HTTP requests that could not be opened";
            out.counter("csp_http_upstream_failed_total", help, &labels, upstreams.failed);
            let help = "HTTP requests that used a kept connection to a server";
            out.counter("csp_http_upstream_reused_total", help, &labels, upstreams.reused);
            let help = "Kept connections to servers that turned out closed when a request used them";
            out.counter("csp_http_upstream_stale_total", help, &labels, upstreams.stale);
        }
    }
}

fn collect_route(out: &mut MetricWriter, service: &str, route: &str, counters: &RuleCounters) {
    let labels = [("service", service), ("route", route)];
    for (class, count) in CLASSES.into_iter().zip(counters.by_class) {
        let labels = [("service", service), ("route", route), ("class", class)];
        let help = "HTTP requests that have ended, by service, route and class of status";
        out.counter("csp_http_requests_total", help, &labels, count);
    }
    for (reason, count) in &counters.by_reason {
        let labels = [("service", service), ("route", route), ("code", reason.code())];
        let help = "HTTP requests that the proxy has answered or ended itself, by service, route and code";
        out.counter("csp_http_answers_total", help, &labels, *count);
    }
    let help = "Time from the end of a request's head to the end of its response, by service and route";
    let latency = (&LATENCY_BOUNDS_NS[..], &counters.latency[..], counters.latency_ns);
    out.histogram("csp_http_request_seconds", help, &labels, latency);
    if counters.by_cache.iter().any(|count| *count > 0) {
        collect_cache(out, service, route, counters);
    }
    let help = "HTTP requests that were sent to another server, by service and route";
    out.counter("csp_http_retries_total", help, &labels, counters.retries);
    let help = "Bytes of bodies from clients, by service and route";
    out.counter("csp_http_received_bytes_total", help, &labels, counters.received);
    let help = "Bytes of bodies to clients, by service and route";
    out.counter("csp_http_sent_bytes_total", help, &labels, counters.sent);
}

fn collect_cache(out: &mut MetricWriter, service: &str, route: &str, counters: &RuleCounters) {
    for (result, count) in CacheResult::ALL.into_iter().zip(counters.by_cache) {
        let labels = [("service", service), ("route", route), ("result", result.name())];
        let help = "HTTP requests of routes with a cache, by service, route and what came of it";
        out.counter("csp_http_cache_requests_total", help, &labels, count);
    }
    let labels = [("service", service), ("route", route)];
    let help = "Bytes of bodies from the cache, by service and route";
    out.counter("csp_http_cache_sent_bytes_total", help, &labels, counters.cached);
}

#[cfg(test)]
mod tests {
    use csp_gateway::spec::{Action, RuleConfig, ServiceConfig};
    use csp_gateway::{HttpService, Reason, ServiceCounters};
    use csp_http::head::Scheme;
    use csp_http::route::RouteSpec;
    use csp_telemetry::Exposition;

    use super::*;

    fn board(passed: u64) -> HttpBoard {
        let action = Action::Forward(vec![("app".into(), 1)]);
        let rules = vec![RuleConfig::new("all", RouteSpec::default(), action)];
        let service = HttpService::new(ServiceConfig { rules, ..ServiceConfig::new(1, "web", Scheme::Http) });
        let mut counters =
            ServiceCounters { rules: vec![RuleCounters::default(); 2], connections: 3, open: 1 };
        counters.rules[0].by_class[1] = passed;
        (counters.rules[0].latency[0], counters.rules[0].latency_ns) = (passed, 100_000 * passed);
        counters.rules[1].by_class[3] = 1;
        counters.rules[1].by_reason = vec![(Reason::NoRoute, 1)];
        let snapshot =
            Snapshot { services: vec![(Arc::new(service.unwrap()), counters)], ..Snapshot::default() };
        HttpBoard(Arc::new(SnapshotCell::new(Board { snapshot, publications: 0 })))
    }

    #[test]
    fn the_workers_are_summed_by_route() {
        let metrics = Exposition::new();
        metrics.register(HttpMetrics(vec![board(2), board(5)]));
        let page = metrics.render_text();
        for line in [
            "csp_http_connections_total{service=\"web\"} 6",
            "csp_http_filter_lost_total{service=\"web\"} 0",
            "csp_http_requests_total{class=\"2xx\",route=\"all\",service=\"web\"} 7",
            "csp_http_requests_total{class=\"4xx\",route=\"-\",service=\"web\"} 2",
            "csp_http_answers_total{code=\"no-route\",route=\"-\",service=\"web\"} 2",
            "csp_http_request_seconds_count{route=\"all\",service=\"web\"} 7",
            "csp_http_routes_left_out 0",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is missing:\n{page}");
        }
    }
}
