//! csp-context.
fn main() {}
