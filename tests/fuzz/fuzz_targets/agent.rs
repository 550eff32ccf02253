//! Fuzzes `csp_fuzz::agent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::agent(bytes));
