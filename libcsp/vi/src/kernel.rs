//! Socket options that the safe libraries lack: the peer's credentials, the network namespace, the refusal of
//! descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, as the kernel recorded it at connect(2) (SO_PEERCRED,
/// unix(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its process id; 0 if it is outside the caller's PID namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
}

/// Returns the credentials of a Unix socket's peer.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let none = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let found = option(socket, libc::SO_PEERCRED, none)?;
    Ok(Credentials { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid, gid: found.gid })
}

/// Returns the cookie of a socket's network namespace, which the kernel never reuses (SO_NETNS_COOKIE, Linux
/// 5.14).
pub fn network_of(socket: impl AsFd) -> io::Result<u64> {
    option(socket, libc::SO_NETNS_COOKIE, 0u64)
}

/// SO_PASSRIGHTS (Linux 6.16), which the libc crate does not have yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Sets whether peers of a Unix socket, and of sockets that it accepts from now on, may send descriptors to
/// it; otherwise their sendmsg(2) fails with EPERM. Kernels before Linux 6.16 do not know the option:
/// ENOPROTOOPT.
pub fn take_descriptors(socket: impl AsFd, take: bool) -> io::Result<()> {
    let (fd, level, value) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::c_int::from(take));
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads the `len` bytes of `value`.
    match unsafe { libc::setsockopt(fd, level, SO_PASSRIGHTS, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option of SOL_SOCKET; `T` consists of integers.
fn option<T: Copy>(socket: impl AsFd, name: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let (fd, level) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: `value` has `len` writable bytes, the kernel writes no more, and any bytes are valid integers.
    match unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "the test asks the kernel about sockets of its own")]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pair_s_peer_is_who_made_it_and_sockets_of_a_namespace_share_its_number() {
        let (a, _b) = UnixStream::pair().unwrap();
        // SAFETY: no pointers.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        assert_eq!(peer_credentials(&a).unwrap(), Credentials { pid: std::process::id(), uid, gid });
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] = listeners.map(|listener| network_of(&listener).unwrap());
        assert_eq!(first, second);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(network_of(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
