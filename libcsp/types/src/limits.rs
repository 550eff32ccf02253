//! Bounds that several crates share. A bound that one crate uses alone is defined in that crate.

use core::time::Duration;

/// Longest time that a reset waits until its receiver has received the data written before it. A kernel's
/// reset need not wait, since a kernel transmits at the time of the write; a proxy does not.
pub const RESET_WAIT: Duration = Duration::from_secs(10);

/// Longest time that a reset waits while its receiver receives nothing: enough for three retransmissions on
/// common paths. A peer that is blocked in a write learns of the reset after this time at the latest.
pub const RESET_STALL: Duration = Duration::from_secs(2);

/// Largest TCP payload that the tunnel carries in one segment (CSP §4.1: segments up to 64 KB), in bytes.
pub const SEGMENT_LEN_MAX: usize = 65_536 - 20 - 60 - 16;

/// Largest number of parts in which the payload of such a segment lies: blocks of the TCP engine of 512
/// bytes, and a partial one at either end.
pub const SEGMENT_PARTS_MAX: usize = SEGMENT_LEN_MAX / 512 + 2;

/// Largest VI message between network node and proxy node, in bytes: one segment of the largest size with all
/// its headers.
pub const TUNNEL_MESSAGE_LEN_MAX: usize = 66 * 1024;

/// Largest VI message between proxy node and application process, in bytes.
pub const CHANNEL_MESSAGE_LEN_MAX: usize = 16 * 1024 + 64;

/// Largest number of workers of a proxy: the tunnel header identifies a worker by 8 bits.
pub const PROXY_WORKERS_MAX: usize = 256;

/// Largest number of Virtual Interfaces in the pool between one process and one proxy worker.
pub const VI_POOL_MAX: usize = 16;

/// First source port of connections that the proxy opens (RFC 6335 §6: the ephemeral ports).
pub const EGRESS_PORT_FIRST: u16 = 49_152;

/// Capability in the registration of a network node whose LAN ports distribute the answers to these
/// connections among all workers ([`crate::steering`]). Nodes of earlier builds receive them at worker 0.
pub const STEERS_EGRESS: &str = "steers-egress";
