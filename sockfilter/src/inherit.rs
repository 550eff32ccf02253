//! Inheritance over exec and Unix sockets: marks on kernel sockets, by which another process under the filter
//! recognises what they represent.
//!
//! The mark is a classic socket filter that lets all packets pass and whose constants describe the socket
//! (SO_ATTACH_FILTER, read back by SO_GET_FILTER). It belongs to the open socket, so that it can be read
//! through every descriptor of the socket, in every process. Marked sockets receive no packets, so the filter
//! never runs.

use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use csp_wire::channel::{ADDRESS_LEN, TICKET_LEN, Ticket, emit_address, parse_address};
use libc::{c_int, sock_filter, socklen_t};

use crate::description::{Kind, ListenState};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::ops::lacking::{LackingOptions, Name};
use crate::ops::{carried, listen, sockets};
use crate::sys::{self, Errno, syscall};
use crate::{bootstrap, lock, seal};

/// "CSPf", and the version of the mark's form.
const MAGIC: u32 = 0x4353_5066;
const FORM: u32 = 2;
const LISTENER: u32 = 1;
const CARRIED: u32 = 2;
const KERNEL: u32 = 3;
const SEALED: u32 = 4;
/// Load a constant; accept the whole packet.
const LOAD: u16 = 0x00;
const RETURN: u16 = 0x06;
const ADDRESS_WORDS: usize = ADDRESS_LEN / 4;
const TICKET_WORDS: usize = TICKET_LEN / 4;
/// Magic, form, kind, family, backlog, two addresses, a ticket.
const WORDS: usize = 5 + 2 * ADDRESS_WORDS + TICKET_WORDS;
const PROGRAM: usize = WORDS + 1;

/// The address in marks that have none.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a marked socket represents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The placeholder of an accelerated listener.
    Listener { family: c_int, backlog: u32, address: SocketAddr },
    /// A Unix socket whose other end the agent holds; the agent sets options for whoever has the ticket.
    /// `zero_copy`: its SO_ZEROCOPY, which no Unix socket has.
    Carried { family: c_int, local: SocketAddr, remote: SocketAddr, ticket: Ticket, zero_copy: bool },
    /// A TCP socket with an option, by level and number, that accelerated sockets lack and that cannot be
    /// read back.
    Kernel { option: Name },
    /// A Unix socket that holds a carried connection (`seal`).
    Sealed,
}

impl Mark {
    fn words(&self) -> [u32; WORDS] {
        const NONE: Ticket = Ticket([0; TICKET_LEN]);
        let (what, family, backlog, first, second, ticket) = match *self {
            Mark::Listener { family, backlog, address } => {
                (LISTENER, family, backlog, address, address, NONE)
            }
            Mark::Carried { family, local, remote, ticket, zero_copy } => {
                (CARRIED, family, zero_copy.into(), local, remote, ticket)
            }
            Mark::Kernel { option: (level, number) } => {
                (KERNEL, c_int::from(level), number.into(), NOWHERE, NOWHERE, NONE)
            }
            Mark::Sealed => (SEALED, 0, 0, NOWHERE, NOWHERE, NONE),
        };
        let mut words = [0; WORDS];
        words[..5].copy_from_slice(&[MAGIC, FORM, what, family as u32, backlog]);
        let addresses = [emit_address(first), emit_address(second)];
        let bytes = addresses.as_flattened().chunks_exact(4).chain(ticket.0.chunks_exact(4));
        for (word, bytes) in words[5..].iter_mut().zip(bytes) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        words
    }

    fn of_words(words: &[u32; WORDS]) -> Option<Mark> {
        let [MAGIC, FORM, what, family, backlog, addresses @ ..] = words else { return None };
        let mut bytes = [0; 2 * ADDRESS_LEN + TICKET_LEN];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(addresses) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let (first, second) = (parse_address(&bytes, 0).ok()?, parse_address(&bytes, ADDRESS_LEN).ok()?);
        let family = c_int::try_from(*family).ok()?;
        match *what {
            LISTENER => Some(Mark::Listener { family, backlog: *backlog, address: first }),
            CARRIED => {
                let ticket = Ticket(*bytes.last_chunk()?);
                let zero_copy = *backlog != 0;
                Some(Mark::Carried { family, local: first, remote: second, ticket, zero_copy })
            }
            KERNEL => {
                Some(Mark::Kernel { option: (u16::try_from(family).ok()?, u16::try_from(*backlog).ok()?) })
            }
            SEALED => Some(Mark::Sealed),
            _ => None,
        }
    }

