//! The store of supplied modules of a daemon, whatever it runs them for: handlers of messages in the proxy
//! and in `csp-context`, packet plug-ins in the network node and in plug-in hosts.
//!
//! ```text
//!   put (admin endpoint) ─▶ folder ─▶ get ─┐
//!   compile (bytes of a request, an order) ┼▶ hash ─▶ trial, compiler: ─▶ cache ─▶ instances of the daemon
//!   offer (of another host; nobody waits) ─┘ verified one at a time       by hash    ▲ end their calls
//!                                                                                  Epochs, one thread
//! ```
//! The crate owns the folder and its routes, the cache and its bounds, the engines and the thread that ends
//! their epochs. It does not know what a module does: a [`Kind`] compiles it. What runs, and what became of
//! it, is the daemon's.
#![forbid(unsafe_code)]

mod cache;
mod compiling;
mod engine;
mod folder;
pub mod routes;
mod store;

pub use cache::{Bounds, Keep};
pub use compiling::{ALONE, alone, in_background};
pub use engine::{EPOCH, Epochs, LazyEngine};
pub use folder::{ModuleFolder, RemoveError};
pub use store::{Handlers, Kind, Origin, Setup, Store, WAITING_MAX};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns the SHA-256 of bytes in hex digits, by which a module is named.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    csp_sandbox::Sha256::of(bytes).to_string()
}

/// Checks that bytes have the hash by which they are named.
fn verify(hash: &str, bytes: &[u8]) -> Result<(), String> {
    match sha256(bytes) {
        found if found == hash => Ok(()),
        found => Err(format!("the bytes have the SHA-256 {found}, not {hash}")),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
