//! listen(): which sockets become accelerated listeners, and the state of their placeholders.

use core::sync::atomic::{AtomicBool, Ordering};
use std::net::SocketAddr;

use csp_app::Handle;
use csp_wire::agent::page::{Reason, SocketEntry, SocketKind};
use libc::{c_int, socklen_t};

use super::lacking::Unaccelerated;
use super::sockets::{LISTEN_LINK_WAIT_NS, option_value, refused_in_strict_mode};
use crate::description::{Kind, ListenState};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::inherit::Mark;
use crate::sys::{self, Errno, syscall};
use crate::{address, lock};

/// listen(); `None` means that the kernel has to do it.
pub fn listen(fd: c_int, backlog: c_int) -> Option<Result<usize, Errno>> {
    let backlog = u32::try_from(backlog).unwrap_or(0).max(1);
    if let Err(errno) = external_listener(fd) {
        return Some(Err(errno));
    }
    match fdtable::entry(fd) {
        Entry::Candidate(index) if !lock::inside() => ENGINE.with(|engine| {
            let why = match engine.start_listening(index, fd, backlog) {
                Ok(()) => return Some(Ok(0)),
                Err(NoListener::Refused(errno)) => return Some(Err(errno)),
                Err(NoListener::Kernel(why)) => why,
            };
            if refused_in_strict_mode(why.reason) {
                engine.show_kernel_socket(fd, kernel_entry(fd, why));
                return Some(Err(libc::ENETDOWN));
            }
            engine.kernel_listener(index, fd, why);
            None
        }),
        Entry::Ours(index) if !lock::inside() => {
            ENGINE.with(|engine| match engine.descriptions.get_mut(index) {
                Some(d) => match &mut d.kind {
                    Kind::Listener(state) => {
                        state.backlog = backlog;
                        Some(Ok(0))
                    }
                    _ => Some(Err(libc::EINVAL)),
                },
                None => None,
            })
        }
        _ => None,
    }
}

/// The state of a TCP socket without a peer, in Linux's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelState {
    /// Bound or not; it may listen or connect.
    Closed,
    /// The kernel accepts its connections.
    Listening,
}

/// Returns family and state of a TCP socket without a peer; `None` for connections and other descriptors.
pub fn kernel_state(fd: c_int) -> Option<(c_int, KernelState)> {
    const CLOSE: u8 = 7;
    const LISTEN: u8 = 10;
    let option = |name| option_value::<c_int>(fd, libc::SOL_SOCKET, name);
    if option(libc::SO_PROTOCOL) != libc::IPPROTO_TCP {
        return None;
    }
    // The state is the first byte.
    let state = match option_value::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO) {
        CLOSE => KernelState::Closed,
        LISTEN => KernelState::Listening,
        _ => return None,
    };
    Some((option(libc::SO_DOMAIN), state))
}

fn is_kernel_listener(fd: c_int) -> bool {
    matches!(kernel_state(fd), Some((_, KernelState::Listening)))
}

/// Called when a listener is about to be used that was created outside the filter and received over exec
/// (`LISTEN_FDS`) or a Unix socket. It stays in the kernel, since the process that created it may still use
/// it, and the process page shows it. Error: ENETDOWN in strict mode.
pub fn external_listener(fd: c_int) -> Result<(), Errno> {
    let Entry::Candidate(index) = fdtable::entry(fd) else { return Ok(()) };
    if lock::inside() || !is_kernel_listener(fd) {
        return Ok(());
    }
    ENGINE.with(|engine| {
        let reason = engine.why_external(fd);
        if !refused_in_strict_mode(reason) {
            engine.kernel_listener(index, fd, reason.into());
            return Ok(());
        }
        engine.show_kernel_socket(fd, kernel_entry(fd, reason.into()));
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            let at = address::bound(fd).map_or_else(|_| String::from("?"), |a| a.to_string());
            sys::log_line(&format!(
                "a listener that was made outside the filter is refused (strict mode): {at}"
            ));
        }
        Err(libc::ENETDOWN)
    })
}

/// Whether a socket has IPV6_V6ONLY.
pub fn is_v6_only(fd: c_int, family: c_int) -> bool {
    family == libc::AF_INET6 && option_value::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != 0
}

/// Why a socket does not become an accelerated listener.
enum NoListener {
    /// It stays in the kernel.
    Kernel(Unaccelerated),
    /// listen() fails with this error.
    Refused(Errno),
}

impl From<Unaccelerated> for NoListener {
    fn from(why: Unaccelerated) -> Self {
        NoListener::Kernel(why)
    }
}

impl From<Reason> for NoListener {
    fn from(reason: Reason) -> Self {
        NoListener::Kernel(reason.into())
    }
}

