//! Fuzzes `csp_fuzz::ipv4`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::ipv4(bytes));
