//! The handlers that the program has, by name.

use csp_handlers::{Handler, builtin};

/// Makes the handler of a name; `None`: there is no such handler.
pub type Make = fn(&str) -> Option<Box<dyn Handler>>;

/// Where handlers are looked for, in order. A library of more handlers is added here.
pub const LIBRARIES: &[Make] = &[builtin::make];

/// Makes the handler of a name.
pub fn make(name: &str) -> Option<Box<dyn Handler>> {
    LIBRARIES.iter().find_map(|make| make(name))
}
