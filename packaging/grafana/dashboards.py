#!/usr/bin/env python3
"""Writes the dashboards for Grafana: one source, so that they stay alike.

    dashboards.py            writes the JSON files beside this script
    dashboards.py --check    exit status 1 if one of them is not what would be written

Each panel has a title, a unit, a description and queries with their legends. Queries name the job `csp` and the labels `tier` and `node`
as docs/operations/prometheus.md has them. Every query is asked of a Prometheus that scrapes a running cluster: `make test-operations`.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
# What the range of rates is: Grafana chooses at least four scrapes.
RATE = "$__rate_interval"
WIDTH = 24
SIZES = {"timeseries": (8, 7), "stat": (4, 4)}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(title, unit, description, *queries, kind="timeseries", most=None):
    """Returns a panel; each query is a pair of expression and legend. `most` is the top of its axis."""
    return {"title": title, "unit": unit, "description": description, "queries": queries, "kind": kind, "most": most}


def stat(title, unit, description, query, legend=""):
    """Returns a panel that shows the last value, large."""
    return panel(title, unit, description, (query, legend), kind="stat")


def rate(metric, selector="", by=""):
    """Returns the expression of a counter's rate, summed over workers and what else is not in `by`."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[{RATE}]))" if by else f"sum(rate({metric}{{{selector}}}[{RATE}]))"


def gauge(metric, selector="", by=""):
    """Returns the expression of a gauge, summed over what is not in `by`."""
    return f"sum by ({by}) ({metric}{{{selector}}})" if by else f"sum({metric}{{{selector}}})"


def ratio(part, whole):
    """Returns a quotient that is absent where nothing happened."""
    return f"{part} / ({whole} > 0)"


NODE = 'node=~"$node"'
SERVICE = 'service=~"$service"'
CHANNEL = 'channel=~"$channel"'
FLOW = 'flow=~"$flow"'
# Several management nodes report the same: one of them is enough.
OF_MEMBER = "service, member, reporter"

CLUSTER = [
    ("Now", [
        stat("Nodes that answer", "none", "Daemons whose last scrape succeeded.", 'count(up{job="csp"} == 1)'),
        stat("Nodes that do not", "none", "Daemons whose last scrape failed: see the alert CspNodeDown.", 'count(up{job="csp"} == 0) or vector(0)'),
        stat("Alerts", "none", "Alerts of the cluster that fire.", 'count(ALERTS{alertname=~"Csp.*", alertstate="firing"}) or vector(0)'),
        stat("Policy generation", "none", "The newest generation of the policy that a node has in force.", 'max(csp_policy_generation{state="active"})'),
        stat("Leaders", "none", "Management nodes that lead: 1, but for the seconds of an election.", "sum(csp_mgmt_leader)"),
        stat("etcd", "none", "Management nodes that get answers of etcd.", "sum(csp_mgmt_etcd_connected)"),
    ]),
    ("Traffic", [
        panel("New connections", "cps", "Connections that clients established, a second.", (rate("csp_connections_passive_total"), "clients"), (rate("csp_connections_active_total"), "opened by programs"), (rate("csp_connections_hairpin_total"), "within the cluster")),
        panel("Open connections", "none", "Flows in the proxies' tables.", (gauge("csp_flows_entries", 'tier="proxy-node"', "node"), "{{node}}")),
        panel("Payload", "Bps", "Payload of TCP between clients and proxies. What is sent contains retransmissions.", (rate("csp_client_received_bytes_total", 'tier="proxy-node"'), "from clients"), (rate("csp_client_sent_bytes_total", 'tier="proxy-node"'), "to clients")),
        panel("Connections without a server", "percentunit", "Part of clients' connections that no server took, over 5 minutes and an hour. The objective is below 0.1 %.", ("csp:connections_unserved:ratio_rate5m", "5 min"), ("csp:connections_unserved:ratio_rate1h", "1 h")),
        panel("Retransmissions", "percentunit", "Part of the segments to clients that are retransmissions.", ("csp:retransmitted_segments:ratio_rate5m", "segments")),
        panel("Forwarded", "pps", "Packets that network nodes forwarded to servers which answer themselves.", (rate("csp_forwarded_packets_total", "", "node"), "{{node}}")),
    ]),
    ("Trouble", [
        panel("Drops by reason", "ops", "Packets, messages and requests that were dropped, the ten commonest reasons. docs/limits.md explains them.", (f"topk(10, {rate('csp_drops_total', '', 'reason')})", "{{reason}}")),
        panel("Refusals", "ops", "LISTENs, CONNECTs, OPENs, peers of channels and processes that were refused.", (rate("csp_listens_denied_total"), "LISTEN"), (rate("csp_connects_denied_total"), "CONNECT"), (rate("csp_opens_refused_total"), "OPEN"), (rate("csp_message_peers_refused_total"), "peers of channels"), (rate("csp_agent_refused_total"), "processes")),
        panel("Policy", "none", "Generation in force at each node. They differ while a policy is published, and otherwise if a node is behind.", ('max by (node) (csp_policy_generation{state="active"})', "{{node}}")),
        panel("VIP groups", "none", "Network nodes that answer for a group: 1 is right.", (gauge("csp_vip_group_held", "", "group"), "{{group}}")),
        panel("Members", "none", "Nodes by role and state, as management nodes see them.", ("max by (role, state) (csp_members)", "{{role}} {{state}}")),
        panel("Certificates", "s", "Time until a node's certificate ends.", ("min by (node) (csp_certificate_expires_timestamp_seconds) - time()", "{{node}}")),
    ]),
    ("Hosts", [
        panel("Processors", "none", "Processors that a daemon uses, busy polling included.", ("node:csp_processor_seconds:rate5m", "{{node}}")),
        panel("Memory", "bytes", "Resident memory of a daemon.", ('process_resident_memory_bytes{job="csp"}', "{{node}}")),
        panel("etcd members", "none", "Members of etcd whose last scrape succeeded.", ('sum(up{job="csp-etcd"})', "up"), ('count(up{job="csp-etcd"})', "all")),
    ]),
]

