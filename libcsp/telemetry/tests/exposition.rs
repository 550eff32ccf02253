//! The exposition: its text, and that Prometheus' own tool accepts it.
//!
//! Apart from the crate's other tests, as a program is started here: until it runs, the child holds a copy of
//! every descriptor of this process, so that a listener which another test closes at that moment would go on
//! listening.
#![allow(clippy::tests_outside_test_module, clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::time::Duration;

use csp_telemetry::{BuildInfo, Exposition, LatencyHistogram, MetricWriter};

fn sample() -> Exposition {
    let exposition = Exposition::new();
    exposition.register(BuildInfo {
        role: "proxy-node".into(),
        node: "pn-1".into(),
        version: "0.1.0".into(),
    });
    // Two workers give samples of the same families.
    for worker in ["0", "1"] {
        exposition.register(move |out: &mut MetricWriter| {
            out.drops(&[("bad_checksum", 3), ("unknown_label", 0)]);
            out.counter("csp_segments_received_total", "Segments from the tunnel", &[("worker", worker)], 40);
            out.table("connections", 5, 16384);
            let mut latency = LatencyHistogram::default();
            latency.record(Duration::from_micros(15));
            latency.record(Duration::from_secs(2));
            out.latency("csp_accept_latency_seconds", "From SYN to ACCEPTED", &[], &latency);
        });
    }
    exposition.register(|out: &mut MetricWriter| {
        out.gauge("csp_policy_generation", "Generation of the policy", &[("state", "active")], 7.0);
        out.gauge("csp_odd", "A label with \"quotes\", a \\ and\na line end", &[("text", "a\"b\\c\nd")], 0.5);
    });
    exposition
}

#[test]
fn families_are_written_once_with_the_samples_of_all_sources() {
    let text = sample().render();
    for line in [
        "# TYPE csp_drops counter",
        "csp_drops_total{reason=\"bad_checksum\"} 6",
        "csp_drops_total{reason=\"unknown_label\"} 0",
        "csp_segments_received_total{worker=\"0\"} 40",
        "csp_segments_received_total{worker=\"1\"} 40",
        "csp_connections_entries 10.0",
        "csp_connections_capacity 32768.0",
        "csp_policy_generation{state=\"active\"} 7.0",
        "csp_build_info{node=\"pn-1\",role=\"proxy-node\",version=\"0.1.0\"} 1.0",
        "csp_accept_latency_seconds_count 4",
        "csp_accept_latency_seconds_bucket{le=\"0.00001\"} 0",
        "csp_accept_latency_seconds_bucket{le=\"0.00002\"} 2",
        "csp_accept_latency_seconds_bucket{le=\"1.0\"} 2",
        "csp_accept_latency_seconds_bucket{le=\"+Inf\"} 4",
        "# HELP csp_odd A label with \"quotes\", a   and a line end",
        "csp_odd{text=\"a\\\"b\\\\c\\nd\"} 0.5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let before = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), before, "a family is declared twice:\n{text}");
}

#[test]
fn the_text_format_has_the_whole_names_of_counters() {
    let text = sample().render_text();
    for line in [
        "# TYPE csp_drops_total counter",
        "csp_drops_total{reason=\"bad_checksum\"} 6",
        "csp_connections_capacity 32768",
        "# TYPE csp_accept_latency_seconds histogram",
        "csp_accept_latency_seconds_bucket{le=\"0.00001\"} 0",
        "csp_accept_latency_seconds_bucket{le=\"0.00002\"} 2",
        "csp_accept_latency_seconds_bucket{le=\"1\"} 2",
        "csp_accept_latency_seconds_bucket{le=\"+Inf\"} 4",
        "csp_accept_latency_seconds_count 4",
        "csp_odd{text=\"a\\\"b\\\\c\\nd\"} 0.5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing in\n{text}");
    }
    assert!(!text.contains("# EOF"), "{text}");
}

#[test]
fn promtool_accepts_the_text() {
    if !csp_support::installed("promtool", "prometheus") {
        return;
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = sample().render_text();
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}
