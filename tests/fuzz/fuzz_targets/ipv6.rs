//! Fuzzes `csp_fuzz::ipv6`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::ipv6(bytes));
