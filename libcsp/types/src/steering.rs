//! The worker of a network node that owns a TCP flow. The LAN ports apply the rule to frames
//! (`network-node/lan/src/steering.rs`), the core to reassembled datagrams.

use core::net::IpAddr;

use crate::FourTuple;
use crate::limits::{EGRESS_LAN_WORKER, EGRESS_PORT_FIRST};

/// 2³² divided by the golden ratio (Knuth, vol. 3, §6.4).
pub const MULTIPLIER: u32 = 0x9e37_79b1;
/// Bits of the product that are discarded.
pub const SHIFT: u32 = 16;

/// Returns the hash of a flow from the peer's port, the last 4 bytes of the peer's address and the cluster's
/// port. `None`: the flow was opened by an application and belongs to [`EGRESS_LAN_WORKER`].
pub const fn hash(peer_port: u16, peer: u32, own_port: u16) -> Option<u32> {
    if own_port >= EGRESS_PORT_FIRST {
        return None;
    }
    let ports = (peer_port as u32) << 16 | own_port as u32;
    Some(ports.wrapping_add(peer).wrapping_mul(MULTIPLIER) >> SHIFT)
}

/// Returns which of `workers` workers owns a flow.
pub fn worker_of(tuple: &FourTuple, workers: u8) -> u8 {
    let peer = match tuple.remote.ip() {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    let hash = hash(tuple.remote.port(), peer, tuple.local.port());
    hash.map_or(EGRESS_LAN_WORKER, |hash| (hash % u32::from(workers.max(1))) as u8)
}
