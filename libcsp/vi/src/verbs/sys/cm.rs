//! The declarations of `rdma/rdma_cma.h` that the provider uses.

use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;

use super::ibv::{Context, Qp};

#[repr(C)]
pub(in crate::verbs) struct EventChannel {
    pub fd: c_int,
}

#[repr(C)]
pub(in crate::verbs) struct CmId {
    /// librdmacm's own context of the device, once the id is bound to one.
    pub verbs: *mut Context,
    channel: *mut EventChannel,
    /// For use by the application.
    pub context: *mut c_void,
    qp: *mut Qp,
    /// Source and destination, and the path.
    route: [u64; 39],
    ps: c_uint,
    pub port_num: u8,
}

#[repr(C)]
pub(in crate::verbs) struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
pub(in crate::verbs) struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_uint,
    pub status: c_int,
    /// The peer's parameters, for the events of an RC connection.
    pub conn: ConnParam,
}

pub(in crate::verbs) const PS_TCP: c_uint = 0x0106;

pub(in crate::verbs) const ADDR_RESOLVED: c_uint = 0;
pub(in crate::verbs) const ADDR_ERROR: c_uint = 1;
pub(in crate::verbs) const ROUTE_RESOLVED: c_uint = 2;
pub(in crate::verbs) const ROUTE_ERROR: c_uint = 3;
pub(in crate::verbs) const CONNECT_REQUEST: c_uint = 4;
pub(in crate::verbs) const CONNECT_RESPONSE: c_uint = 5;
pub(in crate::verbs) const CONNECT_ERROR: c_uint = 6;
pub(in crate::verbs) const UNREACHABLE: c_uint = 7;
pub(in crate::verbs) const REJECTED: c_uint = 8;
pub(in crate::verbs) const DISCONNECTED: c_uint = 10;
pub(in crate::verbs) const DEVICE_REMOVAL: c_uint = 11;

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(CmId, port_num) == 348 && offset_of!(CmId, ps) == 344);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);
    assert!(offset_of!(CmEvent, conn) == 24);
};

/// Converts a socket address to the kernel's format, IPv6 with its scope.
pub(in crate::verbs) fn socket_address(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are valid socket addresses. `storage` is a local, large and aligned enough for
    // both families, and `at` points to it.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let at = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => {
                let mut to: libc::sockaddr_in = std::mem::zeroed();
                to.sin_family = libc::AF_INET as u16;
                to.sin_port = v4.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                at.cast::<libc::sockaddr_in>().write(to);
            }
            SocketAddr::V6(v6) => {
                let mut to: libc::sockaddr_in6 = std::mem::zeroed();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_port = v6.port().to_be();
                to.sin6_addr.s6_addr = v6.ip().octets();
                to.sin6_scope_id = v6.scope_id();
                at.cast::<libc::sockaddr_in6>().write(to);
            }
        }
        storage
    }
}
