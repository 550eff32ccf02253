//! Which member a client's address prefers: rendezvous hashing (Thaler and Ravishankar, 1998), weighted by
//! the logarithmic method (Schindelhauer and Schomaker, 2005). Each client has a score for each member, and
//! the best one that can be had gets its connections. A member that comes or goes moves only those clients
//! whose best one it is, and every proxy worker comes to the same result, since nothing but addresses and
//! weights enters.

use std::net::IpAddr;

use crate::ServerHost;

/// Bits of a number between 0 and 1.
const FRACTION_BITS: u32 = 52;

/// Returns a client's number.
pub(crate) fn of_client(client: IpAddr) -> u64 {
    of_address(client)
}

/// Returns a member's number.
pub(crate) fn of_server(host: ServerHost, port: u16) -> u64 {
    let host = match host {
        ServerHost::Address(address) => of_address(address),
        ServerHost::Node(node) => node.as_str().bytes().fold(1, |hash, byte| mix(hash ^ u64::from(byte))),
    };
    mix(host ^ u64::from(port))
}

/// Returns the number of a client and a member.
pub(crate) fn between(client: u64, server: u64) -> u64 {
    mix(client ^ server.rotate_left(32))
}

/// Returns the score of a pair by its number and the member's weight: greater ones are preferred, and a
/// member's share of all clients is its share of all weights.
pub(crate) fn score(pair: u64, weight: u64) -> u64 {
    let uniform = ((pair >> (u64::BITS - FRACTION_BITS)) as f64 + 0.5) / (1u64 << FRACTION_BITS) as f64;
    // Positive numbers are ordered as their bits are.
    (weight as f64 / -uniform.ln()).to_bits()
}

fn of_address(address: IpAddr) -> u64 {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    mix(mix((bits >> 64) as u64) ^ bits as u64)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the best of these servers for each of 100,000 clients.
    fn best(servers: &[(u8, u64)]) -> Vec<u8> {
        let key = |number: u8| of_server(ServerHost::Address([10, 0, 1, number].into()), 80);
        let servers: Vec<(u8, u64, u64)> = servers.iter().map(|(n, weight)| (*n, *weight, key(*n))).collect();
        let of_client = |client: u32| {
            let client = of_client(IpAddr::V4((0x0a00_0000 + client).into()));
            let score = |(_, weight, key): &&(u8, u64, u64)| score(between(client, *key), *weight);
            servers.iter().max_by_key(score).map_or(0, |(number, ..)| *number)
        };
        (0..100_000).map(of_client).collect()
    }

    fn share(of: u8, chosen: &[u8]) -> f64 {
        chosen.iter().filter(|number| **number == of).count() as f64 / chosen.len() as f64
    }

    #[test]
    fn clients_are_shared_by_weight() {
        let chosen = best(&[(1, 1), (2, 2), (3, 7)]);
        for (number, expected) in [(1, 0.1), (2, 0.2), (3, 0.7)] {
            let share = share(number, &chosen);
            assert!((share / expected - 1.0).abs() < 0.03, "{number}: {share}");
        }
    }

    #[test]
    fn only_the_clients_of_a_server_that_goes_get_another_one() {
        let all: Vec<(u8, u64)> = (1..=10).map(|number| (number, 1)).collect();
        let (before, after) = (best(&all), best(&all[..9]));
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(before, _)| *before == 10));
        assert_eq!(moved.count(), before.iter().filter(|number| **number == 10).count());
        assert!((0.095..0.105).contains(&share(10, &before)), "{}", share(10, &before));
    }
}
