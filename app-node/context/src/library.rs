//! The built-in handlers, by name.

use csp_handlers::{Handler, builtin};

/// Creates the handler with a name; `None` if there is none.
pub type Make = fn(&str) -> Option<Box<dyn Handler>>;

/// Sources of handlers, in order. Further ones are added here.
pub const LIBRARIES: &[Make] = &[builtin::make];

/// Creates the handler with a name.
pub fn make(name: &str) -> Option<Box<dyn Handler>> {
    LIBRARIES.iter().find_map(|make| make(name))
}
