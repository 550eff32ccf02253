//! The LAN ports of all workers. Opening them needs privileges; using them does not.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use csp_daemon::{DaemonError, KeyFile};
use csp_lan::LanPort;
use csp_lan::af_packet::{self, AfPacketConfig, Fanout};
use csp_lan::af_xdp::{self, AfXdpConfig, Handoffs, Sharing};
use csp_lan::tap::Tap;
use csp_transport::Holder;
use csp_types::Role;

use super::config::{Config, LanSection, PortKind};

/// The open ports of a node, and its keys, which are read first: their faults are the operator's to mend.
pub struct Lan {
    pub(super) keys: KeyFile,
    /// Indexed by worker number, then by port number.
    pub(super) ports: Vec<Vec<LanPort>>,
    /// The sockets of AF_XDP ports.
    pub(super) sockets: Vec<PortSocket>,
    /// For each AF_XDP port: the path of its frames back to the host's kernel.
    pub(super) reinjection: Vec<Option<Tap>>,
    /// Why no program may be loaded into the kernel; `None` if that may be tried.
    pub(super) no_programs: Option<&'static str>,
}

/// An AF_XDP socket, to be registered with the program that delivers its frames.
#[derive(Debug)]
pub struct PortSocket {
    /// Number of the port.
    pub port: usize,
    /// The receive queue.
    pub queue: u32,
    /// The socket.
    pub socket: OwnedFd,
}

impl Lan {
    /// Opens the ports of a configuration. Needs CAP_NET_RAW; CAP_NET_ADMIN for buffers above the system's
    /// limit and for the paths back to the kernel.
    ///
    /// # Errors
    /// The key file is wrong, or a port cannot be opened.
    pub fn open(config: &Config) -> Result<Self, DaemonError> {
        let holder = Holder::Node(Role::NetworkNode, config.node.id);
        let keys = KeyFile::load(&config.node.cluster_key_file(Role::NetworkNode), holder)?;
        let (mut sockets, handoffs) = (Vec::new(), handoffs(config)?);
        let open = |worker| open_ports(config, worker, &handoffs, &mut sockets);
        let ports = (0..config.workers).map(open).collect::<Result<_, _>>()?;
        let reinjection = config.lan.iter().map(open_reinjection).collect();
        Ok(Lan { keys, ports, sockets, reinjection, no_programs: None })
    }

    /// Returns whether the ports work only with a program in the driver: those of AF_XDP.
    pub fn needs_programs(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Has the node load no program into the kernel, and say `why` where it would have: rules of level 1 stay
    /// at level 2.
    pub fn without_programs(&mut self, why: &'static str) {
        self.no_programs = Some(why);
    }
}

/// Opens the path back to the kernel for an AF_XDP port. If that fails, the node continues without it, and
/// its rules see fewer packets.
fn open_reinjection(lan: &LanSection) -> Option<Tap> {
    if lan.port != PortKind::AfXdp {
        return None;
    }
    let interface = &lan.interface;
    match Tap::open(interface) {
        Ok(tap) => {
            let tap_name = tap.name();
            tracing::info!(
                interface,
                tap = tap_name,
                "packets that plug-ins let pass go to the host's kernel"
            );
            Some(tap)
        }
        Err(error) => {
            tracing::warn!(interface, %error, "no way back to the host's kernel: at this port rules of levels 2 and 3 see only frames for the node's addresses");
            None
        }
    }
}

/// Returns the rings between workers for each AF_XDP port.
fn handoffs(config: &Config) -> Result<Vec<Option<Arc<Handoffs>>>, DaemonError> {
    let of = |lan: &LanSection| {
        let wanted = config.workers > 1 && lan.port == PortKind::AfXdp;
        wanted.then(|| Handoffs::new(config.workers)).transpose()
    };
    config.lan.iter().map(of).collect::<Result<_, _>>().map_err(unavailable)
}

fn unavailable(error: impl core::fmt::Display) -> DaemonError {
    DaemonError::Unavailable(format!("lan: {error}"))
}

fn open_ports(
    config: &Config,
    worker: u8,
    handoffs: &[Option<Arc<Handoffs>>],
    sockets: &mut Vec<PortSocket>,
) -> Result<Vec<LanPort>, DaemonError> {
    let open = |(at, lan): (usize, &LanSection)| match lan.port {
        PortKind::AfPacket => {
            let mut port = AfPacketConfig::new(&lan.interface);
            if config.workers > 1 {
                // Different for each port, and for each daemon in this network namespace unless process ids
                // collide.
                port.fanout =
                    Some(Fanout { group: (std::process::id() as u16) ^ ((at as u16) << 12), worker });
            }
            af_packet::open(&port).map_err(unavailable)
        }
        PortKind::AfXdp => {
            let sharing = handoffs[at].clone().map(|handoffs| Sharing { worker, handoffs });
            let port = af_xdp::open(&AfXdpConfig { sharing, ..AfXdpConfig::new(&lan.interface) });
            let af_xdp::Port { port, sockets: own, mode } = port.map_err(unavailable)?;
            tracing::info!(
                interface = lan.interface,
                worker,
                queues = own.len(),
                mode = mode.as_str(),
                "AF_XDP"
            );
            sockets.extend(own.into_iter().map(|(queue, socket)| PortSocket { port: at, queue, socket }));
            Ok(port)
        }
    };
    config.lan.iter().enumerate().map(open).collect()
}
