//! Fuzzes `csp_fuzz::ethernet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::ethernet(bytes));
