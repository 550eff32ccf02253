//! Which figures are kept of nodes and services.

use csp_api::metrics;
use csp_api::mgmt::ServiceView;

use super::{Reading, Readings};
use crate::scrape::Sample;

/// Where the value of a figure of a node comes from: sums over all label sets of metrics.
enum Source {
    /// A counter; its rate is kept.
    Rate(&'static str),
    /// A gauge.
    Gauge(&'static str),
    /// A gauge as a share of another one, in percent.
    Percent(&'static str, &'static str),
}

use Source::{Gauge, Percent, Rate};

/// Figures of nodes; those whose metric a node does not expose are left out. Utilisation and load first, then
/// saturation, then errors.
const NODE: &[(&str, Source)] = &[
    ("flows", Gauge(metrics::FLOWS)),
    ("flow_table_percent", Percent(metrics::FLOWS, "csp_flows_capacity")),
    ("connections_per_s", Rate(metrics::CONNECTIONS_PASSIVE)),
    ("packets_in_per_s", Rate(metrics::LAN_PACKETS_RECEIVED)),
    ("bytes_in_per_s", Rate(metrics::CLIENT_RECEIVED_BYTES)),
    ("bytes_out_per_s", Rate(metrics::CLIENT_SENT_BYTES)),
    ("processes", Gauge(metrics::PROCESSES)),
    ("accepts_per_s", Rate(metrics::APPLICATION_ACCEPTED)),
    ("read_bytes_per_s", Rate(metrics::APPLICATION_BYTES_READ)),
    ("written_bytes_per_s", Rate(metrics::APPLICATION_BYTES_WRITTEN)),
    ("window_memory_bytes", Gauge("csp_send_budget_reserved_bytes")),
    ("backlog_connections", Gauge("csp_backlog_connections")),
    ("waits_for_credit_per_s", Rate("csp_san_no_credit_total")),
    ("retransmits_per_s", Rate(metrics::SEGMENTS_RETRANSMITTED)),
    ("resets_per_s", Rate("csp_tcp_resets_sent_total")),
    ("drops_per_s", Rate("csp_drops_total")),
];

/// The figures of a node's metrics.
pub(super) fn of_node(sample: &Sample) -> Readings {
    let value = |metric: &str| sample.sums.get(metric).copied();
    let read = |source: &Source| match source {
        Rate(metric) => value(metric).map(Reading::Total),
        Gauge(metric) => value(metric).map(Reading::Now),
        Percent(part, whole) => {
            let whole = value(whole).filter(|whole| *whole > 0.0)?;
            Some(Reading::Now(100.0 * value(part)? / whole))
        }
    };
    NODE.iter().filter_map(|(name, source)| Some((*name, read(source)?))).collect()
}

/// The figures of a service: its rate, its errors and the time of its answers; what is open, what waits, the
/// room that its processes have, and the members that get nothing.
pub(super) fn of_service(service: &ServiceView) -> Readings {
    let sum = |of: fn(&csp_api::mgmt::PoolMemberView) -> Option<u64>| {
        service.pool.iter().filter_map(of).reduce(u64::saturating_add).map(|sum| sum as f64)
    };
    let down = service.pool.iter().filter(|member| member.is_down()).count();
    let mut readings: Readings = vec![("members_down", Reading::Now(down as f64))];
    let mut add = |name, reading: Option<Reading>| readings.extend(reading.map(|reading| (name, reading)));
    add("connections_per_s", sum(|member| member.connections_total).map(Reading::Total));
    add("packets_per_s", sum(|member| member.packets_total).map(Reading::Total));
    add("open_connections", sum(|member| member.open_connections).map(Reading::Now));
    if service.via == "proxy" {
        add("waiting_connections", Some(Reading::Now(service.pending as f64)));
        add("accept_credit", sum(|member| member.accept_credit).map(Reading::Now));
    }
    if let Some(figures) = &service.figures {
        let total = |count: u64| count as f64;
        let (errors, ended) = (total(figures.errors_total), total(figures.ended_total));
        add("errors_percent", Some(Reading::Quotient(100.0 * errors, ended)));
        let (waited_us, answered) = (total(figures.first_byte_us_total), total(figures.answered_total));
        add("first_byte_ms", Some(Reading::Quotient(waited_us / 1e3, answered)));
        add("bytes_in_per_s", Some(Reading::Total(total(figures.bytes_in_total))));
        add("bytes_out_per_s", Some(Reading::Total(total(figures.bytes_out_total))));
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_api::proxy::ServiceFigures;
    use std::collections::BTreeMap;

    #[test]
    fn a_services_figures_have_its_errors_and_the_time_of_its_answers() {
        let text = r#"{"name":"web","vip":"10.76.0.100","port":80,"pending":2,"pool":[]}"#;
        let mut service: ServiceView = serde_json::from_str(text).unwrap();
        assert!(of_service(&service).iter().all(|(name, _)| *name != "errors_percent"));
        service.figures = Some(ServiceFigures {
            ended_total: 200,
            errors_total: 3,
            answered_total: 50,
            first_byte_us_total: 9_000,
            bytes_in_total: 7,
            ..ServiceFigures::default()
        });
        let readings = of_service(&service);
        for expected in [
            ("waiting_connections", Reading::Now(2.0)),
            ("errors_percent", Reading::Quotient(300.0, 200.0)),
            ("first_byte_ms", Reading::Quotient(9.0, 50.0)),
            ("bytes_in_per_s", Reading::Total(7.0)),
            ("bytes_out_per_s", Reading::Total(0.0)),
        ] {
            assert!(readings.contains(&expected), "{expected:?} is not in {readings:?}");
        }
        assert!(readings.len() <= crate::limits::SERIES_FIGURES_MAX);
    }

    #[test]
    fn a_nodes_figures_are_those_whose_metrics_it_has() {
        let sums = [("csp_flows_entries", 50.0), ("csp_flows_capacity", 200.0), ("csp_drops_total", 7.0)];
        let sums = sums.map(|(name, value)| (name.to_owned(), value));
        let sample = Sample { sums: BTreeMap::from(sums), drops: BTreeMap::new() };
        let expected = vec![
            ("flows", Reading::Now(50.0)),
            ("flow_table_percent", Reading::Now(25.0)),
            ("drops_per_s", Reading::Total(7.0)),
        ];
        assert_eq!(of_node(&sample), expected);
        assert!(NODE.len() <= crate::limits::SERIES_FIGURES_MAX);
    }
}
