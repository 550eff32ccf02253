//! The atomics that the ring uses.

pub(crate) use std::sync::atomic::{Ordering, fence};
