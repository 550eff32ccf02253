//! libcsp: asynchronous messages and streams for C programs. The C side of the contract is `include/csp.h`.
//!
//! Owned here: contexts and their handles, the pool of buffers, the queue of events, the descriptor to wait
//! on, the agent's socket. `csp-transport` and the shm provider lie below. The library starts no thread,
//! handles no signal and prints nothing.
//!
//! ```text
//!   exports    the functions of csp.h: pointers in, codes out
//!   registry   contexts by handle, one thread at a time, none of the parent's after a fork
//!   context    one context: performs all work; core: its tables, and the events that wait for the program
//!   streams    connections through the proxies, over AppSide; agent, page: attachment to the host's agent
//!   channels   messages between processes of this host, over links of an Endpoint
//!   pool       buffers and the holder of each; connection: the queue of each connection
//! ```
//!
//! Misuse by the program is never undefined behaviour as long as the pointers that it passes are valid:
//! handles and buffer ids carry generations, and a context that another thread is in refuses the call.
#![cfg(target_os = "linux")]

mod agent;
mod channels;
mod connection;
mod context;
mod core;
mod error;
mod exports;
mod fork;
mod handle;
#[doc(hidden)]
pub mod layout;
mod page;
mod pool;
mod registry;
mod streams;
mod system;
mod table;
mod wait;