# Ends of connections for which the client is not to blame.
ERRORS = 'class=~"server|limit|proxy"'


def first_byte(part):
    """Returns the expression of a quantile of the time to the server's first byte, by service."""
    return f"histogram_quantile({part}, {rate('csp_proxy_service_first_byte_seconds_bucket', SERVICE, 'service, le')}) > 0"


SERVICES = [
    ("Rate, errors, duration", [
        panel("Rate", "cps", "Connections that clients established to a service, a second, at all proxies.", (rate("csp_proxy_service_connections_total", SERVICE, "service"), "{{service}}")),
        panel("Errors", "percentunit", "Part of the connections that ended with an error: by the server, at a bound of the proxy, or by the proxy. The objective is below 0.1 %.", (ratio(rate("csp_proxy_service_connections_ended_total", f"{ERRORS}, {SERVICE}", "service"), rate("csp_proxy_service_connections_ended_total", SERVICE, "service")), "{{service}}"), (f"service:csp_proxy_service_errors:ratio_rate1h{{{SERVICE}}}", "{{service}} 1 h")),
        panel("Time to the first byte", "s", "From the establishment of a connection to the server's first byte: within which half and 99 of 100 had it, estimated between the bounds of the buckets (0.5 ms to 5 s).", (first_byte(0.5), "{{service}} p50"), (first_byte(0.99), "{{service}} p99")),
        panel("Ends by class", "cps", "Connections that ended, by who or what ended them: docs/operations/connection-log.md has the classes.", (rate("csp_proxy_service_connections_ended_total", SERVICE, "service, class"), "{{service}} {{class}}")),
        panel("Duration", "s", "Mean duration of the connections that ended.", (ratio(rate("csp_proxy_service_connection_seconds_total", SERVICE, "service"), rate("csp_proxy_service_connections_ended_total", SERVICE, "service")), "{{service}}")),
        panel("Bytes", "Bps", "Bytes passed from clients to servers (in) and from servers to clients (out).", (rate("csp_proxy_service_received_bytes_total", SERVICE, "service"), "{{service}} in"), (rate("csp_proxy_service_sent_bytes_total", SERVICE, "service"), "{{service}} out")),
    ]),
    ("Services", [
        panel("New connections", "cps", "Connections (of a forwarded service: flows) that a service's members were given, a second.", (f"sum by (service) (max by ({OF_MEMBER}) (rate(csp_service_member_connections_total{{{SERVICE}}}[{RATE}])))", "{{service}}")),
        panel("Open connections", "none", "Connections that are open at the members of a service's pool, or offered to them.", (f"sum by (service) (max by ({OF_MEMBER}) (csp_service_member_open_connections{{{SERVICE}}}))", "{{service}}")),
        panel("Waiting connections", "none", "Established connections that wait for a process.", (f"sum by (service) (max by (service, reporter) (csp_service_waiting_connections{{{SERVICE}}}))", "{{service}}")),
        panel("Members up", "none", "Members of the pool that are up at one node at least, and all of them.", (f"service:csp_members_up:count{{{SERVICE}}}", "{{service}} up"), (f"service:csp_members:count{{{SERVICE}}}", "{{service}} all")),
    ]),
    ("Members", [
        panel("New connections by member", "cps", "Connections that a member was given, a second.", (f"sum by (service, member) (max by ({OF_MEMBER}) (rate(csp_service_member_connections_total{{{SERVICE}}}[{RATE}])))", "{{service}} {{member}}")),
        panel("Open connections by member", "none", "Connections that are open at a member, or offered to it.", (f"sum by (service, member) (max by ({OF_MEMBER}) (csp_service_member_open_connections{{{SERVICE}}}))", "{{service}} {{member}}")),
        panel("Member is up", "none", "1 while one of the nodes that use the member says that it is up.", (f"max by (service, member) (csp_service_member_up{{{SERVICE}}})", "{{service}} {{member}}"), most=1),
        panel("Processes", "none", "Processes that listen at a member of the cluster.", (f"max by (service, member) (csp_service_member_processes{{{SERVICE}}})", "{{service}} {{member}}")),
        panel("Forwarded packets", "pps", "Packets that network nodes forwarded to a server (via: network).", (f"sum by (service, member) (max by ({OF_MEMBER}) (rate(csp_service_member_forwarded_packets_total{{{SERVICE}}}[{RATE}])))", "{{service}} {{member}}")),
        panel("Forwarded bytes", "Bps", "Bytes of these packets.", (f"sum by (service, member) (max by ({OF_MEMBER}) (rate(csp_service_member_forwarded_bytes_total{{{SERVICE}}}[{RATE}])))", "{{service}} {{member}}")),
    ]),
    ("All services together", [
        panel("Not served", "cps", "Connections dropped because nobody listened (no_server), nobody accepted in time (backlog_time), or memory was used up (no_budget); SYNs without an answer because a backlog was full.", (rate("csp_drops_total", 'reason=~"no_server|backlog_time|no_budget|tcp_backlog_full"', "reason"), "{{reason}}")),
        panel("Plain servers", "cps", "Connections to plain servers; those that were not established; checks, and checks that failed.", (rate("csp_connections_called_total"), "connections"), (rate("csp_calls_failed_total"), "failed"), (rate("csp_server_checks_total"), "checks"), (rate("csp_server_checks_failed_total"), "checks failed")),
        panel("Ends of connections", "cps", "Connections that ended without an error, and with one.", (rate("csp_connections_closed_total"), "closed"), (rate("csp_connections_failed_total"), "failed")),
        panel("Offers", "ops", "OPENs that processes refused, and offers withdrawn from a process that did not answer.", (rate("csp_opens_refused_total"), "refused"), (rate("csp_offers_withdrawn_total"), "withdrawn")),
        panel("Programs' bytes", "Bps", "Bytes that programs under the filter read from connections and wrote to them.", (rate("csp_application_bytes_read_total", "", "node"), "{{node}} read"), (rate("csp_application_bytes_written_total", "", "node"), "{{node}} written")),
        panel("Programs' connections", "cps", "Connections that programs under the filter accepted and opened.", (rate("csp_application_accepted_total", "", "node"), "{{node}} accepted"), (rate("csp_application_connects_total", "", "node"), "{{node}} opened")),
    ]),
]

