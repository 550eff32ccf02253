//! Fuzzes `csp_fuzz::context`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::context(bytes));
