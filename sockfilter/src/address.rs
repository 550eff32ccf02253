//! Conversion of socket addresses between the program's C structures and Rust types.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{c_int, sockaddr, socklen_t};

use crate::memory::is_unmappable;
use crate::sys::{self, Errno, syscall};

/// Reads an AF_INET or AF_INET6 address; `None` for others and for short ones.
///
/// # Safety
/// `address` must point to `len` readable bytes, or be [nowhere](is_unmappable).
pub unsafe fn parse(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if is_unmappable(address) || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the family's two bytes are readable; unaligned reads are allowed.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the length was checked.
            let a = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(a.sin_port)))
        }
        libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: the length was checked.
            let a = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(SocketAddr::new(Ipv6Addr::from(a.sin6_addr.s6_addr).into(), u16::from_be(a.sin6_port)))
        }
        _ => None,
    }
}

/// Writes an address as the kernel does: truncated to `*len`, which is then set to its full length. A socket
/// of family AF_INET6 sees IPv4 peers as mapped addresses. Errors: EFAULT, EINVAL for a negative length.
///
/// # Safety
/// `into` must point to `*len` writable bytes, `len` to a readable and writable length, or either be
/// [nowhere](is_unmappable).
pub unsafe fn write(
    address: SocketAddr,
    family: c_int,
    into: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if is_unmappable(len) {
        return Err(libc::EFAULT);
    }
    // SAFETY: by the caller's contract `len` is readable.
    let room = unsafe { len.read_unaligned() };
    if room > c_int::MAX as socklen_t {
        return Err(libc::EINVAL);
    }
    if room > 0 && is_unmappable(into) {
        return Err(libc::EFAULT);
    }
    let mut storage = [0u8; 28];
    let full = fill(address, family, &mut storage);
    // SAFETY: by the caller's contract `into` is writable for `*len` bytes, at most as many are written, and
    // `len` is writable.
    unsafe {
        if room > 0 {
            core::ptr::copy_nonoverlapping(storage.as_ptr(), into.cast::<u8>(), full.min(room as usize));
        }
        len.write_unaligned(full as socklen_t);
    }
    Ok(())
}

fn fill(address: SocketAddr, family: c_int, storage: &mut [u8; 28]) -> usize {
    let port = address.port().to_be_bytes();
    let ip = match (address.ip(), family) {
        (IpAddr::V4(ip), libc::AF_INET6) => IpAddr::V6(ip.to_ipv6_mapped()),
        (ip, _) => ip,
    };
    storage[2..4].copy_from_slice(&port);
    match ip {
        IpAddr::V4(ip) => {
            storage[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            storage[4..8].copy_from_slice(&ip.octets());
            16
        }
        IpAddr::V6(ip) => {
            storage[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            storage[8..24].copy_from_slice(&ip.octets());
            28
        }
    }
}

/// The address to which a socket is bound, as reported by the kernel.
pub fn bound(fd: c_int) -> Result<SocketAddr, Errno> {
    let mut storage = [0u64; 16];
    let mut len = size_of_val(&storage) as socklen_t;
    // SAFETY: `storage` has `len` writable bytes.
    unsafe { syscall!(libc::SYS_getsockname, fd, storage.as_mut_ptr(), &raw mut len) }?;
    // SAFETY: the kernel filled in `len` bytes at most.
    unsafe { parse(storage.as_ptr().cast(), len) }.ok_or(libc::EAFNOSUPPORT)
}

/// Converts an IPv4-mapped address to IPv4. Other addresses are unchanged.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The destination of a connection to `address`: the unspecified address means this host.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
        _ => address,
    }
}

/// Whether an address belongs to one of this host's interfaces: the kernel would then connect from the
/// address itself.
pub fn is_own(address: SocketAddr) -> bool {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut storage = [0u8; 28];
    let len = fill(address, family, &mut storage);
    // SAFETY: no pointers.
    let Ok(fd) = (unsafe { syscall!(libc::SYS_socket, family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
    else {
        return false;
    };
    let fd = fd as c_int;
    // Connecting a datagram socket sends nothing: it only selects a route, and with it the source address.
    // SAFETY: `storage` has `len` readable bytes.
    let routed = unsafe { syscall!(libc::SYS_connect, fd, storage.as_ptr(), len) };
    let source = routed.and_then(|_| bound(fd));
    sys::close(fd);
    source.is_ok_and(|source| source.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_are_cut_as_the_kernel_cuts() {
        for (text, family) in [("10.1.2.3:80", libc::AF_INET), ("[2001:db8::1]:443", libc::AF_INET6)] {
            let address: SocketAddr = text.parse().unwrap();
            let mut storage = [0u64; 4];
            let mut len = 32;
            // SAFETY: 32 bytes are there.
            unsafe { write(address, family, storage.as_mut_ptr().cast(), &mut len) }.unwrap();
            // SAFETY: `len` bytes were written.
            assert_eq!(unsafe { parse(storage.as_ptr().cast(), len) }, Some(address));
            let full = len;
            let mut short = [0xffu8; 32];
            let mut room = 4;
            // SAFETY: 4 bytes are there.
            unsafe { write(address, family, short.as_mut_ptr().cast(), &mut room) }.unwrap();
            assert_eq!((room, short[4]), (full, 0xff));
            // SAFETY: too short to be an address.
            assert_eq!(unsafe { parse(short.as_ptr().cast(), 4) }, None);
        }
        let mut storage = [0u64; 4];
        let mut len = 32;
        // SAFETY: 32 bytes are there.
        unsafe {
            write("10.1.2.3:80".parse().unwrap(), libc::AF_INET6, storage.as_mut_ptr().cast(), &mut len)
        }
        .unwrap();
        // SAFETY: `len` bytes were written.
        let mapped = unsafe { parse(storage.as_ptr().cast(), len) }.unwrap();
        assert_eq!(mapped.to_string(), "[::ffff:10.1.2.3]:80");
        assert_eq!(canonical(mapped).to_string(), "10.1.2.3:80");
    }
}
