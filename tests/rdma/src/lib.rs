//! Guests with real RDMA verbs on a machine whose kernel has none: QEMU without KVM, Debian's kernel,
//! Soft-RoCE.
//!
//! ```text
//!  host                                             guest n (10.99.0.n, fd99::n, rxe0 on eth0)
//!  csp-rdma-guests ── frames on a Unix socket ────▶ agent on a virtio-serial port: runs commands, reports
//!        │                                          their output and exit codes
//!        └─ QEMU ── the host's root, read-only, by 9p; a tmpfs above it holds what is written
//!             └──── a switch in csp-rdma-guests: one Ethernet for all guests of a run
//! ```
//! Programs built on the host run in the guest unchanged. A guest ends with the run: its agent switches it
//! off when the host's end of the socket is closed, and QEMU is killed when the thread that started it ends.
#![allow(clippy::disallowed_types, reason = "the harness runs real machines and needs a real clock")]
#![forbid(unsafe_code)]

pub mod agent;
pub mod bench;
mod cpio;
pub mod demo;
pub mod frame;
mod guest;
mod initramfs;
pub mod kernel;
mod monitor;
mod program;
pub mod suite;
mod switch;

pub use guest::{Fleet, Guest, Sizes};
pub use program::{Output, Program};
