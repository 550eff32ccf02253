//! The behaviour of the exported functions on accelerated sockets.

pub mod bind;
pub mod carried;
pub mod carried_io;
pub mod descriptors;
pub mod ending;
pub mod epoll;
pub mod epoll_sleep;
pub mod error_events;
pub mod io;
pub mod lacking;
pub mod listen;
pub mod names;
pub mod options;
pub mod poll;
pub mod rights;
pub mod select;
pub mod sockets;
pub mod streams;
pub mod tcp_info;
pub mod transfer;
pub mod watched;
pub mod zerocopy;

use csp_types::Instant;
use libc::c_int;

use crate::description::{Description, DescriptionId, Kind};
use crate::engine::Engine;
use crate::sys::{self, Errno};

/// The current time, as the application end expects it.
pub fn now() -> Instant {
    Instant::from_nanos(sys::monotonic_nanos())
}

/// A result in the C library's form: -1 and errno.
pub fn c_result(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// Like [`c_result`], for functions that return an int.
pub fn c_int_result(result: Result<usize, Errno>) -> c_int {
    c_result(result) as c_int
}

/// Not an error number: the call is to be passed to the kernel.
pub const PASS: Errno = Errno::MAX;

impl Engine {
    /// The flow of a description that is a connection.
    pub fn flow(&mut self, id: DescriptionId) -> Result<csp_app::FlowId, Errno> {
        match self.descriptions.get(id.index).map(|d| &d.kind) {
            Some(Kind::Flow(flow)) => Ok(*flow),
            Some(Kind::Lost) => {
                self.counters.inherited_connections_lost += 1;
                Err(libc::EBADF)
            }
            // The agent has taken it over since the call began: the call is passed to the kernel.
            Some(Kind::Carried { .. }) => Err(PASS),
            Some(Kind::Listener(_) | Kind::Candidate) => Err(libc::ENOTCONN),
            Some(Kind::Epoll(_) | Kind::KernelSet) => Err(libc::EINVAL),
            None => Err(libc::EBADF),
        }
    }

    /// Whether a description is an epoll set, whose own reads and writes are passed to the kernel.
    pub fn is_epoll(&self, index: usize) -> bool {
        matches!(self.descriptions.get(index), Some(Description { kind: Kind::Epoll(_), .. }))
    }
}
