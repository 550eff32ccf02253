//! The workers' metrics.

use std::sync::Arc;

use csp_telemetry::{MetricSource, MetricWriter, SnapshotCell};

use crate::core::Counters;
use crate::worker::{LanCounters, NetworkWorker};

/// The snapshot that a worker publishes, about ten times a second.
#[derive(Clone, Debug, Default)]
pub struct Published {
    counters: Counters,
    lan: LanCounters,
    flows: usize,
    flow_capacity: usize,
    /// Incomplete datagrams, and their limit.
    datagrams: (usize, usize),
    lingering: usize,
    labels: usize,
    malformed: u64,
    tunnels_up: usize,
    tunnels_wanted: usize,
    /// Proxies in use, their limit, and listed proxies beyond it.
    proxies: (usize, usize, usize),
    /// How often VIP groups were gained and lost; worker 0 only.
    elections: (u64, u64),
    messages: (u64, u64),
    bytes: (u64, u64),
    no_credit: u64,
    /// Links whose VI broke, links that resumed over another VI, and retransmitted messages.
    interrupted: [u64; 3],
}

impl Published {
    /// Copies a worker's counters and gauges.
    pub fn of(worker: &mut NetworkWorker) -> Self {
        let lan = worker.lan_counters();
        let (proxies, without_slot) = worker.proxies();
        let core = worker.core();
        let mut published = Published {
            counters: *core.counters(),
            lan,
            flows: core.flow_count(),
            flow_capacity: core.flow_capacity(),
            datagrams: (core.datagram_count(), core.datagram_capacity()),
            lingering: core.lingering_count(),
            labels: core.label_count(),
            malformed: worker.malformed(),
            tunnels_wanted: worker.tunnels().count(),
            tunnels_up: worker.tunnels().filter(|t| t.up).count(),
            proxies: (proxies, worker.proxies_max(), without_slot),
            ..Published::default()
        };
        published.elections = worker.election_counts();
        for endpoint in worker.endpoints() {
            let counters = endpoint.counters();
            published.messages.0 += counters.messages_received;
            published.messages.1 += counters.messages_sent;
            published.bytes.0 += counters.bytes_received;
            published.bytes.1 += counters.bytes_sent;
            published.no_credit += counters.no_credit;
            let interrupted =
                [counters.links_interrupted, counters.links_resumed, counters.messages_reposted];
            published.interrupted.iter_mut().zip(interrupted).for_each(|(sum, one)| *sum += one);
        }
        published
    }

    /// Returns the frames that LAN ports have lost because the worker was too slow.
    pub fn overrun(&self) -> u64 {
        self.lan.receive.overrun
    }

    /// Returns the tunnels that are up, and those that should exist.
    pub fn tunnels(&self) -> (usize, usize) {
        (self.tunnels_up, self.tunnels_wanted)
    }
}

/// The snapshots of all workers.
pub struct WorkerMetrics(pub Vec<Arc<SnapshotCell<Published>>>);