NODES = [
    ("Daemon", [
        stat("Answers", "none", "Nodes of the selection whose last scrape succeeded.", f'sum(up{{job="csp", {NODE}}})'),
        stat("Running since", "s", "Time since the youngest of these daemons started.", f'time() - max(process_start_time_seconds{{job="csp", {NODE}}})'),
        stat("Versions", "none", "Versions that run: more than one during an upgrade.", "count(count by (version) (csp_build_info))"),
        stat("Scrape", "s", "How long the last scrape took, the slowest.", f'max(scrape_duration_seconds{{job="csp", {NODE}}})'),
        stat("Series", "none", "Samples of the last scrape.", f'sum(scrape_samples_scraped{{job="csp", {NODE}}})'),
        stat("etcd followed", "s", "How long membership or policy have not followed etcd, the longest; 0 while both do.", f"max(csp_control_stale_seconds{{{NODE}}})"),
    ]),
    ("Use of resources", [
        panel("Processors", "none", "Processors that the daemon uses.", (f'sum by (node) (rate(process_cpu_seconds_total{{job="csp", {NODE}}}[{RATE}]))', "{{node}}")),
        panel("Workers busy", "percentunit", "Part of the time that a data thread had a processor. Busy polling is in it (spin_us).", (f'rate(csp_thread_cpu_seconds_total{{thread=~"data-.*", {NODE}}}[{RATE}])', "{{node}} {{thread}}")),
        panel("Other threads", "none", "Processors that the other threads use, the ten busiest.", (f'topk(10, rate(csp_thread_cpu_seconds_total{{thread!~"data-.*", {NODE}}}[{RATE}]))', "{{node}} {{thread}}")),
        panel("Memory", "bytes", "Resident memory.", (f'process_resident_memory_bytes{{job="csp", {NODE}}}', "{{node}}")),
        panel("Descriptors", "percentunit", "Part of the descriptors that the process may have open.", (f'process_open_fds{{job="csp", {NODE}}} / process_max_fds{{job="csp", {NODE}}}', "{{node}}")),
        panel("Tables", "percentunit", "Part of each table that is in use, the ten fullest. docs/limits.md says what happens when one is full.", (f"topk(10, node_table:csp_table_used:ratio{{{NODE}}})", "{{node}} {{table}}"), most=1),
    ]),
    ("Saturation and errors", [
        panel("Drops by reason", "ops", "Packets, messages and requests that were dropped, the ten commonest reasons.", (f"topk(10, {rate('csp_drops_total', NODE, 'node, reason')})", "{{node}} {{reason}}")),
        panel("Pauses of workers", "ops", "How often work for the control thread kept a worker from its packets for over 500 microseconds.", (rate("csp_worker_pauses_total", NODE, "node, worker"), "{{node}} {{worker}}")),
        panel("Longest pause", "s", "Longest of these times since the start.", (f"csp_worker_pause_longest_seconds{{{NODE}}}", "{{node}} {{worker}}")),
        panel("State not written", "none", "1 while files of the state directory cannot be written.", (f"csp_control_state_unwritten{{{NODE}}}", "{{node}}"), most=1),
        panel("Time to apply a policy", "s", "What the last policy took at a proxy: its translation, at a worker, all together.", (f"max by (node, part) (csp_policy_apply_seconds{{{NODE}}})", "{{node}} {{part}}")),
        panel("Sessions", "none", "Browsers' sessions at management nodes.", (f"csp_mgmt_sessions{{{NODE}}}", "{{node}}")),
    ]),
    ("LAN (network nodes)", [
        panel("Frames", "pps", "Frames of LAN ports, coalesced ones once.", (rate("csp_lan_frames_received_total", NODE, "node"), "{{node}} received"), (rate("csp_lan_frames_sent_total", NODE, "node"), "{{node}} sent")),
        panel("Bytes", "Bps", "Bytes of frames of LAN ports.", (rate("csp_lan_received_bytes_total", NODE, "node"), "{{node}} received"), (rate("csp_lan_sent_bytes_total", NODE, "node"), "{{node}} sent")),
        panel("Frames lost", "pps", "Frames that the kernel dropped because workers were too slow, or that a port did not take.", (rate("csp_drops_total", f'reason=~"lan_.*", {NODE}', "node, reason"), "{{node}} {{reason}}")),
        panel("Flows", "ops", "Flows added to the table and removed from it.", (rate("csp_flows_created_total", NODE, "node"), "{{node}} created"), (rate("csp_flows_expired_total", NODE, "node"), "{{node}} expired"), (rate("csp_flows_evicted_total", NODE, "node"), "{{node}} evicted"), (rate("csp_flows_lost_total", NODE, "node"), "{{node}} lost with a proxy")),
        panel("Answers to neighbours", "ops", "ARP and neighbour discovery answered, and claims of other hosts.", (rate("csp_neighbour_answers_total", NODE, "node"), "{{node}} answered"), (rate("csp_address_conflicts_total", NODE, "node"), "{{node}} conflicts")),
        panel("Fragments", "ops", "IP fragments received, and datagrams put together from them.", (rate("csp_fragments_received_total", NODE, "node"), "{{node}} fragments"), (rate("csp_datagrams_reassembled_total", NODE, "node"), "{{node}} datagrams")),
    ]),
    ("TCP (proxies)", [
        panel("Segments", "pps", "Segments of the TCP engine, of up to 64 KB.", (rate("csp_tcp_segments_received_total", NODE, "node"), "{{node}} received"), (rate("csp_tcp_segments_sent_total", NODE, "node"), "{{node}} sent"), (rate("csp_tcp_segments_retransmitted_total", NODE, "node"), "{{node}} retransmitted")),
        panel("Losses", "ops", "Losses that were repaired without a timeout, by a timeout, and tail loss probes.", (rate("csp_tcp_fast_recoveries_total", NODE, "node"), "{{node}} fast"), (rate("csp_tcp_retransmission_timeouts_total", NODE, "node"), "{{node}} timeouts"), (rate("csp_tcp_tail_loss_probes_total", NODE, "node"), "{{node}} probes")),
        panel("Failed connections", "cps", "Connections that ended with an error, by which.", *[(rate(f"csp_tcp_failed_{why}_total", NODE, "node"), "{{node}} " + why.replace("_", " ")) for why in ("reset", "refused", "timed_out", "data_after_close")]),
        panel("SYN cookies", "ops", "SYNs answered without storing state: a flood, or a table that is too small.", (rate("csp_tcp_syn_cookies_sent_total", NODE, "node"), "{{node}} sent"), (rate("csp_tcp_syn_cookies_accepted_total", NODE, "node"), "{{node}} accepted")),
        panel("Memory short", "ops", "Connections that gave way because the table or the memory for windows was nearly used up.", (rate("csp_idle_given_up_total", NODE, "node"), "{{node}} idle"), (rate("csp_stalled_given_up_total", NODE, "node"), "{{node}} stalled")),
        panel("Resets", "ops", "Resets sent by proxies.", (rate("csp_tcp_resets_sent_total", NODE, "node"), "{{node}}")),
    ]),
    ("Programs (application nodes)", [
        panel("Processes", "none", "Processes that are attached.", (f"csp_processes_entries{{{NODE}}}", "{{node}}")),
        panel("Sockets", "none", "Accelerated sockets of these processes, and connections among them.", (f"csp_application_sockets{{{NODE}}}", "{{node}} sockets"), (f"csp_application_flows{{{NODE}}}", "{{node}} connections")),
        panel("Left to the kernel", "ops", "Listeners and connections of accelerated programs that the kernel carries.", (rate("csp_application_listeners_kernel_total", NODE, "node"), "{{node}} listeners"), (rate("csp_application_connects_kernel_total", NODE, "node"), "{{node}} connections")),
    ]),
]

