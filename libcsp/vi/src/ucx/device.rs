//! The network interface of an address.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

use super::sys::system;
use crate::ViError;

/// Returns the name of the interface that has this address.
pub(super) fn of_address(address: IpAddr) -> Result<String, ViError> {
    let mut list: *mut libc::ifaddrs = null_mut();
    // SAFETY: `list` is a local that outlives the call.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(system("getifaddrs", std::io::Error::last_os_error().to_string()));
    }
    let mut found = None;
    let mut at = list;
    // SAFETY: the list that getifaddrs has returned ends with a null pointer and is freed below, after its
    // last use. Its names end with a zero byte, and its addresses are null or of the length that their family
    // has.
    unsafe {
        while let Some(entry) = at.as_ref() {
            if ip_of(entry.ifa_addr) == Some(address) {
                found = CStr::from_ptr(entry.ifa_name).to_str().ok().map(str::to_owned);
                break;
            }
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    // The label of an alias of IPv4 has a suffix.
    let name = found.map(|name| name.split(':').next().unwrap_or_default().to_owned());
    name.ok_or_else(|| system("getifaddrs", format!("no interface of this host has the address {address}")))
}

/// Returns the IP address in a socket address.
///
/// # Safety
/// `address` is null, or points to a socket address of the length that its family has.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees that a pointer that is not null points to a socket address, all of which
    // begin with the family.
    let family = i32::from(unsafe { address.as_ref()? }.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: by its family it is a sockaddr_in; the read needs no alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: by its family it is a sockaddr_in6; the read needs no alignment.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}
