//! The core's configuration, its output interface, and its reports: flows and counters.

use std::net::IpAddr;

use csp_plugins::EnvironmentId;
use csp_types::{Duration, FlowLabel, FourTuple, Instant, MacAddr, NodeId, Prefix};
use csp_wire::offload::TxOffload;
use csp_wire::packets::Head;
use csp_wire::tunnel::Record;

use super::plugins::PluginCapacity;

/// Identifies a proxy for as long as the caller keeps it in this slot: below [`CoreConfig::proxies_max`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProxyId(pub u16);

/// Identifies a LAN port: its index in [`CoreConfig::ports`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// The tunnel to a proxy worker has no room, or no link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tunnel is full")]
pub struct TunnelFull;

/// Receives the core's output. Everything is copied or sent before a call returns.
pub trait NetworkOutput {
    /// Sends a record to worker `record.worker` of `proxy`. Its payload is in `parts`; `record.payload` is
    /// ignored. On an error the record is dropped.
    fn tunnel(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), TunnelFull>;

    /// Sends a packet to a plug-in host, in sequence. On an error it was not sent.
    fn host(
        &mut self,
        now: Instant,
        host: EnvironmentId,
        head: &Head,
        frame: &[u8],
    ) -> Result<(), TunnelFull> {
        let _ = (now, host, head, frame);
        Err(TunnelFull)
    }

    /// Passes a frame that was received on a LAN port to the host's kernel, as if the kernel had received it
    /// on that port. Called only for ports with
    /// [`NetworkCore::set_reinjection`](crate::NetworkCore::set_reinjection). A frame for which there is
    /// no room is dropped and counted.
    fn kernel(&mut self, port: PortId, frame: &[u8], offload: Option<TxOffload>) {
        let _ = (port, frame, offload);
    }

    /// Transmits a frame on a LAN port. A port that has no room drops the frame and counts it.
    fn lan(&mut self, port: PortId, parts: &[&[u8]], offload: Option<TxOffload>);
}

/// One LAN port, as the core is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// The port's own Ethernet address, used for all IP addresses of the cluster.
    pub mac: MacAddr,
    /// Largest IP packet of one segment, in bytes.
    pub mtu: u16,
    /// Networks whose hosts are on the link, as address and prefix length. If empty, every host is on the
    /// link.
    pub on_link: Vec<Prefix>,
    /// Routers for all other destinations, at most one of each address family.
    pub gateways: Vec<IpAddr>,
}

impl PortConfig {
    /// Returns the configuration of a port on which every host is reached directly.
    pub fn new(mac: MacAddr, mtu: u16) -> Self {
        PortConfig { mac, mtu, on_link: Vec::new(), gateways: Vec::new() }
    }
}

/// Configuration of a core. All capacities are fixed at construction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreConfig {
    /// The LAN ports, indexed by [`PortId`].
    pub ports: Vec<PortConfig>,
    /// This worker's number.
    pub worker: u8,
    /// Workers that share the frames of the ports.
    pub workers: u8,
    /// Flows in the table, pending and lingering ones included. At most 2²².
    pub flows_max: usize,
    /// Proxies known at once.
    pub proxies_max: usize,
    /// Policy rules (services and egress addresses).
    pub rules_max: usize,
    /// Neighbours known or being resolved at once.
    pub neighbours_max: usize,
    /// Events that the flight recorder holds.
    pub trace_len: usize,
    /// Sizes for packet plug-ins.
    pub plugins: PluginCapacity,
    /// The proxy worker that new flows go to while it is up and its proxy does not drain: the one in the same
    /// thread. Flows of channels go to the channel's owner nevertheless.
    pub own_proxy: Option<(NodeId, u8)>,
    /// Secret key of the flow table's hash. A peer that knows it can lengthen the table's chains.
    pub table_key: (u64, u64),
    /// How long a flow may exist without a label.
    pub pending_timeout: Duration,
    /// How long a flow's proxy stays stored after its label ended, for late segments.
    pub linger: Duration,
    /// Time without segments after which a flow with a label expires. A safeguard: normally the proxy ends
    /// its flows.
    pub idle_timeout: Duration,
}

