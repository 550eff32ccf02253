//! What the ring takes from the standard library.

pub(crate) use std::sync::atomic::{Ordering, fence};
