//! For each alert series with which it fires, and similar ones with which it does not.

/// Name with labels, and values in promtool's notation: one a minute.
pub type Series = (&'static str, &'static str);

/// An alert with series.
pub struct Case {
    pub alert: &'static str,
    /// When it is looked at.
    pub minutes: u32,
    pub fires: &'static [Series],
    pub silent: &'static [Series],
}

const fn case(
    alert: &'static str,
    minutes: u32,
    fires: &'static [Series],
    silent: &'static [Series],
) -> Case {
    Case { alert, minutes, fires, silent }
}

const PASSIVE: &str = r#"csp_connections_passive_total{tier="proxy-node",node="pn-1",worker="0"}"#;
const NO_SERVER: &str = r#"csp_drops_total{tier="proxy-node",node="pn-1",reason="no_server"}"#;
const SENT: &str = r#"csp_tcp_segments_sent_total{node="pn-1",worker="0"}"#;
const RETRANSMITTED: &str = r#"csp_tcp_segments_retransmitted_total{node="pn-1",worker="0"}"#;
const WEB_OK: &str = r#"csp_proxy_service_connections_ended_total{node="pn-1",service="web",class="ok"}"#;
const WEB_CLIENT: &str =
    r#"csp_proxy_service_connections_ended_total{node="pn-1",service="web",class="client"}"#;
const WEB_SERVER: &str =
    r#"csp_proxy_service_connections_ended_total{node="pn-1",service="web",class="server"}"#;
const WEB_LIMIT: &str =
    r#"csp_proxy_service_connections_ended_total{node="pn-1",service="web",class="limit"}"#;
const WEB_SOON: &str = r#"csp_proxy_service_first_byte_seconds_bucket{node="pn-1",service="web",le="0.01"}"#;
const WEB_LATE: &str = r#"csp_proxy_service_first_byte_seconds_bucket{node="pn-1",service="web",le="1"}"#;
const WEB_ALL: &str = r#"csp_proxy_service_first_byte_seconds_bucket{node="pn-1",service="web",le="+Inf"}"#;
const HTTP_OK: &str = r#"csp_http_requests_total{node="pn-1",service="www",route="all",class="2xx"}"#;
const HTTP_ERROR: &str = r#"csp_http_requests_total{node="pn-1",service="www",route="all",class="5xx"}"#;
const UP_AT_PN_1: &str = r#"csp_service_member_up{service="web",member="an-1:80",reporter="pn-1"}"#;
const UP_AT_PN_2: &str = r#"csp_service_member_up{service="web",member="an-1:80",reporter="pn-2"}"#;
const OTHER_UP: &str = r#"csp_service_member_up{service="web",member="an-2:80",reporter="pn-1"}"#;
const HELD: &str = r#"csp_channel_held_total{channel="stuck",worker="0"}"#;
const DELIVERED: &str = r#"csp_channel_delivered_total{channel="stuck",worker="0"}"#;

