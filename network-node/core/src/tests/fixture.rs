//! A core with one port, and an output that records everything.

use std::net::{IpAddr, SocketAddr};

use csp_types::{FlowLabel, FourTuple, Instant, MacAddr};
use csp_wire::checksum::Checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::offload::{Checksum as FrameChecksum, Frame, Gso, TxOffload};
use csp_wire::tcp::{self, Flags as TcpFlags, Segment};
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{Ecn, ipv4, ipv6};

use crate::*;

pub(super) const PORT: PortId = PortId(0);
pub(super) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa0]);
pub(super) const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const VIP: &str = "10.76.0.100:80";
pub(super) const VIP6: &str = "[2001:db8::100]:80";
pub(super) const EGRESS: &str = "10.76.0.101";
pub(super) const CLIENT: &str = "10.76.0.1:40000";
pub(super) const CLIENT6: &str = "[2001:db8::1]:40000";

/// One record sent into the tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TunnelOut {
    pub(super) proxy: ProxyId,
    pub(super) worker: u8,
    pub(super) kind: RecordKind,
    pub(super) label: FlowLabel,
    pub(super) flags: Flags,
    pub(super) ecn: Ecn,
    pub(super) age: Age,
    pub(super) coalesced: u16,
    pub(super) segment_size: u16,
    pub(super) payload: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Output {
    pub(super) tunnel: Vec<TunnelOut>,
    pub(super) lan: Vec<(Vec<u8>, Option<TxOffload>)>,
    pub(super) kernel: Vec<(PortId, Vec<u8>, Option<TxOffload>)>,
    pub(super) full: bool,
}

impl NetworkOutput for Output {
    fn tunnel(
        &mut self,
        _: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), TunnelFull> {
        if self.full {
            return Err(TunnelFull);
        }
        self.tunnel.push(TunnelOut {
            proxy,
            worker: record.worker,
            kind: record.kind,
            label: record.label,
            flags: record.flags,
            ecn: record.ecn,
            age: record.age,
            coalesced: record.coalesced,
            segment_size: record.segment_size,
            payload: parts.concat(),
        });
        Ok(())
    }

    fn kernel(&mut self, port: PortId, frame: &[u8], offload: Option<TxOffload>) {
        self.kernel.push((port, frame.to_vec(), offload));
    }

    fn lan(&mut self, _: PortId, parts: &[&[u8]], offload: Option<TxOffload>) {
        self.lan.push((parts.concat(), offload));
    }
}

pub(super) fn seconds(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

pub(super) fn label(index: u32) -> FlowLabel {
    FlowLabel::new(index, 1)
}

pub(super) fn client_tuple() -> FourTuple {
    FourTuple { local: VIP.parse().unwrap(), remote: CLIENT.parse().unwrap() }
}

/// Returns a TCP segment's bytes, without checksum.
pub(super) fn tcp_bytes(source: &str, destination: &str, flags: TcpFlags, data: &[u8]) -> Vec<u8> {
    let (source, destination): (SocketAddr, SocketAddr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    let repr = tcp::Repr {
        source_port: source.port(),
        destination_port: destination.port(),
        seq: 1000,
        ack: if flags.ack() { 5000 } else { 0 },
        flags,
        window: 4096,
        ..tcp::Repr::default()
    };
    let mut bytes = vec![0; repr.header_len()];
    repr.emit(&mut bytes).unwrap();
    bytes.extend_from_slice(data);
    bytes
}

/// Returns an IP packet around `payload`.
pub(super) fn ip_packet(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len() as u16;
    let mut packet = vec![0; 40];
    let ecn = Ecn::Ect0;
    let len = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (ttl, dscp, identification, dont_fragment) = (63, 0, 7, true);
            let repr = ipv4::Repr {
                source,
                destination,
                protocol,
                ttl,
                dscp,
                ecn,
                identification,
                dont_fragment,
                payload_len,
            };
            repr.emit(&mut packet).unwrap()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (hop_limit, dscp, flow_label) = (255, 0, 0);
            let repr =
                ipv6::Repr { source, destination, protocol, hop_limit, dscp, ecn, flow_label, payload_len };
            repr.emit(&mut packet).unwrap()
        }
        _ => panic!("two families"),
    };
    packet.truncate(len);
    packet.extend_from_slice(payload);
    packet
}

/// Returns a whole TCP packet with its checksum.
pub(super) fn tcp_packet(source: &str, destination: &str, flags: TcpFlags, data: &[u8]) -> Vec<u8> {
    let mut bytes = tcp_bytes(source, destination, flags, data);
    let (from, to): (SocketAddr, SocketAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    let mut sum = Checksum::pseudo(from.ip(), to.ip(), 6, bytes.len() as u32).unwrap();
    sum.add(&bytes);
    bytes[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    ip_packet(from.ip(), to.ip(), 6, &bytes)
}

pub(super) fn frame(source: MacAddr, destination: MacAddr, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14];
    ethernet::Repr { destination, source, ether_type }.emit(&mut frame).unwrap();
    frame.extend_from_slice(payload);
    frame
}

/// Sets this codepoint in the packet's IP header.
pub(super) fn marked(mut packet: Vec<u8>, ecn: Ecn) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        packet[1] = packet[1] & !0x30 | ecn.bits() << 4;
        return packet;
    }
    packet[1] = packet[1] & !3 | ecn.bits();
    packet[10..12].fill(0);
    let sum = csp_wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns the codepoint in a packet's IP header.
pub(super) fn ecn_of(packet: &[u8]) -> Ecn {
    Ecn::from_bits(if packet[0] >> 4 == 6 { packet[1] >> 4 } else { packet[1] })
}

