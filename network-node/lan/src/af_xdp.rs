//! A port on a Linux interface: AF_XDP sockets, one for each receive queue. Frames arrive from the driver in
//! memory that is shared with the kernel, before the kernel's own stack has made anything of them, and are
//! transmitted from there.
//!
//! ```text
//!   driver ─▶ XDP program ─┬─▶ XSKMAP [port, queue] ─▶ RX ring ─▶ receive ─▶ the worker's own, or another's (handoff)
//!                          └─▶ the host's stack      ◀─ fill ring ◀─┘
//!   transmit ─▶ TX ring ─▶ driver ─▶ completion ring ─▶ frames that are free again
//! ```
//! The program is not the port's: whoever opens it puts [`Port::sockets`] into the program's map (csp-xdp).
//! What the program does not give to the sockets is the kernel's, and what it gives them the kernel does not
//! have.
//!
//! There are no offloads: this port completes checksums, and cuts segments while it copies a frame into the
//! shared memory; where the kernel copies once more, frames that are to be cut go by a raw socket instead.
//! Received frames are single and unchecked, but for those that a veth's peer has left to the device
//! ([`Checksum::Partial`](csp_wire::offload::Checksum)). VLAN tags stay in the frames, whose program leaves
//! them to the kernel.

mod handoff;
mod receive;
mod ring;
mod socket;
mod transmit;
mod umem;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::af_packet::{self, OpenError};
use crate::port::{LanPort, LanTransmitter};

pub use handoff::{HANDOFF_LEN, Handoffs};

/// Largest number of receive queues of an interface.
pub const QUEUES_MAX: usize = 64;
/// Bytes of shared memory per frame. In received frames the kernel reserves the first 256.
const CHUNK_LEN: usize = 4096;
/// Largest IP packet, in bytes: a frame must fit into one chunk.
pub const MTU_MAX: u16 = (CHUNK_LEN - 256 - 14) as u16;

/// The configuration of a port.
#[derive(Clone, Debug)]
pub struct AfXdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// Set if several workers have a port on this interface.
    pub sharing: Option<Sharing>,
    /// Whether frames to be segmented are sent by a raw socket in copy mode, so that the kernel segments
    /// them.
    pub kernel_cuts: bool,
}

/// The position of a port among those of several workers on one interface.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Number of the worker. Worker `q` modulo the number of workers opens queue `q`.
    pub worker: u8,
    /// The rings between the workers; the same object for all of them.
    pub handoffs: Arc<Handoffs>,
}

impl AfXdpConfig {
    /// Returns the defaults for an interface with one worker.
    pub fn new(interface: &str) -> Self {
        AfXdpConfig { interface: interface.to_owned(), sharing: None, kernel_cuts: true }
    }
}

/// An open port.
pub struct Port {
    /// The port.
    pub port: LanPort,
    /// Its sockets with their queues, to be put into the program's map. They are duplicates and may be closed
    /// afterwards.
    pub sockets: Vec<(u32, OwnedFd)>,
    /// How frames pass between driver and shared memory.
    pub mode: Mode,
}

/// How frames pass between the driver and the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The device reads and writes the shared memory directly.
    ZeroCopy,
    /// The kernel copies each frame.
    Copy,
}

impl Mode {
    /// Returns the mode's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::ZeroCopy => "zero-copy",
            Mode::Copy => "copy",
        }
    }
}

/// Opens a port on an interface. Requires CAP_NET_RAW, and CAP_IPC_LOCK or a limit of locked memory above 12
/// MiB for each queue.
///
/// # Errors
/// The interface does not exist or is unsuitable, its MTU exceeds [`MTU_MAX`], or a system call failed.
pub fn open(config: &AfXdpConfig) -> Result<Port, OpenError> {
    let (raw, info) = af_packet::open_silent(&config.interface)?;
    if info.mtu > MTU_MAX {
        return Err(OpenError::Mtu { interface: info.name, mtu: info.mtu, most: MTU_MAX });
    }
    let link = socket::Link::of(&config.interface)?;
    let (worker, workers) = match &config.sharing {
        None => (0, 1),
        Some(sharing) => (usize::from(sharing.worker), sharing.handoffs.workers()),
    };
    let (mut queues, mut sockets, mut mode) = (Vec::new(), Vec::new(), Mode::ZeroCopy);
    let mut transmitter: Option<Box<dyn LanTransmitter>> = None;
    let raw = Arc::new(raw);
    for number in (worker..link.queues).step_by(workers) {
        let (queue, receiving, transmitting) = socket::open(&link, number as u32)?;
        sockets.push((number as u32, queue.duplicate().map_err(link.failed("dup"))?));
        let zero_copy = queue.is_zero_copy().map_err(link.failed("XDP_OPTIONS"))?;
        if !zero_copy {
            mode = Mode::Copy;
        }
        let queue = Arc::new(queue);
        queues.push(receive::Queue::new(Arc::clone(&queue), receiving));
        // One queue transmits for the worker.
        transmitter.get_or_insert_with(|| {
            let cutter = (!zero_copy && config.kernel_cuts).then(|| af_packet::transmitter(Arc::clone(&raw)));
            Box::new(transmit::Transmitter::new(queue, transmitting, info.mtu, cutter))
        });
    }
    // A worker without a queue receives frames from other workers only.
    let transmitter = transmitter.unwrap_or_else(|| af_packet::transmitter(Arc::clone(&raw)));
    let handoff = config.sharing.as_ref().map(|sharing| sharing.handoffs.end(sharing.worker));
    let receiver = receive::Receiver::new(queues, handoff, link.is_veth, raw);
    let receiver = receiver.map_err(link.failed("epoll_create1"))?;
    let port = LanPort { info, receiver: Box::new(receiver), transmitter };
    Ok(Port { port, sockets, mode })
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