SAN = [
    ("Tunnels and links", [
        panel("Tunnels", "none", "Tunnels of a network node to proxy workers: up, and those that should be.", (gauge("csp_tunnels_up", NODE, "node"), "{{node}} up"), (gauge("csp_tunnels_wanted", NODE, "node"), "{{node}} wanted")),
        panel("Links", "none", "Links of a proxy that are up: tunnels and channels.", (gauge("csp_links", NODE, "node"), "{{node}}")),
        panel("Network nodes", "none", "Network nodes with a tunnel to a proxy, the fewest of its workers.", (f"min by (node) (csp_network_nodes_connected{{{NODE}}})", "{{node}}")),
        panel("Broken links", "ops", "Links whose VI broke, links that resumed on another VI, messages posted again.", (rate("csp_links_interrupted_total", NODE, "node"), "{{node}} interrupted"), (rate("csp_links_resumed_total", NODE, "node"), "{{node}} resumed"), (rate("csp_link_messages_reposted_total", NODE, "node"), "{{node}} posted again")),
        panel("Refused peers", "ops", "Peers of the SAN that a proxy refused or cut off, by reason.", (rate("csp_drops_total", f'reason=~"san_.*", {NODE}', "node, reason"), "{{node}} {{reason}}")),
        panel("Proxies unused", "none", "Proxies of the membership that a network node does not use, because capacity.proxies others are.", (gauge("csp_proxies_unused", NODE, "node"), "{{node}}")),
    ]),
    ("Tunnels' traffic", [
        panel("Messages", "pps", "Link messages of network nodes.", (rate("csp_san_messages_received_total", NODE, "node"), "{{node}} received"), (rate("csp_san_messages_sent_total", NODE, "node"), "{{node}} sent")),
        panel("Bytes", "Bps", "Bytes of tunnel messages of network nodes.", (rate("csp_san_received_bytes_total", NODE, "node"), "{{node}} received"), (rate("csp_san_sent_bytes_total", NODE, "node"), "{{node}} sent")),
        panel("Records a message", "none", "Tunnel records for each link message that a network node receives: how well packets share messages.", (ratio(rate("csp_tunnel_records_received_total", f'tier="network-node", {NODE}', "node"), rate("csp_san_messages_received_total", NODE, "node")), "{{node}}")),
    ]),
    ("Credits", [
        panel("Waits for credit", "ops", "Sends of network nodes that had to wait for descriptors of the other end.", (rate("csp_san_no_credit_total", NODE, "node"), "{{node}}")),
        panel("Tunnel full", "pps", "Segments dropped because their tunnel had no credit for too many; TCP sends them again.", (rate("csp_drops_total", f'reason="tunnel_full", {NODE}', "node"), "{{node}}")),
        panel("Send budget", "bytes", "Bytes that proxies have granted to applications.", (gauge("csp_send_budget_reserved_bytes", NODE, "node"), "{{node}}")),
        panel("Programs wait", "ops", "Writes of programs that waited for byte credit (window) and for descriptors.", (rate("csp_application_write_blocked_window_total", NODE, "node"), "{{node}} window"), (rate("csp_application_write_blocked_descriptors_total", NODE, "node"), "{{node}} descriptors")),
    ]),
    ("Agents", [
        panel("Relayed messages", "pps", "Messages that agents forward between processes and proxies of other hosts.", (rate("csp_relay_messages_total", NODE, "node, direction"), "{{node}} {{direction}}")),
        panel("Relayed bytes", "Bps", "Bytes of these messages.", (rate("csp_relay_bytes_total", NODE, "node, direction"), "{{node}} {{direction}}")),
        panel("Relays wait", "ops", "Relayed messages that waited because the SAN's send queue was full.", (rate("csp_relay_waited_total", NODE, "node"), "{{node}}")),
        panel("Routes", "none", "Proxy workers that processes reach through the agent, with a link of its own and without.", (f"csp_relay_routes{{{NODE}}}", "{{node}} {{link}}")),
        panel("Silent proxies", "ops", "Proxy workers that an agent declared dead.", (rate("csp_relay_proxies_silent_total", NODE, "node"), "{{node}}")),
        panel("Custody", "none", "Connections that agents carry for programs that share or inherited them.", (f"csp_custody_connections{{{NODE}}}", "{{node}}")),
    ]),
]

