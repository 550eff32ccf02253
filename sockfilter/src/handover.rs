//! Connections that leave this process: before a fork, an exec, or the passing of a descriptor to another
//! process.
//!
//! The proxy keeps the connection, the agent takes it over, and every descriptor of it in this process
//! becomes one of a Unix socket whose other end the agent holds. From then on the kernel lets any number of
//! processes share it, with or without the filter.

use core::ffi::c_void;

use csp_app::{FlowId, HandOver, Handle, LeftFlow, Readiness};
use csp_wire::agent::page::{Reason, SocketEntry, SocketKind};
use csp_wire::channel::{TICKET_LEN, Ticket};
use libc::c_int;

use crate::description::{DescriptionId, KernelMembership, Kind, Membership};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::inherit::{self, Mark};
use crate::ops::{carried, ending, now, options, sockets};
use crate::sys::{self, Errno, syscall};
use crate::wait::{self, Deadline};
use crate::{bootstrap, lock, signals};

/// Time limits, in nanoseconds, for the proxies to release connections and for the agent to accept one
/// message. The program waits meanwhile.
const PROXY_TIMEOUT_NS: u64 = 1_000_000_000;
const AGENT_TIMEOUT_NS: u64 = 1_000_000_000;
/// Time limit, in nanoseconds, for a connection that is passed to another process to be established. The
/// program waits meanwhile, and what it passes afterwards is an unconnected socket.
const CONNECT_TIMEOUT_NS: u64 = 3_000_000_000;
/// Requested send buffer of the Unix socket, so that all unread bytes fit.
const SOCKET_BUFFER: c_int = 1024 * 1024;

/// Selects the connections to hand over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Those that a forked child may use: all that are in no epoll set. A process that waits for a connection
    /// with epoll continues to serve it itself.
    ForChild,
    /// Those that stay open over exec.
    OverExec,
    /// The connection of this descriptor.
    Of(c_int),
}

/// Hands over the selected connections. Other descriptors are not affected.
pub fn leave(which: Selection) {
    if fdtable::highest() <= 0 || lock::inside() || !bootstrap::owns_tables() {
        return;
    }
    if let Selection::Of(fd) = which {
        if !fdtable::is_ours(fd) {
            return;
        }
        await_connected(fd);
    }
    ENGINE.with(|engine| engine.hand_over_all(which));
}

/// Waits until a connection that is to be handed over is established, since no other process could establish
/// it (Dante passes sockets that are connecting). The lock is not held meanwhile, so that other threads are
/// served.
fn await_connected(fd: c_int) {
    let connecting = ENGINE.with(|engine| {
        // Without the agent the connection cannot leave.
        let attached = engine.link.as_ref().is_some_and(|link| link.session.is_attached());
        engine.of_fd(fd).filter(|id| attached && engine.is_connecting(*id))
    });
    let Some(id) = connecting else { return };
    wait::until(id, CONNECT_TIMEOUT_NS, |engine| engine.of_fd(fd) != Some(id) || !engine.is_connecting(id));
}

/// Whether any connection can be handed over before a fork. Used before `vfork`, whose child cannot do it.
pub fn any_for_child() -> bool {
    if fdtable::highest() <= 0 || lock::inside() || !bootstrap::owns_tables() {
        return false;
    }
    ENGINE.with(|engine| !engine.leaving(Selection::ForChild).is_empty())
}

/// Whether a program that is executed now inherits a socket that is useless without the filter. In a vfork
/// child, whose descriptors the tables do not describe, the marks of the sockets are read.
pub fn any_over_exec() -> bool {
    if !bootstrap::is_on() || fdtable::highest() <= 0 {
        return false;
    }
    if bootstrap::owns_tables() {
        return (0..=fdtable::highest()).any(|fd| is_placeholder(fd) && stays_open(fd));
    }
    let mut any = false;
    inherit::each_descriptor(|fd| any = any || (stays_open(fd) && Mark::of(fd).is_some()));
    any
}

/// Whether this process has accelerated sockets, which stay open over exec or not.
pub fn any_accelerated() -> bool {
    let accelerated = |fd| matches!(fdtable::entry(fd), Entry::Ours(_) | Entry::Carried(_));
    bootstrap::is_on() && (0..=fdtable::highest()).any(accelerated)
}

