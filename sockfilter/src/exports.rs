//! The functions that programs call instead of the C library's. Each asks the table once; what does not concern us
//! goes on to the next library.
//!
//! Those that can block are `C-unwind`: a cancelled thread is unwound through them (see `cancel`).

mod aliases;
mod descriptors;
mod io;
mod poll;
pub mod processes;
mod signals;
mod sockets;
mod syscall;
mod transfer;