MESSAGES = [
    ("Channels", [
        panel("Messages in", "ops", "Messages that arrived on a channel.", (rate("csp_channel_messages_total", CHANNEL, "channel"), "{{channel}}")),
        panel("Copies out", "ops", "Copies of messages given to receivers.", (rate("csp_channel_delivered_total", CHANNEL, "channel"), "{{channel}}")),
        panel("Bytes in", "Bps", "Bytes of messages that arrived on a channel.", (rate("csp_channel_bytes_total", CHANNEL, "channel"), "{{channel}}")),
        panel("Lost copies", "ops", "Copies not delivered because a queue was full or memory short (dropped), and messages lost with a receiver (lost).", (rate("csp_channel_dropped_total", CHANNEL, "channel"), "{{channel}} dropped"), (rate("csp_channel_lost_total", CHANNEL, "channel"), "{{channel}} lost")),
        panel("Held back", "ops", "How often senders of a channel were held back.", (rate("csp_channel_held_total", CHANNEL, "channel"), "{{channel}}")),
        panel("Refused", "ops", "Messages refused while their sender stayed connected, of unknown format, and malformed.", (rate("csp_channel_refused_total", CHANNEL, "channel"), "{{channel}} refused"), (rate("csp_channel_unknown_format_total", CHANNEL, "channel"), "{{channel}} unknown format"), (rate("csp_channel_malformed_total", CHANNEL, "channel"), "{{channel}} malformed")),
        panel("Waiting", "none", "Copies that wait for receivers.", (gauge("csp_channel_waiting_messages", CHANNEL, "channel"), "{{channel}}")),
        panel("Memory", "bytes", "Memory of a channel's messages.", (gauge("csp_channel_memory_bytes", CHANNEL, "channel"), "{{channel}}")),
        panel("Peers", "none", "Connected senders and receivers, and subscriptions.", (gauge("csp_channel_senders", CHANNEL, "channel"), "{{channel}} senders"), (gauge("csp_channel_receivers", CHANNEL, "channel"), "{{channel}} receivers"), (gauge("csp_channel_subscriptions", CHANNEL, "channel"), "{{channel}} subscriptions")),
    ]),
    ("Peers", [
        panel("Handshakes", "ops", "Handshakes of peers that are complete.", (rate("csp_message_handshakes_total", NODE, "node"), "{{node}}")),
        panel("Refused peers", "ops", "Peers of channels that were refused or disconnected, the ten commonest reasons.", (f"topk(10, {rate('csp_message_peers_refused_total', NODE, 'reason')})", "{{reason}}")),
        panel("Refused messages and subscriptions", "ops", "Messages that are on no channel, and subscriptions without effect, by reason.", (rate("csp_messages_refused_total", NODE, "reason"), "{{reason}}"), (rate("csp_message_subscriptions_refused_total", NODE, "reason"), "subscription {{reason}}")),
    ]),
    ("Handlers and contexts", [
        panel("Messages of handlers", "ops", "Messages processed by a handler.", (rate("csp_handler_messages_total", NODE, "handler"), "{{handler}}")),
        panel("Time of a call", "ns", "Within which half and 99 of 100 of a handler's recent calls ended, at the slowest worker.", (f"max by (handler) (csp_handler_p50_nanoseconds{{{NODE}}})", "{{handler}} p50"), (f"max by (handler) (csp_handler_p99_nanoseconds{{{NODE}}})", "{{handler}} p99")),
        panel("Contexts busy", "percentunit", "Part of the time that a context was in handlers.", (f"{rate('csp_context_busy_nanoseconds_total', NODE, 'node, context')} / 1e9", "{{node}} {{context}}")),
        panel("Contexts' queues", "none", "Messages that wait for a context.", (gauge("csp_context_waiting_messages", NODE, "node, context"), "{{node}} {{context}}")),
        panel("Calls that waited or were given up", "ops", "Calls of handlers that waited for room, and those that were given up.", (rate("csp_handler_full_total", NODE, "handler"), "{{handler}} waited"), (rate("csp_handler_faults_total", NODE, "handler"), "{{handler}} given up")),
        panel("Supplied handlers stopped", "ops", "How often supplied handlers were stopped, by reason.", (rate("csp_handler_stops_total", NODE, "channel, handler, reason"), "{{channel}} {{handler}} {{reason}}")),
    ]),
    ("Queries", [
        panel("Messages by format", "ops", "Messages processed by a stage of a channel's path or query.", (rate("csp_stage_messages_total", CHANNEL, "channel, format"), "{{channel}} {{format}}")),
        panel("Rows not used", "ops", "Rows that an operator was given and has not used, by reason.", (rate("csp_stage_lost_rows_total", CHANNEL, "channel, reason"), "{{channel}} {{reason}}")),
        panel("Requests", "ops", "Requests of programs for queries, formats and handlers, by what became of them.", (rate("csp_query_requests_total", NODE, "result"), "{{result}}")),
        panel("Queries on request", "none", "Queries and handlers on request that run.", (gauge("csp_requested_queries", NODE, "node"), "{{node}}")),
        panel("Planning", "percentunit", "Part of the time that a proxy plans queries on request.", (f"{rate('csp_query_planning_nanoseconds_total', NODE, 'node')} / 1e9", "{{node}}")),
        panel("Moved stages", "ops", "Stages that proxies moved to another context by themselves.", (rate("csp_stage_moves_total", CHANNEL, "channel, handler"), "{{channel}} {{handler}}")),
    ]),
]

