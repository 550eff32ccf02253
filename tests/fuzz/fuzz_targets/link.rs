//! Fuzzes `csp_fuzz::link`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::link(bytes));
