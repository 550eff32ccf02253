//! What the core is made with, what it emits into, and what it tells.

use std::net::IpAddr;

use csp_lan::TxOffload;
use csp_types::{Duration, FlowLabel, FourTuple, Instant, MacAddr, Prefix};
use csp_wire::tunnel::Record;

/// Names a proxy for as long as the owner keeps it in this slot: below [`CoreConfig::proxies_max`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProxyId(pub u16);

/// Names a LAN port: its place in [`CoreConfig::ports`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// The tunnel to a proxy worker has no room, or no link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tunnel is full")]
pub struct TunnelFull;

/// Where the core's output goes. Everything is copied or sent before the call returns.
pub trait NetworkOutput {
    /// A record for worker `record.worker` of `proxy`; its payload lies in `parts`, and `record.payload` is not looked
    /// at. An error means that the record is dropped.
    fn tunnel(&mut self, proxy: ProxyId, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), TunnelFull>;

    /// A frame for a LAN port. A port that cannot take it drops and counts it.
    fn lan(&mut self, port: PortId, parts: &[&[u8]], offload: Option<TxOffload>);
}

/// One LAN port as the core sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// The port's own Ethernet address, which all our IP addresses share.
    pub mac: MacAddr,
    /// Largest IP packet of one segment, in bytes.
    pub mtu: u16,
    /// Networks whose hosts are reached directly, as address and prefix length. With none, every host is.
    pub on_link: Vec<Prefix>,
    /// Routers for the rest, at most one of each address family.
    pub gateways: Vec<IpAddr>,
}

impl PortConfig {
    /// A port on which every host is reached directly.
    pub fn new(mac: MacAddr, mtu: u16) -> Self {
        PortConfig { mac, mtu, on_link: Vec::new(), gateways: Vec::new() }
    }
}

/// What a core is made with. All capacities are fixed from then on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreConfig {
    /// The LAN ports; [`PortId`] counts them.
    pub ports: Vec<PortConfig>,
    /// Flows the table holds, those that are beginning and ending included. At most 2²².
    pub flows_max: usize,
    /// Proxies that can be known at once.
    pub proxies_max: usize,
    /// Policy rules (services and egress addresses).
    pub rules_max: usize,
    /// Neighbours that can be known or asked for at once.
    pub neighbours_max: usize,
    /// Events the flight recorder keeps.
    pub trace_len: usize,
    /// Secret of the flow table's hash. Peers that know it can make its chains long.
    pub table_key: (u64, u64),
    /// How long a flow may live without a label.
    pub pending_timeout: Duration,
    /// How long a flow's proxy is remembered after its label ended, for late segments.
    pub linger: Duration,
    /// How long a labelled flow may be silent; a backstop, as proxies end their flows.
    pub idle_timeout: Duration,
}

impl CoreConfig {
    /// The defaults: 65,536 flows, 64 proxies, 1,024 rules, 1,024 neighbours; 60 s without label, 5 s after the end,
    /// 1 h of silence. `table_key` must be drawn at random by the caller.
    pub fn new(ports: Vec<PortConfig>, table_key: (u64, u64)) -> Self {
        CoreConfig {
            ports,
            flows_max: 65_536,
            proxies_max: 64,
            rules_max: 1024,
            neighbours_max: 1024,
            trace_len: 65_536,
            table_key,
            pending_timeout: Duration::from_secs(60),
            linger: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(3600),
        }
    }
}

/// One flow as the admin endpoint shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// The two ends.
    pub tuple: FourTuple,
    /// Its label; none while it begins or lingers.
    pub label: FlowLabel,
    /// Whose it is.
    pub proxy: ProxyId,
    /// Which of the proxy's workers.
    pub worker: u8,
    /// Where its peer is reached.
    pub port: PortId,
    /// The peer's (or the router's) Ethernet address, once known.
    pub peer_mac: Option<MacAddr>,
    /// When the entry was made.
    pub created: Instant,
    /// When a segment last passed, either way.
    pub last_used: Instant,
    /// Segments from the LAN, coalesced ones counted once.
    pub segments_in: u64,
    /// Segments to the LAN, large ones counted once.
    pub segments_out: u64,
}

/// What the core counted. Everything that is dropped is counted exactly once, under its reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames from the LAN.
    pub frames_in: u64,
    /// TCP segments that went into the tunnel.
    pub segments_in: u64,
    /// Packets those stand for, before coalescing.
    pub packets_in: u64,
    /// TCP payload bytes that went into the tunnel.
    pub bytes_in: u64,
    /// Records from the tunnel.
    pub records_out: u64,
    /// TCP segments that went to the LAN (large ones counted once).
    pub segments_out: u64,
    /// TCP payload bytes that went to the LAN.
    pub bytes_out: u64,
    /// Flows that came to the table.
    pub flows_created: u64,
    /// Labels that were bound to flows.
    pub labels_bound: u64,
    /// Labels that ended by the proxy's word.
    pub labels_ended: u64,
    /// Flows removed because their proxy went away.
    pub flows_lost: u64,
    /// Flows that expired without or with a label.
    pub flows_expired: u64,
    /// Flows pushed out by new ones when the table was full.
    pub flows_evicted: u64,
    /// ARP requests and neighbour solicitations answered.
    pub neighbour_answers: u64,
    /// ARP requests and neighbour solicitations sent.
    pub neighbour_requests: u64,
    /// Packets by which another host claimed one of our addresses.
    pub address_conflicts: u64,
    /// Segments of known flows that came from another Ethernet address or port than their peer's and did not move it.
    pub moves_doubted: u64,
    /// Echo requests answered.
    pub echo_answers: u64,
    /// Resets sent for ports that nothing serves.
    pub resets_sent: u64,
    /// ICMP errors passed to proxies.
    pub icmp_errors_in: u64,
    /// Proxies told that a segment was longer than the port's MTU.
    pub path_errors_reported: u64,
    /// Dropped from the LAN: shorter than its headers say, or contradictory.
    pub drop_malformed: u64,
    /// Dropped from the LAN: an IP, ICMP or TCP checksum was wrong.
    pub drop_bad_checksum: u64,
    /// Dropped from the LAN: a fragment.
    pub drop_fragment: u64,
    /// Dropped from the LAN: for another Ethernet or IP address.
    pub drop_not_ours: u64,
    /// Dropped from the LAN: a protocol that is not served.
    pub drop_protocol: u64,
    /// Dropped from the LAN: one of our addresses, but no service there, and no answer due.
    pub drop_no_service: u64,
    /// Dropped from the LAN: no proxy is up, or not all were tried and the connection is not a new one.
    pub drop_no_proxy: u64,
    /// Dropped from the LAN: the tunnel took no more.
    pub drop_tunnel_full: u64,
    /// Not answered: more answers were due than the node gives in a second.
    pub drop_answer_limit: u64,
    /// Dropped from the tunnel: an ill-formed record or segment.
    pub drop_bad_record: u64,
    /// Dropped from the tunnel: a label that is bound to no flow.
    pub drop_unknown_label: u64,
    /// Dropped from the tunnel: a label of an earlier generation, or another proxy's or worker's.
    pub drop_stale_label: u64,
    /// Dropped from the tunnel: a source address that is not ours, or a flow that is another proxy's.
    pub drop_foreign_flow: u64,
    /// Dropped from the tunnel: longer than the port's MTU and not to be segmented.
    pub drop_too_long: u64,
    /// Dropped from the tunnel: the peer's Ethernet address is not known (yet).
    pub drop_unresolved: u64,
    /// Dropped: the flow table was full of labelled flows.
    pub drop_table_full: u64,
}
