//! Fuzzes `csp_fuzz::icmp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::icmp(bytes));
