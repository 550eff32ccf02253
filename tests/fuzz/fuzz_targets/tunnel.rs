//! Fuzzes `csp_fuzz::tunnel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::tunnel(bytes));