QUALITY = [
    ("Information flows", [
        panel("Arriving", "Bps", "Bytes of messages of a flow that arrived, in all copies.", (rate("csp_information_flow_bytes_total", FLOW, "flow"), "{{flow}}")),
        panel("Released", "Bps", "Bytes of messages of a flow that were released to receivers, in all copies.", (rate("csp_information_flow_released_bytes_total", FLOW, "flow"), "{{flow}}")),
        panel("Messages released", "ops", "Messages released to receivers.", (rate("csp_information_flow_released_messages_total", FLOW, "flow"), "{{flow}}")),
        panel("Delay", "s", "Mean time from arrival to release of the messages that were released.", (ratio(rate("csp_information_flow_delay_nanoseconds_total", FLOW, "flow") + " / 1e9", rate("csp_information_flow_released_messages_total", FLOW, "flow")), "{{flow}}")),
        panel("Queue", "none", "Messages of a flow that wait.", (gauge("csp_information_flow_queued_messages", FLOW, "flow"), "{{flow}}")),
        panel("Queue, bytes", "bytes", "Bytes of messages that wait, in all copies.", (gauge("csp_information_flow_queued_bytes", FLOW, "flow"), "{{flow}}")),
        panel("Dropped and filtered", "ops", "Messages dropped because the queue was full, and those that a filter let not pass.", (rate("csp_information_flow_dropped_total", FLOW, "flow"), "{{flow}} dropped"), (rate("csp_information_flow_filtered_total", FLOW, "flow"), "{{flow}} filtered")),
        panel("Held back", "ops", "Times that a publisher was held back.", (rate("csp_information_flow_held_total", FLOW, "flow"), "{{flow}}")),
        panel("Oversized", "ops", "Messages longer than message_bytes, which promises are calculated with.", (rate("csp_information_flow_oversized_total", FLOW, "flow"), "{{flow}}")),
    ]),
    ("Contexts of flows", [
        panel("Processed", "ops", "Messages that contexts took, that handlers let not pass, and that handlers made.", (rate("csp_information_flow_processed_total", FLOW, "flow"), "{{flow}} taken"), (rate("csp_information_flow_absorbed_total", FLOW, "flow"), "{{flow}} absorbed"), (rate("csp_information_flow_made_total", FLOW, "flow"), "{{flow}} made")),
        panel("Time in contexts", "percentunit", "Part of the time that contexts worked for a flow.", (f"{rate('csp_information_flow_context_nanoseconds_total', FLOW, 'flow')} / 1e9", "{{flow}}")),
        panel("Cost of a message", "ns", "What handlers take for a message, as measured, at the slowest worker.", (f"max by (flow) (csp_information_flow_cost_nanoseconds{{{FLOW}}})", "{{flow}}")),
    ]),
    ("Output link", [
        panel("Link", "bps", "What workers may send of their node's output link.", (gauge("csp_link_part_bits_per_second", NODE, "node"), "{{node}}")),
        panel("Triggers", "ops", "How often a trigger has fired or was released.", (rate("csp_information_flow_trigger_changes_total", NODE, "trigger"), "{{trigger}}")),
    ]),
]