/// Whether a descriptor is unusable, or reports a wrong name, in a program without the filter.
pub fn is_placeholder(fd: c_int) -> bool {
    matches!(fdtable::entry(fd), Entry::Ours(_) | Entry::Carried(_))
        && bootstrap::is_on()
        && !lock::inside()
        && bootstrap::owns_tables()
}

/// Whether the agent carries a descriptor's connection.
pub fn is_carried(fd: c_int) -> bool {
    matches!(fdtable::entry(fd), Entry::Carried(_)) && bootstrap::is_on() && bootstrap::owns_tables()
}

/// Descriptors of connections that the agent carries and that stay open over exec.
pub fn carried_over_exec() -> impl Iterator<Item = c_int> {
    (0..=fdtable::highest()).filter(|fd| is_carried(*fd) && stays_open(*fd))
}

/// Whether a descriptor stays open over exec.
pub fn stays_open(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFD) };
    flags.is_ok_and(|flags| flags as c_int & libc::FD_CLOEXEC == 0)
}

impl Engine {
    /// The connections that `which` selects, each with its description.
    fn leaving(&mut self, which: Selection) -> Vec<(usize, FlowId)> {
        let Some(link) = &self.link else { return Vec::new() };
        // Without the agent no process could carry them.
        if !link.session.is_attached() {
            return Vec::new();
        }
        let wanted: Vec<usize> = match which {
            Selection::Of(fd) => self.of_fd(fd).map(|id| id.index).into_iter().collect(),
            Selection::OverExec => ours().filter(|(fd, _)| stays_open(*fd)).map(|(_, index)| index).collect(),
            Selection::ForChild => {
                let free = |(index, d): (usize, &mut crate::description::Description)| {
                    (d.sets.is_empty() && d.references > 0).then_some(index)
                };
                self.descriptions.iter_mut().filter_map(free).collect()
            }
        };
        let flow = |index: usize| match self.descriptions.get(index)?.kind {
            Kind::Flow(flow) => Some((index, flow)),
            _ => None,
        };
        let mut found: Vec<_> = wanted.into_iter().filter_map(flow).collect();
        found.sort_unstable_by_key(|(index, _)| *index);
        found.dedup_by_key(|(index, _)| *index);
        found
    }

    /// Makes the proxies release the connections, all at once, and the agent take them over.
    pub fn hand_over_all(&mut self, which: Selection) {
        let mut under_way = Vec::new();
        for (index, flow) in self.leaving(which) {
            let mut ticket = [0; TICKET_LEN];
            ticket[..8].copy_from_slice(&sys::random().to_ne_bytes());
            ticket[8..].copy_from_slice(&sys::random().to_ne_bytes());
            let Some(link) = &mut self.link else { return };
            // A connection that is not established yet is kept.
            if link.app.hand_over(now(), flow, Ticket(ticket)).is_ok() {
                under_way.push((index, flow, Ticket(ticket)));
            }
        }
        if under_way.is_empty() {
            return;
        }
        self.await_proxies(&under_way);
        for (index, flow, ticket) in under_way {
            let left = self.link.as_mut().and_then(|l| l.app.leave(flow));
            let Some(left) = left else { continue };
            if let Err(errno) = self.carry(index, left, ticket) {
                self.counters.inherited_connections_lost += 1;
                sys::log_line(&format!("a connection could not be given to the agent (error {errno})"));
            }
        }
        self.publish();
    }

    /// Waits until the proxies have released the connections. The lock stays held, since no thread may use
    /// them meanwhile.
    fn await_proxies(&mut self, under_way: &[(usize, FlowId, Ticket)]) {
        let deadline = Deadline::after(Some(PROXY_TIMEOUT_NS));
        loop {
            self.progress();
            let Some(link) = &self.link else { return };
            let waiting =
                |(_, flow, _): &(usize, FlowId, Ticket)| link.app.handing_over(*flow) == HandOver::Waiting;
            if !under_way.iter().any(waiting) || deadline.is_over() {
                return;
            }
            let Ok(wake) = self.arm(None) else { continue };
            let nap = wait::sooner(deadline.left(), self.next_timeout());
            let mut fds = wait::pollfds(wake);
            // SAFETY: no mask.
            let _ = unsafe { sys::ppoll(&mut fds, nap, core::ptr::null()) };
        }
    }

