//! Receives datagrams of processes, and the descriptors sent with them.
//!
//! Before a process is admitted, no descriptor is received: the control buffer has no room for one. From an
//! admitted process one kind is accepted: an end of a pair of Unix sockets that the process itself created.
//! All others are closed. This runs on the [helper](super::helper) of the process's user.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use csp_vi::kernel::{Credentials, peer_credentials, take_descriptors};
use csp_wire::agent::MESSAGE_LEN_MAX;
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, sockopt};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::helper::Helpers;

/// The superuser.
const ROOT: u32 = 0;

/// A datagram of an admitted process; empty if the process has closed its socket.
#[derive(Debug)]
pub(super) struct Received {
    pub datagram: Vec<u8>,
    /// An end of a socket pair that the process created.
    pub socket: Option<OwnedFd>,
}

/// Waits until a datagram has arrived, or the peer has closed its end. Peeking closes no descriptor, and the
/// wait can be cancelled without losing anything.
pub(super) async fn readable(socket: &UnixStream) -> io::Result<()> {
    let mut peek = || {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(socket, &mut [0u8; 1][..], flags).map(drop).map_err(io::Error::from)
    };
    socket.async_io(Interest::READABLE, &mut peek).await
}

fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the helper of the process's user is busy")
}

/// Receives the first datagram of a process that is not admitted yet; the kernel drops descriptors sent with
/// it.
pub(super) async fn receive_first(helpers: &Helpers, socket: &UnixStream, uid: u32) -> io::Result<Vec<u8>> {
    readable(socket).await?;
    let socket = socket.as_fd().try_clone_to_owned()?;
    let receive = move || {
        let mut buffer = vec![0; MESSAGE_LEN_MAX];
        let (len, _) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
        buffer.truncate(len);
        Ok(buffer)
    };
    helpers.run(uid, receive).await.ok_or_else(too_late)?
}

/// Receives the next datagram of an admitted process; one has [arrived](readable).
pub(super) async fn receive(
    helpers: &Helpers,
    socket: &UnixStream,
    peer: Credentials,
) -> io::Result<Received> {
    let socket = socket.as_fd().try_clone_to_owned()?;
    helpers.run(peer.uid, move || receive_with_socket(&socket, peer)).await.ok_or_else(too_late)?
}

fn receive_with_socket(socket: &OwnedFd, peer: Credentials) -> io::Result<Received> {
    let mut datagram = vec![0; MESSAGE_LEN_MAX];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [io::IoSliceMut::new(&mut datagram)];
    let len = rustix::net::recvmsg(socket, parts, &mut control, flags)?.bytes;
    datagram.truncate(len);
    let given = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let socket = given.filter(|given| is_own_pair(given, peer));
    if let Some(socket) = &socket {
        // The custody reads from it and closes it on a thread that serves other users. Older kernels cannot
        // refuse descriptors.
        let _ = take_descriptors(socket, false);
    }
    Ok(Received { datagram, socket })
}

/// Returns whether this is an end of a pair of Unix stream sockets that this very process created
/// (socketpair(2) records the creator). Bytes written to it reach only processes to which the creator gave
/// the other end, and closing it never blocks. A process that attached as root may have taken another user's
/// identity since, as servers do.
fn is_own_pair(socket: &OwnedFd, peer: Credentials) -> bool {
    // For a descriptor that is no socket the kernel returns ENOTSOCK without calling its file system.
    sockopt::socket_domain(socket).is_ok_and(|family| family == AddressFamily::UNIX)
        && sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM)
        && peer_credentials(socket)
            .is_ok_and(|made| made.pid == peer.pid && (made.uid == peer.uid || peer.uid == ROOT))
        && sockopt::socket_acceptconn(socket).is_ok_and(|listens| !listens)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn own() -> Credentials {
        let (a, _b) = UnixStream::pair().unwrap();
        peer_credentials(&a).unwrap()
    }

    #[test]
    fn only_a_stream_pair_of_the_process_itself_is_taken() {
        let (pair, _other) = UnixStream::pair().unwrap();
        let pair = OwnedFd::from(pair);
        assert!(is_own_pair(&pair, own()));
        let (uid, pid) = (own().uid, own().pid);
        assert!(!is_own_pair(&pair, Credentials { pid: pid + 1, ..own() }), "another process's");
        assert!(!is_own_pair(&pair, Credentials { uid: uid + 1, ..own() }), "another user's");
        assert!(
            is_own_pair(&pair, Credentials { uid: ROOT, ..own() }),
            "the process was root when it attached"
        );
        let path = std::env::temp_dir().join(format!("csp-own-pair-{}", std::process::id()));
        let foreign: [OwnedFd; 4] = [
            std::fs::File::open("/dev/null").unwrap().into(),
            std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(),
            std::os::unix::net::UnixDatagram::pair().unwrap().0.into(),
            UnixListener::bind(&path).unwrap().into(),
        ];
        std::fs::remove_file(path).unwrap();
        for descriptor in foreign {
            assert!(!is_own_pair(&descriptor, own()), "{descriptor:?}");
        }
    }
}
