//! The resource manager of a proxy worker: information flows get the contexts and the bandwidth that they are
//! promised (IQ).
//!
//! ```text
//!   descriptor ─ classify ─▶ flow ─ offer ─▶ [ waiting ] ─ take ─▶ context: handler ─ finish ─▶ [ ready ] ─ release ─▶ link
//!                                    │                       ▲ scheme                             ▲ scheme
//!                              filters, bounds               └──── resource-management points ────┘
//! ```
//! Metadata of data items go in and come out; the crate is sans-I/O: it has no clock, socket, thread or
//! message. The owner calls it between items, on the worker's time. Its memory is allocated when it is made;
//! offering, taking and releasing allocate nothing.
//!
//! | what | where |
//! |---|---|
//! | the interface to the worker | [`ResourceManager`] |
//! | what an operator says of a flow | [`FlowSpec`], [`Predicate`] |
//! | ids, generations, classification | [`FlowTable`] |
//! | which promises can be kept together | [`Plan`] |
//! | RR, EAS, SA, PA, PAR | [`Scheme`], `contexts`, `link`, `clocks` |
//! | a link's capacity among workers | [`divide`] |
//! | the link of a worker, shared by messages and byte streams | [`OutputLink`] |
//! | rates, delays, triggers | [`MonitorConfig`], [`Trigger`] |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod admission;
mod calendar;
mod classifier;
mod clocks;
mod contexts;
mod descriptor;
mod flow;
mod items;
mod link;
mod lists;
mod manager;
mod monitor;
mod output_link;
mod places;
mod scheme;
mod share;
mod table;
mod trigger;

/// The example for owners runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/quality/library.md")]
struct OwnersPage;

pub use admission::{Capacity, Cost, Left, Plan, Refusal, WINDOW};
pub use classifier::{TUPLES_MAX, TooManyTuples};
pub use descriptor::{Descriptor, FIELDS_MAX, FieldValue, Predicate, PredicateError, RANGES_MAX};
pub use flow::{
    FLOWS_MAX, FlowError, FlowErrorReason, FlowId, FlowSpec, ItemRule, NAME_LEN_MAX, Overflow,
    PRE_HANDLERS_MAX, QueueBounds, Reservation,
};
pub use items::Item;
pub use link::LinkConfig;
pub use manager::{ApplyError, Filter, Offered, QualityConfig, Released, ResourceManager, Taken};
pub use monitor::{FlowCounters, MonitorConfig, MonitorFrequency, MonitorMode, Observation};
pub use output_link::{
    FlowStatus, HANDLE_MASK, LinkClient, LinkStatus, OutputLink, SharedLink, SharedLinkConfig, Work,
};
pub use scheme::{Scheme, allot};
pub use share::{Board, DIVIDE_EVERY, Demand, divide};
pub use table::{DEFAULT_NAME, FlowTable, Run, TableError};
pub use trigger::{
    Action, Condition, Fired, Resource, TRIGGERS_MAX, Threshold, Trigger, TriggerError, dynamic_adaptation,
};
