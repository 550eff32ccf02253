//! bind() to an address that only the cluster has.
//!
//! A connection's local address is the service's, which no interface of this host has, so the kernel refuses
//! to bind to it. Some programs do bind to it: an FTP server binds its data listener to the address of the
//! control connection.

use std::net::{IpAddr, SocketAddr};

use libc::{c_int, sockaddr, socklen_t};

use crate::address;
use crate::description::Kind;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock;
use crate::sys::{Errno, syscall};

/// Called when the kernel has no such address (EADDRNOTAVAIL): binds nevertheless if a connection of this
/// process has it. `None`: the kernel's answer stands.
///
/// # Safety
/// As bind: `address` must point to `len` readable bytes.
pub unsafe fn again(fd: c_int, address: *const sockaddr, len: socklen_t) -> Option<Result<usize, Errno>> {
    if lock::inside() || !matches!(fdtable::entry(fd), Entry::Candidate(_)) {
        return None;
    }
    // SAFETY: by the caller's contract `address` is readable for `len` bytes.
    let name = unsafe { address::parse(address, len) }?;
    if !ENGINE.with(|engine| engine.has_connection_at(address::canonical(name).ip())) {
        return None;
    }
    let (level, option) = match name {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_FREEBIND),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
    };
    let on: c_int = 1;
    // SAFETY: the kernel reads `on`, and the address, which is readable for `len` bytes by this function's
    // contract.
    unsafe {
        syscall!(libc::SYS_setsockopt, fd, level, option, &raw const on, size_of::<c_int>()).ok()?;
        Some(syscall!(libc::SYS_bind, fd, address, len))
    }
}

impl Engine {
    fn has_connection_at(&mut self, ip: IpAddr) -> bool {
        let app = self.link.as_ref().map(|link| &link.app);
        let at = |local: SocketAddr| address::canonical(local).ip() == ip;
        self.descriptions.iter_mut().any(|(_, d)| match d.kind {
            Kind::Flow(flow) => app.and_then(|app| app.addresses(flow)).is_some_and(|(local, ..)| at(local)),
            Kind::Carried { local, .. } => at(local),
            _ => false,
        })
    }
}
