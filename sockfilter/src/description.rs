//! Open descriptions, to which one or several descriptors refer.

use std::net::SocketAddr;
use std::sync::Arc;

use csp_app::{FlowId, ListenerId};
use csp_wire::channel::Ticket;
use libc::c_int;

use crate::epoll_set::EpollSet;
use crate::ops::lacking::LackingOptions;
use crate::ops::zerocopy::ZeroCopy;

/// Identifies a description. The id becomes invalid when the description ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptionId {
    /// Its slot.
    pub index: usize,
    /// The generation of the slot.
    pub generation: u32,
}

/// A listener of the program.
#[derive(Clone, Copy, Debug)]
pub struct ListenState {
    /// The address to which it is bound.
    pub address: SocketAddr,
    /// The program's backlog.
    pub backlog: u32,
    /// IPV6_V6ONLY: IPv4 clients are refused.
    pub v6_only: bool,
    /// Its id in the application end; `None` in a forked child that has not used it yet.
    pub id: Option<ListenerId>,
    /// Whether the program polls it or accepts from it.
    pub interest: bool,
}

/// The kind of a description.
#[derive(Debug)]
pub enum Kind {
    /// A TCP socket of the kernel that may become accelerated when it listens or connects.
    Candidate,
    /// An accelerated listener.
    Listener(ListenState),
    /// An accelerated connection.
    Flow(FlowId),
    /// A connection that the agent carries: its descriptors are those of a Unix socket.
    Carried {
        /// The cluster's end.
        local: SocketAddr,
        /// The client's end.
        remote: SocketAddr,
        /// The ticket by which options are set at the agent.
        ticket: Ticket,
    },
    /// A connection that a forked child inherited and that only the parent can use.
    Lost,
    /// An epoll descriptor that the kernel serves alone.
    KernelSet,
    /// A kernel epoll descriptor with accelerated members, or with a member set that may have some.
    Epoll(Box<EpollSet>),
}

/// An epoll set that a description is a member of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The set's description.
    pub set: DescriptionId,
    /// The member's index in it.
    pub member: usize,
}

/// A registration of a candidate or a carried connection in a kernel epoll set. A candidate's is moved when
/// it becomes accelerated (nginx adds an upstream's socket to its set before it connects).
#[derive(Clone, Copy, Debug)]
pub struct KernelMembership {
    /// The epoll descriptor.
    pub epoll: c_int,
    /// The descriptor that was added.
    pub fd: c_int,
    /// The program's mask and mode bits.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// For a carried connection: whether its error descriptor is registered beside it (`ops::error_events`).
    pub shown: bool,
}

/// An option that the program set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetOption {
    /// Its level.
    pub level: c_int,
    /// Its name.
    pub name: c_int,
    /// Its value; the first `len` bytes are valid.
    pub value: [u8; OPTION_LEN_MAX],
    /// Bytes of the value.
    pub len: u8,
}

/// Longest value of an option that is inherited, in bytes.
pub const OPTION_LEN_MAX: usize = 16;

/// An open description.
#[derive(Debug)]
pub struct Description {
    /// The generation of the slot.
    pub generation: u32,
    /// Number of descriptors that refer to it.
    pub references: u32,
    /// Number of calls that sleep on it. They continue if its last descriptor is closed meanwhile, as in the
    /// kernel. The slot is free when there are neither descriptors nor calls.
    pub calls: u32,
    /// Its kind.
    pub kind: Kind,
    /// AF_INET or AF_INET6.
    pub family: c_int,
    /// O_NONBLOCK, as a copy of the kernel's flag on the placeholder, which is authoritative for F_GETFL.
    pub nonblocking: bool,
    /// Whether connect() was called and its result has not been reported.
    pub connecting: bool,
    /// Its last error, as errno; 0: none.
    pub last_error: u16,
    /// The program shut down its writing direction.
    pub write_ended: bool,
    /// Options set on a socket that may become a listener: connections that it accepts inherit them.
    pub options: Arc<Vec<SetOption>>,
    /// Options not yet applied to the placeholder of an accepted connection.
    pub inherited: Arc<Vec<SetOption>>,
    /// While it is a candidate: which options that accelerated sockets lack it may have.
    pub lacking_options: LackingOptions,
    /// SO_ZEROCOPY, and the completions to report.
    pub zero_copy: ZeroCopy,
    /// SO_LINGER with time 0: close resets the connection.
    pub linger_zero: bool,
    /// SO_RCVTIMEO in nanoseconds.
    pub receive_timeout: Option<u64>,
    /// SO_SNDTIMEO in nanoseconds.
    pub send_timeout: Option<u64>,
    /// Eventfds of threads that wait for it.
    pub waiters: Vec<c_int>,
    /// The accelerated epoll sets that contain it.
    pub sets: Vec<Membership>,
    /// While it is a candidate or carried: the kernel's epoll sets that contain it.
    pub kernel_sets: Vec<KernelMembership>,
    /// While it is carried: the filter's descriptor by which these sets report EPOLLERR; created when first
    /// needed.
    pub error_event: Option<c_int>,
}

