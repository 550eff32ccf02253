//! The socket filter: accelerated sockets for unmodified programs, by LD_PRELOAD.
//!
//! Every exported function looks its descriptor up in a table; a call on a descriptor that is not accelerated
//! is passed unchanged to the next library. An accelerated socket keeps its kernel descriptor as a
//! placeholder (so that numbers, `fstat`, close-on-exec and limits are true) while its bytes travel over
//! `csp-transport`.
//!
//! Owned here: the descriptor table, open descriptions, waiting (blocking calls, poll, select, epoll), fork.
//! Refused: threads, signals, standard output, the program's allocator, and any system call on the passing
//! path.
//!
//! ```text
//!   exports/*      thin extern "C" functions, one file per family
//!   ops/*          their behaviour on an accelerated socket
//!   engine         the state under the one lock: AppSide, descriptions, epoll sets
//!   attach, page   the agent's socket and the process page's memory; csp-app has the session and the page
//!   sys, real      raw system calls; the next library's functions
//! ```
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "unit tests are built without the exports, which would replace their own calls"
    )
)]

mod address;
mod alloc;
mod attach;
mod bootstrap;
mod cancel;
mod deferred;
mod description;
mod engine;
mod epoll_set;
#[cfg(not(test))]
mod exports;
mod fdtable;
mod fork;
mod handover;
mod inherit;
mod lock;
mod memory;
mod next;
mod ops;
mod page;
mod panics;
mod preload;
mod real;
mod seal;
mod shell_command;
mod signals;
mod sleepers;
mod spawned;
mod sys;
mod wait;

/// The filter's allocations are separate from the program's heap, so that neither can corrupt or wait for the
/// other (the program's allocator may itself be calling the filter).
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: alloc::Arena = alloc::Arena;
