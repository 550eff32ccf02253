//! A network node's core that forwards packets of many flows to two servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use csp_network_core::{
    CoreConfig, NetworkCore, NetworkOutput, Pool, PoolServer, Pools, PortConfig, PortId, ProxyId, RuleSet,
    TunnelFull,
};
use csp_types::{Instant, MacAddr, Transport};
use csp_wire::arp;
use csp_wire::checksum::checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::offload::{Frame, TxOffload};
use csp_wire::tunnel::Record;

const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
const VIP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 102);
/// In whose name the LAN is asked for the servers.
const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 101);
const LEN: usize = 1_514;

/// Counts what is transmitted.
#[derive(Default)]
struct Counter(u64);

impl NetworkOutput for Counter {
    fn tunnel(&mut self, _: Instant, _: ProxyId, _: &Record<'_>, _: &[&[u8]]) -> Result<(), TunnelFull> {
        Err(TunnelFull)
    }

    fn lan(&mut self, _: PortId, parts: &[&[u8]], _: Option<TxOffload>) {
        self.0 += u64::from(parts.iter().map(|part| part.len()).sum::<usize>() == LEN);
    }
}

/// The core, and a frame whose flow can be chosen.
pub struct Forwarding {
    core: NetworkCore,
    out: Counter,
    frame: Vec<u8>,
}

impl Forwarding {
    /// A core with room for 2²⁰ flows, of which `flows` have a server.
    pub fn new(flows: u32) -> Self {
        let config = CoreConfig {
            flows_max: 1 << 20,
            ..CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2))
        };
        let (mut core, mut out) = (NetworkCore::new(config), Counter::default());
        let address = |id: u32| Ipv4Addr::new(10, 76, 0, 200 + id as u8);
        let server =
            |id: u32| PoolServer { id, address: IpAddr::V4(address(id)), tunnel: None, weight: 1, up: true };
        let pool = Pool::new(SocketAddr::new(VIP.into(), 80), Transport::Tcp, vec![server(1), server(2)]);
        let pools = Arc::new(Pools::new(1, vec![pool]));
        let mut rules = RuleSet::new(16, &[], &[], pools.clone(), &[EGRESS.into()], &[]).unwrap();
        core.exchange_rules(Instant::ZERO, &mut rules, &mut out);
        for id in [1, 2] {
            let request = arp::Repr::request(OUR_MAC, EGRESS, address(id));
            let mut frame = vec![0; ethernet::HEADER_LEN + arp::PACKET_LEN];
            let (header, body) = frame.split_at_mut(ethernet::HEADER_LEN);
            let ethernet =
                ethernet::Repr { destination: OUR_MAC, source: SERVER_MAC, ether_type: EtherType::Arp };
            ethernet.emit(header).unwrap();
            request.answer(SERVER_MAC).emit(body).unwrap();
            core.on_frame(Instant::ZERO, PortId(0), &Frame::plain(&frame), &mut out);
        }
        let mut forwarding = Forwarding { core, out, frame: frame() };
        (0..flows).for_each(|flow| forwarding.packet(flow));
        assert_eq!(forwarding.core.counters().packets_forwarded, u64::from(flows));
        forwarding
    }

    /// Turns the frame into one of a flow.
    pub fn set_flow(&mut self, flow: u32) {
        let ip = &mut self.frame[ethernet::HEADER_LEN..];
        ip[12..16].copy_from_slice(&(0x0a00_0000 | flow >> 8).to_be_bytes());
        ip[20..22].copy_from_slice(&(40_000 + (flow & 0xff) as u16).to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Has the core take the frame.
    pub fn take(&mut self) {
        let now = Instant::from_nanos(500_000_000);
        self.core.on_frame(now, PortId(0), &Frame::plain(&self.frame), &mut self.out);
    }

    fn packet(&mut self, flow: u32) {
        self.set_flow(flow);
        self.take();
    }

    /// Returns how many whole packets were transmitted.
    pub fn sent(&self) -> u64 {
        self.out.0
    }
}

fn frame() -> Vec<u8> {
    let mut frame = vec![0; LEN];
    frame[..6].copy_from_slice(&OUR_MAC.0);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xb]);
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut frame[ethernet::HEADER_LEN..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((LEN - ethernet::HEADER_LEN) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, 6);
    ip[16..20].copy_from_slice(&VIP.octets());
    ip[22..24].copy_from_slice(&80u16.to_be_bytes());
    (ip[32], ip[33]) = (5 << 4, 0x10);
    frame
}
