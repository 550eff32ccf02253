//! The atomics that the rings use, in a module of their own so that `tests/models` can substitute those of a
//! model checker.

pub(super) use std::sync::atomic::{Ordering, fence};
