//! Fuzzes `csp_fuzz::zmtp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::zmtp(bytes));