    /// Puts the mark on a socket.
    pub fn put(&self, fd: c_int) -> Result<(), Errno> {
        let mut program = [sock_filter { code: LOAD, jt: 0, jf: 0, k: 0 }; PROGRAM];
        for (instruction, word) in program.iter_mut().zip(self.words()) {
            instruction.k = word;
        }
        program[WORDS] = sock_filter { code: RETURN, jt: 0, jf: 0, k: u32::MAX };
        let filter = libc::sock_fprog { len: PROGRAM as u16, filter: program.as_mut_ptr() };
        let len = size_of::<libc::sock_fprog>();
        // SAFETY: the kernel reads `filter` and its PROGRAM instructions.
        unsafe {
            syscall!(
                libc::SYS_setsockopt,
                fd,
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                &raw const filter,
                len
            )
        }
        .map(drop)
    }

    /// The mark of a socket, if it has one.
    pub fn of(fd: c_int) -> Option<Mark> {
        let mut program = [sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; PROGRAM];
        // The length counts instructions here.
        let mut len = PROGRAM as socklen_t;
        // SAFETY: `program` has room for `len` instructions; a longer program is refused.
        unsafe {
            syscall!(
                libc::SYS_getsockopt,
                fd,
                libc::SOL_SOCKET,
                libc::SO_GET_FILTER,
                program.as_mut_ptr(),
                &raw mut len
            )
        }
        .ok()?;
        if len as usize != PROGRAM || program[..WORDS].iter().any(|i| i.code != LOAD) {
            return None;
        }
        let mut words = [0; WORDS];
        words.iter_mut().zip(&program).for_each(|(word, instruction)| *word = instruction.k);
        Mark::of_words(&words)
    }
}

/// Adopts, at start, the sockets that this program inherited over exec.
pub fn scan() {
    each_descriptor(adopt);
}

/// Number of descriptors that are tried if `/proc` does not list the open ones: it may be missing in a
/// changed root directory.
const TRIED: c_int = 1024;

/// The descriptors of this process that are open, and perhaps some that are not.
pub fn each_descriptor(mut then: impl FnMut(c_int)) {
    if !numbers_in(c"/proc/self/fd", &mut then) {
        (0..TRIED).for_each(then);
    }
}

/// Calls `then` for the entries of a folder that are numbers; returns whether the folder could be read.
pub fn numbers_in(path: &CStr, mut then: impl FnMut(c_int)) -> bool {
    const NAMES: usize = 4096;
    let mut names = [0u64; NAMES / 8];
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    let Ok(folder) = (unsafe { syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }) else {
        return false;
    };
    loop {
        // SAFETY: `names` has NAMES writable bytes.
        let read = unsafe { syscall!(libc::SYS_getdents64, folder, names.as_mut_ptr(), NAMES) };
        let Ok(len @ 1..) = read else { break };
        // SAFETY: the kernel wrote `len` of the bytes of `names`.
        let bytes = unsafe { core::slice::from_raw_parts(names.as_ptr().cast::<u8>(), len.min(NAMES)) };
        each_number(bytes, &mut then);
    }
    sys::close(folder as c_int);
    true
}

/// The numbers among the names of directory entries (`struct linux_dirent64`).
fn each_number(mut entries: &[u8], mut then: impl FnMut(c_int)) {
    const NAME: usize = 19;
    while let Some(len) = entries.get(16..18).map(|l| usize::from(u16::from_ne_bytes([l[0], l[1]]))) {
        let name = entries.get(NAME..len).unwrap_or(&[]);
        let digits = name.split(|b| !b.is_ascii_digit()).next().unwrap_or(&[]);
        let more = |n: c_int, b: &u8| n.checked_mul(10)?.checked_add(c_int::from(b - b'0'));
        let number = if digits.is_empty() { None } else { digits.iter().try_fold(0, more) };
        number.into_iter().for_each(&mut then);
        entries = entries.get(len.max(1)..).unwrap_or(&[]);
    }
}

/// Handles a descriptor received over exec or a Unix socket. A marked one becomes what its mark describes. A
/// TCP socket without a peer becomes a candidate: it may listen or connect, and the use of one that the
/// kernel listens on is noticed.
pub fn adopt(fd: c_int) {
    if fd < 0 || !bootstrap::is_on() || lock::inside() || fdtable::entry(fd) != Entry::Kernel {
        return;
    }
    let lacking_options = match Mark::of(fd) {
        Some(Mark::Kernel { option }) => LackingOptions::Once(option),
        // A seal never contains a seal, so this recursion has one level.
        Some(Mark::Sealed) => {
            return if seal::open(fd).is_ok() {
                adopt(fd)
            };
        }
        Some(mark) => return ENGINE.with(|engine| engine.adopt_marked(fd, mark)),
        None => LackingOptions::Perhaps,
    };
    let Some((family, _)) = listen::kernel_state(fd) else { return };
    sockets::created(fd, family, libc::SOCK_STREAM, 0);
    ENGINE.with(|engine| {
        let Entry::Candidate(index) = fdtable::entry(fd) else { return };
        if let Some(d) = engine.descriptions.get_mut(index) {
            d.lacking_options = lacking_options;
            d.zero_copy.on = sockets::option_value::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY) != 0;
        }
    });
}

