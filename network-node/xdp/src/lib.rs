//! Packet plug-ins of level 1: the program that runs in the driver (XDP), its maps and its links.
//!
//! ```text
//!   control thread                                       kernel, by port
//!   Manager ─▶ Plan: table, instances ─▶ Driver ─▶ maps ◀── csp_level1 ──┬─▶ drop, redirect
//!              (what cannot run there    │                               └─▶ pass ─▶ AF_PACKET or AF_XDP ─▶ level 2
//!               stays at level 2)        └─▶ links, pinned below /sys/fs/bpf/csp/<node>
//! ```
//!
//! The program classifies by the rules of all levels, so that the first match by priority decides as at level
//! 2, and runs the graph of the rules whose graph it can run. What it passes is classified by level 2 again,
//! which knows from the packet itself ([`Parsed::is_plain`](csp_classify::multifield::Parsed::is_plain)) and
//! from [`Plan::slots`] that level 1 has processed it. Nothing travels with a packet.
//!
//! Administrators supply further programs, eBPF objects, each an instance of the graph: the program
//! tail-calls them, and they tail-call it back (`program/resume.h`, `include/csp_xdp.h`).
//!
//! At a port of AF_XDP sockets the same program gives them what passes and is for an address of the node; the
//! kernel has the rest. Where workers have a way back to the kernel ([`Driver::set_reinjection_ports`]) they
//! also get what their rules decide on of the rest.
//!
//! Programs, maps and links outlive the process when they are pinned. A program that takes them over replaces
//! the earlier one at each port in one step.
#![deny(unsafe_op_in_unsafe_fn)]

mod answers;
mod driver;
mod layout;
mod lists;
mod maps;
mod object;
mod plan;
mod slots;

pub use answers::merge;
pub use driver::{Counts, Driver, DriverError, Loaded, Loading, PortConfig, Totals};
pub use layout::{STEPS_MAX, TABLE_LEN, TUPLES_MAX, TableError};
pub use object::{
    OBJECT_COUNTERS_MAX, OBJECT_LEN_MAX, OBJECT_MAPS_LEN_MAX, OBJECT_MAPS_MAX, ObjectError,
    read as read_object, verify as verify_object,
};
pub use plan::{Demoted, Diverted, HOPS_MAX, Plan, obstacles};
pub use slots::Slots;

/// Largest number of instances at level 1.
pub const INSTANCES_MAX: usize = 64;
/// Largest number of LAN ports.
pub const PORTS_MAX: usize = 16;
/// Largest number of receive queues of a port that AF_XDP sockets serve.
pub const QUEUES_MAX: u32 = 64;
/// Largest number of rules.
pub const RULES_MAX: usize = 16_384;
/// Version of the layout of maps and tables. Pinned objects of another version are not taken over.
pub const LAYOUT_VERSION: u32 = 2;

/// The object file of the program.
pub static PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/level1.bpf.o"));