PLUGINS = [
    ("Rules", [
        panel("Packets by rule", "pps", "Packets that a rule decided on.", (rate("csp_packet_rule_hits_total", NODE, "rule"), "{{rule}}")),
        panel("Bytes by rule", "Bps", "Bytes of packets that a rule decided on.", (rate("csp_packet_rule_bytes_total", NODE, "rule"), "{{rule}}")),
        panel("Classifier", "pps", "Packets that were compared with rules, and of these packets of flows whose rule was remembered.", (rate("csp_plugins_classified_total", NODE, "node"), "{{node}} compared"), (rate("csp_plugins_cached_total", NODE, "node"), "{{node}} remembered")),
    ]),
    ("Plug-ins", [
        panel("Packets by plug-in", "pps", "Packets that a plug-in processed.", (rate("csp_plugin_packets_total", NODE, "exported_instance, module"), "{{exported_instance}} ({{module}})")),
        panel("Dropped by plug-in", "pps", "Packets that a plug-in dropped.", (rate("csp_plugin_dropped_total", NODE, "exported_instance, module"), "{{exported_instance}} ({{module}})")),
        panel("Verdicts", "pps", "Packets that plug-ins let pass, transmitted elsewhere, or that passed without their plug-in.", (rate("csp_plugins_passed_total", NODE, "node"), "{{node}} passed"), (rate("csp_plugins_transmitted_total", NODE, "node"), "{{node}} transmitted"), (rate("csp_plugins_fallback_passed_total", NODE, "node"), "{{node}} fallback")),
        panel("Drops", "pps", "Packets that plug-ins dropped, or that were dropped on their way through them, by reason.", (rate("csp_drops_total", f'reason=~"plugin.*", {NODE}', "node, reason"), "{{node}} {{reason}}")),
        panel("Hosts", "pps", "Packets that plug-in hosts got (level 3), and records of hosts that were refused.", (rate("csp_plugins_hosted_total", NODE, "node"), "{{node}} hosted"), (rate("csp_plugin_host_refused_total", NODE, "node, reason"), "{{node}} refused {{reason}}")),
        panel("Failed calls", "ops", "Calls between plug-ins that failed.", (rate("csp_plugins_calls_failed_total", NODE, "node"), "{{node}}")),
        panel("Moves", "ops", "Moves of plug-ins between levels 1 and 2 by the node itself (level: auto).", (rate("csp_plugin_moves_total", NODE, "node, exported_instance"), "{{node}} {{exported_instance}}")),
        panel("Fuel of supplied plug-ins", "ops", "Fuel of their calls, about an instruction each.", (rate("csp_plugin_fuel_total", NODE, "node, exported_instance"), "{{node}} {{exported_instance}}")),
        panel("Supplied plug-ins stopped", "ops", "Stops, by reason, and packets that came while a plug-in waited to be restarted.", (rate("csp_plugin_stops_total", NODE, "node, exported_instance, reason"), "{{node}} {{exported_instance}} {{reason}}"), (rate("csp_plugin_not_run_total", NODE, "node, exported_instance"), "{{node}} {{exported_instance}} not run")),
    ]),
]

# File, title, description, variables beside the datasource (name, label, metric, label of it), rows.
# Services with HTTP, and their routes.
HTTP = 'service=~"$http_service", route=~"$route"'
OF_HTTP = 'service=~"$http_service"'


def answered(part):
    """Returns the expression of a quantile of the time to the end of a response, by route."""
    return f"histogram_quantile({part}, {rate('csp_http_request_seconds_bucket', HTTP, 'service, route, le')}) > 0"


