//! LAN ports: where Ethernet frames enter and leave the network node.
//!
//! A port is a pair of halves, so that a frame can be looked at while answers to it are transmitted: a
//! [`LanReceiver`] lends received frames out of its own buffers, a [`LanTransmitter`] takes frames as gather lists.
//! Providers: [`af_packet`] (Linux raw sockets with the virtio-net header), [`memory`] (a deterministic hub in one
//! process) and [`faulty`] (a wrapper that loses, duplicates, reorders, corrupts and delays).
//!
//! The ports know Ethernet and its offloads only; ARP, IP and TCP belong to the network node's core.

pub mod af_packet;
pub mod faulty;
pub mod memory;
mod port;
mod segment;
pub mod steering;

pub use port::{
    Checksum, Frame, Gso, GsoKind, LanPort, LanReceiver, LanTransmitter, PortInfo, RECEIVE_BATCH_MAX,
    ReceiveCounters, TransmitCounters, TransmitError, TxOffload,
};
