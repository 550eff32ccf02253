//! Rules that overlap.
#![allow(clippy::unwrap_used, reason = "a test's module")]

use csp_classify::multifield::{Direction, InstanceId, Match, PORTS_ANY, PortRange, Rule, TcpFlags};
use csp_support::Random;

/// Few values of each field, so that rules overlap in every way.
pub fn overlapping(random: &mut Random, at: usize) -> Rule {
    let v6 = random.below(3) == 0;
    let network = |random: &mut Random| {
        let length = [0, 1, 8, 9, 24, 31, 32][random.below(7) as usize];
        let address = match v6 {
            false => std::net::IpAddr::V4(
                (0x0a00_0000 ^ (random.below(4) as u32) << 29 ^ random.below(4) as u32).into(),
            ),
            true => std::net::IpAddr::V6(
                (0x2001 << 112 ^ u128::from(random.below(4)) << 96 ^ u128::from(random.below(4))).into(),
            ),
        };
        let length = if v6 { length * 4 } else { length };
        let masked = match address {
            std::net::IpAddr::V4(a) => std::net::IpAddr::V4(
                (a.to_bits() & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)).into(),
            ),
            std::net::IpAddr::V6(a) => std::net::IpAddr::V6(
                (a.to_bits() & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)).into(),
            ),
        };
        (random.below(3) > 0).then(|| csp_types::Prefix::new(masked, length).unwrap())
    };
    let ports = |random: &mut Random| {
        let (a, b) = (
            [0, 79, 80, 81, 1024, 65535][random.below(6) as usize],
            [0, 80, 443, 65535][random.below(4) as usize],
        );
        if random.below(2) == 0 { PORTS_ANY } else { PortRange::new(u16::min(a, b), u16::max(a, b)).unwrap() }
    };
    let (source, destination) = (network(random), network(random));
    let (source_ports, destination_ports) = (ports(random), ports(random));
    let tcp_flags =
        (random.below(4) == 0).then(|| TcpFlags { value: 2, mask: [2, 0x12][random.below(2) as usize] });
    let protocol = [None, Some(6)][random.below(2) as usize];
    let interface = (random.below(4) == 0).then(|| random.below(3) as u16);
    let direction = [None, None, Some(Direction::Ingress), Some(Direction::Egress)][random.below(4) as usize];
    let fields = Match {
        source,
        destination,
        source_ports,
        destination_ports,
        protocol,
        interface,
        direction,
        tcp_flags,
        dscp: None,
    };
    let priority = random.below(6) as u32;
    Rule { name: format!("r{at}").into(), priority, fields, instance: InstanceId(at as u32) }
}