/// In the order of the rules.
pub const CASES: &[Case] = &[
    case(
        "CspNodeDown",
        8,
        &[(r#"up{job="csp",tier="proxy-node",node="pn-1",instance="10.77.0.2:9102"}"#, "1x5 0x5")],
        // Another job, and a node that misses one scrape.
        &[
            (r#"up{job="other"}"#, "0x9"),
            (r#"up{job="csp",tier="proxy-node",node="pn-1",instance="10.77.0.2:9102"}"#, "1x7 0 1x5"),
        ],
    ),
    case(
        "CspNoTargets",
        8,
        &[(r#"up{job="other"}"#, "1x9")],
        &[(r#"up{job="csp",tier="proxy-node",node="pn-1"}"#, "0x9")],
    ),
    case(
        "CspScrapeSlow",
        8,
        &[(r#"scrape_duration_seconds{job="csp",tier="proxy-node",node="pn-1"}"#, "6x9")],
        &[(r#"scrape_duration_seconds{job="csp",tier="proxy-node",node="pn-1"}"#, "6x4 0.1x9")],
    ),
    case(
        "CspNodeRestarts",
        30,
        &[(r#"process_start_time_seconds{job="csp",tier="proxy-node",node="pn-1"}"#, "1x5 2x5 3x5 4x5 5x20")],
        &[(r#"process_start_time_seconds{job="csp",tier="proxy-node",node="pn-1"}"#, "1x5 2x5 3x5 4x30")],
    ),
    case(
        "CspDescriptorsNearlyUsed",
        8,
        &[
            (r#"process_open_fds{job="csp",tier="proxy-node",node="pn-1"}"#, "950x9"),
            (r#"process_max_fds{job="csp",tier="proxy-node",node="pn-1"}"#, "1000x9"),
        ],
        &[
            (r#"process_open_fds{job="csp",tier="proxy-node",node="pn-1"}"#, "90x9"),
            (r#"process_max_fds{job="csp",tier="proxy-node",node="pn-1"}"#, "1000x9"),
        ],
    ),
    case(
        "CspTableNearlyFull",
        8,
        &[
            (r#"csp_flows_entries{job="csp",tier="proxy-node",node="pn-1"}"#, "95x9"),
            (r#"csp_flows_capacity{job="csp",tier="proxy-node",node="pn-1"}"#, "100x9"),
        ],
        &[
            (r#"csp_flows_entries{job="csp",tier="proxy-node",node="pn-1"}"#, "50x9"),
            (r#"csp_flows_capacity{job="csp",tier="proxy-node",node="pn-1"}"#, "100x9"),
            // It is full on busy machines, and gives way.
            (r#"csp_time_wait_entries{job="csp",tier="proxy-node",node="pn-1"}"#, "100x9"),
            (r#"csp_time_wait_capacity{job="csp",tier="proxy-node",node="pn-1"}"#, "100x9"),
            (r#"csp_upstreams_entries{job="csp",tier="proxy-node",node="pn-1"}"#, "0x9"),
            (r#"csp_upstreams_capacity{job="csp",tier="proxy-node",node="pn-1"}"#, "0x9"),
        ],
    ),
    case(
        "CspDropsRise",
        100,
        &[(r#"csp_drops_total{node="nn-1",reason="bad_checksum"}"#, "0+60x85 6000+6000x30")],
        &[
            // As many as ever, and what is for other hosts.
            (r#"csp_drops_total{node="nn-1",reason="bad_checksum"}"#, "0+6000x120"),
            (r#"csp_drops_total{node="nn-2",reason="not_ours"}"#, "0+60x85 6000+6000x30"),
        ],
    ),
    case(
        "CspFramesOverrun",
        12,
        &[(r#"csp_drops_total{node="nn-1",reason="lan_receive_overrun"}"#, "0+10x15")],
        &[
            (r#"csp_drops_total{node="nn-1",reason="lan_receive_overrun"}"#, "7x15"),
            (r#"csp_drops_total{node="nn-1",reason="not_ours"}"#, "0+10x15"),
        ],
    ),
    case(
        "CspWorkerPauses",
        30,
        &[(r#"csp_worker_pauses_total{node="pn-1",worker="0"}"#, "0+5x40")],
        &[(r#"csp_worker_pauses_total{node="pn-1",worker="0"}"#, "0+1x40")],
    ),
    case(
        "CspStateUnwritten",
        5,
        &[(r#"csp_control_state_unwritten{node="pn-1"}"#, "1x9")],
        &[(r#"csp_control_state_unwritten{node="pn-1"}"#, "0x9")],
    ),
    case(
        "CspCertificateExpires",
        5,
        &[(r#"csp_certificate_expires_timestamp_seconds{tier="proxy-node",node="pn-1"}"#, "500000x9")],
        &[(r#"csp_certificate_expires_timestamp_seconds{tier="proxy-node",node="pn-1"}"#, "5000000x9")],
    ),
    case(
        "CspCertificateNotUsed",
        5,
        &[(r#"csp_certificate_problem{tier="proxy-node",node="pn-1"}"#, "1x9")],
        &[(r#"csp_certificate_problem{tier="proxy-node",node="pn-1"}"#, "0x9")],
    ),
    case(
        "CspServiceWithoutServers",
        5,
        &[(UP_AT_PN_1, "0x9"), (UP_AT_PN_2, "0x9"), (OTHER_UP, "0x9")],
        &[(UP_AT_PN_1, "0x9"), (UP_AT_PN_2, "0x9"), (OTHER_UP, "1x9")],
    ),
    case(
        "CspServiceMemberDown",
        5,
        &[(UP_AT_PN_1, "0x9"), (UP_AT_PN_2, "0x9"), (OTHER_UP, "1x9")],
        // One proxy has not yet seen it.
        &[(UP_AT_PN_1, "0x9"), (UP_AT_PN_2, "1x9"), (OTHER_UP, "1x9")],
    ),
    case(
        "CspConnectionsWait",
        8,
        &[(r#"csp_service_waiting_connections{service="web",reporter="pn-1"}"#, "3x9")],
        &[(r#"csp_service_waiting_connections{service="web",reporter="pn-1"}"#, "3 0 3 0 3 0 3 0 3 0")],
    ),
    case(
        "CspAcceptQueueFull",
        12,
        &[(r#"csp_drops_total{node="pn-1",reason="tcp_backlog_full"}"#, "0x5 0+3x10")],
        &[(r#"csp_drops_total{node="pn-1",reason="tcp_backlog_full"}"#, "7x15")],
    ),
    case(
        "CspUnservedBurnsFast",
        90,
        &[(PASSIVE, "0+1000x100"), (NO_SERVER, "0+30x100")],
        // 3 % for 5 minutes, nothing in the hour before.
        &[(PASSIVE, "0+1000x100"), (NO_SERVER, "0x84 0+30x16")],
    ),
    case(
        "CspUnservedBurnsSlowly",
        400,
        &[(PASSIVE, "0+1000x410"), (NO_SERVER, "0+8x410")],
        &[(PASSIVE, "0+1000x410"), (NO_SERVER, "0+1x410")],
    ),
    case(
        "CspServiceErrorsBurnFast",
        90,
        &[(WEB_OK, "0+1000x100"), (WEB_SERVER, "0+30x100")],
        // 3 % for 5 minutes, nothing in the hour before; and clients that reset.
        &[(WEB_OK, "0+1000x100"), (WEB_SERVER, "0x84 0+30x16"), (WEB_CLIENT, "0+30x100")],
    ),
    case(
        "CspServiceErrorsBurnSlowly",
        400,
        &[(WEB_OK, "0+1000x410"), (WEB_LIMIT, "0+8x410")],
        // A fifth fails, of very few connections.
        &[(WEB_OK, "0 0 0 0+1x8 8x400"), (WEB_LIMIT, "0 0 0 0+1x2 2x406")],
    ),
    case(
        "CspServiceErrorsPersist",
        500,
        &[(WEB_OK, "0+1000x510"), (WEB_SERVER, "0+2x510")],
        &[(WEB_OK, "0+10000x510"), (WEB_SERVER, "0+2x510")],
    ),
    case(
        "CspServiceFirstByteRises",
        100,
        &[(WEB_SOON, "0+100x80 8000x30"), (WEB_LATE, "0+100x110"), (WEB_ALL, "0+100x110")],
        // As slow as ever.
        &[(WEB_SOON, "0x110"), (WEB_LATE, "0+100x110"), (WEB_ALL, "0+100x110")],
    ),
    case(
        "CspHttpErrors",
        30,
        &[(HTTP_OK, "0+1000x40"), (HTTP_ERROR, "0+60x40")],
        &[(HTTP_OK, "0+10000x40"), (HTTP_ERROR, "0+60x40")],
    ),
    case(
        "CspRetransmissions",
        30,
        &[(SENT, "0+1000x40"), (RETRANSMITTED, "0+80x40")],
        &[(SENT, "0+1000x40"), (RETRANSMITTED, "0+8x40")],
    ),
    case(
        "CspServiceMetricsLeftOut",
        8,
        &[(r#"csp_service_members_left_out{node="mn-1"}"#, "12x9")],
        &[(r#"csp_service_members_left_out{node="mn-1"}"#, "0x9")],
    ),
    case(
        "CspPolicyRefused",
        5,
        &[(r#"csp_member_policy_refused{member="pn-1",node="mn-1"}"#, "1x9")],
        &[(r#"csp_member_policy_refused{member="pn-1",node="mn-1"}"#, "0x9")],
    ),
    case(
        "CspPolicyGenerationsDiffer",
        8,
        &[
            (r#"csp_policy_generation{state="active",tier="proxy-node"}"#, "7x9"),
            (r#"csp_policy_generation{state="active",tier="network-node"}"#, "8x9"),
        ],
        &[
            (r#"csp_policy_generation{state="active",tier="proxy-node"}"#, "7 7 7 8x9"),
            (r#"csp_policy_generation{state="active",tier="network-node"}"#, "7 7 8 8x9"),
            (r#"csp_policy_generation{state="staged",tier="network-node"}"#, "9x9"),
        ],
    ),
    case(
        "CspPolicyOrphaned",
        5,
        &[(r#"csp_policy_orphaned{node="pn-1"}"#, "1x9")],
        &[(r#"csp_policy_orphaned{node="pn-1"}"#, "0x9")],
    ),
    case(
        "CspControlStale",
        5,
        &[(r#"csp_control_stale_seconds{node="pn-1"}"#, "100+60x9")],
        &[(r#"csp_control_stale_seconds{node="pn-1"}"#, "30 0 30 0 30 0 30 0 0")],
    ),
    case(
        "CspEtcdAway",
        5,
        &[(r#"csp_mgmt_etcd_connected{node="mn-1"}"#, "0x9")],
        &[(r#"csp_mgmt_etcd_connected{node="mn-1"}"#, "1x9")],
    ),
    case(
        "CspEtcdMemberDown",
        5,
        &[(r#"up{job="csp-etcd",instance="10.77.0.4:2379"}"#, "0x9")],
        &[
            (r#"up{job="csp-etcd",instance="10.77.0.4:2379"}"#, "1x9"),
            (r#"up{job="csp",tier="proxy-node",node="pn-1"}"#, "0x9"),
        ],
    ),
    case(
        "CspEventsOutletFails",
        8,
        &[(r#"csp_events_outlet_failing{node="mn-1",outlet="pager"}"#, "1x9")],
        &[(r#"csp_events_outlet_failing{node="mn-1",outlet="pager"}"#, "0x9")],
    ),
    case(
        "CspMgmtWithoutLeader",
        5,
        &[(r#"csp_mgmt_leader{node="mn-1"}"#, "0x9"), (r#"csp_mgmt_leader{node="mn-2"}"#, "0x9")],
        &[(r#"csp_mgmt_leader{node="mn-1"}"#, "0x9"), (r#"csp_mgmt_leader{node="mn-2"}"#, "1x9")],
    ),
    case(
        "CspNoTunnel",
        5,
        &[(r#"csp_tunnels_up{node="nn-1",worker="0"}"#, "0x9")],
        &[(r#"csp_tunnels_up{node="nn-1",worker="0"}"#, "1x9")],
    ),
    case(
        "CspTunnelDown",
        5,
        &[
            (r#"csp_tunnels_up{node="nn-1",worker="0"}"#, "2x9"),
            (r#"csp_tunnels_wanted{node="nn-1",worker="0"}"#, "3x9"),
        ],
        &[
            (r#"csp_tunnels_up{node="nn-1",worker="0"}"#, "3x9"),
            (r#"csp_tunnels_wanted{node="nn-1",worker="0"}"#, "3x9"),
        ],
    ),
    case(
        "CspLinksBreak",
        12,
        &[(r#"csp_links_interrupted_total{node="nn-1",worker="0"}"#, "0+1x15")],
        &[(r#"csp_links_interrupted_total{node="nn-1",worker="0"}"#, "0x5 1x10")],
    ),
    case(
        "CspProxySilent",
        8,
        &[(r#"csp_relay_proxies_silent_total{node="an-1"}"#, "0x5 1x9")],
        &[(r#"csp_relay_proxies_silent_total{node="an-1"}"#, "1x9")],
    ),
    case(
        "CspVipGroupHeldByNobody",
        5,
        &[
            (r#"csp_vip_group_held{group="web",node="nn-1"}"#, "0x9"),
            (r#"csp_vip_group_held{group="web",node="nn-2"}"#, "0x9"),
        ],
        &[
            (r#"csp_vip_group_held{group="web",node="nn-1"}"#, "0x9"),
            (r#"csp_vip_group_held{group="web",node="nn-2"}"#, "1x9"),
        ],
    ),
    case(
        "CspVipGroupHeldTwice",
        5,
        &[
            (r#"csp_vip_group_held{group="web",node="nn-1"}"#, "1x9"),
            (r#"csp_vip_group_held{group="web",node="nn-2"}"#, "1x9"),
        ],
        // Two groups, each held once.
        &[
            (r#"csp_vip_group_held{group="web",node="nn-1"}"#, "1x9"),
            (r#"csp_vip_group_held{group="shop",node="nn-2"}"#, "1x9"),
        ],
    ),
    case(
        "CspAddressConflict",
        8,
        &[(r#"csp_address_conflicts_total{node="nn-1",worker="0"}"#, "0x5 3x9")],
        &[(r#"csp_address_conflicts_total{node="nn-1",worker="0"}"#, "3x9")],
    ),
    case(
        "CspPluginStopped",
        8,
        &[(r#"csp_plugin_stops_total{node="nn-1",exported_instance="a",reason="fuel"}"#, "0x5 1x9")],
        &[(r#"csp_plugin_stops_total{node="nn-1",exported_instance="a",reason="fuel"}"#, "1x9")],
    ),
    // Channels that drop or lose from the 10th minute on.
    case(
        "CspChannelDrops",
        13,
        &[
            (r#"csp_channel_dropped_total{channel="slow",worker="0"}"#, "0x30"),
            (r#"csp_channel_dropped_total{channel="slow",worker="1"}"#, "5x10 6+10x20"),
        ],
        &[(r#"csp_channel_dropped_total{channel="calm",worker="0"}"#, "7x30")],
    ),
    case(
        "CspChannelLoses",
        13,
        &[(r#"csp_channel_lost_total{channel="gone",worker="0"}"#, "1x10 2x20")],
        &[(r#"csp_channel_lost_total{channel="calm",worker="0"}"#, "1x30")],
    ),
    case(
        "CspRowsLost",
        13,
        &[(r#"csp_stage_lost_rows_total{channel="late",reason="late"}"#, "0+4x20")],
        // A null in a key is no loss.
        &[(r#"csp_stage_lost_rows_total{channel="late",reason="unmatched"}"#, "0+4x20")],
    ),
    case(
        "CspChannelRefuses",
        8,
        &[(r#"csp_channel_refused_total{channel="web",worker="0"}"#, "0x5 1x9")],
        &[(r#"csp_channel_refused_total{channel="web",worker="0"}"#, "1x9")],
    ),
    case(
        "CspChannelHeldBack",
        20,
        &[(HELD, "0x10 1+1x20"), (DELIVERED, "900x30")],
        &[(HELD, "0x10 1+1x20"), (DELIVERED, "0+900x30")],
    ),
    case(
        "CspHandlerStopped",
        8,
        &[(r#"csp_handler_stops_total{channel="c",handler="h",reason="fuel"}"#, "0x5 1x9")],
        &[(r#"csp_handler_stops_total{channel="c",handler="h",reason="fuel"}"#, "1x9")],
    ),
];