pub(super) fn ip_frame(packet: &[u8]) -> Vec<u8> {
    let ether_type = if packet[0] >> 4 == 4 { EtherType::Ipv4 } else { EtherType::Ipv6 };
    frame(CLIENT_MAC, OUR_MAC, ether_type, packet)
}

pub(super) struct Fixture {
    pub(super) core: NetworkCore,
    pub(super) out: Output,
    pub(super) now: Instant,
}

impl Fixture {
    /// Creates a core with one service on IPv4 and IPv6, one egress address, and one proxy `pn-1` with one
    /// worker.
    pub(super) fn new() -> Self {
        Self::with(CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2)))
    }

    pub(super) fn with(config: CoreConfig) -> Self {
        let mut fixture = Self::without_proxy(config);
        fixture.core.proxy_up(ProxyId(0), "pn-1".parse().unwrap(), 1);
        fixture
    }

    pub(super) fn without_proxy(config: CoreConfig) -> Self {
        let (mut core, mut out) = (NetworkCore::new(config), Output::default());
        let services = [VIP.parse().unwrap(), VIP6.parse().unwrap()];
        core.set_services(Instant::ZERO, &services, &[EGRESS.parse().unwrap()], &mut out).unwrap();
        // The announcements are sent before the test begins.
        [2, 4].into_iter().for_each(|second| core.on_timeout(seconds(second), &mut out));
        out.lan.clear();
        Fixture { core, out, now: seconds(10) }
    }

    pub(super) fn frame(&mut self, bytes: &[u8]) {
        self.offloaded(bytes, FrameChecksum::Unchecked, None);
    }

    pub(super) fn offloaded(&mut self, bytes: &[u8], checksum: FrameChecksum, gso: Option<Gso>) {
        self.core.on_frame(self.now, PORT, &Frame { bytes, checksum, gso }, &mut self.out);
    }

    /// Delivers a TCP packet from the client of `client_tuple`.
    pub(super) fn client_sends(&mut self, flags: TcpFlags, data: &[u8]) {
        self.frame(&ip_frame(&tcp_packet(CLIENT, VIP, flags, data)));
    }

    pub(super) fn record(&mut self, record: Record<'_>) {
        self.core.on_record(self.now, ProxyId(0), &record, &mut self.out);
    }

    /// Has the proxy answer the client's SYN and bind `label`.
    pub(super) fn proxy_binds(&mut self, label: FlowLabel) {
        let packet = tcp_packet(VIP, CLIENT, TcpFlags::SYN | TcpFlags::ACK, &[]);
        self.record(Record { flags: Flags::FLOW_NEW, ..whole(label, &packet) });
    }

    /// Establishes a connection up to its label.
    pub(super) fn establish(&mut self, label: FlowLabel) {
        self.client_sends(TcpFlags::SYN, &[]);
        self.proxy_binds(label);
        self.out.tunnel.clear();
        self.out.lan.clear();
    }

    pub(super) fn timeout(&mut self, now: Instant) {
        self.now = now;
        self.core.on_timeout(now, &mut self.out);
    }

    /// Returns the only record sent into the tunnel since the last call.
    pub(super) fn sent(&mut self) -> TunnelOut {
        assert_eq!(self.out.tunnel.len(), 1, "{:?}", self.core.counters());
        self.out.tunnel.remove(0)
    }

    /// Returns the only frame transmitted since the last call.
    pub(super) fn transmitted(&mut self) -> (Vec<u8>, Option<TxOffload>) {
        assert_eq!(self.out.lan.len(), 1, "{:?}", self.core.counters());
        self.out.lan.remove(0)
    }
}

pub(super) fn whole(label: FlowLabel, packet: &[u8]) -> Record<'_> {
    Record { kind: RecordKind::Segment, flags: Flags::NONE, payload: packet, ..Record::flow_end(label, 0) }
}

pub(super) fn compacted(label: FlowLabel, segment: &[u8]) -> Record<'_> {
    Record { flags: Flags::COMPACTED, ..whole(label, segment) }
}

/// Checks a TCP frame to the LAN and returns its tuple, flags and data.
pub(super) fn check_tcp_frame(frame: &[u8], offload: Option<TxOffload>) -> (FourTuple, TcpFlags, Vec<u8>) {
    let ethernet = ethernet::Frame::parse(frame).unwrap();
    let (source, destination, bytes): (IpAddr, IpAddr, &[u8]) = match ethernet.ether_type() {
        Some(EtherType::Ipv4) => {
            let packet = ipv4::Packet::parse(ethernet.payload()).unwrap();
            (packet.source().into(), packet.destination().into(), packet.payload())
        }
        _ => {
            let packet = ipv6::Packet::parse(ethernet.payload()).unwrap();
            (packet.source().into(), packet.destination().into(), packet.payload())
        }
    };
    let segment = Segment::parse(bytes).unwrap();
    let offload = offload.expect("the checksum is left to the port");
    let tcp_at = frame.len() - bytes.len();
    assert_eq!(usize::from(offload.checksum_start), tcp_at);
    assert_eq!(usize::from(offload.header_len), tcp_at + segment.header_len());
    let pseudo = Checksum::pseudo(source, destination, 6, bytes.len() as u32).unwrap();
    assert_eq!(segment.checksum(), pseudo.partial(), "the field holds the pseudo header's sum");
    let local = SocketAddr::new(source, segment.source_port());
    let remote = SocketAddr::new(destination, segment.destination_port());
    (FourTuple { local, remote }, segment.flags(), segment.payload().to_vec())
}
