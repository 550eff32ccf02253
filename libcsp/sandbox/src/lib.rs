//! Handlers that clients bring: WebAssembly modules behind the interface of built-in handlers
//! (`docs/handlers.md`).
//!
//! ```text
//!   bytes ─▶ Module::compile ─▶ Module ─▶ Supplied::new ─▶ Supplied: Handler ─▶ stage of a path
//!            (a background thread)         (memory reserved)   │ configure, hand over: between two messages
//!                                                              └ stopped ─▶ Supervisor: restart, pass by, end the path
//! ```
//! The crate owns the engine, the ABI's host side, what stops a module, and how one hands its state to
//! another. It has no clock, thread or socket: time comes with the calls, [`Module::compile`] runs on the
//! thread that calls it, and [`Engine::tick`] is called by a thread of the embedder.
//!
//! | what | where |
//! |---|---|
//! | bounds of all modules, and of the process | [`Limits`], [`Engine`] |
//! | compiling where it harms nobody, first | [`Trial`], [`compiles`] |
//! | a module that was checked and compiled | [`Module`], [`Declaration`], [`ModuleError`] |
//! | one running instance as a handler | [`Supplied`], [`Report`] |
//! | why an instance was stopped | [`Stopped`], [`Reason`] |
//! | what happens then | [`OnStop`], [`StopPolicy`], [`Supervisor`] |
//! | a module that runs in another program, and the formats that are sent along | [`Described`], [`encode_formats`] |
//! | supplied packet plug-ins, by an ABI of their own | [`packets`] |
//! | where fields lie, for modules that serve several formats | [`Fields`], [`FieldAt`] |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

pub mod abi;
mod bridge;
mod described;
mod engine;
mod fields;
mod format_texts;
mod guest;
mod instance;
mod module;
pub mod packets;
mod report;
mod stopped;
mod supervisor;
mod supplied;

pub use csp_types::options::OnStop;

pub use abi::{Declaration, StateKind};
pub use described::Described;
pub use engine::{AdmissionError, Confinement, Engine, Limits, Trial, Usage, compiles};
pub use fields::{FieldAt, Fields, NoFields, SbeFields};
pub use format_texts::{FormatsError, encode as encode_formats};
pub use module::{Module, ModuleError, Sha256};
pub use report::{Report, ReportStatus};
pub use stopped::{Reason, Stopped};
pub use supervisor::{Backoff, Finally, Gate, StopPolicy, Supervisor};
pub use supplied::{StartError, Supplied};