    /// Whether a description is a connection that is being established.
    fn is_connecting(&self, id: DescriptionId) -> bool {
        let (Some(Kind::Flow(flow)), Some(link)) =
            (self.descriptions.get(id.index).map(|d| &d.kind), &self.link)
        else {
            return false;
        };
        let over = link.app.readiness(Handle::Flow(*flow)).contains(Readiness::HANG_UP);
        !over && link.app.addresses(*flow).is_some_and(|(.., connected)| !connected)
    }

    /// Replaces a connection that was handed over by a Unix socket, and passes its other end to the agent. If
    /// that fails the program sees a reset.
    fn carry(&mut self, index: usize, left: LeftFlow, ticket: Ticket) -> Result<(), Errno> {
        let [near, far] = pair()?;
        let family = self.descriptions.get(index).map_or(0, |d| d.family);
        let (local, remote) = (left.local, left.remote);
        let given = fill(far, &left.unread).and_then(|()| match left.held {
            Some(_) => self.give(&left, ticket, far),
            // The connection has ended: only the unread bytes remain.
            None if left.broken => Err(libc::ECONNRESET),
            None => {
                ending::sign(far);
                Ok(())
            }
        });
        sys::close(far);
        if left.write_shutdown {
            // SAFETY: no pointers.
            let _ = unsafe { syscall!(libc::SYS_shutdown, near, libc::SHUT_WR) };
        }
        let zero_copy = self.descriptions.get(index).is_some_and(|d| d.zero_copy.on);
        // A failure only loses the names after exec.
        let _ = Mark::Carried { family, local, remote, ticket, zero_copy }.put(near);
        // A signal handler could close a number that is then replaced, or duplicate the placeholder.
        signals::undisturbed(|| self.replace(index, near));
        sys::close(near);
        if let Some(d) = self.descriptions.get_mut(index) {
            d.kind = Kind::Carried { local, remote, ticket };
        }
        self.move_to_kernel(index);
        self.carry_errors(index);
        self.on_change(index);
        let label = left.held.map_or(csp_types::FlowLabel::NONE, |(_, _, label)| label);
        let fd = ours().find(|(_, at)| *at == index).map_or(0, |(fd, _)| fd as u32);
        let (kind, reason) = (SocketKind::Connection, Reason::Shared);
        let entry = SocketEntry::new(kind, reason, fd, local, remote);
        self.show_ours(index, Some(SocketEntry { label, ..entry }));
        self.counters.connections_shared += 1;
        given
    }

    /// Sends the connection to the agent, with the other end of the socket pair.
    fn give(&mut self, left: &LeftFlow, ticket: Ticket, far: c_int) -> Result<(), Errno> {
        let link = self.link.as_mut().ok_or(libc::ENOTCONN)?;
        let agent = link.agent.ok_or(libc::ENOTCONN)?;
        let message = link.session.leave(left, ticket).ok_or(libc::ENOTCONN)?;
        let deadline = Deadline::after(Some(AGENT_TIMEOUT_NS));
        loop {
            match send_with(agent, message, far) {
                Err(libc::EAGAIN) if !deadline.is_over() => {
                    let mut fds = [libc::pollfd { fd: agent, events: libc::POLLOUT, revents: 0 }];
                    // SAFETY: no mask.
                    let _ = unsafe { sys::ppoll(&mut fds, deadline.left(), core::ptr::null()) };
                }
                result => return result,
            }
        }
    }