impl Description {
    fn new(generation: u32, kind: Kind, family: c_int) -> Self {
        Description {
            generation,
            references: 1,
            calls: 0,
            kind,
            family,
            nonblocking: false,
            connecting: false,
            last_error: 0,
            write_ended: false,
            options: Arc::default(),
            inherited: Arc::default(),
            lacking_options: LackingOptions::Nothing,
            zero_copy: ZeroCopy::default(),
            linger_zero: false,
            receive_timeout: None,
            send_timeout: None,
            waiters: Vec::new(),
            sets: Vec::new(),
            kernel_sets: Vec::new(),
            error_event: None,
        }
    }

    fn in_use(&self) -> bool {
        self.references > 0 || self.calls > 0
    }
}

/// Largest number of descriptions at once.
pub const DESCRIPTIONS_MAX: usize = 128 * 1024;

/// All descriptions.
#[derive(Debug, Default)]
pub struct Descriptions {
    slots: Vec<Description>,
    free: Vec<usize>,
}

impl Descriptions {
    /// An empty table.
    pub const fn new() -> Self {
        Descriptions { slots: Vec::new(), free: Vec::new() }
    }

    /// A new description with one reference; `None` when the table is full.
    pub fn insert(&mut self, kind: Kind, family: c_int) -> Option<usize> {
        if let Some(index) = self.free.pop() {
            let slot = self.slots.get_mut(index)?;
            *slot = Description::new(slot.generation.wrapping_add(1), kind, family);
            return Some(index);
        }
        if self.slots.len() >= DESCRIPTIONS_MAX {
            return None;
        }
        self.slots.push(Description::new(0, kind, family));
        Some(self.slots.len() - 1)
    }

    /// The description in a slot that is in use.
    pub fn get(&self, index: usize) -> Option<&Description> {
        self.slots.get(index).filter(|d| d.in_use())
    }

    /// The description in a slot that is in use, mutable.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Description> {
        self.slots.get_mut(index).filter(|d| d.in_use())
    }

    /// The id of the description in a slot.
    pub fn id(&self, index: usize) -> Option<DescriptionId> {
        self.get(index).map(|d| DescriptionId { index, generation: d.generation })
    }

    /// Whether an id is still valid.
    pub fn is_current(&self, id: DescriptionId) -> bool {
        self.id(id.index) == Some(id)
    }

    /// Whether an id is valid and a descriptor still refers to the description.
    pub fn is_open(&self, id: DescriptionId) -> bool {
        self.is_current(id) && self.get(id.index).is_some_and(|d| d.references > 0)
    }

    /// Frees a slot. Returns the description, which has no references, so that the caller can release its
    /// resources.
    pub fn remove(&mut self, index: usize) -> Option<Description> {
        let slot = self.slots.get_mut(index)?;
        let generation = slot.generation;
        let mut empty = Description::new(generation, Kind::Lost, 0);
        empty.references = 0;
        self.free.push(index);
        Some(core::mem::replace(slot, empty))
    }

    /// Number of slots that are or were in use.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// All descriptions in use.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Description)> {
        self.slots.iter_mut().enumerate().filter(|(_, d)| d.in_use())
    }
}
