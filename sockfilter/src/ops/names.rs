//! getsockname and getpeername.

use libc::{c_int, sockaddr, socklen_t};

use super::c_int_result;
use crate::address;
use crate::description::Kind;
use crate::engine::ENGINE;
use crate::fdtable::{self, Entry};
use crate::lock;

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// getsockname
    Local,
    /// getpeername
    Remote,
}

/// The name of an accelerated connection; `None` if the kernel knows it (listeners, epoll).
///
/// # Safety
/// As getsockname: `into` and `len` must be writable for the lengths that they state.
pub unsafe fn name(fd: c_int, end: End, into: *mut sockaddr, len: *mut socklen_t) -> Option<c_int> {
    if lock::inside() {
        return None;
    }
    let found = ENGINE.with(|engine| {
        let (Entry::Ours(index) | Entry::Carried(index)) = fdtable::entry(fd) else { return None };
        let d = engine.descriptions.get(index)?;
        let flow = match d.kind {
            Kind::Flow(flow) => flow,
            Kind::Carried { local, .. } if end == End::Local => return Some(Ok((local, d.family))),
            Kind::Carried { remote, .. } => return Some(Ok((remote, d.family))),
            _ => return None,
        };
        let (local, remote, connected) = engine.link.as_ref()?.app.addresses(flow)?;
        Some(match end {
            End::Local => Ok((local, d.family)),
            End::Remote if connected => Ok((remote, d.family)),
            End::Remote => Err(libc::ENOTCONN),
        })
    })?;
    Some(match found {
        Ok((name, family)) => {
            // SAFETY: by the caller's contract `into` is writable for `*len` bytes.
            let written = unsafe { address::write(name, family, into, len) };
            c_int_result(written.map(|()| 0))
        }
        Err(errno) => c_int_result(Err(errno)),
    })
}
