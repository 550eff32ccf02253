//! Socket addresses as the kernel and libraries take them.

use std::mem::zeroed;
use std::net::SocketAddr;

/// Returns a `sockaddr` (socket(7)) and its length in bytes.
pub(crate) fn socket_address(address: SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: all-zero bytes are valid socket addresses. `storage` is a local, large and aligned enough for
    // both families, and `at` points to it.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let at = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => {
                let mut to: libc::sockaddr_in = zeroed();
                to.sin_family = libc::AF_INET as u16;
                to.sin_port = v4.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                at.cast::<libc::sockaddr_in>().write(to);
                (storage, size_of::<libc::sockaddr_in>() as u32)
            }
            SocketAddr::V6(v6) => {
                let mut to: libc::sockaddr_in6 = zeroed();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_port = v6.port().to_be();
                to.sin6_addr.s6_addr = v6.ip().octets();
                to.sin6_scope_id = v6.scope_id();
                at.cast::<libc::sockaddr_in6>().write(to);
                (storage, size_of::<libc::sockaddr_in6>() as u32)
            }
        }
    }
}
