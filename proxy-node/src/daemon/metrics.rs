//! The workers' metrics.

mod cache;
mod http;
mod messages;
mod modules;
mod services;
mod tcp;

use std::sync::Arc;

use csp_api::contexts::Contexts;
use csp_api::proxy::Channel;
use csp_api::quality::Quality;
use csp_services::Moved;
use csp_tcp::Occupancy;
use csp_telemetry::{MetricSource, MetricWriter, SnapshotCell};
use csp_transport::Endpoint;

use crate::ProxyWorker;
use crate::core::{Counters, FailureClass};

use super::config::{HAIRPINS, UPSTREAMS};
use super::{channels, contexts, quality};

pub use cache::CacheMetrics;
pub use http::{HttpBoard, HttpMetrics};
pub use modules::ModuleMetrics;
pub use services::{ServiceBoard, ServiceMetrics};

/// What a worker publishes, about ten times a second.
#[derive(Clone, Debug, Default)]
pub struct Published {
    counters: Counters,
    tcp: csp_tcp::Counters,
    occupancy: Occupancy,
    flows: usize,
    hairpins: usize,
    upstreams: usize,
    waiting: usize,
    left: usize,
    budget_reserved: u64,
    malformed: u64,
    network_nodes: usize,
    links: usize,
    messages: (u64, u64),
    /// Links whose VI broke, those of them that resumed on another VI, messages posted again.
    interrupted: [u64; 3],
    refusals: [u64; REFUSALS.len()],
    channels: Vec<(String, Channel)>,
    contexts: Contexts,
    pub(super) quality: Quality,
    moved: Vec<(String, Moved)>,
    broker: messages::BrokerCounters,
}

/// Reasons for which peers on the SAN were refused or cut off, in the order of [`refusals`].
const REFUSALS: [&str; 15] = [
    "san_handshake_malformed",
    "san_handshake_dropped",
    "san_memory_violation",
    "san_request_rejected",
    "san_hello_failed",
    "san_parameters",
    "san_bad_token",
    "san_token_expired",
    "san_identity",
    "san_token_replayed",
    "san_session_unknown",
    "san_user_share",
    "san_stranger_evicted",
    "san_protocol_violation",
    "san_credit_violation",
];

fn refusals(endpoint: &Endpoint) -> [u64; REFUSALS.len()] {
    let (vi, link) = (endpoint.provider_counters(), endpoint.counters());
    [
        vi.handshakes_malformed,
        vi.handshakes_dropped,
        vi.violations,
        link.requests_rejected,
        link.hello_failed,
        link.refused_parameters,
        link.refused_bad_token,
        link.refused_expired,
        link.refused_identity,
        link.refused_replay,
        link.refused_session,
        link.refused_share,
        link.strangers_evicted,
        link.died_protocol + link.died_owner,
        link.died_credit,
    ]
}

impl Published {
    /// Copies a worker's counters and gauges, without those of information flows.
    pub fn of(worker: &ProxyWorker) -> Self {
        let core = worker.core();
        let mut published = Published {
            counters: *core.counters(),
            tcp: *core.tcp().counters(),
            occupancy: core.tcp().occupancy(),
            flows: core.flow_count(),
            hairpins: core.hairpin_count(),
            upstreams: core.upstream_count(),
            waiting: core.waiting_count(),
            left: core.left_count(),
            budget_reserved: core.budget_reserved(),
            malformed: worker.malformed(),
            network_nodes: worker.network_nodes().len(),
            links: 0,
            messages: (0, 0),
            interrupted: [0; 3],
            refusals: Default::default(),
            channels: channels::of_worker(worker.broker(), csp_daemon::clock::now()),
            contexts: contexts::of_worker(worker.broker()),
            quality: Quality::default(),
            moved: channels::moved(worker.broker()),
            broker: messages::BrokerCounters::of(worker.broker()),
        };
        for endpoint in worker.endpoints() {
            for (sum, one) in published.refusals.iter_mut().zip(refusals(endpoint)) {
                *sum += one;
            }
            let link = endpoint.counters();
            let interrupted = [link.links_interrupted, link.links_resumed, link.messages_reposted];
            published.interrupted.iter_mut().zip(interrupted).for_each(|(sum, one)| *sum += one);
        }
        for info in worker.endpoints().flat_map(|e| e.links()) {
            published.links += 1;
            published.messages.0 += info.messages_received;
            published.messages.1 += info.messages_sent;
        }
        published
    }

    /// Returns the number of connected network nodes.
    pub fn network_nodes(&self) -> usize {
        self.network_nodes
    }
}

/// What every worker publishes.
pub struct WorkerMetrics(pub Vec<Arc<SnapshotCell<Published>>>);

