//! The worker of a network node that owns a flow of TCP or UDP. The LAN ports apply the rule to frames
//! (`network-node/lan/src/steering.rs`), the core to reassembled datagrams, and proxies to the connections
//! that they open, whose answers the worker receives.

use core::net::IpAddr;

use crate::FourTuple;

/// 2³² divided by the golden ratio (Knuth, vol. 3, §6.4).
pub const MULTIPLIER: u32 = 0x9e37_79b1;
/// Bits of the product that are discarded. Proxies compute the hash, too: another one needs another
/// capability than `steers-egress`.
pub const SHIFT: u32 = 16;

/// Returns the hash of a flow from the peer's port, the last 4 bytes of the peer's address and the cluster's
/// port.
pub const fn hash(peer_port: u16, peer: u32, own_port: u16) -> u32 {
    let ports = (peer_port as u32) << 16 | own_port as u32;
    ports.wrapping_add(peer).wrapping_mul(MULTIPLIER) >> SHIFT
}

/// Returns which of `workers` workers owns a flow.
pub fn worker_of(tuple: &FourTuple, workers: u8) -> u8 {
    let peer = match tuple.remote.ip() {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    let hash = hash(tuple.remote.port(), peer, tuple.local.port());
    (hash % u32::from(workers.max(1))) as u8
}
