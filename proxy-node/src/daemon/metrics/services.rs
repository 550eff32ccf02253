//! What workers count by service.
//!
//! ```text
//!  worker ── a part of its table, ten times a second ──▶ board ──▶ sum over the workers ──▶ /metrics
//! ```
//! A worker copies [`PLACES_PER_PUBLICATION`] places at a time, so that no number of services keeps it from
//! its packets, and none while the board is being read.

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_telemetry::{MetricSource, MetricWriter, SnapshotCell};

use crate::ProxyWorker;
use crate::core::{EndClass, FIRST_BYTE_BOUNDS_NS, ServiceCounters};

/// Places of the table of services that a worker copies at a time.
const PLACES_PER_PUBLICATION: usize = 256;
/// Services that have metrics; further ones, by their names, have none.
pub const SERVICES_SHOWN_MAX: usize = 4_096;

/// A place of a worker's table: the service's number, its name, its counters. `None`: the place is free.
type Place = Option<(u32, Arc<str>, ServiceCounters)>;

/// What a worker has counted by service. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ServiceBoard(Arc<SnapshotCell<Board>>);

#[derive(Debug, Default)]
struct Board {
    places: Vec<Place>,
    /// Where the worker goes on.
    next: usize,
}

impl ServiceBoard {
    /// Copies the next places of a worker's table.
    pub(crate) fn publish(&self, worker: &ProxyWorker) {
        self.0.update(|board| board.publish(worker));
    }
}

impl Board {
    fn publish(&mut self, worker: &ProxyWorker) {
        let (from, mut at) = (self.next, self.next);
        for place in worker.core().service_counters(from, PLACES_PER_PUBLICATION) {
            if self.places.len() <= at {
                self.places.push(None);
            }
            if let Some(known) = self.places.get_mut(at) {
                copy(known, place);
            }
            at += 1;
        }
        if at == from + PLACES_PER_PUBLICATION {
            self.next = at;
        } else {
            self.places.truncate(at);
            self.next = 0;
        }
    }
}

/// Copies a place. The name is allocated once for each service.
fn copy(known: &mut Place, place: Option<(u32, &str, &ServiceCounters)>) {
    match (known, place) {
        (Some((number, name, counters)), Some((now, named, values)))
            if *number == now && **name == *named =>
        {
            *counters = *values;
        }
        (known, place) => *known = place.map(|(number, name, counters)| (number, name.into(), *counters)),
    }
}

/// What all workers have counted by service.
pub struct ServiceMetrics(pub Vec<ServiceBoard>);

impl ServiceMetrics {
    /// Sums of the services that all workers show: while some of them have followed a policy and others have
    /// not, a sum would fall.
    fn sums(&self) -> BTreeMap<Arc<str>, ServiceCounters> {
        let mut sums: BTreeMap<Arc<str>, (ServiceCounters, usize)> = BTreeMap::new();
        for board in &self.0 {
            for (_, name, counters) in board.0.lock().places.iter().flatten() {
                match sums.get_mut(name) {
                    Some((sum, workers)) => {
                        sum.add(counters);
                        *workers += 1;
                    }
                    None => drop(sums.insert(Arc::clone(name), (*counters, 1))),
                }
            }
        }
        let of_all = |(name, (sum, workers))| (workers == self.0.len()).then_some((name, sum));
        sums.into_iter().filter_map(of_all).collect()
    }
}

impl MetricSource for ServiceMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let sums = self.sums();
        let left_out = sums.len().saturating_sub(SERVICES_SHOWN_MAX);
        let help = "Services without metrics of their own, since there are too many";
        out.gauge("csp_proxy_services_left_out", help, &[], left_out as f64);
        for (name, counters) in sums.iter().take(SERVICES_SHOWN_MAX) {
            collect_service(out, name, counters);
        }
    }
}

fn collect_service(out: &mut MetricWriter, name: &str, counters: &ServiceCounters) {
    let service = [("service", name)];
    let help = "Connections that clients have established, by service";
    out.counter("csp_proxy_service_connections_total", help, &service, counters.opened);
    let help = "Connections that have ended, by service and by who or what ended them";
    for class in EndClass::ALL {
        let labels = [("service", name), ("class", class.as_str())];
        let count = counters.ended[class as usize];
        out.counter("csp_proxy_service_connections_ended_total", help, &labels, count);
    }
    let help = "Bytes passed from clients to servers, by service";
    out.counter("csp_proxy_service_received_bytes_total", help, &service, counters.received_bytes);
    let help = "Bytes passed from servers to clients, by service";
    out.counter("csp_proxy_service_sent_bytes_total", help, &service, counters.sent_bytes);
    let help = "Time from the establishment of a client's connection to the server's first byte, by service";
    let first_byte = (&FIRST_BYTE_BOUNDS_NS[..], &counters.first_byte[..], counters.first_byte_ns);
    out.histogram("csp_proxy_service_first_byte_seconds", help, &service, first_byte);
    let help = "Durations of the connections that have ended, by service";
    let lasted = counters.duration_ns as f64 / 1e9;
    out.seconds("csp_proxy_service_connection_seconds_total", help, &service, lasted);
}

