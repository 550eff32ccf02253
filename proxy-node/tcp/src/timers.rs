//! Timers: one deadline per connection in a hierarchical wheel.

mod wheel;

pub(crate) use wheel::Wheel;
