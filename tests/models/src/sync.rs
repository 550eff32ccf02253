//! What the ring takes from `std::sync::atomic` elsewhere.

pub(crate) use loom::sync::atomic::{Ordering, fence};