#[cfg(test)]
mod tests {
    use csp_telemetry::Exposition;

    use super::*;

    fn counters(opened: u64, ok: u64, server: u64) -> ServiceCounters {
        let mut counters = ServiceCounters { opened, received_bytes: 10, ..ServiceCounters::default() };
        (counters.ended[0], counters.ended[2]) = (ok, server);
        (counters.first_byte[1], counters.first_byte_ns) = (ok, 1_500_000 * ok);
        counters
    }

    fn board(services: &[(&str, ServiceCounters)]) -> ServiceBoard {
        let place = |(name, counters): &(&str, ServiceCounters)| Some((1, Arc::from(*name), *counters));
        let places = services.iter().map(place).chain([None]).collect();
        ServiceBoard(Arc::new(SnapshotCell::new(Board { places, next: 0 })))
    }

    #[test]
    fn the_workers_are_summed_when_all_have_the_service() {
        let metrics = Exposition::new();
        let boards = [
            board(&[
                ("web", counters(5, 3, 1)),
                ("db", ServiceCounters::default()),
                ("gone", counters(4, 4, 0)),
            ]),
            board(&[("web", counters(2, 2, 0)), ("db", ServiceCounters::default())]),
        ];
        metrics.register(ServiceMetrics(boards.to_vec()));
        let page = metrics.render_text();
        for line in [
            "csp_proxy_service_connections_total{service=\"web\"} 7",
            "csp_proxy_service_connections_total{service=\"db\"} 0",
            "csp_proxy_service_connections_ended_total{class=\"ok\",service=\"web\"} 5",
            "csp_proxy_service_connections_ended_total{class=\"server\",service=\"web\"} 1",
            "csp_proxy_service_connections_ended_total{class=\"limit\",service=\"web\"} 0",
            "csp_proxy_service_received_bytes_total{service=\"web\"} 20",
            "csp_proxy_service_first_byte_seconds_bucket{service=\"web\",le=\"0.0005\"} 0",
            "csp_proxy_service_first_byte_seconds_bucket{service=\"web\",le=\"0.0025\"} 5",
            "csp_proxy_service_first_byte_seconds_bucket{service=\"web\",le=\"+Inf\"} 5",
            "csp_proxy_service_first_byte_seconds_sum{service=\"web\"} 0.0075",
            "csp_proxy_services_left_out 0",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is missing:\n{page}");
        }
        assert!(!page.contains("gone"), "a sum of fewer workers would fall:\n{page}");
    }

    #[test]
    fn services_beyond_the_bound_are_counted_and_not_shown() {
        let names: Vec<String> = (0..SERVICES_SHOWN_MAX + 3).map(|n| format!("s{n:05}")).collect();
        let services: Vec<_> = names.iter().map(|name| (name.as_str(), ServiceCounters::default())).collect();
        let metrics = Exposition::new();
        metrics.register(ServiceMetrics(vec![board(&services)]));
        let page = metrics.render_text();
        assert!(page.contains("csp_proxy_services_left_out 3\n"));
        let shown = |line: &&str| line.starts_with("csp_proxy_service_connections_total");
        assert_eq!(page.lines().filter(shown).count(), SERVICES_SHOWN_MAX);
    }

    #[test]
    fn a_place_is_taken_over_by_another_service_and_becomes_free() {
        let (mut place, web, db) = (None, counters(1, 0, 0), counters(9, 0, 0));
        copy(&mut place, Some((3, "web", &web)));
        let name = place.as_ref().map(|(_, name, _)| Arc::clone(name)).unwrap();
        copy(&mut place, Some((3, "web", &db)));
        assert!(place.as_ref().is_some_and(|(_, same, values)| Arc::ptr_eq(same, &name) && *values == db));
        copy(&mut place, Some((65_539, "db", &web)));
        assert_eq!(place.as_ref().map(|(number, name, _)| (*number, &**name)), Some((65_539, "db")));
        copy(&mut place, None);
        assert!(place.is_none());
    }
}
