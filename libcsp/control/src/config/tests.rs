//! Tests of configuration files.
