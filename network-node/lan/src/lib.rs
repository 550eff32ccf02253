//! LAN ports: the network node receives and transmits Ethernet frames through them.
//!
//! A port has two halves, so that a received frame can be read while answers to it are transmitted: a
//! [`LanReceiver`] lends frames in its own buffers, a [`LanTransmitter`] accepts frames as lists of parts.
//! Implementations: [`af_packet`] (Linux raw sockets with the virtio-net header), [`af_xdp`] (memory shared
//! with the driver), [`memory`] (a deterministic hub in one process) and [`faulty`] (a wrapper that loses,
//! duplicates, reorders, corrupts and delays frames). A [`tap`] device takes frames that an AF_XDP port has
//! received back to the kernel.
//!
//! The ports handle Ethernet and its offloads only; ARP, IP and TCP belong to the network node's core.

pub mod af_packet;
pub mod af_xdp;
mod ethtool;
pub mod faulty;
pub mod memory;
mod port;
mod segment;
pub mod steering;
pub mod tap;

pub use ethtool::{has_link, leave_vlan_tags};

pub use csp_wire::offload::{Checksum, Frame, Gso, GsoKind, TxOffload};
pub use port::{
    FRAME_PARTS_MAX, LanPort, LanReceiver, LanTransmitter, PortInfo, RECEIVE_BATCH_MAX, ReceiveCounters,
    TransmitCounters, TransmitError,
};