impl MetricSource for WorkerMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        for (worker, cell) in self.0.iter().enumerate() {
            let worker = worker.to_string();
            let (published, labels) = (cell.read(), [("worker", worker.as_str())]);
            collect_counters(out, &published.counters, &labels);
            collect_server_tls(out, &published.counters, &labels);
            channels::collect(out, &published.channels, &worker);
            contexts::collect(out, &published.contexts, &worker);
            quality::collect(out, &published.quality, &worker);
            channels::collect_moved(out, &published.moved, &worker);
            messages::collect(out, &published.broker, &worker);
            collect_tables(out, &published);
            tcp::collect(out, &published.tcp, &labels);
            let help = "Links that are up: tunnels and channels";
            out.gauge("csp_links", help, &labels, published.links as f64);
            collect_links(out, published.interrupted, &labels);
            let help = "Network nodes with a tunnel here";
            out.gauge("csp_network_nodes_connected", help, &labels, published.network_nodes as f64);
            let help = "Connections in the services' backlogs";
            out.gauge("csp_backlog_connections", help, &labels, published.waiting as f64);
            let help = "Connections that a process left and none has taken over yet";
            out.gauge("csp_connections_left", help, &labels, published.left as f64);
            let help = "Bytes of the send budget granted to applications";
            out.gauge("csp_send_budget_reserved_bytes", help, &labels, published.budget_reserved as f64);
        }
    }
}

fn collect_links(
    out: &mut MetricWriter,
    [interrupted, resumed, reposted]: [u64; 3],
    labels: &[(&str, &str)],
) {
    out.counter(
        "csp_links_interrupted_total",
        "Links whose VI broke while they were up",
        labels,
        interrupted,
    );
    out.counter("csp_links_resumed_total", "Links that resumed on another VI", labels, resumed);
    let help = "Messages posted again on another VI";
    out.counter("csp_link_messages_reposted_total", help, labels, reposted);
}

/// TLS towards servers.
fn collect_server_tls(out: &mut MetricWriter, c: &Counters, labels: &[(&str, &str)]) {
    let help = "Handshakes of TLS with plain servers that were completed, those of checks included";
    out.counter("csp_tls_server_handshakes_total", help, labels, c.tls_server_handshakes);
    let help = "Those of them that have resumed a former session";
    out.counter("csp_tls_server_resumed_total", help, labels, c.tls_server_resumed);
    let classes = FailureClass::ALL.into_iter().map(|class| (class.name(), class.index()));
    let failed = classes.map(|(name, at)| (name, c.tls_server_failed[at]));
    for (class, count) in failed.chain([("timeout", c.tls_server_late)]) {
        let labels: Vec<_> = labels.iter().copied().chain([("class", class)]).collect();
        let help = "Handshakes of TLS with plain servers that have failed, by class of the reason";
        out.counter("csp_tls_server_handshakes_failed_total", help, &labels, count);
    }
}

