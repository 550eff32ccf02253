//! Fuzzes `csp_fuzz::channel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::channel(bytes));