REQUESTS = [
    ("Rate, errors, duration", [
        panel("Requests", "reqps", "Requests that ended, a second, by route.", (rate("csp_http_requests_total", HTTP, "service, route"), "{{service}} {{route}}")),
        panel("Errors", "percentunit", "Part of the requests that ended with a status of 500 and above, by route.", (ratio(rate("csp_http_requests_total", f'class="5xx", {HTTP}', "service, route"), rate("csp_http_requests_total", HTTP, "service, route")), "{{service}} {{route}}")),
        panel("Duration", "s", "From the end of a request's head to the end of its response: within which half and 99 of 100 ended, estimated between the bounds of the buckets.", (answered(0.5), "{{service}} {{route}} p50"), (answered(0.99), "{{service}} {{route}} p99")),
        panel("Statuses", "reqps", "Requests by the class of the status that the client received.", (rate("csp_http_requests_total", HTTP, "class"), "{{class}}")),
        panel("Answers of the proxy", "reqps", "Requests that the proxy has answered or ended itself, by code, the ten commonest: docs/http.md has the codes.", (f"topk(10, {rate('csp_http_answers_total', HTTP, 'code')})", "{{code}}")),
        panel("Bodies", "Bps", "Bytes of bodies from clients (in) and to clients (out), by service.", (rate("csp_http_received_bytes_total", HTTP, "service"), "{{service}} in"), (rate("csp_http_sent_bytes_total", HTTP, "service"), "{{service}} out")),
    ]),
    ("Clients and servers", [
        panel("Clients' connections", "none", "Connections of clients whose HTTP is read that are open, by service.", (gauge("csp_http_open_connections", OF_HTTP, "service"), "{{service}}")),
        panel("New connections of clients", "cps", "Connections of clients whose HTTP is read, a second.", (rate("csp_http_connections_total", OF_HTTP, "service"), "{{service}}")),
        panel("In progress", "none", "Requests that are in progress at all proxies.", (gauge("csp_http_requests_in_progress"), "requests")),
        panel("Connections to servers", "none", "Connections to servers for requests: kept and idle, or in use.", (gauge("csp_http_upstream_connections", "", "state"), "{{state}}")),
        panel("Use of connections to servers", "ops", "Connections that were opened, requests that used a kept one, kept ones that turned out closed, and connections that could not be opened.", (rate("csp_http_upstream_opened_total"), "opened"), (rate("csp_http_upstream_reused_total"), "reused"), (rate("csp_http_upstream_stale_total"), "stale"), (rate("csp_http_upstream_failed_total"), "failed")),
        panel("Retries", "ops", "Requests that were sent to another server, by route.", (rate("csp_http_retries_total", HTTP, "service, route"), "{{service}} {{route}}")),
    ]),
]

VARIABLES = {
    "node": ("Node", 'label_values(up{job="csp"}, node)'),
    "service": ("Service", "label_values(csp_service_members, service)"),
    "http_service": ("Service", "label_values(csp_http_open_connections, service)"),
    "route": ("Route", 'label_values(csp_http_requests_total{service=~"$http_service"}, route)'),
    "channel": ("Channel", "label_values(csp_channel_messages_total, channel)"),
    "flow": ("Information flow", "label_values(csp_information_flow_messages_total, flow)"),
}
DASHBOARDS = [
    ("cluster", "CSP: cluster", "The whole cluster: traffic, trouble, hosts.", [], CLUSTER),
    ("service", "CSP: services", "Services of the policy and the members of their pools.", ["service"], SERVICES),
    ("http", "CSP: HTTP", "Requests of HTTP by service and route, clients' connections, connections to servers.", ["http_service", "route"], REQUESTS),
    ("node", "CSP: nodes", "One node or several: use, saturation, errors; what each tier does.", ["node"], NODES),
    ("san", "CSP: SAN", "The system area network: tunnels, links, credits, agents.", ["node"], SAN),
    ("messages", "CSP: messages and queries", "Channels of messages, their peers, handlers, queries.", ["node", "channel"], MESSAGES),
    ("quality", "CSP: flows and links", "Information flows and the output link that they share.", ["node", "flow"], QUALITY),
    ("plugins", "CSP: plug-ins", "Packet plug-ins of network nodes.", ["node"], PLUGINS),
]


def variable(name):
    """Returns a variable of Grafana that takes its values from a query; all of them are chosen at first."""
    label, query = VARIABLES[name]
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query,
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def drawn(number, definition, x, y):
    """Returns a panel as Grafana has it."""
    kind, (width, height) = definition["kind"], SIZES[definition["kind"]]
    defaults = {"unit": definition["unit"], "min": 0}
    if definition["most"] is not None:
        defaults["max"] = definition["most"]
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never", "spanNulls": False}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        options = {"colorMode": "none", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value"}
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend or "__auto"}
        for at, (expression, legend) in enumerate(definition["queries"])
    ]
    return {
        "id": number, "type": kind, "title": definition["title"], "description": definition["description"], "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": height}, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "targets": targets,
    }


def panels(rows):
    """Returns the panels of all rows, placed from left to right and downwards."""
    out, y = [], 0
    for title, definitions in rows:
        out.append({"id": len(out) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []})
        x, y, height = 0, y + 1, 0
        for definition in definitions:
            width, own_height = SIZES[definition["kind"]]
            if x + width > WIDTH:
                x, y = 0, y + height
            out.append(drawn(len(out) + 1, definition, x, y))
            x, height = x + width, own_height
        y += height
    return out


def dashboard(name, title, description, variables, rows):
    """Returns a dashboard as Grafana imports and provisions it."""
    datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1, "current": {}, "hide": 0}
    return {
        "uid": f"csp-{name}", "title": title, "description": description, "tags": ["csp"], "schemaVersion": 37, "version": 1, "editable": True,
        "graphTooltip": 1, "refresh": "15s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "links": [{"type": "dashboards", "title": "CSP", "tags": ["csp"], "asDropdown": True, "includeVars": True, "keepTime": True}],
        "templating": {"list": [datasource, *map(variable, variables)]}, "annotations": {"list": []}, "panels": panels(rows),
    }


def main():
    """Writes the files, or compares them."""
    stale = []
    for name, *rest in DASHBOARDS:
        path = HERE / f"{name}.json"
        text = json.dumps(dashboard(name, *rest), indent=1, ensure_ascii=False) + "\n"
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(path.name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"dashboards.py: {', '.join(stale)}: not what dashboards.py writes; run it and commit the files")


if __name__ == "__main__":
    main()
