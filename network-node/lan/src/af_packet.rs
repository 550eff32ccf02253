//! A port on a Linux interface by raw sockets (packet(7)) with the virtio-net header, so that checksums and
//! segmentation stay with the kernel or the device both ways.
//!
//! The interface needs no address for what the network node answers for; the kernel's own stack drops frames to
//! addresses it does not have.

mod receive;
mod socket;
mod transmit;
mod vnet;

use std::io;
use std::sync::Arc;

use crate::port::LanPort;

/// How a port is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AfPacketConfig {
    /// The interface's name.
    pub interface: String,
    /// With several workers on one interface: the group that shares its frames out ([`crate::steering`]), the same for all of them
    /// and for nobody else in this network namespace. Worker 0 opens its port first.
    pub fanout_group: Option<u16>,
    /// Bytes the kernel may queue for us, and for the device. It accounts a frame by its buffers' true size.
    pub socket_buffer_len: u32,
}

impl AfPacketConfig {
    /// The defaults for an interface with one worker.
    pub fn new(interface: &str) -> Self {
        AfPacketConfig { interface: interface.to_owned(), fanout_group: None, socket_buffer_len: 16 << 20 }
    }
}

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No interface of that name (in this network namespace).
    #[error("there is no interface {0:?} here")]
    NoInterface(String),
    /// It exists but does not speak Ethernet.
    #[error("interface {0:?} is no Ethernet interface")]
    NotEthernet(String),
    /// The kernel refused a call; without CAP_NET_RAW it refuses the first.
    #[error("{call} on {interface:?}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's words.
        source: io::Error,
    },
}

/// Opens a port on an interface. Needs CAP_NET_RAW. Buffers of about 4 MiB are made here and never grow.
pub fn open(config: &AfPacketConfig) -> Result<LanPort, OpenError> {
    let (socket, info) = socket::open(config)?;
    let socket = Arc::new(socket);
    Ok(LanPort {
        receiver: Box::new(receive::Receiver::new(Arc::clone(&socket))),
        transmitter: Box::new(transmit::Transmitter::new(socket)),
        info,
    })
}