impl Engine {
    fn start_listening(&mut self, index: usize, fd: c_int, backlog: u32) -> Result<(), NoListener> {
        let address = bound_somewhere(fd).ok_or(Reason::Rule)?;
        self.check_loopback(address)?;
        let link = self.attached()?;
        if !link.session.rules().listens(address.port()) {
            return Err(Reason::Rule.into());
        }
        self.check_lacking(index, fd)?;
        let id =
            self.attached()?.app.listen(address::canonical(address), backlog).map_err(|_| Reason::Full)?;
        if let Err(errno) = hold(fd) {
            let _ = self.attached()?.app.close_listener(id);
            return Err(NoListener::Refused(errno));
        }
        let family = self.descriptions.get(index).map_or(libc::AF_INET, |d| d.family);
        let (canonical, v6_only) = (address::canonical(address), is_v6_only(fd, family));
        let state = ListenState { address: canonical, backlog, v6_only, id: Some(id), interest: false };
        self.accelerate(index, fd, Kind::Listener(state));
        // Another process that receives the descriptor over exec or a Unix socket recognises it by the mark.
        // Without the mark only this is lost.
        let _ = Mark::Listener { family, backlog, address: state.address }.put(fd);
        self.own(Handle::Listener(id), index);
        self.counters.listeners_accelerated += 1;
        self.show_listener(index, fd, address);
        self.await_link(LISTEN_LINK_WAIT_NS);
        self.publish();
        Ok(())
    }

    fn kernel_listener(&mut self, index: usize, fd: c_int, why: Unaccelerated) {
        self.counters.listeners_kernel += 1;
        self.leave_to_kernel(fd, index, kernel_entry(fd, why));
    }

    /// Returns why a listener that was created outside the filter stays in the kernel.
    fn why_external(&mut self, fd: c_int) -> Reason {
        let Ok(address) = address::bound(fd) else { return Reason::External };
        if let Err(reason) = self.check_loopback(address) {
            return reason;
        }
        match self.attached() {
            Ok(link) if link.session.rules().listens(address.port()) => Reason::External,
            Ok(_) => Reason::Rule,
            Err(reason) => reason,
        }
    }
}

/// The page's entry for a listener in the kernel.
fn kernel_entry(fd: c_int, why: Unaccelerated) -> SocketEntry {
    let local = address::bound(fd).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    why.entry(SocketKind::KernelListener, fd, local, local)
}

/// The address of a listener; an unbound one gets a port, as listen() assigns it.
fn bound_somewhere(fd: c_int) -> Option<SocketAddr> {
    let address = address::bound(fd).ok()?;
    if address.port() != 0 {
        return Some(address);
    }
    let mut storage = [0u64; 4];
    let mut len = size_of_val(&storage) as socklen_t;
    // SAFETY: `storage` has `len` writable bytes, and the kernel sets `len` to the number of bytes that it
    // wrote.
    unsafe {
        syscall!(libc::SYS_getsockname, fd, storage.as_mut_ptr(), &raw mut len).ok()?;
        syscall!(libc::SYS_bind, fd, storage.as_ptr(), len).ok()?;
    }
    address::bound(fd).ok().filter(|a| a.port() != 0)
}

/// Makes the placeholder of a listener reserve its address as a socket in the kernel's LISTEN state would:
/// other sockets that bind or listen there get EADDRINUSE, with SO_REUSEADDR too (socket(7)). The placeholder
/// itself must not be in that state, or the kernel would accept connections. Error: EADDRINUSE, if another
/// socket listens there.
fn hold(fd: c_int) -> Result<(), Errno> {
    let off: c_int = 0;
    let mut name = [0u64; 4];
    let mut len = size_of_val(&name) as socklen_t;
    // SAFETY: `name` has `len` writable bytes, then `len` readable ones that the kernel wrote; the kernel
    // reads `off`.
    unsafe {
        syscall!(libc::SYS_getsockname, fd, name.as_mut_ptr(), &raw mut len)?;
        // The kernel checks that no other socket has the address, and ends its sharing among SO_REUSEADDR
        // sockets.
        syscall!(libc::SYS_listen, fd, 0)?;
        // Leaves LISTEN and stays bound. From now on a former SO_REUSEADDR has no effect, as in LISTEN.
        syscall!(libc::SYS_shutdown, fd, libc::SHUT_RD)?;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        syscall!(libc::SYS_setsockopt, fd, level, option, &raw const off, size_of::<c_int>())?;
        // A port that the kernel chose is released by this and bound again; one that the program chose is not
        // (EINVAL). A port below 1024 was chosen by the program, perhaps with privileges that it no longer
        // has (EACCES; Varnish binds as root and listens as another user).
        match syscall!(libc::SYS_bind, fd, name.as_ptr(), len) {
            Ok(_) | Err(libc::EINVAL | libc::EACCES) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
