//! The plain servers of the harness.

use std::net::{IpAddr, Ipv4Addr};

use csp_proxy_core::service::local::LocalServices;
use csp_proxy_core::{PlainState, PoolServer, ServerHost};
use csp_support::{allocation, packets};
use csp_tcp::StackConfig;
use csp_types::FourTuple;
use csp_wire::tcp::{Repr, Segment};
use csp_wire::tunnel::Flags;

use super::World;
use super::host::Host;

/// The port at which plain servers listen.
pub const SERVER_PORT: u16 = 9_000;
/// Window of a plain server, and memory of its engine for what it sends on one connection.
pub const SERVER_WINDOW: u32 = 20_000;

/// One of so many segments is lost; 0: none.
#[derive(Default)]
pub struct Losses {
    pub one_of: u64,
    random: u64,
}

impl Losses {
    fn is_next(&mut self) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.one_of > 0 && (self.random >> 33).is_multiple_of(self.one_of)
    }
}

/// Returns the address of a plain server.
pub fn server(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 100 + number)
}

/// Returns a plain server as the policy names it.
pub fn plain(number: u8) -> PoolServer {
    PoolServer {
        host: ServerHost::Address(server(number).into()),
        port: SERVER_PORT,
        weight: 1,
        connections_max: u32::MAX,
        backup: false,
    }
}

/// Returns the addresses of a packet of IPv4 as its receiver sees them.
pub fn tuple_of(packet: &[u8], segment: &Segment<'_>) -> FourTuple {
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
    let remote = (address(12), segment.source_port()).into();
    FourTuple { local: (address(16), segment.destination_port()).into(), remote }
}

impl<S: LocalServices> World<S> {
    /// Adds plain servers, which listen. The policy has to name them.
    pub fn add_servers(&mut self, numbers: &[u8]) {
        for number in numbers {
            let sizes = StackConfig {
                pacing: false,
                receive_window_max: SERVER_WINDOW,
                receive_window_initial: SERVER_WINDOW,
                ..StackConfig::default()
            };
            let mut host = Host::new(*number + 1, sizes);
            host.tcp.listen((server(*number), SERVER_PORT).into(), 0).unwrap();
            self.servers.insert(server(*number), host);
        }
    }

    pub fn server(&mut self, number: u8) -> &mut Host {
        self.servers.get_mut(&server(number)).unwrap()
    }

    /// Lets plain servers receive, do and send what they can; returns whether there was anything.
    pub fn run_servers(&mut self) -> bool {
        let mut any = false;
        while let Some((tuple, segment)) = self.out.packets.pop_front() {
            any = true;
            let IpAddr::V4(to) = tuple.local.ip() else { continue };
            if self.losses.is_next() {
                continue;
            }
            if let Some(host) = self.servers.get_mut(&to) {
                host.receive(self.now, tuple, &segment);
            }
        }
        let mut sent = Vec::new();
        for host in self.servers.values_mut() {
            any |= host.run(self.now);
            while let Some(segment) = host.next_segment(self.now) {
                sent.push(segment);
            }
        }
        any |= !sent.is_empty();
        for (tuple, segment) in sent {
            let (IpAddr::V4(from), IpAddr::V4(to)) = (tuple.remote.ip(), tuple.local.ip()) else { continue };
            let Ok(segment) = Segment::parse(&segment) else { continue };
            if self.losses.is_next() {
                continue;
            }
            let packet = packets::tcp_packet(from, to, &Repr::parse(&segment), segment.payload());
            let record = packets::record(Flags::NONE, &packet);
            let before = allocation::count();
            self.core.on_record(self.now, 1, &record, None, &mut self.out);
            self.allocations += allocation::count() - before;
        }
        any
    }

    /// Returns the number of connections at all members, offered ones included.
    pub fn open_count(&self) -> u32 {
        let services = self.core.services();
        services.iter().flat_map(|service| &service.members).map(|member| member.open).sum()
    }

    /// Returns which plain servers are out of use.
    pub fn down(&self) -> Vec<bool> {
        let services = self.core.services();
        let states = services.iter().flat_map(|service| &service.members).filter_map(|member| member.plain);
        states.map(|state| matches!(state, PlainState::Down { .. })).collect()
    }
}