impl MetricSource for WorkerMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        for (worker, cell) in self.0.iter().enumerate() {
            let worker = worker.to_string();
            let (published, labels) = (cell.read(), [("worker", worker.as_str())]);
            collect_core(out, &published.counters, &labels);
            collect_lan(out, &published.lan, &labels);
            collect_san(out, &published, &labels);
            collect_links(out, published.interrupted, &labels);
            collect_drops(out, &published);
            out.table("flows", published.flows, published.flow_capacity);
            out.table("datagrams", published.datagrams.0, published.datagrams.1);
            out.table("proxies", published.proxies.0, published.proxies.1);
            if worker == "0" {
                let help = "VIP groups that this node has taken";
                out.counter("csp_vip_groups_gained_total", help, &[], published.elections.0);
                let help = "VIP groups that this node has given up or lost";
                out.counter("csp_vip_groups_lost_total", help, &[], published.elections.1);
            }
            let help = "Proxies of the membership that are not used, because capacity.proxies others are";
            out.gauge("csp_proxies_unused", help, &labels, published.proxies.2 as f64);
            let help = "Flows with a label";
            out.gauge("csp_labels_bound", help, &labels, published.labels as f64);
            let help = "Flows whose connection is over, kept for late segments";
            out.gauge("csp_flows_lingering", help, &labels, published.lingering as f64);
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

fn collect_core(out: &mut MetricWriter, c: &Counters, labels: &[(&str, &str)]) {
    let figures = [
        (
            "csp_lan_segments_received_total",
            "TCP segments passed to proxies, coalesced ones once",
            c.segments_in,
        ),
        ("csp_lan_packets_received_total", "TCP packets passed to proxies, before coalescing", c.packets_in),
        ("csp_client_received_bytes_total", "TCP payload from clients passed to proxies", c.bytes_in),
        ("csp_tunnel_records_received_total", "Tunnel records from proxies", c.records_out),
        ("csp_lan_segments_sent_total", "TCP segments handed to LAN ports, large ones once", c.segments_out),
        ("csp_client_sent_bytes_total", "TCP payload to clients handed to LAN ports", c.bytes_out),
        (
            "csp_forwarded_packets_total",
            "Packets forwarded to servers, coalesced ones once",
            c.packets_forwarded,
        ),
        ("csp_forwarded_bytes_total", "Bytes of IP packets forwarded to servers", c.bytes_forwarded),
        ("csp_flows_created_total", "Flows added to the table", c.flows_created),
        ("csp_flows_lost_total", "Flows removed because their proxy is down", c.flows_lost),
        ("csp_flows_expired_total", "Flows expired", c.flows_expired),
        ("csp_flows_evicted_total", "Flows evicted from a full table", c.flows_evicted),
        ("csp_label_bindings_total", "Labels bound to flows", c.labels_bound),
        ("csp_label_endings_total", "Labels that their proxy ended", c.labels_ended),
        ("csp_neighbour_answers_total", "ARP and ND requests answered", c.neighbour_answers),
        ("csp_neighbour_requests_total", "ARP and ND requests sent", c.neighbour_requests),
        (
            "csp_address_conflicts_total",
            "Packets of other hosts that claim an address of the cluster",
            c.address_conflicts,
        ),
        ("csp_fragments_received_total", "IP fragments for addresses of the cluster", c.fragments_in),
        ("csp_datagrams_reassembled_total", "Datagrams reassembled from them", c.datagrams_reassembled),
        (
            "csp_datagrams_elsewhere_total",
            "Reassembled datagrams of flows that another worker owns",
            c.datagrams_elsewhere,
        ),
        ("csp_echo_answers_total", "ICMP echo requests answered", c.echo_answers),
        (
            "csp_peer_moves_doubted_total",
            "Segments from another Ethernet address than their flow's, not accepted as a move",
            c.moves_doubted,
        ),
        (
            "csp_segments_returned_total",
            "Segments of unknown connections that a proxy gave back",
            c.segments_returned,
        ),
        ("csp_resets_sent_total", "Resets sent for ports without a service", c.resets_sent),
        ("csp_icmp_errors_received_total", "ICMP errors passed to proxies", c.icmp_errors_in),
        (
            "csp_path_errors_reported_total",
            "Errors sent to proxies, and to clients of forwarded services, about what is longer than the LAN's MTU",
            c.path_errors_reported,
        ),
    ];
    for (name, help, value) in figures {
        out.counter(name, help, labels, value);
    }
}

fn collect_lan(out: &mut MetricWriter, lan: &LanCounters, labels: &[(&str, &str)]) {
    let (r, t, k) = (&lan.receive, &lan.transmit, &lan.kernel);
    let figures = [
        ("csp_lan_frames_received_total", "Frames from LAN ports", r.frames),
        ("csp_lan_received_bytes_total", "Bytes of frames from LAN ports", r.bytes),
        ("csp_lan_receive_errors_total", "Failed receive calls", r.errors),
        ("csp_lan_frames_sent_total", "Frames that LAN ports accepted", t.frames),
        ("csp_lan_sent_bytes_total", "Bytes of frames that LAN ports accepted", t.bytes),
        ("csp_kernel_frames_total", "Frames that plug-ins let pass and the host's kernel got", k.frames),
        ("csp_kernel_bytes_total", "Bytes of frames that the host's kernel got", k.bytes),
    ];
    for (name, help, value) in figures {
        out.counter(name, help, labels, value);
    }
}

fn collect_san(out: &mut MetricWriter, p: &Published, labels: &[(&str, &str)]) {
    out.gauge("csp_tunnels_up", "Tunnels to proxy workers that are up", labels, p.tunnels_up as f64);
    out.gauge(
        "csp_tunnels_wanted",
        "Tunnels to proxy workers that should exist",
        labels,
        p.tunnels_wanted as f64,
    );
    let figures = [
        ("csp_san_messages_received_total", "Link messages received", p.messages.0),
        ("csp_san_messages_sent_total", "Link messages sent", p.messages.1),
        ("csp_san_received_bytes_total", "Bytes of tunnel messages received", p.bytes.0),
        ("csp_san_sent_bytes_total", "Bytes of tunnel messages sent", p.bytes.1),
        ("csp_san_no_credit_total", "Sends that had to wait for credit", p.no_credit),
    ];
    for (name, help, value) in figures {
        out.counter(name, help, labels, value);
    }
}

fn collect_drops(out: &mut MetricWriter, p: &Published) {
    let (c, r, t, k) = (&p.counters, &p.lan.receive, &p.lan.transmit, &p.lan.kernel);
    out.drops(&[
        ("malformed", c.drop_malformed),
        ("bad_checksum", c.drop_bad_checksum),
        ("fragment", c.drop_fragment),
        ("fragment_overlap", c.drop_fragment_overlap),
        ("fragment_duplicate", c.drop_fragment_duplicate),
        ("fragment_timeout", c.drop_fragment_timeout),
        ("fragment_room", c.drop_fragment_room),
        ("not_ours", c.drop_not_ours),
        ("protocol", c.drop_protocol),
        ("no_service", c.drop_no_service),
        ("no_proxy", c.drop_no_proxy),
        ("no_server", c.drop_no_server),
        ("expired", c.drop_expired),
        ("went_round", c.drop_went_round),
        ("tunnel_full", c.drop_tunnel_full),
        ("answer_limit", c.drop_answer_limit),
        ("search_limit", c.drop_search_limit),
        ("bad_record", c.drop_bad_record),
        ("unknown_label", c.drop_unknown_label),
        ("stale_label", c.drop_stale_label),
        ("foreign_flow", c.drop_foreign_flow),
        ("too_long", c.drop_too_long),
        ("unresolved", c.drop_unresolved),
        ("table_full", c.drop_table_full),
        ("message_malformed", p.malformed),
        ("lan_truncated", r.truncated),
        ("lan_bad_offload", r.bad_offload),
        ("lan_receive_overrun", r.overrun),
        ("lan_transmit_full", t.full),
        ("lan_transmit_too_long", t.too_long),
        ("lan_transmit_error", t.errors),
        ("plugin_kernel_full", k.full),
        ("plugin_kernel_error", k.errors + k.too_long),
    ]);
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
        for name in csp_api::metrics::NETWORK_NODE {
            assert!(page.lines().any(|line| line.starts_with(name)), "{name} is missing:\n{page}");
        }
    }
}
