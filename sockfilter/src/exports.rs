//! The functions that programs call instead of the C library's. Each one looks the descriptor up once; calls
//! that do not concern the filter are passed on to the next library.
//!
//! Those that can block are `C-unwind`: a cancelled thread is unwound through them (see `cancel`).

/// Calls the next library's function behind a [`Next`](crate::next::Next), of this signature.
macro_rules! call_next {
    ($next:expr, fn($($type:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        // SAFETY: the C library's function of this name has this signature.
        let function = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>($next.get()) };
        // SAFETY: the program calls the C library's function with these arguments; its contract is passed on.
        unsafe { function($($argument),*) }
    }};
}

mod aliases;
mod batches;
mod clone;
mod descriptors;
mod exec;
mod io;
mod loading;
mod poll;
pub mod processes;
mod rings;
mod shell;
mod signals;
mod sockets;
mod spawn;
mod stat;
mod syscall;
mod transfer;
