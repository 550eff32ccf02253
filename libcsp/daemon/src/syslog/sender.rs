//! Sends messages as datagrams.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Time that a send may wait for room in the receiver's queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest message: what receivers over UDP should take (RFC 5426 §3.2), and what those of this host do.
const UDP_LEN_MAX: usize = 2048;
const UNIX_LEN_MAX: usize = 8192;

/// Where messages go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A Unix socket of datagrams.
    Unix(PathBuf),
    /// UDP.
    Udp(SocketAddr),
}

impl Target {
    /// Returns the length of the longest message that is sent there, in bytes.
    pub fn len_max(&self) -> usize {
        match self {
            Target::Unix(_) => UNIX_LEN_MAX,
            Target::Udp(_) => UDP_LEN_MAX,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "{}", path.display()),
            Target::Udp(address) => write!(f, "udp://{address}"),
        }
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let udp = |address: &str| address.parse().ok().filter(|address: &SocketAddr| address.port() > 0);
        let target = match text.strip_prefix("udp://") {
            Some(address) => udp(address).map(Target::Udp),
            None => text.starts_with('/').then(|| Target::Unix(PathBuf::from(&text))),
        };
        target.ok_or_else(|| {
            serde::de::Error::custom(format!(
                "{text:?} is no receiver of syslog; allowed are a socket's path such as /dev/log, and \
                 udp://ADDRESS:PORT such as udp://10.77.0.9:514"
            ))
        })
    }
}

#[derive(Debug)]
enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Socket {
    fn open(target: &Target) -> io::Result<Socket> {
        match target {
            Target::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Socket::Unix(socket))
            }
            Target::Udp(address) => {
                let any: SocketAddr = match address.is_ipv4() {
                    true => ([0, 0, 0, 0], 0).into(),
                    false => ([0; 8], 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Socket::Udp(socket))
            }
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Unix(socket) => socket.send(message).map(drop),
            Socket::Udp(socket) => socket.send(message).map(drop),
        }
    }
}

/// Sends messages to one receiver. It connects when first needed, and again when the receiver was restarted.
#[derive(Debug)]
pub struct Sender {
    target: Target,
    socket: Option<Socket>,
}

impl Sender {
    /// Returns a sender that has not connected yet.
    pub fn new(target: Target) -> Sender {
        Sender { target, socket: None }
    }

    /// Returns where it sends.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a message. Waits up to a second for room in the receiver's queue (a Unix socket); over UDP
    /// nobody says whether it arrives.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.socket {
            match socket.send(message) {
                Ok(()) => return Ok(()),
                // Another connection has no more room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The receiver was restarted, or did not take the message before (UDP).
                Err(_) => self.socket = None,
            }
        }
        let socket = Socket::open(&self.target)?;
        socket.send(message)?;
        self.socket = Some(socket);
        Ok(())
    }
}
