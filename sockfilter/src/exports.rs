//! The functions that programs call instead of the C library's. Each asks the table once; what does not concern us
//! goes on to the next library.

mod descriptors;
mod io;
mod poll;
mod processes;
mod sockets;
