//! Tests of the exposition.