    /// Makes every descriptor of a description refer to `near`, with its flags and time-outs.
    fn replace(&mut self, index: usize, near: c_int) {
        let Some(d) = self.descriptions.get(index) else { return };
        if d.nonblocking {
            // SAFETY: no pointers.
            let _ = unsafe { syscall!(libc::SYS_fcntl, near, libc::F_SETFL, libc::O_NONBLOCK) };
        }
        for (name, time) in [(libc::SO_RCVTIMEO, d.receive_timeout), (libc::SO_SNDTIMEO, d.send_timeout)] {
            let Some(ns) = time else { continue };
            let value = [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000 / 1000) as i64];
            set_option(near, name, &value);
        }
        let descriptors: Vec<c_int> = ours().filter(|(_, at)| *at == index).map(|(fd, _)| fd).collect();
        if let Some(&fd) = descriptors.first() {
            self.keep_options(index, fd, near);
        }
        for fd in descriptors {
            // SAFETY: no pointers.
            let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFD) }.unwrap_or(0);
            let flags = if flags as c_int & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
            // SAFETY: no pointers.
            if unsafe { syscall!(libc::SYS_dup3, near, fd, flags) }.is_ok() {
                fdtable::carry(fd, index);
            }
        }
    }

    /// Stores the TCP options, which a Unix socket cannot hold.
    fn keep_options(&mut self, index: usize, placeholder: c_int, near: c_int) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        options::apply(placeholder, &std::mem::take(&mut d.inherited));
        d.options = carried::options_of(placeholder);
        let keepalive: c_int = sockets::option_value(placeholder, libc::SOL_SOCKET, libc::SO_KEEPALIVE);
        set_option(near, libc::SO_KEEPALIVE, &keepalive);
    }

    /// Moves a member of accelerated sets to the kernel's sets.
    fn move_to_kernel(&mut self, index: usize) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        for membership in core::mem::take(&mut d.sets) {
            self.move_member(index, membership);
        }
    }

    fn move_member(&mut self, index: usize, Membership { set, member }: Membership) {
        if !self.descriptions.is_current(set) {
            return;
        }
        let Some(Kind::Epoll(members)) = self.descriptions.get_mut(set.index).map(|d| &mut d.kind) else {
            return;
        };
        // A set that was closed while threads wait has only the filter's own descriptor.
        let number = ours().find(|(_, at)| *at == set.index).map(|(fd, _)| fd);
        let Some(epoll) = number.or(members.outliving) else { return };
        let Some(member) = members.remove(member) else { return };
        let (fd, events, data) = (member.fd, member.kernel_events(), member.data);
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: `event` is readable.
        let added = unsafe { syscall!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if let (Ok(_), Some(d)) = (added, self.descriptions.get_mut(index)) {
            d.kernel_sets.push(KernelMembership { epoll, fd, events, data, shown: false });
        }
    }
}

/// Accelerated and carried descriptors, with their descriptions.
fn ours() -> impl Iterator<Item = (c_int, usize)> {
    (0..=fdtable::highest()).filter_map(|fd| match fdtable::entry(fd) {
        Entry::Ours(index) | Entry::Carried(index) => Some((fd, index)),
        _ => None,
    })
}

/// A pair of connected Unix sockets: the program's and the agent's.
fn pair() -> Result<[c_int; 2], Errno> {
    let mut pair = [0 as c_int; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: `pair` has room for two descriptors.
    unsafe { syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) }?;
    let pair = pair.map(sys::move_high);
    pair.iter().for_each(|fd| set_option(*fd, libc::SO_SNDBUF, &SOCKET_BUFFER));
    // A program without the filter may send urgent data: the agent reads it as part of the stream.
    let inline: c_int = 1;
    set_option(pair[1], libc::SO_OOBINLINE, &inline);
    Ok(pair)
}

/// Sets an option of SOL_SOCKET; if that is refused, the kernel's value remains.
fn set_option<T>(fd: c_int, name: c_int, value: &T) {
    // SAFETY: the kernel reads the value.
    let _ = unsafe {
        syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, name, core::ptr::from_ref(value), size_of::<T>())
    };
}

/// Writes the unread bytes into the socket that the programs will read.
fn fill(far: c_int, mut unread: &[u8]) -> Result<(), Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    while !unread.is_empty() {
        // SAFETY: `unread` is readable.
        let len = unsafe { syscall!(libc::SYS_sendto, far, unread.as_ptr(), unread.len(), flags, 0, 0) }?;
        unread = unread.get(len..).unwrap_or(&[]);
    }
    Ok(())
}

/// Sends a datagram and a descriptor.
pub fn send_with(socket: c_int, datagram: &[u8], descriptor: c_int) -> Result<(), Errno> {
    let mut part =
        libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast::<c_void>(), iov_len: datagram.len() };
    let mut control = [0u64; 3];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: no pointers; `control` has that many bytes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the header lies within `control`, which has room for it and one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor);
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header and what it points to are readable.
    unsafe { syscall!(libc::SYS_sendmsg, socket, &raw const message, flags) }.map(drop)
}
