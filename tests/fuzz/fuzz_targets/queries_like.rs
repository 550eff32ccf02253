//! Fuzzes `csp_fuzz::queries_like`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::queries_like(bytes));
