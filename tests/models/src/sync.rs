//! The model's replacement of the atomics that the ring uses.

pub(crate) use loom::sync::atomic::{Ordering, fence};
