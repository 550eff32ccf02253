//! What the rings take from the standard library, named here so that `tests/models` can compile them over a model checker's.

pub(super) use std::sync::atomic::{Ordering, fence};