impl CoreConfig {
    /// Returns the defaults: the only worker, 65,536 flows, 64 proxies, 1,024 rules, 1,024 neighbours, no
    /// packet plug-ins; 60 s without a label, 5 s after the end, 1 h of silence. The caller draws `table_key`
    /// at random.
    pub fn new(ports: Vec<PortConfig>, table_key: (u64, u64)) -> Self {
        CoreConfig {
            ports,
            worker: 0,
            workers: 1,
            flows_max: 65_536,
            proxies_max: 64,
            rules_max: 1024,
            neighbours_max: 1024,
            trace_len: 65_536,
            plugins: PluginCapacity::default(),
            own_proxy: None,
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
    /// Addresses and ports of both ends.
    pub tuple: FourTuple,
    /// Its label; none while the flow is pending or lingering.
    pub label: FlowLabel,
    /// The proxy that serves it.
    pub proxy: ProxyId,
    /// The proxy's worker that serves it.
    pub worker: u8,
    /// The LAN port by which its peer is reached.
    pub port: PortId,
    /// Ethernet address of the peer or its router, once known.
    pub peer_mac: Option<MacAddr>,
    /// When the entry was created.
    pub created: Instant,
    /// When a segment last passed in either direction.
    pub last_used: Instant,
    /// Segments from the LAN; a coalesced one counts once.
    pub segments_in: u64,
    /// Segments to the LAN; one that the port will cut counts once.
    pub segments_out: u64,
}

/// Counters of the core. Each dropped frame or record is counted exactly once, under its reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames from the LAN.
    pub frames_in: u64,
    /// Packets forwarded to servers on the LAN; one that a device put together counts once.
    pub packets_forwarded: u64,
    /// Bytes of these IP packets.
    pub bytes_forwarded: u64,
    /// TCP segments sent into the tunnel.
    pub segments_in: u64,
    /// Packets that these represent, before coalescing.
    pub packets_in: u64,
    /// TCP payload bytes sent into the tunnel.
    pub bytes_in: u64,
    /// Records from the tunnel.
    pub records_out: u64,
    /// TCP segments passed to LAN ports; one that the port will cut counts once.
    pub segments_out: u64,
    /// TCP payload bytes passed to LAN ports.
    pub bytes_out: u64,
    /// Flows added to the table.
    pub flows_created: u64,
    /// Labels bound to flows.
    pub labels_bound: u64,
    /// Labels that their proxy ended.
    pub labels_ended: u64,
    /// Flows removed because their proxy is down.
    pub flows_lost: u64,
    /// Flows that expired, with or without a label.
    pub flows_expired: u64,
    /// Flows evicted from a full table.
    pub flows_evicted: u64,
    /// ARP requests and neighbour solicitations answered.
    pub neighbour_answers: u64,
    /// ARP requests and neighbour solicitations sent.
    pub neighbour_requests: u64,
    /// Packets by which another host claimed one of the cluster's addresses.
    pub address_conflicts: u64,
    /// Segments of known flows that came from another Ethernet address or port than their peer's, and were
    /// not accepted as a move.
    pub moves_doubted: u64,
    /// Segments of unknown connections that a proxy returned because it does not have the connection.
    pub segments_returned: u64,
    /// Echo requests answered.
    pub echo_answers: u64,
    /// Resets sent for ports that no service uses.
    pub resets_sent: u64,
    /// ICMP errors passed to proxies.
    pub icmp_errors_in: u64,
    /// Errors sent to proxies, and to clients of forwarded services, because a segment was longer than the
    /// port's MTU.
    pub path_errors_reported: u64,
    /// Dropped from the LAN: shorter than its headers indicate, or contradictory.
    pub drop_malformed: u64,
    /// Dropped from the LAN: an IP, ICMP or TCP checksum was wrong.
    pub drop_bad_checksum: u64,
    /// Fragments for addresses of the cluster.
    pub fragments_in: u64,
    /// Datagrams that were reassembled from them.
    pub datagrams_reassembled: u64,
    /// Reassembled datagrams of flows that another worker owns, which has received the same fragments.
    pub datagrams_elsewhere: u64,
    /// Dropped from the LAN: fragments without payload, of a length that is no multiple of 8, or beyond the
    /// longest datagram; fragments whose ECN fields contradict each other.
    pub drop_fragment: u64,
    /// Dropped from the LAN: fragments of datagrams with overlapping fragments.
    pub drop_fragment_overlap: u64,
    /// Dropped from the LAN: fragments that repeat another one exactly.
    pub drop_fragment_duplicate: u64,
    /// Dropped from the LAN: fragments of datagrams that were not complete in time.
    pub drop_fragment_timeout: u64,
    /// Dropped from the LAN: fragments of incomplete datagrams evicted for another one, of the same source
    /// or, when the table was full, of any source.
    pub drop_fragment_room: u64,
    /// Dropped from the LAN: for another Ethernet or IP address. On ports with a path to the kernel: the
    /// frame was modified by its device, so that the kernel cannot receive it.
    pub drop_not_ours: u64,
    /// Dropped from the LAN: a protocol that the node does not process.
    pub drop_protocol: u64,
    /// Dropped from the LAN: an address of the cluster, but no service and no reply due.
    pub drop_no_service: u64,
    /// Dropped from the LAN: no proxy is up; or some proxies have not been tried yet and the segment opens no
    /// connection.
    pub drop_no_proxy: u64,
    /// Dropped from the LAN: no server of the pool is up.
    pub drop_no_server: u64,
    /// Dropped from the LAN: came from the server that it would be forwarded to.
    pub drop_went_round: u64,
    /// Dropped from the LAN: to be forwarded, and its time to live was over.
    pub drop_expired: u64,
    /// Dropped from the LAN: the tunnel had no room.
    pub drop_tunnel_full: u64,
    /// Not answered: the limit of replies per second was reached.
    pub drop_answer_limit: u64,
    /// Dropped from the tunnel: returned by a proxy, and the limit of such segments per second was reached.
    pub drop_search_limit: u64,
    /// Dropped from the tunnel: a malformed record or segment.
    pub drop_bad_record: u64,
    /// Dropped from the tunnel: a label that is bound to no flow.
    pub drop_unknown_label: u64,
    /// Dropped from the tunnel: a label of an earlier generation, or of another proxy or worker.
    pub drop_stale_label: u64,
    /// Dropped from the tunnel: a source address that the cluster does not own, a flow of another proxy, or a
    /// returned segment that belongs to no flow any more.
    pub drop_foreign_flow: u64,
    /// Dropped from the tunnel: longer than the port's MTU and without a segment size. An echo reply longer
    /// than the port's MTU.
    pub drop_too_long: u64,
    /// Dropped from the tunnel, or to be forwarded: the peer's or server's Ethernet address is not known.
    pub drop_unresolved: u64,
    /// Dropped: the flow table was full of labelled flows.
    pub drop_table_full: u64,
}