static INHERITED_LISTENER: AtomicBool = AtomicBool::new(false);

/// Whether this process received an accelerated listener over exec or a Unix socket.
pub fn inherited_listener() -> bool {
    INHERITED_LISTENER.load(Ordering::Relaxed)
}

impl Engine {
    fn adopt_marked(&mut self, fd: c_int, mark: Mark) {
        // SAFETY: no pointers.
        let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFL) }.unwrap_or(0);
        let (kind, family) = match mark {
            Mark::Listener { family, backlog, address } => {
                INHERITED_LISTENER.store(true, Ordering::Relaxed);
                let v6_only = listen::is_v6_only(fd, family);
                (Kind::Listener(ListenState { address, backlog, v6_only, id: None, interest: false }), family)
            }
            Mark::Carried { family, local, remote, ticket, .. } => {
                (Kind::Carried { local, remote, ticket }, family)
            }
            Mark::Kernel { .. } | Mark::Sealed => return,
        };
        let carried = matches!(kind, Kind::Carried { .. });
        let Some(index) = self.descriptions.insert(kind, family) else {
            self.counters.descriptors_full += 1;
            return;
        };
        if let Some(d) = self.descriptions.get_mut(index) {
            d.nonblocking = flags & libc::O_NONBLOCK as usize != 0;
            if let Mark::Carried { zero_copy: true, .. } = mark {
                d.zero_copy.on = true;
                d.options = carried::with_zero_copy();
            }
        }
        self.zero_copy_carried(index);
        let known = if carried { fdtable::set_carried(fd, index) } else { fdtable::set(fd, index) };
        if !known {
            self.descriptions.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(family: c_int) -> c_int {
        // SAFETY: no pointers.
        unsafe { syscall!(libc::SYS_socket, family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }.unwrap()
            as c_int
    }

    #[test]
    fn a_mark_is_read_back_through_every_descriptor_of_the_socket() {
        let listener = Mark::Listener {
            family: libc::AF_INET6,
            backlog: 511,
            address: "[2001:db8::1]:443".parse().unwrap(),
        };
        let (local, remote) = ("10.76.0.100:80".parse().unwrap(), "10.76.0.1:40000".parse().unwrap());
        let ticket = Ticket(core::array::from_fn(|at| at as u8));
        let carried = Mark::Carried { family: libc::AF_INET, local, remote, ticket, zero_copy: true };
        let kernel = Mark::Kernel { option: (6, 14) };
        for (mark, family) in [(listener, libc::AF_INET6), (carried, libc::AF_UNIX), (kernel, libc::AF_INET)]
        {
            let fd = socket(family);
            assert_eq!(Mark::of(fd), None);
            mark.put(fd).unwrap();
            // SAFETY: no pointers.
            let again = unsafe { syscall!(libc::SYS_dup, fd) }.unwrap() as c_int;
            sys::close(fd);
            assert_eq!(Mark::of(again), Some(mark));
            sys::close(again);
        }
    }

    #[test]
    fn foreign_filters_are_no_marks() {
        let fd = socket(libc::AF_INET);
        let mut program = [sock_filter { code: RETURN, jt: 0, jf: 0, k: u32::MAX }];
        let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
        let name = libc::SO_ATTACH_FILTER;
        // SAFETY: the kernel reads `filter` and its one instruction.
        unsafe { syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, name, &raw const filter, 16) }.unwrap();
        assert_eq!(Mark::of(fd), None);
        sys::close(fd);
        assert_eq!(Mark::of(-1), None);
    }

    #[test]
    fn numbers_are_found_among_directory_entries() {
        let mut bytes = Vec::new();
        for name in ["..", "7", "1024", "99999999999999"] {
            let mut entry = vec![0u8; (19 + name.len() + 1).next_multiple_of(8)];
            let len = entry.len() as u16;
            entry[16..18].copy_from_slice(&len.to_ne_bytes());
            entry[19..19 + name.len()].copy_from_slice(name.as_bytes());
            bytes.extend(entry);
        }
        let mut found = Vec::new();
        each_number(&bytes, |n| found.push(n));
        assert_eq!(found, [7, 1024]);
    }
}
