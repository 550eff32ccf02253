//! Socket options that accelerated sockets lack (`csp_app::options`). A socket with such an option stays in
//! the kernel. Setting one on an accelerated socket is refused, since the option would have no effect there.

use std::net::SocketAddr;

use csp_app::options::{self, Trace, Treatment};
use csp_wire::agent::page::{Reason, SocketEntry, SocketKind};
use libc::{c_int, c_void, socklen_t};

use super::sockets::option_value;
use crate::description::Kind;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::inherit::Mark;
use crate::lock;
use crate::sys::{self, Errno, syscall};

/// Level and number of an option.
pub type Name = (u16, u16);

/// Which options that accelerated sockets lack a socket may have, before it is accelerated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LackingOptions {
    /// This process made the socket and set no option that accelerated sockets lack.
    #[default]
    Nothing,
    /// The program set such an option, which can be read back, or another process made the socket.
    Perhaps,
    /// The program set this option, which cannot be read back.
    Once(Name),
}

/// Why a socket stays in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unaccelerated {
    /// The reason.
    pub reason: Reason,
    /// The option, if that is the reason. `None` with [`Reason::Lacking`]: SIGIO (O_ASYNC).
    pub option: Option<Name>,
}

impl Unaccelerated {
    /// The entry of the process page for a socket that stays in the kernel.
    pub fn entry(self, kind: SocketKind, fd: c_int, local: SocketAddr, remote: SocketAddr) -> SocketEntry {
        SocketEntry { option: self.option, ..SocketEntry::new(kind, self.reason, fd as u32, local, remote) }
    }
}

impl From<Reason> for Unaccelerated {
    fn from(reason: Reason) -> Self {
        Unaccelerated { reason, option: None }
    }
}

fn lacking(option: Option<Name>) -> Unaccelerated {
    Unaccelerated { reason: Reason::Lacking, option }
}

impl Engine {
    /// Checks that a socket has no property that accelerated sockets lack.
    pub fn check_lacking(&self, index: usize, fd: c_int) -> Result<(), Unaccelerated> {
        let Some(d) = self.descriptions.get(index) else { return Ok(()) };
        of(fd, d.family, d.lacking_options).map_or(Ok(()), Err)
    }
}

fn of(fd: c_int, family: c_int, lacking_options: LackingOptions) -> Option<Unaccelerated> {
    // SAFETY: no pointers.
    let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFL) }.unwrap_or(0);
    if flags & libc::O_ASYNC as usize != 0 {
        return Some(lacking(None));
    }
    // A device may come without setsockopt: by a VRF's control group, or by the scope of a link-local
    // address. SO_BINDTOIFINDEX reads it whichever option set it; SO_BINDTODEVICE is the name that people
    // know.
    const SO_BINDTOIFINDEX: c_int = 62;
    if option_value::<c_int>(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX) != 0 {
        return Some(lacking(Some((options::SOCKET as u16, libc::SO_BINDTODEVICE as u16))));
    }
    match lacking_options {
        LackingOptions::Nothing => None,
        LackingOptions::Once(name) => Some(lacking(Some(name))),
        LackingOptions::Perhaps => first_that_differs(fd, family),
    }
}

/// The first option of [`Trace::Value`] whose value differs from that of a new socket.
fn first_that_differs(fd: c_int, family: c_int) -> Option<Unaccelerated> {
    let fresh = Scratch::new(family).ok()?;
    let by_value = |option: &&options::SocketOption| option.treatment == Treatment::Kernel(Trace::Value);
    let differs = |option: &&options::SocketOption| {
        Value::of(fd, option.level, option.number) != Value::of(fresh.0, option.level, option.number)
    };
    let option = options::TABLE.iter().filter(by_value).find(differs)?;
    Some(lacking(Some((option.level as u16, option.number as u16))))
}

/// A new TCP socket, closed when dropped.
pub struct Scratch(pub c_int);

