//! libcsp: asynchronous messages and streams for C programs. The C side of the contract is `include/csp.h`.
//!
//! Owned here: contexts and their handles, the pool of buffers, the queue of events, the descriptor to wait on, the
//! agent's socket. Below are `csp-transport` and the shm provider. Refused: threads, signals, output.
//!
//! ```text
//!   exports    the functions of csp.h: pointers in, codes out
//!   registry   contexts by handle, one thread at a time, none of the parent's after a fork
//!   context    one context: moves everything; core: its tables, and the events that wait for the program
//!   streams    connections through the proxies, over AppSide; agent, page: the process's place in the cluster
//!   channels   messages between processes of this host, over links of an Endpoint
//!   pool       buffers and who holds each; connection: what is queued on each connection
//! ```
//!
//! No misuse by the program is undefined as long as the pointers that it passes are good: handles and buffer ids carry
//! generations, and a context that another thread is in refuses.
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
