//! A port on a Linux interface by a raw socket (packet(7)) with the virtio-net header, so that the kernel or
//! the device performs checksumming and segmentation in both directions.
//!
//! The interface needs none of the addresses that the network node serves, since the kernel's stack drops
//! frames to addresses that it does not have.

mod receive;
pub(crate) mod socket;
mod transmit;
pub(crate) mod vnet;

use std::io;
use std::sync::Arc;

use crate::port::{LanPort, LanTransmitter, PortInfo};

/// The configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AfPacketConfig {
    /// Name of the interface.
    pub interface: String,
    /// Set if several workers have a port on this interface.
    pub fanout: Option<Fanout>,
    /// Sizes of the kernel's receive and transmit queues, in bytes. The kernel counts the whole buffer of a
    /// frame.
    pub socket_buffer_len: u32,
}

/// The position of a port among those of several workers on one interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fanout {
    /// The fanout group that distributes the interface's frames ([`crate::steering`]). All these workers use
    /// the same group, and nothing else in the network namespace does.
    pub group: u16,
    /// Number of the worker. Worker 0 opens its port first, the others in any order.
    pub worker: u8,
}

impl AfPacketConfig {
    /// Returns the defaults for an interface with one worker.
    pub fn new(interface: &str) -> Self {
        AfPacketConfig { interface: interface.to_owned(), fanout: None, socket_buffer_len: 16 << 20 }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The network namespace has no interface of this name.
    #[error("there is no interface {0:?} in this network namespace")]
    NoInterface(String),
    /// The interface is not an Ethernet interface.
    #[error("interface {0:?} is not an Ethernet interface")]
    NotEthernet(String),
    /// A frame of the interface's MTU does not fit the port's buffers.
    #[error("interface {interface:?} has the MTU {mtu}; at most {most} is possible with AF_XDP")]
    Mtu {
        /// Name of the interface.
        interface: String,
        /// Its MTU.
        mtu: u16,
        /// The largest supported MTU.
        most: u16,
    },
    /// A system call failed. Without CAP_NET_RAW the first one fails.
    #[error("{call} on {interface:?}: {source}")]
    System {
        /// The call, or the socket option.
        call: &'static str,
        /// Name of the interface.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Opens a port on an interface. Requires CAP_NET_RAW. Allocates about 4 MiB of buffers of fixed size.
pub fn open(config: &AfPacketConfig) -> Result<LanPort, OpenError> {
    let (socket, info) = socket::open(config)?;
    let (socket, shared) = (Arc::new(socket), socket::open_shared(config)?);
    Ok(LanPort {
        receiver: Box::new(receive::Receiver::new(Arc::clone(&socket), shared)),
        transmitter: Box::new(transmit::Transmitter::new(socket)),
        info,
    })
}

/// Opens a socket that receives no frames, is a member of all multicast groups, and can transmit.
pub(crate) fn open_silent(interface: &str) -> Result<(socket::Socket, PortInfo), OpenError> {
    socket::open_silent(&AfPacketConfig::new(interface))
}

/// Returns a transmitter on a socket.
pub(crate) fn transmitter(socket: Arc<socket::Socket>) -> Box<dyn LanTransmitter> {
    Box::new(transmit::Transmitter::new(socket))
}