impl Scratch {
    /// A new socket of a family.
    pub fn new(family: c_int) -> Result<Self, Errno> {
        // SAFETY: no pointers.
        let fd = unsafe { syscall!(libc::SYS_socket, family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }?;
        Ok(Scratch(fd as c_int))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Bytes of an option's value that are compared.
const VALUE_LEN: usize = 64;

/// The value of an option, or the error of reading it.
#[derive(PartialEq, Eq)]
struct Value(Result<([u8; VALUE_LEN], usize), Errno>);

impl Value {
    fn of(fd: c_int, level: c_int, name: c_int) -> Value {
        if level == libc::SOL_SOCKET && matches!(name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) {
            return Value(filter_len(fd).map(|len| ([0; VALUE_LEN], len)));
        }
        let mut value = [0; VALUE_LEN];
        let mut len = VALUE_LEN as socklen_t;
        // SAFETY: `value` has `len` writable bytes.
        let read =
            unsafe { syscall!(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len) };
        Value(read.map(|_| (value, len as usize)))
    }
}

/// Instructions of the program's socket filter; the filter's own mark is not one. Error: EACCES for a filter
/// in eBPF.
fn filter_len(fd: c_int) -> Result<usize, Errno> {
    if Mark::of(fd).is_some() {
        return Ok(0);
    }
    let (level, name, none) = (libc::SOL_SOCKET, libc::SO_GET_FILTER, core::ptr::null_mut::<c_void>());
    let mut len: socklen_t = 0;
    // SAFETY: without room the kernel returns the number of instructions only.
    unsafe { syscall!(libc::SYS_getsockopt, fd, level, name, none, &raw mut len) }?;
    Ok(len as usize)
}

/// Records an option that the program has set on a socket that may become accelerated.
pub fn note(fd: c_int, level: c_int, name: c_int) {
    let Treatment::Kernel(trace) = options::treatment(level, name) else { return };
    if lock::inside() {
        return;
    }
    ENGINE.with(|engine| {
        let Entry::Candidate(index) = fdtable::entry(fd) else { return };
        let Some(d) = engine.descriptions.get_mut(index) else { return };
        d.lacking_options = match (d.lacking_options, trace) {
            (LackingOptions::Once(first), _) => LackingOptions::Once(first),
            (_, Trace::Value) => LackingOptions::Perhaps,
            (_, Trace::Call) => {
                let option = (level as u16, name as u16);
                // After exec, or when passed through a Unix socket, only the socket itself carries this
                // information.
                if filter_len(fd) == Ok(0) {
                    let _ = Mark::Kernel { option }.put(fd);
                }
                LackingOptions::Once(option)
            }
        };
    });
}

/// Handles an option that the program sets on an accelerated or carried socket. `None`: the socket has it, or
/// it changes nothing.
///
/// # Safety
/// `value` must have `len` readable bytes.
pub unsafe fn refuse(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Option<Result<usize, Errno>> {
    // The program must not remove the filter's own mark.
    if (level, name) == (libc::SOL_SOCKET, libc::SO_DETACH_FILTER) {
        return family(fd).map(|_| Err(libc::ENOENT));
    }
    let Treatment::Kernel(trace) = options::treatment(level, name) else { return None };
    let family = family(fd)?;
    let scratch = match Scratch::new(family) {
        Ok(scratch) => scratch,
        Err(errno) => return Some(Err(errno)),
    };
    // SAFETY: by the caller's contract `value` is readable for `len` bytes.
    if let Err(errno) = unsafe { syscall!(libc::SYS_setsockopt, scratch.0, level, name, value, len) } {
        return Some(Err(errno));
    }
    let unchanged = trace == Trace::Value
        && Scratch::new(family)
            .is_ok_and(|fresh| Value::of(scratch.0, level, name) == Value::of(fresh.0, level, name));
    Some(if unchanged { Ok(0) } else { Err(libc::EOPNOTSUPP) })
}

/// Whether a query is for the socket filter that the program attached: an accelerated or carried socket has
/// none, but may have the filter's mark.
pub fn is_filter_query(fd: c_int, level: c_int, name: c_int) -> bool {
    (level, name) == (libc::SOL_SOCKET, libc::SO_GET_FILTER) && family(fd).is_some()
}

/// The family of an accelerated or carried socket; `None` for epoll sets and others.
fn family(fd: c_int) -> Option<c_int> {
    let (Entry::Ours(index) | Entry::Carried(index)) = fdtable::entry(fd) else { return None };
    if lock::inside() {
        return None;
    }
    let socket = |engine: &mut Engine| {
        let d = engine.descriptions.get(index)?;
        matches!(d.kind, Kind::Listener(_) | Kind::Flow(_) | Kind::Carried { .. } | Kind::Lost)
            .then_some(d.family)
    };
    ENGINE.with(socket)
}

#[cfg(test)]
mod tests;
