//! Fuzzes `csp_fuzz::arp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::arp(bytes));