fn collect_counters(out: &mut MetricWriter, c: &Counters, labels: &[(&str, &str)]) {
    let figures = [
        ("csp_tunnel_records_received_total", "Tunnel records received", c.records_in),
        ("csp_tunnel_records_sent_total", "Tunnel records sent", c.records_out),
        ("csp_client_received_bytes_total", "TCP payload from clients", c.client_bytes_in),
        (
            "csp_client_sent_bytes_total",
            "TCP payload to clients, retransmissions included",
            c.client_bytes_out,
        ),
        ("csp_application_sent_bytes_total", "Bytes sent to applications", c.app_bytes_out),
        ("csp_application_received_bytes_total", "Bytes received from applications", c.app_bytes_in),
        ("csp_tls_handshakes_total", "Handshakes of TLS with clients that were completed", c.tls_handshakes),
        (
            "csp_tls_handshakes_failed_total",
            "Handshakes of TLS with clients that failed, or took too long",
            c.tls_handshakes_failed,
        ),
        (
            "csp_tls_handshakes_not_admitted_total",
            "Connections that were reset since their source had begun too many handshakes of TLS",
            c.tls_handshakes_not_admitted,
        ),
        (
            "csp_tls_handshake_steps_elsewhere_total",
            "Steps of handshakes of TLS that took long, and that other threads than the data workers have made",
            c.tls_handshake_steps_elsewhere,
        ),
        (
            "csp_tls_sessions_failed_total",
            "Connections whose TLS session failed later: a violation of the protocol, or an end without close_notify",
            c.tls_sessions_failed,
        ),
        ("csp_connections_passive_total", "Connections established by clients", c.connections_passive),
        ("csp_connections_active_total", "Connections opened for applications", c.connections_active),
        ("csp_connections_called_total", "Connections opened to plain servers", c.connections_called),
        (
            "csp_calls_failed_total",
            "Connections to plain servers that were not established: refused, reset, or late",
            c.calls_failed,
        ),
        (
            "csp_calls_unsent_total",
            "Connections to plain servers that were not begun: no egress, network node, port or memory",
            c.calls_unsent,
        ),
        (
            "csp_half_closed_given_up_total",
            "Connections reset as their client moved nothing for long after the plain server had finished",
            c.half_closed_given_up,
        ),
        ("csp_server_checks_total", "Active checks of plain servers", c.checks),
        ("csp_server_checks_failed_total", "Those of them that failed", c.checks_failed),
        (
            "csp_joined_bytes_total",
            "Bytes passed between plain servers and clients, or services of the proxy",
            c.joined_bytes,
        ),
        (
            "csp_connections_hairpin_total",
            "Connections between two programs of the cluster, without TCP",
            c.connections_hairpin,
        ),
        (
            "csp_connections_upstream_total",
            "Connections that local services have asked for, to programs of the cluster and plain servers",
            c.connections_upstream,
        ),
        (
            "csp_upstream_opens_failed_total",
            "Such connections that no program or server has accepted, and requests that were refused at once",
            c.upstream_opens_failed,
        ),
        (
            "csp_hairpin_resets_delayed_total",
            "Resets between two programs of the cluster that waited for the bytes before them",
            c.hairpin_resets_delayed,
        ),
        (
            "csp_hairpin_resets_overdue_total",
            "Delayed resets that were sent before those bytes, because the receiving program took too long",
            c.hairpin_resets_overdue,
        ),
        ("csp_connections_closed_total", "Connections that ended without an error", c.connections_closed),
        ("csp_connections_failed_total", "Connections that ended with an error", c.connections_failed),
        (
            "csp_stalled_given_up_total",
            "Connections dropped because their clients acknowledged nothing while memory was short",
            c.stalled_given_up,
        ),
        (
            "csp_idle_given_up_total",
            "Connections reset because their clients were idle while the table or the memory was nearly full",
            c.idle_given_up,
        ),
        (
            "csp_connections_handed_over_total",
            "Connections that a process handed over to another one",
            c.handed_over,
        ),
        (
            "csp_listens_denied_total",
            "LISTENs refused: not granted to the process, or another user's port",
            c.listens_denied,
        ),
        ("csp_connects_denied_total", "CONNECTs refused: not granted to the process", c.connects_denied),
        (
            "csp_connects_over_share_total",
            "CONNECTs refused: the user's processes hold their share of connections or of memory",
            c.connects_over_share,
        ),
        (
            "csp_connects_elsewhere_total",
            "CONNECTs refused: another proxy worker owns the channel at the address",
            c.connects_elsewhere,
        ),
        ("csp_opens_refused_total", "OPENs that a process refused", c.opens_refused),
        (
            "csp_offers_withdrawn_total",
            "Unanswered offers withdrawn and made to an idle process",
            c.offers_withdrawn,
        ),
        (
            "csp_segments_returned_total",
            "Segments given back to a network node because their connection is not here",
            c.unknown_returned,
        ),
        ("csp_stale_messages_total", "Channel messages about flows that have ended", c.stale_messages),
    ];
    for (name, help, value) in figures {
        out.counter(name, help, labels, value);
    }
    out.drops(&[
        ("no_server", c.drop_no_server),
        ("no_proxy_header", c.proxy_headers_refused),
        ("not_taken_over", c.drop_not_taken_over),
        ("backlog_time", c.drop_backlog_time),
        ("no_budget", c.drop_no_budget),
        ("malformed", c.drop_malformed),
        ("misdirected", c.drop_misdirected),
        ("no_policy", c.drop_no_policy),
        ("tcp", c.drop_tcp),
        ("no_tunnel", c.drop_no_tunnel),
        ("violation", c.violations),
    ]);
}

fn collect_tables(out: &mut MetricWriter, published: &Published) {
    let o = &published.occupancy;
    for (table, (entries, capacity)) in [
        ("tcb", o.connections),
        ("half_open", o.half_open),
        ("time_wait", o.time_wait),
        ("blocks", o.blocks),
        ("listeners", o.listeners),
    ] {
        out.table(table, entries, capacity);
    }
    out.table("flows", published.flows, o.connections.1 + 2 * HAIRPINS + UPSTREAMS);
    out.table("hairpin_ends", published.hairpins, 2 * HAIRPINS);
    out.table("upstreams", published.upstreams, UPSTREAMS);
    out.drops(&[("message_malformed", published.malformed)]);
    for reason in REFUSALS.into_iter().zip(published.refusals) {
        out.drops(&[reason]);
    }
}

#[cfg(test)]
mod tests {
    use csp_telemetry::Exposition;

    use super::*;

    #[test]
    fn what_the_operations_page_shows_is_exposed() {
        let metrics = Exposition::new();
        metrics.register(WorkerMetrics(vec![Arc::default()]));
        let page = metrics.render();
        for name in csp_api::metrics::PROXY_NODE {
            assert!(page.lines().any(|line| line.starts_with(name)), "{name} is missing:\n{page}");
        }
    }
}
